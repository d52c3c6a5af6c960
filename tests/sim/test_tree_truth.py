"""The checker finds what must not be of tasks that other tasks ask for, and lets pass what is right (DLV-6, DLV-11)."""

from __future__ import annotations

import pytest

from agentreach.v1 import task_pb2
from reach.core.model import TaskKey, TaskState
from tests.sim.history import KEY, History, Planted, outcome_row, task_row

PLANTED = Planted()
ROWS = {"root": 2, "parent": 3, "child": 4}


def spec(name: str, parent: str = "", root: str = "", **budget: int) -> task_pb2.TaskSpec:
    made = task_pb2.TaskSpec(task_id=name, parent_task_id=parent, root_task_id=root)
    for field, value in budget.items():
        setattr(made.budget, field, value)
    return made


def write(h: History, *specs: task_pb2.TaskSpec) -> None:
    for one in specs:
        row = task_row(ROWS[one.task_id])._replace(task_id=one.task_id, spec=one.SerializeToString())
        h.write(tasks=[row._replace(root_task_id=one.root_task_id or one.parent_task_id)])


def comes(h: History, one: task_pb2.TaskSpec) -> task_pb2.TaskSpec:
    h.checker.trees.comes(key(one.task_id), one)
    return one


def key(name: str) -> TaskKey:
    return KEY[0], name


def end(h: History, *names: str, state: TaskState = TaskState.CANCELLED) -> None:
    h.write(outcomes=[outcome_row(state=state)._replace(row=ROWS[name]) for name in names])


def family(h: History, *names: str) -> None:
    specs = {"root": spec("root"), "parent": spec("parent", "root"), "child": spec("child", "parent", "root")}
    write(h, *(specs[name] for name in names))


@PLANTED("CANCELLED_TAKE_NOTHING")
def a_child_comes_after_its_parent_was_cancelled(h: History) -> None:
    family(h, "parent")
    end(h, "parent")
    write(h, comes(h, spec("child", "parent")))


@PLANTED("CANCELLED_TAKE_NOTHING")
def a_child_comes_after_the_root_was_cancelled(h: History) -> None:
    family(h, "root")
    end(h, "root")
    write(h, comes(h, spec("child", "who is that?", "root")))


@PLANTED("CANCEL_REACHES_ALL")
def a_child_goes_on_after_its_parent_was_cancelled(h: History) -> None:
    family(h, "parent", "child")
    end(h, "parent")
    end(h, "child", state=TaskState.FAILED)


@PLANTED("CANCEL_REACHES_ALL")
def what_a_task_that_ended_asked_for_goes_on_after_the_root_was_cancelled(h: History) -> None:
    family(h, "root", "parent", "child")
    end(h, "parent", state=TaskState.FAILED)
    end(h, "root")
    end(h, "child", state=TaskState.FAILED)


@PLANTED("BUDGETS_ONLY_SHRINK")
def a_child_may_ask_as_often_as_its_parent(h: History) -> None:
    write(h, spec("parent", max_hops=2))
    write(h, comes(h, spec("child", "parent", max_hops=2)))


@PLANTED("BUDGETS_ONLY_SHRINK")
def a_child_may_spend_without_end(h: History) -> None:
    write(h, spec("parent", tokens=2))
    write(h, comes(h, spec("child", "parent")))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED.found(name) == [PLANTED[name][0]]


def test_what_is_right_is_let_pass() -> None:
    h = History()
    family(h, "root", "parent")
    write(h, comes(h, spec("child", "parent", "root")))
    end(h, "parent", state=TaskState.FAILED)
    end(h, "root", "child")
    assert h.checker.violations == []


def test_who_comes_before_those_that_ask_for_it_is_not_theirs() -> None:
    """As callers of a history may have it whose messages overtake one another; found by seed 5100091."""
    h = History()
    write(h, comes(h, spec("child", "parent", "root")))
    family(h, "root", "parent")
    end(h, "root", "parent")
    end(h, "child", state=TaskState.FAILED)
    assert h.checker.violations == []


def test_who_came_first_is_not_theirs_either_when_its_batch_comes_again() -> None:
    """Found by seed 7002626."""
    h = History()
    child = comes(h, spec("child", "parent", "root"))
    write(h, child)
    family(h, "root", "parent")
    write(h, child)
    end(h, "parent")
    end(h, "child", state=TaskState.FAILED)
    assert h.checker.violations == []


def test_who_asks_and_came_before_the_root_is_not_of_its_tree() -> None:
    """Found by seed 10019927."""
    h = History()
    write(h, comes(h, spec("parent", "root")))
    family(h, "root")
    end(h, "root")
    write(h, comes(h, spec("child", "parent", "root")))
    assert h.checker.violations == []


def test_a_cancelled_task_that_is_removed_meanwhile_is_known_to_nobody() -> None:
    """Found by seed 8005219."""
    h = History()
    family(h, "parent")
    end(h, "parent")
    child = comes(h, spec("child", "parent", max_hops=1))
    h.checker.forget_row(ROWS["parent"])
    write(h, child)
    assert h.checker.violations == []


def test_who_came_before_the_cancel_may_be_written_with_it_and_ends_with_it() -> None:
    h = History()
    family(h, "parent")
    child = comes(h, spec("child", "parent", max_hops=1))
    end(h, "parent")
    write(h, child)
    end(h, "child")
    assert h.checker.violations == []
