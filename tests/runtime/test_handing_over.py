"""A shard is given up in peace: its heir waits for that, and goes on with its streams where they were (DLV-13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from agentreach.v1 import agent_pb2
from reach.core import events as ev
from reach.core.model import PoolKey
from reach.core.pieces import Delta, Mode
from reach.core.stream import KEEP_MS, Interest
from reach.runtime.elsewhere import Whereabouts
from reach.runtime.idle_pools import IdlePools
from reach.runtime.ownership import NOBODY, Peer, Static
from reach.wire.agents import read_registration
from tests.runtime.claiming import ALL, Link, Node, two_nodes
from tests.runtime.hosts import TENANT
from tests.runtime.test_claims import MOVED


class Streamer(Link):
    def credit(self, *_: Any) -> None: ...


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


def attach(node: Node, running: list[tuple[str, str, int, int]]) -> Streamer:
    link = Streamer()
    registration = agent_pb2.Registration(agent_id="nobody", boot_id="boot", instance_id="one", ready=True)
    node.reach.hello(TENANT, *read_registration(registration), link, running, {})
    return link


def piece(node: Node, link: Link, number: int) -> None:
    pool = node.host.tasks[TENANT, "t"].pool
    node.reach.post(pool, ev.DeltaCame(link.instance, TENANT, "t", 1, number, Delta("", Mode.APPEND, "", "x")))


async def streaming(node: Node) -> tuple[Link, Any]:
    link = attach(node, [])
    await node.settle()
    reader = node.submit("t", Interest.EVENTS)
    await node.settle()
    for number in (1, 2, 3):
        piece(node, link, number)
    await node.settle()
    return link, reader


def events_of(node: Node, reader: Any) -> list[tuple[int, str]]:
    return [(number, kind) for what, told in node.heard(reader) if what == "events" for number, kind, _ in told]


Settled = Callable[[], Awaitable[Any]]


def settles(one: Node, monkeypatch: pytest.MonkeyPatch, act: Callable[[int, Settled], Awaitable[None]]) -> None:
    """Does this each time that it is to settle: before the shards are paused (1), and after they were (2)."""
    honest, calls = one.host.settled, count(1)

    async def settled() -> bool:
        await act(next(calls), honest)
        return one.host.committer.held is None

    monkeypatch.setattr(one.host, "settled", settled)


def act_when_settled(one: Node, monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], Any]) -> None:
    """The first of these when it has settled, so that it is stepped and not kept yet; the others before it settles."""

    async def settling(call: int, settled: Settled) -> None:
        act = acts[call - 1] if call <= len(acts) else lambda: None
        if call != 1:
            act()
        await settled()
        if call == 1:
            act()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    settles(one, monkeypatch, settling)


async def test_DLV_13_a_reader_goes_on_at_the_heir_without_a_gap(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    _, reader = await streaming(one)
    told = events_of(one, reader)
    assert told[-1] == (5, "DELTA")
    await one.own(())
    assert one.heard(reader)[-1] == MOVED
    await two.own(ALL)
    link = attach(two, [(TENANT, "t", 1, 3)])
    after = two.subscribe("t", Interest.EVENTS, after=5)
    await two.settle()
    piece(two, link, 4)
    await two.settle()
    assert two.store._shared.streams == {}, "it is of no use any more"
    assert events_of(two, after) == [(6, "RESUMED"), (7, "STARTED"), (8, "DELTA")]
    assert two.host.tasks[TENANT, "t"].log.fold.content() == ("", "xxxx")


async def test_STR_2_a_reader_that_lost_its_node_while_the_shard_moved_lacks_nothing(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await streaming(one)
    await one.own(())
    await two.own(ALL)
    late = two.subscribe("t", Interest.EVENTS, after=3)
    await two.settle()
    assert events_of(two, late) == [(4, "DELTA"), (5, "DELTA"), (6, "RESUMED")]


async def ended(one: Node) -> None:
    link, _ = await streaming(one)
    report = ev.Reported(link.instance, TENANT, "t", 1)
    report.folded = 3
    one.reach.post(one.host.tasks[TENANT, "t"].pool, report)
    await one.settle()


async def test_STR_2_nor_does_one_that_comes_to_the_heir_after_the_end(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await ended(one)
    await one.own(())
    await two.own(ALL)
    whole = [(1, "ACCEPTED"), (2, "STARTED"), (3, "DELTA"), (4, "DELTA"), (5, "DELTA"), (6, "COMPLETE")]
    for after in range(6):
        late = two.subscribe("t", Interest.EVENTS, after=after)
        await two.settle()
        assert events_of(two, late) == whole[after:]
    two.store._shared.streams.clear()
    late = two.subscribe("t", Interest.EVENTS, after=3)
    await two.settle()
    assert events_of(two, late) == [(5, "GAP"), (6, "COMPLETE")]


async def test_STR_2_of_a_task_whose_shard_is_changing_hands_its_heir_tells(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    await ended(one)
    owners = Static("two", {"one": Peer("one", "")})

    async def ask(*_: Any) -> bool:
        raise AssertionError("it has a row")

    two.reach.abroad = Whereabouts(two.host, owners, ask)

    async def heard() -> Any:
        late = two.subscribe("t", Interest.EVENTS, after=3)
        await two.settle()
        return two.heard(late)

    assert await heard() == [("elsewhere", (NOBODY.node_id, False))]
    for shard in ALL:
        owners.give(shard, "one")
    assert await heard() == [("elsewhere", ("one", False))]
    for shard in ALL:
        owners.give(shard, "nobody")
    later = two.clock.wall_ms() + KEEP_MS + 1
    monkeypatch.setattr(two.clock, "wall_ms", lambda: later)
    assert await heard() == [("events", [(5, "GAP", (4, 5)), (6, "COMPLETE", None)])], "its heir has them no more"


async def test_STR_2_nor_does_one_whose_task_came_and_ended_while_the_journal_was_read_for_it(
    nodes: tuple[Node, Node],
) -> None:
    one, _ = nodes
    await ended(one)
    task = one.host.tasks.pop((TENANT, "t"))
    one.reads.held = True
    late = one.subscribe("t", Interest.EVENTS, after=3)
    await one.settle()
    one.host.tasks[TENANT, "t"] = task
    one.reads.held = False
    one.reads.go()
    await one.settle()
    assert events_of(one, late) == [(4, "DELTA"), (5, "DELTA"), (6, "COMPLETE")]


async def test_DLV_13_what_was_said_before_is_told_before_and_what_comes_later_is_for_the_heir(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces come at any moment: while all that was said is settled, and behind that."""
    one, two = nodes
    link, reader = await streaming(one)

    async def settling(call: int, settled: Settled) -> None:
        if call == 1:
            piece(one, link, 4)
        await settled()
        if call == 1:
            piece(one, link, 5)  # in the mail as the shard is paused
            return
        piece(one, link, 6)

    settles(one, monkeypatch, settling)
    await one.own(())
    assert events_of(one, reader)[-1] == (6, "DELTA")
    await two.own(ALL)
    task = two.host.tasks[TENANT, "t"]
    assert (task.sequence, task.attempt_sequence) == (7, 4)


async def test_DLV_13_what_cannot_be_told_in_time_is_given_up_without_numbers(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reach.runtime.claims.SETTLE_SECONDS", 0.01)
    one, two = nodes
    await streaming(one)

    async def settling(call: int, settled: Settled) -> None:
        if call > 1:
            await asyncio.Event().wait()
        await settled()

    settles(one, monkeypatch, settling)
    one.claims.wish(())
    async with asyncio.timeout(5):
        while not one.claims.has_left:
            await one.settle(2)
            await asyncio.sleep(0.001)
    await two.own(ALL)
    assert two.host.tasks[TENANT, "t"].sequence > 1_000


async def test_DLV_10_what_the_store_has_not_taken_is_not_left_to_the_heir(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: an end that was decided and could not be kept had a number, which nobody ever told."""
    one, two = nodes
    await streaming(one)
    told = iter((True, False))

    async def settled() -> bool:
        return next(told)

    monkeypatch.setattr(one.host, "settled", settled)
    await one.own(())
    await two.own(ALL)
    assert two.host.tasks[TENANT, "t"].sequence > 1_000


async def test_DLV_10_what_the_store_does_not_take_is_not_settled(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes

    async def settled() -> bool:
        asking = asyncio.ensure_future(one.host.settled())
        await one.settle()
        return await asking

    one.submit("t", Interest.OUTCOME)
    assert await settled()
    one.store.cut_off = True
    one.submit("u", Interest.OUTCOME)
    assert not await settled(), "it turned out while that was waited for"
    assert not await settled()
    one.store.cut_off = False


async def test_CLU_2_what_is_decided_for_a_shard_that_is_taken_while_it_is_settled_is_told_to_nobody(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: an answer was said to be taken, and was not written down."""
    one, two = nodes
    await streaming(one)
    readers: list[Any] = []

    async def settling(call: int, settled: Settled) -> None:
        await settled()
        if call == 1:
            readers.append(one.submit("late", Interest.ACCEPTANCE))
            await asyncio.sleep(0)  # it is decided, and being written
            two.store.claim(ALL)
        else:  # who asked before how it stands is told of nothing that is in memory only
            assert (TENANT, "late") not in one.host.tasks

    settles(one, monkeypatch, settling)
    await one.own(())
    await one.settle()
    assert one.heard(readers[0]) == [MOVED]
    assert one.store.find(TENANT, "late") is None
    assert one.claims.has_left


async def test_DLV_13_a_node_that_ends_without_an_heir_leaves_its_streams_to_whoever_comes(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    _, reader = await streaming(one)
    ending = asyncio.create_task(one.claims.end(5.0))
    await asyncio.sleep(0)
    one.claims.wish(ALL)  # as others know it still
    while not ending.done():
        await one.settle(2)
        await asyncio.sleep(0.001)
    assert one.heard(reader)[-1] == MOVED
    assert two.store.holders(ALL) == {}
    await two.own(ALL)
    assert two.host.tasks[TENANT, "t"].sequence == 6
    assert two.host.tasks[TENANT, "t"].log.fold.content() == ("", "xxx")


async def test_DLV_13_a_node_that_ends_waits_no_longer_than_so_for_a_store_that_is_away(
    nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = nodes
    one.store.cut_off = True
    ending = asyncio.create_task(one.claims.end(0.05))
    while not ending.done():
        await one.settle(2)
        await asyncio.sleep(0.001)
    assert "could not give up" in caplog.text
    one.store.cut_off = False


async def test_DLV_13_who_leaves_has_left_when_all_know_it(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    honest, left = one.store.give_up, []

    def give_up(*given: Any) -> None:
        left.append((one.claims.owned, one.claims.has_left))
        honest(*given)

    monkeypatch.setattr(one.store, "give_up", give_up)
    await one.own(())
    await one.settle()
    assert left == [(frozenset(), False)]
    assert one.claims.has_left


async def test_DLV_13_what_is_wished_back_before_it_is_paused_stays(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    before = one.claims.epochs()
    act_when_settled(one, monkeypatch, lambda: one.claims.wish(ALL))
    one.claims.wish(())
    await one.settle(50)
    assert one.claims.owned == frozenset(ALL)
    assert one.claims.epochs() == before


async def test_DLV_13_who_passes_a_shard_on_before_it_has_come_leaves_what_was_left_to_it(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    await streaming(one)
    await one.own(())
    two.loads.held = True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    assert two.store.epochs().keys() == set(ALL)
    two.claims.wish(())
    await two.settle()
    assert two.claims.has_left
    await one.own(ALL)
    task = one.host.tasks[TENANT, "t"]
    assert (task.sequence, task.attempt_sequence) == (6, 3)


async def test_DLV_13_who_has_claimed_has_not_left(nodes: tuple[Node, Node]) -> None:
    """What it goes away with is nobody's to give up."""
    _, two = nodes
    two.loads.held = True
    two.claims.wish(ALL)
    two._running = asyncio.create_task(two.claims.run())
    await two.settle()
    assert not two.claims.owned
    assert not two.claims.has_left
    two.loads.held = False
    two.loads.go()


async def test_REG_11_idle_pools_are_looked_for_while_a_shard_is_handed_over(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    await streaming(one)
    one.host.pool(PoolKey(TENANT, "idle"))
    dropped: list[int] = []
    idle = IdlePools(one.host)
    idle.drop()
    act_when_settled(one, monkeypatch, lambda: None, lambda: dropped.append(idle.drop()))
    await one.own(())
    assert dropped == [0]
    assert not one.host.pools()


async def test_DLV_13_who_gives_room_while_its_stream_is_handed_over_still_hears_what_was_said_before(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    link, reader = await streaming(one)

    def said() -> None:
        one.submit("u", Interest.OUTCOME)  # a commit is open
        piece(one, link, 4)

    act_when_settled(one, monkeypatch, said, lambda: one.reach.credit(reader, 1_000))
    await one.own(())
    assert events_of(one, reader)[-1] == (6, "DELTA")
    assert one.heard(reader)[-1] == MOVED
    assert one.heard(reader).count(MOVED) == 1


async def test_DLV_13_who_gives_room_as_its_stream_is_paused_still_hears_what_was_said_before(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    link, reader = await streaming(one)

    async def settling(call: int, settled: Settled) -> None:
        await settled()
        if call == 1:
            one.submit("u", Interest.OUTCOME)
            piece(one, link, 4)
            await asyncio.sleep(0)
            one.reach.credit(reader, 1_000)  # in the mail as the shard is paused

    settles(one, monkeypatch, settling)
    await one.own(())
    assert events_of(one, reader)[-1] == (6, "DELTA")
    assert one.heard(reader)[-1] == MOVED


async def test_STR_5_who_leaves_a_stream_while_it_is_handed_over_is_told_no_more(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = nodes
    _, reader = await streaming(one)
    told = len(one.heard(reader))
    act_when_settled(one, monkeypatch, lambda: None, lambda: one.reach.unsubscribe(reader, TENANT, "t"))
    await one.own(())
    assert len(one.heard(reader)) == told


async def test_HAZARDS_1_what_waits_in_a_shard_that_is_handed_over_goes_nowhere_else(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody comes who could take it: its next owner sends it there, for what is decided here may be void."""
    one, two = nodes
    one.submit("w", Interest.OUTCOME, capability="x")
    await one.settle()
    shard = one.host.tasks[TENANT, "w"].pool.shard
    link = Streamer()

    async def settling(call: int, settled: Settled) -> None:
        await settled()
        if call == 2:
            registration = agent_pb2.Registration(agent_id="doer", boot_id="boot", instance_id="two", ready=True)
            registration.capabilities.add(name="x")
            one.reach.hello(TENANT, *read_registration(registration), link, [], {})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(one.writer, "go", lambda: None)  # nothing of it is written before all is given up
                for _ in range(20):
                    await asyncio.sleep(0)

    settles(one, monkeypatch, settling)
    await one.own(frozenset(ALL) - {shard})
    await one.settle()
    assert one.host.pools(), "it came"
    await two.own([shard])
    assert (TENANT, "w") in two.host.tasks
    assert (TENANT, "w") not in one.host.tasks
    assert link.offers == []
