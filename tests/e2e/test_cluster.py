"""Three real nodes on etcd and PostgreSQL: any takes any call, and kill -9 of any loses and repeats nothing (CLU)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reach import Client, TaskState
from reach.core.placement import SHARDS
from tests import postgres
from tests.contracts.etcd_servers import EtcdServers, need_etcd
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import AgentProcess, Server, begins, eventually, tell

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 6
EACH = 30
"""Tasks that are given between two kills."""


class Nodes:
    """The nodes of one cluster."""

    def __init__(self, folder: Path, names: str = "abc") -> None:
        need_etcd()
        self.folder = folder
        self.journal = postgres.server().database()
        self.etcd = EtcdServers(folder)
        (folder / "secret").write_text("the secret of these tests")
        self.all = {name: self._node(name) for name in names}

    def _node(self, name: str) -> Server:
        where = ("--journal", self.journal, "--cluster", "etcd://" + ",".join(self.etcd.endpoints))
        who = ("--cluster-secret", str(self.folder / "secret"), "--node-id", name)
        return Server(self.folder / name, arguments=(*where, *who))

    def start(self) -> None:
        self.etcd.start_all()
        for node in self.all.values():
            node.start()
        self.settle()

    def settle(self, seconds: float = 20.0) -> None:
        """Waits until each shard has an owner that knows it."""
        eventually(lambda: sum(self.owned(name) for name in self.all) == SHARDS, "all shards are owned", seconds)

    def owned(self, name: str) -> int:
        """How many shards a node says it owns; 0 if it is not ready."""
        url = f"http://127.0.0.1:{self.all[name].admin_port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                owned = json.load(answer)["checks"]["owned"]
        except (OSError, urllib.error.HTTPError):
            return 0
        return owned if isinstance(owned, int) else 0

    def stop(self) -> None:
        for node in self.all.values():
            node.kill()
        self.etcd.kill_all()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def agents(nodes: Nodes, log: Path) -> Iterator[Callable[[str], AgentProcess]]:
    """Starts an agent at a node, and waits until it takes work."""
    with ExitStack() as stack:

        def start(name: str) -> AgentProcess:
            agent = stack.enter_context(AgentProcess(nodes.all[name].address, log))
            agent.instance()
            return agent

        yield start


@pytest.mark.timeout(120)
async def test_CLU_1_any_node_takes_any_call(nodes, agents):
    await asyncio.to_thread(agents, "a")
    shares = lambda: sorted(nodes.owned(name) for name in nodes.all)  # noqa: E731
    await asyncio.to_thread(eventually, lambda: shares() == [21, 21, 22], "all have their share")
    for name, node in nodes.all.items():
        async with Client(node.address) as client:
            result = await client.send("echo", f"by {name}", agent_type="worker", task_id=f"t-{name}")
            assert (result.state, result.text) == (TaskState.SUCCEEDED, f"by {name}")
    for node in nodes.all.values():
        async with Client(node.address) as client:
            for name in nodes.all:
                assert (await client.wait_for_result(f"t-{name}", timeout=DEADLINE)).text == f"by {name}"


@pytest.mark.timeout(240)
async def test_CLU_3_nodes_killed_under_load(nodes, agents, log):
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    chance = random.Random(seed)
    for name in "ab":
        await asyncio.to_thread(agents, name)
    wanted: dict[str, str] = {}
    async with asyncio.TaskGroup() as calls:
        clients = {name: Client(node.address, reconnect_timeout=None) for name, node in nodes.all.items()}

        async def give(client: Client, task_id: str) -> None:
            await asyncio.sleep(chance.uniform(0, 1.5))
            seconds = round(chance.uniform(0, 2), 3)
            result = await client.send(
                "sleep", {"seconds": seconds}, agent_type="worker", task_id=task_id, start_to_close=90
            )
            wanted[task_id] = f"slept {seconds}"
            assert (result.state, result.text) == (TaskState.SUCCEEDED, wanted[task_id]), task_id

        given = []
        for phase in range(KILLS):
            for number in range(EACH):
                client = clients[chance.choice("abc")]
                given.append(calls.create_task(give(client, f"{phase}-{number}")))
            await asyncio.sleep(chance.uniform(0.2, 2.0))
            victim = nodes.all[chance.choice("abc")]
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(chance.uniform(0, 3))
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(nodes.settle)
        async with asyncio.timeout(90):
            await asyncio.gather(*given)
        for client in clients.values():
            await client.close()
    begun = begins(log)
    tell(f"{len(wanted)} tasks, {KILLS} nodes killed")
    assert begun.keys() == wanted.keys()
    again = {task_id: lines for task_id, lines in begun.items() if len(lines) > 1}
    assert not again, "attempts that ran when their node died were run again"
    for node in nodes.all.values():
        assert not node.tracebacks()
