"""Fixtures of the tests of transports: one node in this process for each module, and stubs of the generated code."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from reach.node import Node
from tests.rpc.peers import Stubs, running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A node that keeps everything in memory, without authentication, for all tests of a module."""
    async with running(
        tmp_path_factory.mktemp("node"),
        probe__interval=0.3,
        probe__retry_interval=0.1,
        probe__unreachable_interval=0.5,
        probe__timeout=0.3,
        probe__check_interval=0.5,
    ) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    """The generated stubs of all services, on one channel to the node of the module."""
    async with Stubs(node.port) as made:
        yield made
