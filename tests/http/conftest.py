"""Fixtures of the tests over real HTTP: one node in this process for each module, its stubs, and a client."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from reach.node import Node
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, running
from tests.rpc.tenancy import folder, keys, with_keys  # noqa: F401 - fixtures


def client_of(port: int, **arguments: object) -> httpx.AsyncClient:
    """A client of the HTTP door of a node."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT, **arguments)  # type: ignore[arg-type]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    if getattr(request.module, "WITH_KEYS", False):
        request.getfixturevalue("keys")
        async with with_keys(request.getfixturevalue("folder")) as made:
            yield made
        return
    async with running(tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    async with Stubs(node.port) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def http(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(node.admin_port) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs: Stubs) -> AsyncIterator[AgentByHand]:
    made = AgentByHand(stubs)
    yield made
    await made.close()
