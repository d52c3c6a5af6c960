"""A real server and a fake agent for the tests of the command line, and a way to run commands in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from reach.cli.app import run
from reach.testing.server import LocalServer


@dataclass(slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The one JSON document it printed."""
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines it printed."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own settings."""
    for name in list(os.environ):
        if name.startswith("AGENT_REACH_"):
            monkeypatch.delenv(name)


@pytest.fixture
def reach(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process."""

    def command(*arguments: str) -> Ran:
        capfd.readouterr()
        code = run(arguments)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return command


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A real server with an empty store."""
    with LocalServer() as made:
        yield made


@pytest.fixture
def on(server: LocalServer, reach: Command) -> Command:
    """Runs a command against the server."""

    def command(*arguments: str) -> Ran:
        return reach("--addr", server.address, *arguments)

    return command


class EchoAgent:
    """`reach agents echo` as a process of its own."""

    def __init__(self, address: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "reach.cli", "agents", "echo", "--addr", address, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def echo_agents(server: LocalServer) -> Iterator[Callable[..., EchoAgent]]:
    """Starts fake agents and waits until they take work. `name` is the agent_id; the instance has the same name."""
    made: list[EchoAgent] = []

    def start(name: str, *arguments: str) -> EchoAgent:
        agent = EchoAgent(server.address, "--agent-id", name, "--instance-id", name, *arguments)
        made.append(agent)
        wait_for_instances(server.address, [name])
        return agent

    yield start
    for agent in made:
        agent.end()


def wait_for_instances(address: str, names: Sequence[str]) -> None:
    """Returns when these instances take work."""
    from agentreach.v1 import registry_pb2, registry_pb2_grpc
    from reach.cli.settings import Settings

    end = time.monotonic() + 20
    with Settings(addr=address).connect() as connection:
        stub = registry_pb2_grpc.RegistryServiceStub(connection.channel)
        while True:
            found = connection.ask(stub.ListAgents, registry_pb2.ListAgentsRequest()).agents
            ready = {agent.registration.instance_id for agent in found if not agent.blocked_by}
            if ready >= set(names):
                return
            assert time.monotonic() < end, f"{set(names) - ready} did not join"
            time.sleep(0.05)
