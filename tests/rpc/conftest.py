"""Fixtures of the tests over real gRPC: one node in this process for each module, and stubs of the generated code."""

import logging
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
import pytest_asyncio

from reach.node import Node
from tests.rpc.outside import Outside, addresses
from tests.rpc.peers import CallerByHand, Stubs, running
from tests.rpc.tenancy import folder, keys, with_keys  # noqa: F401 - fixtures

NO_FAULTS = ("a task was given up",)
"""Logged as an error, and not a fault of the server."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A node that keeps everything in memory, for all tests of a module; it asks for keys where the module says
    WITH_KEYS."""
    asks_for_keys = getattr(request.module, "WITH_KEYS", False)
    if outside := addresses():
        if asks_for_keys:
            pytest.skip("no public test: its node asks for keys")
        yield cast("Node", Outside(outside))
        return
    if asks_for_keys:
        request.getfixturevalue("keys")
        async with with_keys(request.getfixturevalue("folder")) as made:
            yield made
        return
    async with running(tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    """The generated stubs of all services, to the node of the module."""
    async with Stubs(addresses() or node.port) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def caller(stubs: Stubs) -> AsyncIterator[CallerByHand]:
    """A caller with an open stream."""
    made = CallerByHand(stubs)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def in_process() -> None:
    """For tests that change how the server works, which they can in their own process only."""
    if addresses():
        pytest.skip("no public test: it changes the server")


@pytest.fixture
def no_tracebacks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """For tests of what clients do wrong: the server must not log it as a fault of its own."""
    yield
    bad = [
        record
        for record in caplog.records
        if (record.levelno >= logging.ERROR or record.exc_info) and record.getMessage() not in NO_FAULTS
    ]
    assert not bad, [(record.getMessage(), vars(record).get("frames"), record.exc_info) for record in bad[:5]]
