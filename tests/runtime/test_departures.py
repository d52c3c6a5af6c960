"""Tasks on their way from one shard to another, as their owner sees them (CLU-1, HAZARDS 1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from agentreach.v1 import task_pb2
from reach.core.directory import UNRESOLVED
from reach.core.model import Fault, PoolKey, Task
from reach.core.placement import shard_of
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, Reason
from reach.runtime.departures import readers_of
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer, Static
from reach.store.base import StoredTask
from tests.contracts.journal_rows import outcome
from tests.runtime.claiming import ALL, Node, two_nodes
from tests.runtime.hosts import READER, TENANT


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node]]:
    async with two_nodes() as both:
        yield both


THERE, WAITING = PoolKey(TENANT, "nobody"), PoolKey(TENANT, UNRESOLVED)
KEY = (TENANT, "t")


async def waiting(node: Node) -> Task:
    """A task that waits where nobody can take it."""
    node.submit("t", Interest.OUTCOME, capability="x")
    await node.settle()
    return waits(node)


def waits(node: Node) -> Task:
    task = node.host.tasks[KEY]
    assert task.pool is not None
    assert task.pool.key == WAITING
    return task


def goes(node: Node, task: Task, key: PoolKey = THERE) -> None:
    node.host.departures.depart(task.pool, task, key, task.requirement)


def found(node: Node, shard: int) -> list[StoredTask]:
    """As a look sees the task that began when it had come to a shard."""
    stored = node.store.find(*KEY)
    assert stored is not None
    return [stored._replace(task=stored.task._replace(shard=shard))]


def elsewhere(node: Node, *keys: PoolKey) -> None:
    """These pools are another node's, as a node sees it."""
    owners = node.host.owners = Static("one", {"two": Peer("two", "")})
    for shard in ALL:
        owners.give(shard, "two" if shard in {shard_of(key) for key in keys} else "one")


async def test_CLU_1_a_task_comes_to_a_node_that_was_overtaken_as_it_sent_it_there_itself(
    nodes: tuple[Node, Node],
) -> None:
    """Found by the simulation: it held the task to be on its way for ever, and never took it in."""
    one, two = nodes
    there, shard = PoolKey(TENANT, "nobody"), shard_of(PoolKey(TENANT, UNRESOLVED))
    one.submit("t", Interest.OUTCOME, capability="x")
    await one.settle()
    task = one.host.tasks[TENANT, "t"]
    one.claims._wished = frozenset(ALL) - {shard}
    await two.own([shard])
    one.host.departures.depart(task.pool, task, there, task.requirement)
    await one.settle()
    assert shard not in one.claims.owned
    owners = two.host.owners = Static("two", {"one": Peer("one", "")})
    for number in ALL:
        owners.give(number, "two" if number == shard else "one")
    again = two.host.tasks[TENANT, "t"]
    two.host.departures.depart(again.pool, again, there, again.requirement)
    await two.settle()
    await one.confirm()
    assert one.host.tasks[TENANT, "t"].pool.key == there


async def test_HAZARDS_1_what_leaves_is_not_brought_in_by_a_look_at_where_it_was(nodes: tuple[Node, Node]) -> None:
    """A look may be under way, or have been, while a task that came a moment ago goes on: it would be here twice."""
    one, _ = nodes
    task = await waiting(one)
    elsewhere(one, THERE)
    here = shard_of(WAITING)
    departures = one.host.departures
    told: list[Elsewhere] = []
    departures.tell = told.append
    departures.looks()
    goes(one, task)
    assert departures.came(found(one, here)) == ([], []), "its going is not durable: it may be here, or not"
    assert told == []
    await one.settle()
    assert [(where.peer.node_id, where.pool) for where in told] == [("two", THERE)], "who owns its pool looks at once"
    assert one.said[-1][1:] == ("elsewhere", ("two", False)), "who waits for it goes after it"
    assert departures.came(found(one, here))[0] == [], "it has gone since that look began"
    departures.looks()
    assert departures.came(found(one, here)) == (found(one, here), [(task.row, 1)]), "a later one has it from the store"


async def test_HAZARDS_1_what_is_lost_as_it_leaves_is_not_brought_in_by_that_look(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    task = await waiting(one)
    here = shard_of(WAITING)
    departures = one.host.departures
    departures.looks()
    goes(one, task)
    departures.leave([here])
    assert departures.came(found(one, here))[0] == []
    departures.looks()
    assert len(departures.came(found(one, here))[0]) == 1, "and is not held to be on its way for ever"


async def test_HAZARDS_1_what_goes_to_another_shard_of_this_node_while_its_id_is_given_again_comes_all_the_same(
    nodes: tuple[Node, Node],
) -> None:
    """Found by the simulation: a look that was under way took note that it had come, and it was nowhere for ever."""
    one, _ = nodes
    task = await waiting(one)
    departures = one.host.departures
    goes(one, task)
    one.submit("t", Interest.OUTCOME, capability="x")  # it is not here, as far as anybody can see
    departures.looks()
    await one.settle(1)
    assert one.host.tasks[KEY] is not task
    while KEY in one.host.tasks:
        await one.settle(1)
    assert departures.came(found(one, shard_of(THERE))) == ([], []), "it left since that look began"
    await one.confirm()
    assert one.host.tasks[KEY].pool.key == THERE
    assert one.host.tasks[KEY].row == task.row


@pytest.mark.parametrize("how", ["it goes elsewhere", "its shard is lost", "another one of its id has come"])
async def test_CLU_1_who_lets_go_of_a_task_while_its_going_is_written_hears_no_more_of_it(
    nodes: tuple[Node, Node], how: str
) -> None:
    one, _ = nodes
    task = await waiting(one)
    (first,) = readers_of(task)
    gone = one.subscribe("t", Interest.EVENTS)
    await one.settle()
    if how == "it goes elsewhere":
        elsewhere(one, THERE)
    goes(one, task)
    one.reach.unsubscribe(gone, TENANT, "t")
    for _ in range(5):
        await asyncio.sleep(0)  # nothing is written yet
    before = one.heard(gone)
    if how == "its shard is lost":
        one.claims._forget(frozenset(ALL))
    elif how == "another one of its id has come":
        one.host.tasks[KEY] = Task(*KEY, b"", task.requirement)
    await one.settle()
    assert one.heard(gone) == before
    expected = "elsewhere" if how == "it goes elsewhere" else "refused"
    assert [what for what, _ in one.heard(first)][-1] == expected
    one.host.tasks.pop(KEY, None)


async def test_HAZARDS_1_who_gives_the_same_id_while_a_task_goes_is_answered_from_its_row(
    nodes: tuple[Node, Node],
) -> None:
    """Two in memory under one id would undo each other: the one that goes comes back by the next look."""
    one, _ = nodes
    task = await waiting(one)
    goes(one, task)
    again = one.submit("t", Interest.ACCEPTANCE, capability="x")
    second = one.host.tasks[KEY]
    assert second is not task
    goes_on = one.host.departures._come
    came: list[Task] = []
    one.host.departures._come = lambda task, key, requirement: came.append(task)  # type: ignore[method-assign]
    await one.settle()
    assert came == []
    one.host.departures._come = goes_on  # type: ignore[method-assign]
    await one.confirm()
    await one.settle()
    assert one.heard(again) == [("accepted", True)]
    back = one.host.tasks[KEY]
    assert (back.row, back.hop) == (task.row, 1)
    assert back.pool is not None
    assert back.pool.key == THERE


async def test_HAZARDS_1_each_move_of_a_task_is_told_apart(nodes: tuple[Node, Node]) -> None:
    """Or what was heard of an earlier one would have the later one forgotten."""
    one, _ = nodes
    task = await waiting(one)
    arrivals = one.store._shared.arrivals
    goes(one, task)
    await one.settle()
    assert arrivals[task.row] == (shard_of(THERE), 1)
    again = one.host.tasks[KEY]
    goes(one, again, WAITING)
    await one.settle()
    assert arrivals[task.row] == (shard_of(WAITING), 2)


async def test_HAZARDS_1_what_has_come_is_told_once_and_what_has_ended_is_not_brought_in(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    task = await waiting(one)
    departures = one.host.departures
    stored = found(one, shard_of(THERE))[0]
    assert departures.came([stored]) == ([], [(task.row, 0)]), "it is here already"
    other = stored._replace(task=stored.task._replace(row=task.row + 1))
    assert departures.came([other]) == ([], []), "another one of that id is just refused: it comes after that"
    one.host.tasks.clear()
    one.cancel("t", "")
    ended = stored._replace(outcome=outcome(task.row))
    assert departures.came([ended]) == ([], [(task.row, 0)])
    elsewhere(one, THERE)
    assert departures.came([stored]) == ([], [(task.row, 0)]), "its shard is another node's by now"
    assert two.host.tasks == {}


@pytest.mark.parametrize("there", [True, False])
async def test_CLU_1_who_gave_a_volatile_task_brings_it_along_if_need_be_and_who_reads_it_never_does(
    nodes: tuple[Node, Node], there: bool
) -> None:
    """A reader has no right to it that it could bring; and where the task is already, nobody gives it again."""
    one, _ = nodes
    spec = task_pb2.TaskSpec(task_id="t", durability=task_pb2.DURABILITY_VOLATILE)
    spec.selector.capability = "x"
    giver, reader = Reader(one, 1, Interest.OUTCOME), Reader(one, 2, Interest.EVENTS)
    one.reach.submit(*READER.read(TENANT, spec), giver)
    await one.settle()
    reader.reads = True
    one.reach.subscribe(TENANT, "t", reader)
    await one.settle()
    brought: list[Task] = []

    def bring(where: Elsewhere, task: Task, then: Callable[[bool], None]) -> None:
        brought.append(task)
        then(there)

    one.host.departures.bring = bring
    task = waits(one)
    elsewhere(one, THERE)
    goes(one, task)
    await one.settle()
    assert brought == [task]
    assert one.heard(giver)[-1] == ("elsewhere", ("two", not there))
    assert one.heard(reader)[-1] == ("elsewhere", ("two", False))
    assert KEY not in one.host.tasks
    assert one.store.find(*KEY) is None


@pytest.mark.parametrize("volatile", [True, False])
async def test_CLU_1_a_task_that_goes_to_a_shard_of_this_node_waits_there_and_nowhere_else(
    nodes: tuple[Node, Node], volatile: bool
) -> None:
    """For what it asks for by then, and it says anew what it waits for."""
    one, _ = nodes
    spec = task_pb2.TaskSpec(task_id="t")
    spec.timeouts.schedule_to_start.seconds = 60
    spec.durability = task_pb2.DURABILITY_VOLATILE if volatile else task_pb2.DURABILITY_DURABLE
    spec.selector.capability = "x"
    reader = Reader(one, 1, Interest.OUTCOME)
    one.reach.submit(*READER.read(TENANT, spec), reader)
    await one.settle()
    task = waits(one)
    before = one.host.pool(WAITING)
    task.pending_reason = "no_match: of before"
    after = task.requirement._replace(required_tags=("new",))
    one.host.departures.depart(before, task, THERE, after)
    assert task not in before.queue
    assert not before.wheel.due(one.clock.now_ms() + 120_000), "nothing of it is due where it was"
    await one.settle()
    pool = one.host.pool(THERE)
    assert one.host.tasks[KEY] is task
    assert (task.pool, task.requirement) == (pool, after)
    assert task in pool.queue
    assert task.pending_reason != "no_match: of before"
    assert one.heard(reader) == []


async def test_CLU_1_who_was_sent_after_a_task_hears_nothing_more_from_here(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    task = await waiting(one)
    (reader,) = readers_of(task)
    elsewhere(one, THERE)
    goes(one, task)
    await one.settle()
    told = one.heard(reader)
    assert told[-1][0] == "elsewhere"
    before = reader.credit
    one.reach.credit(reader, 5)
    assert reader.credit == before + 5, "it goes along: no pool here is asked for more"
    reader.sink.ended(reader, task)
    reader.sink.refused(reader, Fault(ErrorClass.UNAVAILABLE, Reason.OWNER_UNAVAILABLE, "late"))
    assert one.heard(reader) == told


async def test_HAZARDS_1_who_asks_while_a_look_is_under_way_is_answered_by_the_next(nodes: tuple[Node, Node]) -> None:
    """It may have begun before the task came."""
    one, _ = nodes
    task = await waiting(one)
    (stored,) = found(one, shard_of(WAITING))
    departures = one.host.departures
    looks: list[str] = []
    departures.look = lambda: looks.append("look")
    answers: list[Task | None] = []
    asked = departures.looks()
    departures.look_for(stored, answers.append)
    assert looks == ["look"]
    departures.looked(asked)
    assert answers == []
    departures.looked(departures.looks())
    assert answers == [task]
    departures.look_for(stored._replace(task=stored.task._replace(row=task.row + 1)), answers.append)
    departures.looked(departures.looks())
    assert answers == [task, None], "the one that is here under that id is another one"


@pytest.mark.parametrize("volatile", [True, False])
async def test_DLV_11_a_task_that_leaves_is_of_no_tree_here_any_more(nodes: tuple[Node, Node], volatile: bool) -> None:
    one, _ = nodes
    for name, parent in (("root", ""), ("t", "root")):
        spec = task_pb2.TaskSpec(task_id=name, parent_task_id=parent, root_task_id=parent)
        spec.durability = task_pb2.DURABILITY_VOLATILE if volatile else task_pb2.DURABILITY_DURABLE
        spec.selector.capability = "x"
        one.reach.submit(*READER.read(TENANT, spec), Reader(one, 1, Interest.ACCEPTANCE))
    await one.settle()
    assert one.host.trees._children
    elsewhere(one, THERE)
    goes(one, waits(one))
    await one.settle()
    assert not one.host.trees._children


@pytest.mark.parametrize("told", [1, 5])
async def test_STR_2_a_task_that_came_numbers_on_behind_what_was_told_where_it_was(
    nodes: tuple[Node, Node], told: int
) -> None:
    """Of which nothing but the acceptance was told, it leaves no gap; and numbers are reserved from then on, or the
    next owner would give them again."""
    one, two = nodes
    task = await waiting(one)
    there = shard_of(THERE)
    await one.own([shard for shard in ALL if shard != there])
    await two.own([there])
    elsewhere(one, THERE)
    task.sequence = told
    goes(one, task)
    await one.settle()
    await two.confirm()
    came = two.host.tasks[KEY]
    reader = two.subscribe("t", Interest.EVENTS, after=told)
    await two.settle()
    two.cancel("t", "enough")
    await two.settle()
    events = [event for what, events in two.heard(reader) if what == "events" for event in events]
    assert events[0][0] == told + 1
    assert (events[0][1] == "RESUMED") is (told > 1), "what was told there is not known here"
    assert came.reserved >= came.sequence > told
