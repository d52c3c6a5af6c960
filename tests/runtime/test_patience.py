"""Durable work waits a moment for the store that nodes share, and is refused in the end (CLU-4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from reach.core.model import TaskState
from reach.core.stream import Interest
from reach.errors import Reason, Unavailable
from reach.runtime import patience
from reach.runtime.claims import SURE_MS
from reach.runtime.patience import LOOK_SECONDS, WAIT_MS
from tests.runtime.claiming import Node, two_nodes
from tests.runtime.hosts import TENANT


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


async def test_CLU_4_a_node_in_doubt_takes_nothing_and_lets_callers_wait(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.store.cut_off = True
    one.clock.ahead_ms = SURE_MS + 500
    reader, gone = one.submit("t", Interest.EVENTS), one.submit("gone", Interest.EVENTS)
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert one.heard(reader) == []
    assert (TENANT, "t") not in one.host.tasks
    one.reach.unsubscribe(gone, TENANT, "gone")
    one.store.cut_off = False
    await one.confirm()
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    await one.settle()
    assert one.heard(reader)[0] == ("accepted", False)
    assert (TENANT, "gone") not in one.host.tasks, "its caller has left before it was taken"


async def test_CLU_4_without_the_store_durable_work_is_refused_after_five_seconds(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.store.cut_off = True
    one.clock.ahead_ms = SURE_MS + 500
    reader = one.submit("t", Interest.EVENTS)
    one.clock.ahead_ms += 4_800
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert one.heard(reader) == []
    one.clock.ahead_ms += 300
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert one.heard(reader) == [("refused", Reason.STORE_UNAVAILABLE)]
    one.store.cut_off = False
    await one.confirm()
    again = one.submit("t", Interest.EVENTS)
    await one.settle()
    assert one.heard(again)[0] == ("accepted", False)


def in_doubt(node: Node) -> None:
    """The store is away, and has been for a while."""
    node.store.cut_off = True
    node.clock.ahead_ms += SURE_MS + 500


@pytest.mark.parametrize("bound", ["requests", "bytes"])
async def test_CLU_4_what_waits_is_bounded_and_who_lets_go_leaves_its_place(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    one, _ = nodes
    in_doubt(one)
    first = one.submit("first", Interest.OUTCOME)
    size = one.reach.patience._bytes
    assert size > 0
    monkeypatch.setattr(patience, *(("MOST", 1) if bound == "requests" else ("MOST_BYTES", size + size // 2)))
    await asyncio.sleep(2 * LOOK_SECONDS)  # who has been looked at and waits on is counted as before
    over = one.submit("over", Interest.OUTCOME)
    assert one.heard(over) == [("refused", Reason.STORE_UNAVAILABLE)]
    one.reach.unsubscribe(first, TENANT, "first")
    assert one.reach.patience._bytes == 0
    takes_it = one.submit("takes it", Interest.OUTCOME)
    assert one.heard(takes_it) == [], "there is room again, so it waits"


@pytest.mark.parametrize("looked", [False, True])
async def test_CLU_4_who_lets_go_before_or_after_it_was_looked_at_is_not_brought(
    nodes: tuple[Node, Node], looked: bool
) -> None:
    one, _ = nodes
    in_doubt(one)
    gone, stays = one.submit("gone", Interest.EVENTS), one.submit("stays", Interest.EVENTS)
    if looked:
        await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    one.reach.unsubscribe(gone, TENANT, "gone")
    one.store.cut_off = False
    await one.confirm()
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    await one.settle()
    assert one.heard(gone) == []
    assert (TENANT, "gone") not in one.host.tasks
    assert one.heard(stays)[0] == ("accepted", False)
    assert not one.reach.patience._whose, "nor is anybody remembered who waits no longer"


@pytest.mark.parametrize("how", ["doubt", "held"])
async def test_CLU_4_nobody_is_brought_while_the_store_is_away(nodes: tuple[Node, Node], how: str) -> None:
    """Ten thousand may wait: each would be read, placed and refused anew, twenty times a second."""
    one, _ = nodes
    committer = one.host.committer
    if how == "doubt":
        in_doubt(one)
    else:
        one.store.cut_off = True
        one.submit("held", Interest.EVENTS)
        await one.settle()
    assert (committer.held is not None, committer.doubt()) == (how == "held", how == "doubt")
    told: list[int] = []
    error = Unavailable("away", Reason.STORE_UNAVAILABLE)
    assert one.reach.patience.takes(error, 1, 0, one, told.append, lambda fault: None)
    await asyncio.sleep(3 * LOOK_SECONDS)  # it has looked
    assert told == []


async def test_CLU_4_five_seconds_are_counted_from_the_first_time(nodes: tuple[Node, Node]) -> None:
    """A store that is back and away again, each time for a moment, makes nobody wait for ever."""
    one, _ = nodes
    now_ms = one.clock.now_ms()
    waits = one.reach.patience
    error = Unavailable("away", Reason.STORE_UNAVAILABLE)
    told: list[int] = []
    assert waits.takes(error, 1, 0, one, told.append, lambda fault: None)
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    (until_ms,) = told
    assert until_ms - now_ms == pytest.approx(5_000, abs=500)
    one.clock.ahead_ms += 4_000
    await one.confirm()
    assert waits.takes(error, 1, until_ms, one, told.append, lambda fault: None)
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert told == [until_ms, until_ms], "it has one second left, not five"
    one.clock.ahead_ms += 1_500
    assert not waits.takes(error, 1, until_ms, one, told.append, lambda fault: None)


async def test_CLU_4_only_a_store_that_is_away_is_waited_for(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    for reason in (Reason.SHUTTING_DOWN, Reason.OWNER_UNAVAILABLE):
        assert not one.reach.patience.takes(Unavailable("no", reason), 1, 0, one, print, print)
    one.host.by_shard = False  # a node that has its store to itself
    assert not one.reach.patience.takes(Unavailable("no", Reason.STORE_UNAVAILABLE), 1, 0, one, print, print)
    one.host.by_shard = True


async def test_CLU_4_what_waits_as_the_node_ends_is_refused(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    in_doubt(one)
    reader = one.submit("t", Interest.OUTCOME)
    waits = one.reach.patience
    looking = waits._looking
    assert looking is not None
    waits.stop()
    assert one.heard(reader) == [("refused", Reason.STORE_UNAVAILABLE)]
    assert looking.cancelled()
    assert not waits._waiting


async def test_CLU_4_a_cancel_waits_for_the_store_and_is_refused_in_the_end(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    for name in ("stays", "ends"):
        one.submit(name, Interest.OUTCOME)
    await one.settle()
    in_doubt(one)
    one.cancel("ends", "enough")
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    told = [what for _, what, _ in one.said]
    assert ("cancelled" in told, "refused" in told) == (False, False)
    one.store.cut_off = False
    await one.confirm()
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    await one.settle()
    assert [detail for _, what, detail in one.said if what == "cancelled"] == ["cancelled: enough"]
    in_doubt(one)
    one.cancel("stays", "enough")
    one.clock.ahead_ms += WAIT_MS + 100
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert [detail for _, what, detail in one.said if what == "refused"] == [Reason.STORE_UNAVAILABLE]
    assert one.host.tasks[TENANT, "stays"].state is TaskState.PENDING, "what was refused is not done later"


async def test_CLU_4_a_cancel_of_what_only_the_store_knows_waits_for_it_too(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.cancel("nobody's", "enough")
    await one.settle()
    assert [detail for _, what, detail in one.said if what == "refused"] == [Reason.TASK_NOT_FOUND]
    one.said.clear()
    in_doubt(one)
    one.cancel("nobody's", "enough")
    for _ in range(4):
        await one.settle()
        await asyncio.sleep(LOOK_SECONDS)
    assert one.said == []
    one.store.cut_off = False
    await one.confirm()
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    await one.settle()
    assert [detail for _, what, detail in one.said if what == "refused"] == [Reason.TASK_NOT_FOUND]


async def test_CLU_4_a_cancel_that_nobody_waits_for_is_taken_at_once(nodes: tuple[Node, Node]) -> None:
    """Of a caller that left with its task: nobody could be told to come again."""
    one, _ = nodes
    one.submit("t", Interest.OUTCOME)
    await one.settle()
    in_doubt(one)
    one.reach.cancel(TENANT, "t", "the caller is gone", None)
    one.store.cut_off = False
    await one.confirm()
    await one.settle()
    assert one.host.tasks[TENANT, "t"].state is TaskState.CANCELLED


async def test_CLU_4_calls_wait_for_the_store_and_are_refused_in_the_end(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    over = one.reach.patience.over
    await over()
    in_doubt(one)
    waits, gone = asyncio.create_task(over()), asyncio.create_task(over())
    await asyncio.sleep(2 * LOOK_SECONDS)  # it has looked
    assert not waits.done()
    gone.cancel()
    await asyncio.wait({gone})
    one.store.cut_off = False
    await one.confirm()
    await asyncio.wait_for(waits, 5)
    in_doubt(one)
    late = asyncio.create_task(over())
    await asyncio.sleep(0)
    one.clock.ahead_ms += WAIT_MS + 100
    with pytest.raises(Unavailable) as refused:
        await asyncio.wait_for(late, 5)
    assert refused.value.reason is Reason.STORE_UNAVAILABLE
    assert refused.value.retry_after_ms
    assert not one.reach.patience._waiting
    one.host.by_shard = False  # a node that has its store to itself
    await over()
    one.host.by_shard = True
