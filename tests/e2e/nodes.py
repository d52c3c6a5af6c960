"""The nodes of one cluster as real processes, on real etcd and PostgreSQL, and what must hold of their claims."""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg

from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of
from tests import postgres
from tests.contracts.etcd_servers import EtcdServers, need_etcd
from tests.e2e.processes import Server, eventually, free_port

LEASE_S = int(os.environ.get("LEASE_SECONDS", "3"))
"""Of a node. The default of the product is 2; `make cluster-test` takes that. Where tests run beside each other, a node
may not come to say a word for so long."""


class Node(Server):
    """One node. `host` is what it listens on, `within` a command that runs it elsewhere."""

    host = "127.0.0.1"
    within: Sequence[str] = ()
    tls: ssl.SSLContext | None = None
    """How its HTTP is spoken to; None: without TLS."""

    @property
    def address(self) -> str:
        """Where it serves gRPC."""
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        """The command line that starts it."""
        return [*self.within, *super().command()]

    def freeze(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._process is not None

    def checks(self) -> dict[str, Any]:
        """What `/readyz` tells; nothing if it does not answer."""
        try:
            where = f"{'http' if self.tls is None else 'https'}://{self.host}:{self.admin_port}/readyz"
            with urllib.request.urlopen(where, timeout=1, context=self.tls) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refusal:
            text = refusal.read()
        except OSError:
            return {}
        checks: dict[str, Any] = json.loads(text)["checks"]
        return checks

    def owned(self) -> int:
        """How many shards it says it owns; 0 if it does not know."""
        owned = self.checks().get("owned", 0)
        return owned if isinstance(owned, int) else 0

    def records(self, message: str) -> list[dict[str, Any]]:
        """What it logged with this message, all processes of it, in order."""
        lines = (json.loads(line) for line in self.log_text().splitlines() if message in line)
        return [line for line in lines if line["message"] == message]


class Nodes:
    """See the module.

    Args:
        folder: Of the test.
        names: Of the nodes.
        members: Of etcd.
        etcd: Which it is, in place of one of the test's own; not started.
        database: Which it is, in place of the one of this run; running.
    """

    agents_at = "127.0.0.1"
    """Where agents that are dialled listen."""

    def __init__(
        self,
        folder: Path,
        names: str = "abc",
        members: int = 1,
        etcd: EtcdServers | None = None,
        database: postgres.Server | None = None,
    ) -> None:
        need_etcd()
        self.folder = folder
        self.database = database or postgres.server()
        self.journal = self.database.database()
        # Ports that stay its own while it is down, as those of the database are.
        self.etcd = etcd or EtcdServers(folder, members, ports=[free_port() for _ in range(2 * members)])
        (folder / "secret").write_text("the secret of these tests")
        self.all = {name: self.made(name) for name in names}

    def made(self, name: str, *more: str) -> Node:
        """A node that is not started; `more` are arguments of `reach serve`."""
        where = ("--journal", self.journal, "--cluster", "etcd://" + ",".join(self.etcd.endpoints))
        who = ("--cluster-secret", str(self.folder / "secret"), "--node-id", name)
        return Node(self.folder / name, {"AGENT_REACH_CLUSTER_LEASE": str(LEASE_S)}, (*where, *who, *more))

    def start(self) -> None:
        """Starts all, and returns when each has its share."""
        self.etcd.start_all()
        at_once(node.start for node in self.all.values())
        self.settle()

    def settle(self, seconds: float = 20.0) -> None:
        """Waits until each shard has an owner that knows it, and all that run own about as many."""
        running = [node for node in self.all.values() if node.running]
        fair = {SHARDS // len(running), -(-SHARDS // len(running))}

        def shared() -> bool:
            owned = [node.owned() for node in running]
            return sum(owned) == SHARDS and fair.issuperset(owned)

        eventually(shared, "all shards are owned, each node has its share", seconds)

    def owned(self, name: str) -> int:
        """How many shards a node says it owns; 0 if it is not ready."""
        return self.all[name].owned()

    def served_by(self) -> dict[int, str]:
        """By shard, the node that served it last, as they logged it."""
        return {shard: names[0] for (shard, _), names in sorted(self.claims().items())}

    def type_at(self, name: str, word: str = "type") -> str:
        """A type of agents whose pool a node owns."""
        served = self.served_by()
        types = (f"{word}-{number}" for number in range(1_000))
        return next(one for one in types if served.get(shard_of(PoolKey("default", one))) == name)

    async def epochs(self) -> dict[int, int]:
        """Epoch by shard, as the journal has it."""
        connection = await asyncpg.connect(self.journal, timeout=5)
        try:
            return dict(await connection.fetch("select shard, epoch from shard"))
        finally:
            await connection.close()

    def claims(self) -> dict[tuple[int, int], list[str]]:
        """Which nodes served a shard in which epoch, as they logged it."""
        found = defaultdict(list)
        for name, node in self.all.items():
            for record in node.records("shards came"):
                for shard, epoch in record["fields"]["epochs"].items():
                    found[int(shard), epoch].append(name)
        return found

    def moves(self) -> int:
        """How often shards were claimed."""
        return len(self.claims())

    def one_owner_each(self) -> int:
        """Checks that no shard had two owners in one epoch; returns how often shards were claimed."""
        claims = self.claims()
        doubled = {key: names for key, names in claims.items() if len(names) != 1}
        assert not doubled, f"(shard, epoch) with other than one owner: {doubled}"
        return len(claims)

    def stop(self) -> None:
        """Ends all, whatever they are doing."""
        for node in self.all.values():
            node.kill()
        self.etcd.kill_all()


def at_once(work: Sequence[Callable[[], object]] | Any) -> None:
    """Does all of it beside each other; raises what one of them raised."""
    with ThreadPoolExecutor() as threads:
        for doing in [threads.submit(one) for one in work]:
            doing.result()
