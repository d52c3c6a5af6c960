"""Cancelling a task with all that it asked for (DLV-11, HAZARDS 1f)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from agentreach.v1 import task_pb2
from reach.core import events as ev
from reach.core.delivery import STOP_GRACE_MS
from reach.core.model import Fault, TaskState
from reach.core.queue import WaitQueue
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, Reason
from reach.runtime import trees
from tests.runtime.hosts import READER, TENANT, Shell, message_of

pytestmark = pytest.mark.asyncio


class Later:
    """Takes what is to be looked at later, and looks when the test says so."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, Callable[[], None]]] = []
        self.timers: list[Mock] = []

    def call_later(self, delay_s: float, look: Callable[[], None]) -> Mock:
        self.looks.append((delay_s, look))
        self.timers.append(Mock())
        return self.timers[-1]

    def look(self) -> None:
        self.looks.pop(0)[1]()


class Trees(Shell):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.readers: list[Reader] = []
        self.later = Later()
        self.host.trees._loop = self.later  # type: ignore[assignment]

    def child(self, task_id: str, parent: str = "", root: str = "", **fields: Any) -> Reader:
        spec = task_pb2.TaskSpec(task_id=task_id, parent_task_id=parent, root_task_id=root, **fields)
        spec.selector.agent_type = "nobody"
        reader = Reader(self, len(self.said) + 1, Interest.ACCEPTANCE)
        self.readers.append(reader)  # `heard` knows them by their ids, which must not be given again
        self.reach.submit(*READER.read(TENANT, spec), reader)
        return reader

    def states(self, *names: str) -> list[str]:
        return [self.host.tasks[TENANT, name].state.name for name in names]


async def test_DLV_11_all_below_a_cancelled_task_is_cancelled_and_nothing_else():
    shell = Trees()
    for name, parent, root in [("r", "", ""), ("a", "r", "r"), ("b", "a", "r"), ("c", "b", "r"), ("d", "r", "r")]:
        shell.child(name, parent, root)
        await shell.settle()
    shell.child("other")
    shell.cancel("a", "enough")
    await shell.settle()
    assert shell.states("r", "a", "b", "c", "d", "other") == [
        "PENDING", "CANCELLED", "CANCELLED", "CANCELLED", "PENDING", "PENDING",
    ]  # fmt: skip
    assert "'a'" in message_of(shell.host.tasks[TENANT, "c"])
    shell.cancel("r", "")
    await shell.settle()
    assert shell.states("r", "d", "other") == ["CANCELLED", "CANCELLED", "PENDING"]
    assert not shell.host.trees._children
    await shell.stop()


async def test_DLV_11_no_child_slips_in_at_the_same_instant():
    """Neither one that came just before the cancel, nor one just after it, in the same turn of the loop."""
    shell = Trees()
    shell.child("r")
    await shell.settle()
    before = shell.child("before", "r")
    shell.cancel("r", "")
    after = shell.child("after", "r")
    grandchild, deeper = shell.child("deep", "before", "r"), shell.child("deeper", "before")
    await shell.settle()
    assert shell.states("r", "before") == ["CANCELLED", "CANCELLED"]
    assert shell.heard(before)[0][0] == "accepted"
    for late in (after, grandchild, deeper):
        assert shell.heard(late) == [("refused", Reason.PARENT_CANCELLED)]
    assert (TENANT, "after") not in shell.host.tasks
    await shell.stop()


async def test_DLV_11_what_a_task_that_ended_asked_for_belongs_to_who_asked_for_that():
    shell = Trees()
    for name, parent in [("r", ""), ("a", "r"), ("b", "a")]:
        shell.child(name, parent, "r" if parent else "")
    await shell.settle()
    middle = shell.host.tasks[TENANT, "a"]
    shell.host.trees.left(middle)  # as when it succeeds
    shell.cancel("r", "")
    await shell.settle()
    assert shell.states("r", "b") == ["CANCELLED", "CANCELLED"]
    await shell.stop()


@pytest.mark.parametrize("ended", [TaskState.CANCELLED, TaskState.SUCCEEDED])
async def test_DLV_11_of_a_parent_that_is_not_in_memory_the_journal_is_asked(ended):
    shell = Trees()
    shell.child("r")
    if ended is TaskState.CANCELLED:
        shell.cancel("r", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    again.host.tasks.pop((TENANT, "r"), None)  # it has left the memory; the journal has it with or without an end
    again.reads.held = True
    reader = again.child("late", "r")
    twice = again.child("nobody's", "unknown parent")
    await again.settle()
    assert again.heard(reader) == again.heard(twice) == []
    again.reads.held = False
    again.reads.go()
    await again.settle()
    said = again.heard(reader)
    assert said == ([("refused", Reason.PARENT_CANCELLED)] if ended is TaskState.CANCELLED else [("accepted", False)])
    assert again.heard(twice) == [("accepted", False)]
    assert not again.reach._first._waiting
    await again.stop()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_DLV_11_no_child_slips_in_behind_a_cancelled_task_that_is_brought_again(turns):
    """Found by seed 6000701 of the simulation: until the journal says that its id is taken, it looks like a new one."""
    shell = Trees()
    shell.child("r")
    shell.cancel("r", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    again.child("r")
    for _ in range(turns):
        await asyncio.sleep(0)
    late = again.child("late", "r")
    await again.settle()
    assert again.heard(late) == [("refused", Reason.PARENT_CANCELLED)]
    assert (TENANT, "late") not in again.host.tasks
    await again.stop()


async def test_DLV_11_a_child_that_comes_again_while_the_first_is_refused_is_asked_all_that_a_new_one_is(monkeypatch):
    """Found by seed 7001303 of the simulation: it got in without the bounds of its parent's budget, and of no tree."""
    shell = Trees()
    shell.child("r", budget=task_pb2.Budget(tokens=1_000))
    await shell.settle()
    has_room, asked = WaitQueue.has_room, []

    def full_at_first(queue: WaitQueue, size: int) -> bool:
        asked.append(size)
        return len(asked) > 1 and has_room(queue, size)

    monkeypatch.setattr(WaitQueue, "has_room", full_at_first)
    first, again = shell.child("late", "r"), shell.child("late", "r")
    await shell.settle()
    assert shell.heard(first) == [("refused", Reason.QUEUE_FULL)]
    assert shell.heard(again) == [("accepted", False)]
    assert task_pb2.TaskSpec.FromString(shell.host.tasks[TENANT, "late"].spec).budget.tokens == 1_000
    shell.cancel("r", "")
    await shell.settle()
    assert shell.states("late") == ["CANCELLED"]
    await shell.stop()


@pytest.mark.parametrize("how", ["read", "let go", "cancelled", "brought again"])
async def test_DLV_11_no_child_slips_in_because_somebody_speaks_of_it_while_the_journal_is_asked(how):
    """Found by seed 7 of the simulation: whoever asked for a task that waits for the journal had it taken at once."""
    shell = Trees()
    shell.child("r")
    shell.cancel("r", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    again.reads.held = True
    reader = again.child("late", "r")
    if how == "read":
        again.subscribe("late", Interest.EVENTS)
    elif how == "let go":
        again.reach.unsubscribe(reader, TENANT, "late")
    elif how == "cancelled":
        again.cancel("late", "")
    else:
        again.child("late", "r")
    again.reads.held = False
    again.reads.go()
    await again.settle()
    assert again.heard(reader) == [("refused", Reason.PARENT_CANCELLED)]
    assert (TENANT, "late") not in again.host.tasks
    assert not again.reach._first._behind
    await again.stop()


async def test_DLV_11_what_is_asked_of_a_task_meanwhile_is_done_once_it_is_there():
    shell = Trees()
    shell.reads.held = True
    first, twice = shell.child("c", "nobody's"), shell.child("c", "nobody's")
    read = shell.subscribe("c", Interest.OUTCOME)
    shell.cancel("c", "enough")
    shell.reads.held = False
    shell.reads.go()
    await shell.settle()
    assert (shell.heard(first), shell.heard(twice)) == ([("accepted", False)], [("accepted", True)])
    assert shell.states("c") == ["CANCELLED"]
    assert [word for word, _ in shell.heard(read)] == ["ended"]
    await shell.stop()


async def test_DLV_3_a_child_that_ended_before_is_answered_also_when_its_parent_was_cancelled():
    shell = Trees()
    shell.child("r")
    shell.child("a", "r")
    await shell.settle()
    shell.cancel("r", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    reader = again.child("a", "r")
    await again.settle()
    assert [word for word, _ in again.heard(reader)] == ["accepted"]
    await again.stop()


async def test_DLV_11_of_the_first_of_the_tree_the_journal_is_asked_too():
    """Found by seed 8: the one that asks was volatile, and forgotten in a restart; the root is cancelled."""
    shell = Trees()
    shell.child("r")
    shell.cancel("r", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    reader = again.child("late", "forgotten", "r")
    await again.settle()
    assert again.heard(reader) == [("refused", Reason.PARENT_CANCELLED)]
    await again.stop()


async def test_DLV_11_after_a_restart_children_are_known():
    shell = Trees()
    shell.child("r")
    shell.child("a", "r")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    again.cancel("r", "")
    await again.settle()
    assert again.states("r", "a") == ["CANCELLED", "CANCELLED"]
    await again.stop()


async def test_DLV_11_what_a_task_that_ended_asked_for_is_of_its_tree_also_after_a_restart():
    """And what is asked for late, when the one that asks has ended."""
    shell = Trees()
    for name, parent in [("r", ""), ("a", "r"), ("b", "a"), ("c", "b")]:
        shell.child(name, parent, "r" if parent else "")
    await shell.settle()
    middle = shell.host.tasks[TENANT, "a"]
    assert middle.pool is not None
    shell.host.post(middle.pool, ev.Refuted(middle, Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "no")))
    await shell.settle()
    assert shell.states("a", "b") == ["FAILED", "PENDING"]
    shell.child("late", "a", "r")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    again.child("later", "a", "r")
    await again.settle()
    again.cancel("r", "")
    await again.settle()
    assert again.states("r", "b", "c", "late", "later") == ["CANCELLED"] * 5
    await again.stop()


async def test_DLV_11_children_are_listed_again():
    shell = Trees()
    shell.child("r")
    await shell.settle()
    shell.cancel("r", "")
    assert [delay_s for delay_s, _ in shell.later.looks] == [1.0, STOP_GRACE_MS / 1_000]
    shell.host.trees._marks.clear()
    await shell.settle()
    spec = task_pb2.TaskSpec(task_id="slipped", parent_task_id="r")  # as if another node had taken it
    spec.selector.agent_type = "nobody"
    task, selector = READER.read(TENANT, spec)
    shell.host.tasks.pop((TENANT, "r"))
    shell.host.trees._fine[TENANT, "r"] = b""
    shell.reach.submit(task, selector, Reader(shell, 1, Interest.ACCEPTANCE))
    await shell.settle()
    assert shell.states("slipped") == ["PENDING"]
    shell.later.look()
    await shell.settle()
    assert shell.states("slipped") == ["CANCELLED"]
    await shell.stop()
    done, *left = shell.later.timers
    assert not done.cancel.called
    assert all(timer.cancel.called for timer in left)


async def test_DLV_11_marks_are_bounded_and_of_tasks_that_are_there(monkeypatch):
    monkeypatch.setattr(trees, "MARKS", 3)
    shell = Trees()
    for number in range(6):
        shell.child(f"r{number}")
        shell.cancel(f"r{number}", "")
        shell.reach.cancel(TENANT, f"nobody {number}", "", shell)
    assert list(shell.host.trees._marks) == [(TENANT, f"r{number}") for number in (3, 4, 5)]
    await shell.settle()
    late = shell.child("late", "r0")
    await shell.settle()
    assert shell.heard(late) == [("refused", Reason.PARENT_CANCELLED)], "what is in memory says so itself"
    for name in ("r4", "new"):
        shell.host.trees.cancelled_elsewhere((TENANT, name), mark=True)
    assert [name for _, name in shell.host.trees._marks] == ["r5", "r4", "new"], "what is told again is kept longest"
    await shell.stop()


async def test_DLV_11_a_tree_that_is_a_ring_ends_too():
    shell = Trees()
    shell.child("a", "b")
    shell.child("b", "a")
    shell.child("self", "self")
    await shell.settle()
    shell.cancel("a", "")
    await shell.settle()
    assert shell.states("a", "b") == ["CANCELLED", "CANCELLED"]
    assert shell.states("self") == ["PENDING"]
    assert (TENANT, "self") not in shell.host.trees._children
    assert not shell.host.trees._parent_of, "nothing is left of what has ended"
    await shell.stop()


async def test_DLV_11_of_a_ring_of_which_one_has_ended_the_other_is_a_task_like_any():
    shell = Trees()
    shell.child("a", "b")
    shell.child("b", "a")
    await shell.settle()
    shell.host.trees.left(shell.host.tasks[TENANT, "a"])
    shell.cancel("b", "")
    await shell.settle()
    assert shell.states("b") == ["CANCELLED"]
    assert not shell.host.trees._children
    assert not shell.host.trees._parent_of
    await shell.stop()


@pytest.mark.parametrize("named", [{"root": "r"}, {"parent": "r"}])
async def test_DLV_11_what_belongs_to_a_task_of_another_node_by_one_name_alone_is_cancelled_with_it(named):
    shell = Trees()
    shell.host.trees._fine[TENANT, "r"] = b""
    shell.child("a", **named)
    await shell.settle()
    shell.host.trees.cancelled_elsewhere((TENANT, "r"), mark=True)
    await shell.settle()
    assert shell.states("a") == ["CANCELLED"]
    await shell.stop()


@pytest.mark.parametrize("in_memory", [False, True])
async def test_DLV_11_a_task_that_has_ended_and_is_cancelled_all_the_same_takes_what_it_asked_for_along(in_memory):
    """What is new is not refused: the task itself was not cancelled. Other nodes hold it the same way."""
    shell = Trees()
    told: list[tuple[str, bool]] = []
    shell.host.trees.tell = lambda key, mark: told.append((key[1], mark))
    if in_memory:
        shell.child("r")
        await shell.settle()
    else:
        shell.host.trees._fine[TENANT, "r"] = b""
    shell.child("a", "r", "r")
    await shell.settle()
    if in_memory:
        first = shell.host.tasks[TENANT, "r"]
        assert first.pool is not None
        shell.host.post(first.pool, ev.Refuted(first, Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "no")))
        await shell.settle()
    shell.cancel("r", "")
    await shell.settle()
    assert shell.states("a") == ["CANCELLED"]
    shell.later.look()
    assert told == [("a", True), ("r", False), ("r", False)]
    late = shell.child("late", "r", "r")
    await shell.settle()
    assert shell.heard(late) == [("accepted", False)]
    await shell.stop()


async def test_DLV_11_what_a_task_of_another_node_asks_for_is_refused_by_the_first_of_their_tree():
    shell = Trees()
    shell.host.trees._fine[TENANT, "at another node"] = b""
    shell.host.trees.cancelled_elsewhere((TENANT, "r"), mark=True)
    late = shell.child("late", "at another node", "r")
    await shell.settle()
    assert shell.heard(late) == [("refused", Reason.PARENT_CANCELLED)]
    await shell.stop()


async def test_DLV_11_a_child_is_not_taken_when_the_journal_cannot_say_whose_it_is(monkeypatch):
    shell = Trees()
    fault = Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "away")
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(shell.host.past, "look_up", lambda tenant, task_id, then: loop.call_soon(then, fault))
    late = shell.child("late", "somebody's")
    await shell.settle()
    assert shell.heard(late) == [("refused", Reason.STORE_UNAVAILABLE)]
    assert (TENANT, "late") not in shell.host.tasks
    await shell.stop()


async def test_DLV_11_of_an_open_task_that_asks_the_journal_is_not_asked():
    """It would be cancelled with the first of its tree, wherever that is."""
    shell = Trees()
    shell.child("a", "", "r")
    await shell.settle()
    shell.host.trees._fine.clear()
    shell.reads.held = True
    child = shell.child("b", "a", "r")
    await shell.settle()
    assert shell.heard(child) == [("accepted", False)]
    await shell.stop()


async def test_DLV_11_no_more_parents_are_remembered_than_so(monkeypatch):
    monkeypatch.setattr(trees, "PARENTS", 2)
    shell = Trees()
    for number in range(5):
        child = shell.child(f"c{number}", f"parent {number}", "root")
        await shell.settle()
        assert shell.heard(child) == [("accepted", False)]
        assert len(shell.host.trees._fine) <= 2
    await shell.stop()


async def test_DLV_3_a_child_whose_id_was_taken_before_is_of_no_tree():
    shell = Trees()
    shell.child("r")
    await shell.settle()
    shell.child("a", "r")
    await shell.settle()
    shell.cancel("a", "")
    await shell.settle()
    await shell.stop()
    again = Trees(shell.journal)
    twice = again.child("a", "r")
    await again.settle()
    assert again.heard(twice) == [("accepted", True)]
    assert not again.host.trees._parent_of
    assert not again.host.trees._children
    await again.stop()


async def test_DLV_11_other_nodes_are_told_of_a_cancel_and_told_again():
    """What was asked for may be at any of them, and come to one of them a little later."""
    shell = Trees()
    told: list[tuple[str, bool]] = []
    shell.host.trees.tell = lambda key, mark: told.append((key[1], mark))
    shell.child("r")
    shell.child("a", "r", "r")
    await shell.settle()
    shell.cancel("r", "")
    await shell.settle()
    assert told == [("a", True), ("r", True)], "what the child asked for may be at a third node"
    shell.later.look()
    assert told[2:] == [("r", True)]
    shell.host.trees.cancel((TENANT, "unknown"))
    assert told[3:] == [("unknown", False)], "its children may be elsewhere, itself nowhere"
    await shell.stop()


@pytest.mark.parametrize("mark", [True, False])
async def test_DLV_11_what_another_node_cancels_is_cancelled_here_and_refused_from_then_on(mark):
    shell = Trees()
    told: list[tuple[str, bool]] = []
    shell.host.trees.tell = lambda key, mark: told.append((key[1], mark))
    shell.host.trees._fine[TENANT, "r"] = b""
    shell.child("a", "r", "r")
    shell.child("b", "a", "r")
    await shell.settle()
    assert shell.states("a", "b") == ["PENDING", "PENDING"]
    shell.host.trees.cancelled_elsewhere((TENANT, "r"), mark=mark)
    await shell.settle()
    assert shell.states("a", "b") == ["CANCELLED", "CANCELLED"]
    assert told == [("a", True), ("b", True)]
    late = shell.child("late", "r", "r")
    await shell.settle()
    expected = ("refused", Reason.PARENT_CANCELLED) if mark else ("accepted", False)
    assert shell.heard(late) == [expected]
    assert ((TENANT, "r") in shell.host.trees._fine) is not mark, "what was known of it holds no longer"
    await shell.stop()
