"""A whole cluster as processes on this machine: nodes, the members of etcd, PostgreSQL.

    cluster = LocalCluster(folder, free=True)
    try:
        cluster.start()
        client = SyncClient(cluster.nodes["a"].address)
    finally:
        cluster.stop()

Its data stays in the folder, and it can be started again there. `make cluster` is `python -m reach.testing.cluster`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from reach.cli.demo_processes import signals_held
from reach.core.placement import SHARDS
from reach.testing.server import LocalServer
from reach.testing.services import STOP_SECONDS, EtcdMembers, NotInstalled, PostgresServer, free_ports

SETTLE_SECONDS: Final = 30.0
"""How long it may take until each shard has an owner: a node's lease may have to lapse first."""
DRAIN_SECONDS: Final = 3
"""How long nodes let running work finish when all stop at once: it goes on at the agents anyway."""
STATE: Final = "cluster.json"
"""Who runs, for those who look, and for the next start if this one is killed."""
BASE: Final = 8900


class Ports(NamedTuple):
    """Where everything listens, on loopback."""

    grpc: list[int]
    http: list[int]
    etcd: list[int]
    """Of clients, then of members among each other."""
    postgres: int

    @classmethod
    def from_base(cls, base: int, nodes: int, members: int) -> Ports:
        """With base 8900: gRPC 8901 to 8903, HTTP 8801 to 8803, etcd 8911 to 8913 and 8921 to 8923, PostgreSQL 8930."""
        etcd = [*range(base + 11, base + 11 + members), *range(base + 21, base + 21 + members)]
        http = range(base - 99, base - 99 + nodes)
        return cls(list(range(base + 1, base + 1 + nodes)), list(http), etcd, base + 30)

    @classmethod
    def free(cls, nodes: int, members: int) -> Ports:
        """Some that nobody listens on now."""
        found = free_ports(2 * nodes + 2 * members + 1)
        return cls(found[:nodes], found[nodes : 2 * nodes], found[2 * nodes : -1], found[-1])

    def all(self) -> list[int]:
        """All of them."""
        return [*self.grpc, *self.http, *self.etcd, self.postgres]


class LocalCluster:
    """See the module. Belongs to the main thread: signals wait where one could part a process from the note of it.

    Args:
        folder: Where data and logs are. It may be one that was used before.
        nodes: How many.
        members: How many members of etcd: 1 or 3.
        base: Moves the ports: see `Ports.from_base`.
        free: Takes free ports instead; the folder must be a new one, as etcd keeps its addresses.
    """

    def __init__(self, folder: Path, *, nodes: int = 3, members: int = 3, base: int = BASE, free: bool = False) -> None:
        self.folder = folder.resolve()
        self.ports = Ports.free(nodes, members) if free else Ports.from_base(base, nodes, members)
        self.postgres = PostgresServer(self.folder / "postgres", self.ports.postgres, durable=True, own_session=True)
        etcd = self.folder / "etcd"
        self.etcd = EtcdMembers(etcd, members, ports=self.ports.etcd, own_session=True)
        secret, endpoints = self.folder / "secret", ",".join(self.etcd.endpoints)
        where = ("--journal", self.postgres.address("reach"), "--cluster", f"etcd://{endpoints}")
        drain = {"AGENT_REACH_SERVER_DRAIN_SECONDS": str(DRAIN_SECONDS)}
        self.nodes: dict[str, LocalServer] = {}
        for number in range(nodes):
            name = chr(ord("a") + number)
            who = ("--cluster-secret", str(secret), "--node-id", name, "--log-format", "json")
            node = LocalServer(self.folder / f"node-{name}", (*where, *who), drain, own_session=True)
            node.port, node.admin_port = self.ports.grpc[number], self.ports.http[number]
            self.nodes[name] = node
        self._secret = secret
        self._lock = -1

    @property
    def addresses(self) -> list[str]:
        """Of the nodes, for clients."""
        return [node.address for node in self.nodes.values()]

    def start(self) -> None:
        """Starts everything, and returns when each shard has an owner.

        Raises:
            NotInstalled: etcd or PostgreSQL is not on this machine.
            RuntimeError: it cannot be started here; the message says why.
        """
        self._prepare()
        self.postgres.prepare()
        with signals_held():
            self.etcd.start_all()
        with signals_held():  # PostgreSQL is there in a second, or has failed
            self.postgres.start()
        self.postgres.create("reach")
        with signals_held():
            for node in self.nodes.values():
                node.spawn()
        for node in self.nodes.values():
            node.await_serving()
        self.settle()

    def _prepare(self) -> None:
        """A folder that is ours, ports that are free."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _refuse_shut_folders(self.folder)
        self._take_lock()
        end_left_behind(self.folder, self.ports.all())
        (self.folder / "etcd").mkdir(exist_ok=True)
        if not self._secret.exists():
            with os.fdopen(os.open(self._secret, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        if taken := [port for port in self.ports.all() if _is_taken(port)]:
            raise RuntimeError(f"somebody listens on {', '.join(map(str, taken))}: choose other ports with --base")

    def _take_lock(self) -> None:
        """Held until `stop`, or until this process is no more."""
        self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise RuntimeError(f"a cluster runs in {self.folder} already: its {STATE} says where") from None

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Returns when each shard has an owner that knows it.

        Raises:
            RuntimeError: that takes too long.
        """
        end = time.monotonic() + seconds
        while sum(self.owned(name) for name in self.nodes) != SHARDS:
            if time.monotonic() > end:
                raise RuntimeError(f"not all shards have an owner after {seconds:g} s: see {self.folder}/node-*/*.log")
            time.sleep(0.1)  # nobody tells when they do
        self.note()

    def owned(self, name: str) -> int:
        """How many shards a node says it owns; 0 if it is not ready."""
        if not self.nodes[name].running:
            return 0
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.nodes[name].admin_port}/readyz", timeout=1) as answer:
                owned = json.load(answer)["checks"]["owned"]
        except (OSError, urllib.error.HTTPError, ValueError):
            return 0
        return owned if isinstance(owned, int) else 0

    def restart(self, name: str) -> None:
        """Starts a node that has ended, without waiting."""
        with signals_held():
            self.nodes[name].spawn()
            self.note()

    def processes(self) -> dict[str, int]:
        """What runs now: its name and process id."""
        running = {f"node-{name}": node.pid for name, node in self.nodes.items() if node.running}
        members = {f"etcd-{number}": one.pid for number, one in enumerate(self.etcd.processes) if one is not None}
        database = self.postgres.process
        return running | members | ({"postgres": database.pid} if database is not None else {})

    def note(self) -> None:
        """Writes down who runs, in `cluster.json`."""
        known: dict[str, Any] = {
            "addresses": self.addresses,
            "http": [f"127.0.0.1:{port}" for port in self.ports.http],
            "etcd": self.etcd.endpoints,
            "postgres": self.postgres.address("reach"),
            "processes": self.processes(),
        }
        (self.folder / STATE).write_text(json.dumps(known, indent=2) + "\n")

    def stop(self) -> None:
        """Ends everything, nodes first; what they know stays in the folder. Safe to call twice."""
        if self._lock < 0:
            return
        with signals_held():
            for node in self.nodes.values():
                if node.running:
                    node.ask_to_stop()
            for node in self.nodes.values():
                try:
                    node.stop()
                except subprocess.TimeoutExpired:
                    node.kill()
            self._stop_etcd()
            self.postgres.stop()
            (self.folder / STATE).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def _stop_etcd(self) -> None:
        for process in self.etcd.processes:
            if process is not None and process.poll() is None:
                process.terminate()
        for number, process in enumerate(self.etcd.processes):
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed next
                    process.wait(STOP_SECONDS)
                self.etcd.kill(number)


def end_left_behind(folder: Path, ports: Sequence[int]) -> None:
    """Ends what is left of a cluster whose owner was killed: processes that were noted, if they still have this folder
    in their command line. A process has lost its command line a moment before its ports are free."""
    state = folder / STATE
    if not state.exists():
        return
    noted = json.loads(state.read_text())["processes"]
    left = {name: int(pid) for name, pid in noted.items() if str(folder) in _command_of(int(pid))}
    for name, pid in left.items():
        os.kill(pid, signal.SIGQUIT if name == "postgres" else signal.SIGKILL)  # PostgreSQL has children to end
    end = time.monotonic() + STOP_SECONDS
    while left and any(map(_is_taken, ports)) and time.monotonic() < end:
        time.sleep(0.02)  # nobody tells when the last of them is gone
    state.unlink()


def _command_of(pid: int) -> str:
    """Empty where it has ended, or cannot be looked up."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _refuse_shut_folders(folder: Path) -> None:
    """PostgreSQL does not run as root, so root's cluster must be where others may look."""
    shut = [one for one in (folder, *folder.parents) if not one.stat().st_mode & 0o001]
    if os.getuid() == 0 and shut:
        raise RuntimeError(f"PostgreSQL runs as the user postgres, who may not enter {shut[-1]}: choose another folder")


__all__ = ["LocalCluster", "NotInstalled", "Ports"]
