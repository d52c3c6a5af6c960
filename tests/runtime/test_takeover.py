"""Shards that hold very much come to a node that serves others: two real hosts over one journal in memory (CLU-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentreach.v1 import task_pb2
from reach.core.context import Exchange, Facts, Said
from reach.core.directory import UNRESOLVED
from reach.core.effects import Turn
from reach.core.homes import Accepted
from reach.core.intents import Routes
from reach.core.model import PoolKey, TaskState
from reach.core.placement import shard_of, shard_of_session
from reach.core.restore import GRACE_MS
from reach.core.stream import Interest, Reader
from reach.runtime import takeover
from reach.runtime.claims import CONFIRM_SECONDS, SURE_MS
from reach.runtime.ownership import NOBODY, Peer, Static
from reach.runtime.takeover import BROUGHT
from reach.store.base import StoreUnavailable
from tests.runtime.claiming import ALL, Node, two_nodes
from tests.runtime.hosts import READER, TENANT
from tests.runtime.test_claims import attach

DEEP = PoolKey(TENANT, "nobody")
SHARD = shard_of(DEEP)
SAID = Exchange("t", "agent", TaskState.SUCCEEDED, Said("text/plain", "q"), Said("text/plain", "a"))
OTHER = next(kind for number in range(100) if shard_of(PoolKey(TENANT, kind := f"kind-{number}")) != SHARD)


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Node]]:
    """The first one had all. Of the second one nothing is loaded before `come`, and then little at a time."""
    monkeypatch.setattr(takeover, "LOADED", 4)
    monkeypatch.setattr(takeover, "BROUGHT", 2)
    monkeypatch.setattr(takeover, "TOGETHER", 3)
    async with two_nodes() as (one, two):
        one.claims.may_claim = lambda: False
        two.loads.held = True
        two.host.begin(1 << 41, 1)  # rows of its own
        owners = two.host.owners = Static("two", {"two": Peer("two", "")})

        def changed() -> None:
            for shard in ALL:
                owners.give(shard, "two" if shard in two.claims.owned else "")

        two.claims.on_change = changed
        changed()
        yield one, two
        two.loads.held = False
        two.loads.go()


async def wish(node: Node, shards: Any) -> None:
    """Has it claim, and ask for the first of what is there."""
    node.claims.wish(shards)
    if node._running is None:
        node._running = asyncio.create_task(node.claims.run())
    await node.settle()


async def come(node: Node, times: int = 1) -> None:
    """Lets what was asked for be loaded, and brought in."""
    for _ in range(times):
        node.loads.go()
        await node.settle(5)
        await node.confirm()


async def waiting(node: Node, count: int, kind: str = "nobody", **fields: Any) -> list[str]:
    """Tasks for which there is nobody, in order."""
    names = [f"{kind}-{number:03d}" for number in range(count)]
    for number, name in enumerate(names):
        spec = task_pb2.TaskSpec(task_id=name, **{key: value(number) for key, value in fields.items()})
        spec.selector.agent_type = kind
        node.reach.submit(*READER.read(TENANT, spec), Reader(node, 0, Interest.ACCEPTANCE))
    await node.settle()
    return names


def queued(node: Node, key: PoolKey = DEEP) -> list[str]:
    """Whose turn it is, in order."""
    pool = node.host.pool_if_any(key)
    assert pool is not None
    names = []
    while pool.queue:
        kind = min(pool.queue.kinds(node.clock.now_ms()))[2]
        head = pool.queue.head(kind, node.clock.now_ms())
        assert head is not None
        names.append(head.task_id)
        pool.queue.pop(head)
    return names


async def test_CLU_3_a_shard_is_served_when_all_of_it_is_there_and_not_before(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    names = await waiting(one, 9)
    await wish(two, [SHARD])
    assert two.store.epochs()[SHARD] > 1, "it is claimed"
    await come(two, 6)
    assert two.claims.owned == frozenset(), "some of it is here"
    assert two.host.owners.node_of(SHARD) == NOBODY, "callers and agents are told to ask again"
    assert two.host.tasks == {}
    assert two.host.shards == {}
    await come(two, 4)
    assert two.claims.owned == {SHARD}
    assert queued(two) == names


async def test_CLU_2_what_is_owned_is_confirmed_and_served_while_shards_are_loaded(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 9)
    small = shard_of(PoolKey(TENANT, UNRESOLVED))
    two.loads.held = False
    await two.own([small])
    two.loads.held = True
    await wish(two, [small, SHARD])
    for _ in range(10):  # the journal takes ten seconds to be read
        two.clock.ahead_ms += 1_000
        await two.confirm()
        assert two.claims.unconfirmed_ms < 1_000
        assert not two.claims.is_in_doubt()
        reader = two.submit(f"here-{two.clock.ahead_ms}", Interest.ACCEPTANCE, capability="x")
        await two.settle()
        assert [what for what, _ in two.heard(reader)] == ["accepted"]
    assert two.claims.owned == {small}
    await come(two, 12)
    assert two.claims.owned == {small, SHARD}


async def test_CLU_3_no_turn_of_the_loop_brings_in_more_than_a_little(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    await waiting(one, 3 * BROUGHT)
    monkeypatch.setattr(takeover, "LOADED", 1_000)
    monkeypatch.setattr(takeover, "BROUGHT", BROUGHT)
    turns, brought = 0, dict[int, int]()

    async def tick() -> None:
        nonlocal turns
        while two.claims.owned != {SHARD}:
            turns += 1
            await asyncio.sleep(0)

    restored = two.host.codec.restored

    def counted(*given: Any) -> Any:
        brought[turns] = brought.get(turns, 0) + 1
        return restored(*given)

    monkeypatch.setattr(two.host.codec, "restored", counted)
    two.loads.held = False
    ticking = asyncio.create_task(tick())
    await two.own([SHARD])
    await ticking
    assert sum(brought.values()) == 3 * BROUGHT
    assert max(brought.values()) == BROUGHT
    assert len(brought) == 3


async def test_DLV_9_order_is_that_of_priority_and_age_however_it_was_loaded(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 30, priority=lambda number: number % 7)
    pool = one.host.pool_if_any(DEEP)
    assert pool is not None
    for number, task in enumerate(list(pool.queue)):
        stored = one.store._shared.journal._records[task.row]
        assert stored.task is not None
        stored.task = stored.task._replace(accepted_wall_ms=one.clock.wall_ms() - 60_000 - 1_700 * (number % 11))
    two.loads.held = False
    await two.own([SHARD])
    by_parts = queued(two)
    other = Node(two.store._shared)  # it finds all there is when it starts
    try:
        assert by_parts == queued(other), "as if all had come at once"
    finally:
        await other.stop()


async def test_CLU_3_small_shards_do_not_wait_for_large_ones(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 20)
    await waiting(one, 2, OTHER)
    small = shard_of(PoolKey(TENANT, OTHER))
    await wish(two, ALL)
    await come(two, 7)
    assert two.claims.owned == frozenset(ALL) - {SHARD}
    assert len(queued(two, PoolKey(TENANT, OTHER))) == 2
    assert small in two.claims.owned
    await come(two, 14)
    assert two.claims.owned == frozenset(ALL)


async def test_CLU_3_what_comes_while_a_large_shard_is_loaded_does_not_wait_for_it(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 9)
    await wish(two, [SHARD])
    await come(two, 5)
    small = shard_of(PoolKey(TENANT, OTHER))
    two.claims.wish([SHARD, small])
    await two.confirm()
    await come(two, 7)
    assert small in two.claims.owned


async def test_CLU_3_a_wish_that_changes_meanwhile_leaves_nothing_behind(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    names = await waiting(one, 9)
    name = next((TENANT, f"s{n}") for n in range(1_000) if shard_of_session((TENANT, f"s{n}")) == SHARD)
    one.host.sessions.home(name).add(name, SAID, Facts({}, {}), Accepted(1, 0), 0)
    one.host.sessions.flush()
    await one.settle()
    await wish(two, [SHARD])
    await come(two, 7)
    assert len(two.host.sessions.home(name)) == 1
    two.claims.wish([])
    await two.confirm()
    assert two.store.epochs() == {}
    assert len(two.host.sessions.home(name)) == 0
    await come(two, 3)
    assert (two.host.tasks, two.host.shards, two.claims.owned) == ({}, {}, frozenset())
    two.claims.wish([SHARD])
    await two.confirm()
    await come(two, 12)
    assert two.claims.owned == {SHARD}
    assert queued(two) == names


async def test_CLU_2_a_shard_that_another_node_claims_meanwhile_does_not_come(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    served: list[Any] = []
    names = await waiting(one, 9)
    await wish(two, [SHARD])
    await come(two, 5)
    third = Node(two.store._shared)
    try:
        await third.own([SHARD])
        two.claims.may_claim = lambda: False
        monkeypatch.setattr("reach.runtime.claims.take", lambda host, coming: served.append(coming))
        await come(two, 8)
        assert served == [], "not for a moment"
        assert (two.host.tasks, two.claims.owned) == ({}, frozenset())
        assert SHARD not in two.store.epochs()
        assert queued(third) == names
    finally:
        await third.stop()


async def test_CLU_2_what_is_claimed_anew_is_not_mixed_with_what_came_before(nodes: tuple[Node, Node]) -> None:
    """What was loaded under the earlier claim is answered late: it is void, and does not take the later one along."""
    one, two = nodes
    names = await waiting(one, 9)
    await wish(two, [SHARD])
    await come(two, 5)
    two.claims.wish([])
    await two.confirm()
    two.claims.wish([SHARD])
    await two.confirm()  # the answer to the first takeover is still on its way
    await come(two, 12)
    assert two.claims.owned == {SHARD}
    assert queued(two) == names
    assert len(two.claims._takeovers) == 0


async def test_HAZARDS_3_a_store_that_is_away_for_a_while_only_costs_time(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    names = await waiting(one, 9)
    monkeypatch.setattr(takeover, "AGAIN_SECONDS", 0.0)
    load, asked = two.store.load_some, list[Any]()

    def away(shards: Any, place: Any, limit: int) -> Any:
        asked.append(place)
        if len(asked) % 2:
            raise StoreUnavailable("the database does not answer")
        return load(shards, place, limit)

    monkeypatch.setattr(two.store, "load_some", away)
    monkeypatch.setattr(two, "loads", None)

    async def run(work: Any) -> Any:
        return work()

    class Now:
        def run_in_executor(self, _: Any, work: Any) -> Any:
            return run(work)

    await wish(two, [])
    init = takeover.Takeover.__init__

    def beside(self: Any, *given: Any) -> None:
        init(self, *given)
        self._loop = Now()

    monkeypatch.setattr(takeover.Takeover, "__init__", beside)
    two.claims.wish([SHARD])
    for _ in range(20):
        await two.confirm()
    assert two.claims.owned == {SHARD}
    assert asked[::2] == asked[1::2], "it goes on where it was"
    assert queued(two) == names
    two.loads = one.loads


async def test_RTE_6_rules_that_change_meanwhile_hold_for_what_has_come(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 9)
    await wish(two, [SHARD])
    await come(two, 5)
    two.host.directory.routes = Routes()
    await come(two, 3)
    assert two.claims.owned == frozenset(), "it is read anew"
    await come(two, 8)
    assert two.claims.owned == {SHARD}
    assert len(queued(two)) == 9


async def test_HAZARDS_4_attempts_have_their_grace_from_the_moment_they_are_served(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    link = attach(one, [])
    await one.settle()
    one.submit("runs", Interest.OUTCOME)
    await waiting(one, 9)
    assert [task.task_id for task, _ in link.offers] == ["runs"]
    await wish(two, [SHARD])
    await come(two, 6)
    two.clock.ahead_ms += 20_000
    await two.confirm()
    await come(two, 4)
    task = two.host.tasks[TENANT, "runs"]
    assert task.state is TaskState.DELIVERED
    assert task.lease_until_ms - two.clock.now_ms() > GRACE_MS - 2_000
    assert task.instance is not None
    assert task.instance.awaited_until_ms > two.clock.now_ms() + 3_000


async def test_DLV_11_who_was_cancelled_meanwhile_takes_along_what_comes(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await waiting(one, 5, root_task_id=lambda number: "root", parent_task_id=lambda number: "root")
    await wish(two, [SHARD])
    await come(two, 4)
    told: list[Any] = []
    two.host.trees.tell = lambda key, mark: told.append((key, mark))
    two.host.trees.cancelled_elsewhere((TENANT, "root"), mark=True)
    await come(two, 10)
    await two.settle()
    states = {task.state for task in two.host.tasks.values()}
    assert two.claims.owned == {SHARD}
    assert states <= {TaskState.CANCELLED}
    assert len(told) == 5


async def test_SES_3_a_turn_that_comes_with_its_session_is_kept_with_it(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: what was written before it was this node's was forgotten, and the fact of the turn with it."""
    _, two = nodes
    sessions, written = two.host.sessions, list[Any]()
    name = next((TENANT, f"s{n}") for n in range(1_000) if shard_of_session((TENANT, f"s{n}")) == SHARD)
    sessions.home(name).add(name, SAID, Facts({}, {}), Accepted(1, 0), 0)
    submit = two.host.committer.submit

    def watched(turn: Turn) -> None:
        written.extend(turn.writes.contexts)
        submit(turn)

    monkeypatch.setattr(two.host.committer, "submit", watched)
    sessions.flush()
    assert written == [], "its shard is on its way"
    two.host.owners.give(SHARD, "two")  # type: ignore[attr-defined]
    sessions.came()
    sessions.flush()
    assert [row.session for row in written] == [name[1]]


def test_the_bounds_fit_each_other() -> None:
    assert takeover.BROUGHT <= takeover.LOADED
    assert takeover.TOGETHER < takeover.LARGE
    assert CONFIRM_SECONDS * 1_000 < SURE_MS
