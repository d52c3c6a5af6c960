"""Nodes of one cluster in memory: who owns what, who takes over, and what all know of the agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from agentreach.v1 import agent_pb2
from reach.cluster.base import AgentChange, AgentKey, NodeInfo
from reach.cluster.leader import Leader
from reach.cluster.single import Memory, SingleCluster
from reach.core import events as ev
from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of
from reach.core.resolving import Selector
from reach.core.stream import Interest
from reach.runtime.claims import SURE_MS
from reach.runtime.member import Member, Record, read
from reach.runtime.ownership import NOBODY
from reach.store.memory_shared import MemoryShared
from reach.wire.agents import read_registration
from tests.runtime.claiming import Link, Node
from tests.runtime.hosts import TENANT

WORKER = PoolKey(TENANT, "worker")


class Joined(Node):
    """A node that is a member."""

    def __init__(self, name: str, shared: MemoryShared, memory: Memory, boot: str) -> None:
        super().__init__(shared)
        self.name = name
        self.cluster = SingleCluster(memory)
        self.info = NodeInfo(name, boot, f"{name}:1")
        self.member = Member(self.host, self.claims, self.cluster, self.info)
        self._tasks = [
            asyncio.create_task(self.member.run()),
            asyncio.create_task(Leader(self.cluster, self.clock.now_ms, settle_ms=0).run()),
        ]

    def kill(self) -> None:
        """Its process is gone; its lease is not yet."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop()


class Nodes:
    """Those there are."""

    def __init__(self) -> None:
        self.memory, self.shared = Memory(), MemoryShared()
        self.all: dict[str, Joined] = {}

    def add(self, name: str, boot: str = "") -> Joined:
        node = self.all[name] = Joined(name, self.shared, self.memory, boot or f"boot of {name}")
        return node

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                for node in self.all.values():
                    await node.settle(2)
                await asyncio.sleep(0.001)

    async def until_all_is_owned(self) -> None:
        def owned_once() -> bool:
            shards = [shard for node in self.all.values() for shard in node.claims.owned]
            return sorted(shards) == list(range(SHARDS))

        await self.until(owned_once)

    async def beside(self, work: Awaitable[None]) -> None:
        """Lets all go on while this is awaited."""
        done = asyncio.ensure_future(work)
        await self.until(done.done)
        await done

    def owner(self, key: PoolKey) -> Joined:
        return next(node for node in self.all.values() if shard_of(key) in node.claims.owned)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    found = Nodes()
    for name in ("a", "b", "c"):
        found.add(name)
    await found.until_all_is_owned()
    yield found
    for node in found.all.values():
        await node.stop()


async def test_CLU_1_each_shard_has_one_owner_and_all_know_it(nodes: Nodes) -> None:
    assert sorted(len(node.claims.owned) for node in nodes.all.values()) == [21, 21, 22]
    for node in nodes.all.values():
        for shard in range(SHARDS):
            peer = node.member.node_of(shard)
            owner = node.name if peer is None else peer.node_id
            assert shard in nodes.all[owner].claims.owned
        assert len(node.member.others()) == 2


async def test_CLU_3_the_others_take_what_a_dead_node_had(nodes: Nodes) -> None:
    dead = nodes.owner(PoolKey(TENANT, "nobody"))
    dead.submit("t", Interest.OUTCOME)
    await nodes.until(lambda: dead.store.find(TENANT, "t") is not None)
    dead.kill()
    del nodes.all[dead.name]
    nodes.memory.expire(dead.name, dead.info.boot)
    await nodes.until_all_is_owned()
    heir = nodes.owner(PoolKey(TENANT, "nobody"))
    assert (TENANT, "t") in heir.host.tasks
    await dead.stop()


async def test_CLU_4_who_joins_gets_a_fair_share_and_nothing_else_moves(nodes: Nodes) -> None:
    before = {node.name: node.claims.owned for node in nodes.all.values()}
    nodes.add("d")
    await nodes.until(lambda: len(nodes.all["d"].claims.owned) == 16)
    await nodes.until_all_is_owned()
    for name, owned in before.items():
        assert nodes.all[name].claims.owned <= owned


async def test_CLU_4_who_leaves_hands_over_first(nodes: Nodes) -> None:
    node = nodes.all["b"]
    had: list[int] = []

    def look() -> None:
        if "b" not in nodes.memory.nodes:
            had.append(len(node.claims.owned))

    nodes.memory.nodes_changed.add(look)
    await nodes.beside(node.member.leave())
    assert had == [0], "when it went it had nothing left"
    await nodes.until_all_is_owned()


async def test_CLU_4_who_leaves_waits_for_nobody_who_leaves_as_well(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    async def all_leave() -> None:
        await asyncio.gather(*(node.member.leave() for node in nodes.all.values()))

    await nodes.beside(all_leave())
    assert "without handing over" not in caplog.text
    assert not nodes.memory.nodes


async def test_CLU_4_who_does_not_reach_the_journal_loses_what_it_has_to_those_who_do(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reach.runtime.member.UNREACHABLE_MS", SURE_MS + 50)
    cut_off = nodes.all["b"]
    cut_off.store.cut_off = True
    cut_off.clock.ahead_ms = SURE_MS + 500
    await nodes.until(lambda: sum(len(nodes.all[name].claims.owned) for name in "ac") == SHARDS)
    assert not nodes.memory.nodes["b"].store_reachable
    cut_off.store.cut_off = False
    await nodes.until(lambda: len(cut_off.claims.owned) in (21, 22))
    await nodes.until_all_is_owned()


async def test_CLU_4_who_reaches_the_journal_again_says_so_until_all_know(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: what was said while the lease was late was never said again."""
    monkeypatch.setattr("reach.runtime.member.UNREACHABLE_MS", SURE_MS + 50)
    monkeypatch.setattr("reach.runtime.member.PUBLISH_SECONDS", 0.01)
    node = nodes.all["b"]
    node.store.cut_off = True
    node.clock.ahead_ms = SURE_MS + 500
    await nodes.until(lambda: sum(len(nodes.all[name].claims.owned) for name in "ac") == SHARDS)
    lost: list[NodeInfo] = []

    async def forgets(info: NodeInfo) -> None:
        lost.append(info)
        monkeypatch.undo()

    monkeypatch.setattr(node.cluster.membership, "update", forgets)
    node.store.cut_off = False
    await nodes.until(lambda: bool(lost))
    assert lost[0].store_reachable
    await nodes.until(lambda: len(node.claims.owned) in (21, 22))


async def test_CLU_2_of_two_processes_with_one_name_the_later_one_owns(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    first = nodes.all.pop("b")
    second = nodes.add("b", "boot-later")
    nodes.all["first"] = first
    await nodes.until(lambda: not first.claims.owned and len(second.claims.owned) in (21, 22))
    epochs = second.store.epochs()
    for _ in range(5):
        await first.confirm()
        await second.confirm()
    assert second.store.epochs() == epochs
    assert [record.levelname for record in caplog.records if "--node-id" in record.message] == ["CRITICAL"]


async def test_CLU_4_without_the_service_nothing_moves(nodes: Nodes) -> None:
    before = {node.name: node.claims.owned for node in nodes.all.values()}
    for node in nodes.all.values():
        await node.confirm()
    assert {node.name: node.claims.owned for node in nodes.all.values()} == before


async def test_CLU_1_a_shard_that_is_on_its_way_is_nobodys(nodes: Nodes) -> None:
    node = nodes.all["a"]
    missing = next(iter(nodes.all["b"].claims.owned))
    nodes.all["b"].kill()
    nodes.memory.nodes.pop("b")
    nodes.memory.nodes_changed.tell()
    assert node.member.node_of(missing) == NOBODY


async def test_REG_8_all_know_the_agents_of_all(nodes: Nodes) -> None:
    owner = nodes.owner(WORKER)
    registration = agent_pb2.Registration(agent_id="worker", boot_id="boot", instance_id="w1", ready=True)
    registration.capabilities.add(name="work")
    owner.reach.hello(TENANT, *read_registration(registration), Link(), [], {})
    others = [node for node in nodes.all.values() if node is not owner]
    await nodes.until(lambda: all(node.host.directory.where(TENANT, "w1") == WORKER for node in others))
    for node in others:
        assert node.host.directory.resolve(TENANT, Selector(agent_type="worker")).pools == (WORKER,)
    revision = nodes.memory.revision
    await asyncio.sleep(0.6)
    assert nodes.memory.revision == revision, "what does not change is not written"
    late = msgspec.msgpack.encode(Record("worker", "before", b""))  # a write that was held up on its way
    await others[0].cluster.registry.publish([AgentChange(AgentKey(TENANT, "w1"), late)])
    await nodes.until(lambda: read(nodes.memory.agents[AgentKey(TENANT, "w1")]).boot_id == "boot")
    owner.kill()
    del nodes.all[owner.name]
    nodes.memory.expire(owner.name, owner.info.boot)
    await nodes.until_all_is_owned()
    heir = nodes.owner(WORKER)
    pool = heir.host.pool(WORKER)
    heir.reach.post(pool, ev.Left(pool.instances["w1"]))
    await nodes.until(lambda: not nodes.memory.agents)
    await nodes.until(lambda: all(node.host.directory.where(TENANT, "w1") is None for node in nodes.all.values()))
    await owner.stop()


async def test_DLV_13_what_a_living_node_is_to_give_up_is_waited_for(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes it away by force, neither from who leaves nor for who joins."""
    forced: list[set[int]] = []

    def watch(node: Joined) -> None:
        honest = node.store.claim

        def claim(shards: frozenset[int], holder: str = "") -> dict[int, int]:
            forced.append({shard for shard, process in node.store.holders(shards).items() if process != holder})
            return honest(shards, holder)

        monkeypatch.setattr(node.store, "claim", claim)

    for node in nodes.all.values():
        watch(node)
    await nodes.beside(nodes.all["b"].member.leave())
    await nodes.until_all_is_owned()
    watch(nodes.add("d"))
    await nodes.until(lambda: len(nodes.all["d"].claims.owned) == SHARDS // 3)
    assert forced
    assert not any(forced)


def patience(nodes: Nodes) -> list[str]:
    """The processes that are waited for."""
    patient: list[str] = []
    for node in nodes.all.values():
        honest = node.claims.gives_up

        def gives_up(process: str, honest: Any = honest) -> bool:
            found: bool = honest(process)
            if found:
                patient.append(process)
            return found

        node.claims.gives_up = gives_up
    return patient


async def test_CLU_6_a_node_of_an_earlier_version_ends_nothing_that_others_have_open_there(nodes: Nodes) -> None:
    earlier = nodes.all["b"]
    assert nodes.all["a"].member.hands_over("b")
    earlier.member._info = earlier.member._info._replace(hands_over=False)
    await earlier.cluster.membership.update(earlier.member._info)
    assert not nodes.all["a"].member.hands_over("b")
    assert nodes.all["a"].member.hands_over("c")


async def test_CLU_3_a_dead_node_is_not_waited_for(nodes: Nodes) -> None:
    patient = patience(nodes)
    dead = nodes.all.pop("b")
    dead.kill()
    nodes.memory.expire("b", dead.info.boot)
    await nodes.until_all_is_owned()
    assert patient == []
    await dead.stop()


async def test_CLU_3_a_node_that_dies_before_it_has_handed_over_is_told_of(nodes: Nodes) -> None:
    """Others have left it what they have open there, for it was to end that itself."""
    node, moved = nodes.all["a"], list[int]()
    had = nodes.all["b"].claims.owned
    nodes.add("d")
    await nodes.until(lambda: len(nodes.all["d"].claims.owned) == 16)
    await nodes.until_all_is_owned()
    given = had - nodes.all["b"].claims.owned
    assert given
    node.member.watch(moved.append)
    dead = nodes.all.pop("b")
    dead.kill()
    nodes.memory.expire("b", dead.info.boot)
    assert set(moved) >= given
    await dead.stop()


async def test_DLV_13_a_node_that_leaves_has_ended_what_others_had_open_there(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said last is on its way: nobody cuts it off."""
    node, moved, told = nodes.all["a"], list[int](), list[list[int]]()
    membership = nodes.all["b"].cluster.membership
    honest = membership.leave

    async def leave() -> None:
        moved.clear()
        await honest()
        told.append(list(moved))

    monkeypatch.setattr(membership, "leave", leave)
    node.member.watch(moved.append)
    await nodes.beside(nodes.all["b"].member.leave())
    assert told == [[]]
