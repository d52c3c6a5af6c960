"""A pytest plugin for your own tests: `pytest_plugins = ["reach.testing.plugin"]` in conftest.py.

def test_my_agent(reach_server):
    with SyncClient(reach_server.address) as client:
        ...
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reach.testing.server import LocalServer


@pytest.fixture
def reach_server() -> Iterator[LocalServer]:
    """A real server with an empty store, for one test."""
    with LocalServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_reach_server() -> Iterator[LocalServer]:
    """A real server for all tests of the run that do not mind each other; quicker."""
    with LocalServer() as server:
        yield server
