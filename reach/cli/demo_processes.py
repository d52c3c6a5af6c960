"""The processes of `reach demo`: agents, and a server unless one is given, in a folder that goes away with them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from reach.errors import Reason, Unavailable

START_S: Final = 20.0
"""How long the server or the agents may take to be there."""
_STEP_S: Final = 0.03
_KEY: Final = "AGENT_REACH_API_KEY"
_SERVER: Final = "server"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGENT_GRACE_S: Final = 3.0
_SERVER_GRACE_S: Final = 5.0

AGENTS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("doc-summarizer-1", "summarizer", ("--pace", "0.25")),
    ("doc-summarizer-2", "summarizer", ("--pace", "0.25")),
    ("order-reports-1", "report", ()),
    ("code-reviewer-1", "reviewer", ()),
)
"""Instance, module of `reach.demo_agents`, options."""


class DemoProcesses:
    """Starts them, and ends each by its process id, whatever happens: call `stop` in a `finally`.

    Belongs to the main thread: signals are held back where one could part a process from the note of it.

    Args:
        servers: Of others, to be used; none: one is started.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self.servers = list(servers)
        """Where tasks are given; agents are spread over them."""
        self.given = bool(servers)
        self.agents = {name: name for name, *_ in AGENTS}
        """Instance by its name here. Those at a server of others are told apart from those of other demos."""
        if servers:
            mark = secrets.token_hex(3)
            self.agents = {name: f"{name}-{mark}" for name in self.agents}
        self._folder: Path | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def folder(self) -> Path:
        """Where everything of the demo is."""
        assert self._folder is not None
        return self._folder

    def prepare(self) -> None:
        """Makes the folder."""
        with signals_held():
            self._folder = Path(tempfile.mkdtemp(prefix="reach-demo-"))

    def start_server(self) -> None:
        """Starts a server on ports that are free, and returns when it serves."""
        options = ["--data", str(self.folder / "data"), "--log-level", "info", "--log-format", "json"]
        ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
        server = self._spawn(_SERVER, ["reach.cli", "serve", *ports, *options])
        end = time.monotonic() + START_S
        while not (port := self._port_in_log()):
            if server.poll() is not None or time.monotonic() > end:
                raise Unavailable(f"the server did not start:\n{self._log_of(_SERVER)}", Reason.AGENT_UNAVAILABLE)
            time.sleep(_STEP_S)  # its log is all that it says before it serves
        self.servers = [f"127.0.0.1:{port}"]

    def start_agents(self) -> None:
        """Starts the agents; `missing` says which are not there yet."""
        for number, (name, module, options) in enumerate(AGENTS):
            instance_id = self.agents[name]
            spread = self.servers[number % len(self.servers) :] + self.servers[: number % len(self.servers)]
            names = ["--addr", ",".join(spread), "--instance-id", instance_id]
            self._spawn(instance_id, [f"reach.demo_agents.{module}", *names, *options])

    def await_agents(self, server: Any) -> None:
        """Returns when all agents take work. `server`: a Connection."""
        from agentreach.v1 import registry_pb2, registry_pb2_grpc

        stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
        end = time.monotonic() + START_S
        while True:
            found = server.ask(stub.ListAgents, registry_pb2.ListAgentsRequest()).agents
            ready = {agent.registration.instance_id for agent in found if not agent.blocked_by}
            if ready >= set(self.agents.values()):
                return
            for instance_id, process in self._processes.items():
                if process.poll() is not None or time.monotonic() > end:
                    text = f"agent {instance_id} did not join:\n{self._log_of(instance_id)}"
                    raise Unavailable(text, Reason.AGENT_UNAVAILABLE)
            time.sleep(_STEP_S)  # nobody tells when the last of them is there

    def kill(self, instance_id: str) -> int | None:
        """Ends an agent as a crash does; its process id, or None if it is not one of ours or not there."""
        process = self._processes.get(instance_id)
        if process is None or process.poll() is not None:
            return None
        process.send_signal(signal.SIGKILL)
        return process.pid

    def stop(self) -> None:
        """Ends all processes, the server last, and removes the folder. Safe to call twice."""
        with signals_held():
            server = self._processes.pop(_SERVER, None)
            _end(list(self._processes.values()), _AGENT_GRACE_S)
            self._processes.clear()
            if server is not None:
                _end([server], _SERVER_GRACE_S)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        # What our environment says of servers and keys is not meant for a server of our own. -P: a file in the working
        # folder that is named like a module of ours is not one. A session of its own: Ctrl-C is for us, we end the
        # others.
        kept = {_KEY} if self.given else set()
        environment = {
            key: value for key, value in os.environ.items() if key in kept or not key.startswith("AGENT_REACH_")
        }
        with (self.folder / f"{name}.log").open("wb") as log, signals_held():
            process = self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return process

    def _port_in_log(self) -> int:
        """The port that the server says it listens on; 0 if it does not yet."""
        for line in (self.folder / f"{_SERVER}.log").read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("message") == "serving":
                return int(record["fields"]["grpc"])
        return 0

    def _log_of(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text("utf-8", "replace")
        return text[-2000:].strip() or "(it said nothing)"


def _end(processes: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Asks them to end, and makes them after a while."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that would end us wait until this is over."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
