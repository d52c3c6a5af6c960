"""The checker finds what it is for: each history here is one that must never be, and what is right is let pass."""

from __future__ import annotations

import pytest

from reach.core.model import TaskState
from reach.core.pieces import Gap, Kind
from tests.sim import test_attempt_truth, test_caller_truth, test_readers
from tests.sim.history import (
    KEY,
    OTHER_SPEC,
    REUSED,
    UNAVAILABLE,
    History,
    Planted,
    delta,
    outcome,
    outcome_row,
    task_row,
)

PLANTED = Planted()


def good(h: History) -> None:
    h.accept()
    h.checker.attempts.offered(KEY, 1, "one")
    h.fail()
    h.attempt(2)
    h.checker.attempts.offered(KEY, 2, "two")
    h.effect(2)
    h.checker.attempts.granted(KEY, 2, "two")
    h.checker.attempts.acts(KEY, 2, "two")
    h.answer(2, "two")
    row = outcome_row(2)._replace(instance_id="two")
    h.write(outcomes=[row])
    h.write(outcomes=[row])  # a batch whose outcome was unknown is sent again
    h.checker.attempts.acknowledged(KEY, 2, True)
    told = outcome(attempts=2)
    told.instance_id = "two"
    h.checker.callers.ended(KEY, told)
    h.checker.callers.ended(KEY, told)
    h.checker.callers.refused(KEY, UNAVAILABLE, None, True)
    h.checker.callers.refused(KEY, REUSED, OTHER_SPEC, True)
    h.read((1, Kind.ACCEPTED, None), (3, Kind.GAP, Gap(2, 3, [])), (4, Kind.DELTA, delta("a")))
    h.text("abc", (1, Kind.ACCEPTED, None), (2, Kind.DELTA, delta("ab")), (3, Kind.DELTA, delta("c")))
    h.checker.finish()


@PLANTED("ONE_ROW")
def two_rows_of_one_task(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row(row=2)])


@PLANTED("ONE_ROW")
def one_row_of_two_tasks(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row()._replace(task_id="other")])


@PLANTED("VOLATILE_IS_NOT_KEPT")
def a_volatile_task_is_written(h: History) -> None:
    h.checker.submitted(KEY, volatile=True)
    h.write(tasks=[task_row()])


@PLANTED("ENDS_ONCE")
def it_ends_twice(h: History) -> None:
    h.accept()
    h.end()
    h.write(outcomes=[outcome_row(state=TaskState.CANCELLED)])


@PLANTED("WINNER_IS_CURRENT")
def a_superseded_attempt_ends_it(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.end()


@PLANTED("EVERY_TASK_ENDS")
def a_task_never_ends(h: History) -> None:
    h.accept()
    h.checker.finish()


@PLANTED("REQUEUED_ONCE")
def one_request_makes_two_tasks_of_a_dead_letter(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row(row)._replace(task_id=task_id) for row, task_id in ((2, "t again"), (3, "t once more"))])
    h.checker.operators.requeued(KEY, "please", "t again")
    h.checker.operators.requeued(KEY, "please", "t again")
    h.checker.operators.requeued(KEY, "please", "t once more")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED[name][0] in PLANTED.found(name)


def test_a_right_history_passes() -> None:
    history = History()
    good(history)
    assert history.checker.violations == []


def test_there_are_enough_of_them() -> None:
    others = (test_attempt_truth.PLANTED, test_caller_truth.PLANTED, test_readers.PLANTED)
    assert len(PLANTED) + sum(len(one) for one in others) >= 20
