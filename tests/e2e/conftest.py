"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import postgres
from tests.e2e.nodes import Nodes
from tests.e2e.plain import Plain
from tests.e2e.processes import AgentProcess, Server, eventually

StartAgents = Callable[..., list[AgentProcess]]
AtNodes = Callable[..., list[AgentProcess]]


@pytest.fixture
def journal() -> str:
    """What the server keeps its tasks in; a test may name others by `parametrize`."""
    return "sqlite"


@pytest.fixture
def server(tmp_path: Path, journal: str) -> Iterator[Server]:
    """A server with an empty store."""
    where = postgres.server().database() if journal == "postgres" else journal
    with Server(tmp_path / "data", arguments=("--journal", where)) as made:
        yield made
        assert not made.tracebacks()


@pytest.fixture
def plain(server: Server) -> Iterator[Plain]:
    """Stubs for the server."""
    with Plain(server.address) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where agents log what they do."""
    return tmp_path / "agents.log"


@pytest.fixture
def start_agents(server: Server, plain: Plain, log: Path) -> Iterator[StartAgents]:
    """Starts agent processes with the given arguments and waits until all take work; ends them after the test."""
    with ExitStack() as stack:

        def start(count: int, *arguments: str, wait: bool = True) -> list[AgentProcess]:
            known = set(plain.free())
            made = [stack.enter_context(AgentProcess(server.address, log, *arguments)) for _ in range(count)]
            if wait:
                eventually(lambda: len(set(plain.free()) - known) >= count, f"{count} agents take work")
            return made

        yield start


@pytest.fixture
def members() -> int:
    """Of etcd, where there are nodes; a test may name others by `parametrize`."""
    return 1


@pytest.fixture
def nodes(tmp_path: Path, members: int) -> Iterator[Nodes]:
    """Three nodes of a cluster, each with its share."""
    made = Nodes(tmp_path, members=members)
    try:
        made.start()
        yield made
        assert not [line for node in made.all.values() for line in node.tracebacks()]
    finally:
        made.stop()


@pytest.fixture
def agents(nodes: Nodes, log: Path) -> Iterator[AtNodes]:
    """Starts one agent of each type at each of the nodes that are named, `agents("ab", "reader")`, and waits until they
    are up; more arguments are the agents'."""
    with ExitStack() as stack:

        def start(at: str, agent_type: str = "worker", *arguments: str) -> list[AgentProcess]:
            who = ("--agent", agent_type, "--type", agent_type, *arguments)
            made = [stack.enter_context(AgentProcess(nodes.all[name].address, log, *who)) for name in at]
            for agent in made:
                agent.instance()
            return made

        yield start
