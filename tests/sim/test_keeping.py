"""The checker finds what must not be of what is removed, and lets pass what is right (DLV-10, DLV-12)."""

from __future__ import annotations

import pytest

from reach.core.model import TaskState
from reach.runtime.retention import END_OF_TIME, Keep
from reach.testing.sim.loop import WALL_EPOCH_MS
from tests.sim.history import KEY, NOT_FOUND, SPEC, History, Planted, outcome, outcome_row, task_row

PLANTED = Planted()
LATER = WALL_EPOCH_MS + 1_000_000


def end(h: History, state: TaskState = TaskState.SUCCEEDED, row: int = 1) -> None:
    h.answer()
    h.write(outcomes=[outcome_row(state=state)._replace(row=row, ended_wall_ms=WALL_EPOCH_MS)])


def remove(h: History, row: int = 1, before_ms: int | None = LATER) -> None:
    h.checker.keeping.removed(row, before_ms=before_ms)


def begin(h: History, keep: Keep | None = None, now: float = 0.0) -> None:
    h.checker.keeping.keep = keep
    h.checker.now = lambda: now
    h.accept()


@PLANTED("OPEN_IS_KEPT")
def what_is_open_is_removed(h: History) -> None:
    begin(h, Keep())
    remove(h)


@PLANTED("RESULTS_ARE_KEPT")
def a_result_goes_before_its_time(h: History) -> None:
    begin(h, Keep(results_ms=500_000), 499.0)
    end(h)
    remove(h)


@PLANTED("RESULTS_ARE_KEPT")
def a_result_goes_for_want_of_space_before_anybody_could_ask_for_it(h: History) -> None:
    begin(h, Keep(total_bytes=100), 119.0)
    end(h)
    remove(h)


@PLANTED("RESULTS_ARE_KEPT")
def a_result_goes_though_nothing_is_to_be_removed(h: History) -> None:
    begin(h, None, 1e9)
    end(h)
    remove(h)


@PLANTED("RESULTS_ARE_KEPT")
def a_dead_letter_goes_though_there_is_room_for_it(h: History) -> None:
    begin(h, Keep(dead_letters=1))
    end(h, TaskState.DEAD_LETTERED)
    h.checker.keeping.purge_of_dead(1, END_OF_TIME)


@PLANTED("ONLY_WHAT_WAS_ASKED_IS_PURGED")
def a_dead_letter_goes_that_nobody_named(h: History) -> None:
    begin(h)
    h.checker.keeping.purge_asked(KEY[0], "other")
    end(h, TaskState.DEAD_LETTERED)
    remove(h, before_ms=None)


@PLANTED("ONLY_WHAT_WAS_ASKED_IS_PURGED")
def a_result_is_purged_as_a_dead_letter(h: History) -> None:
    begin(h)
    h.checker.keeping.purge_asked(KEY[0])
    end(h)
    remove(h, before_ms=None)


@PLANTED("PURGED_IS_GONE")
def what_is_purged_is_still_there(h: History) -> None:
    begin(h)
    end(h, TaskState.DEAD_LETTERED)
    h.checker.keeping.purged(KEY, 1)


@PLANTED("TOLD_IS_DURABLE")
def a_removed_task_ends_in_another_way(h: History) -> None:
    begin(h, Keep(results_ms=1_000), 121.0)
    end(h)
    remove(h)
    h.checker.callers.ended(KEY, outcome("else"))


@PLANTED("ENDS_ONCE")
def who_takes_a_free_id_ends_twice(h: History) -> None:
    begin(h, Keep(results_ms=1_000), 121.0)
    end(h)
    remove(h)
    h.write(tasks=[task_row(2)])
    end(h, row=2)
    end(h, TaskState.CANCELLED, row=2)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED.found(name) == [PLANTED[name][0]]


def test_an_id_is_free_once_its_task_is_removed() -> None:
    h = History()
    begin(h, Keep(results_ms=130_000), 131.0)
    end(h)
    h.checker.callers.ended(KEY, outcome())
    remove(h)
    h.checker.callers.ended(KEY, outcome())  # memory has it for a while
    h.checker.callers.refused(KEY, NOT_FOUND, None, True)
    h.write(tasks=[task_row(2)])
    h.checker.callers.accepted(KEY, SPEC)
    h.checker.attempts.offered(KEY, 1, "one")
    end(h, row=2)
    h.checker.callers.ended(KEY, outcome())
    assert h.checker.violations == []


def test_dead_letters_go_when_they_are_too_many_or_an_operator_says_so() -> None:
    h = History()
    begin(h, Keep(dead_letters=0))
    end(h, TaskState.DEAD_LETTERED)
    h.checker.keeping.purge_of_dead(1, END_OF_TIME)
    remove(h, before_ms=END_OF_TIME)
    h.write(tasks=[task_row(2)])
    end(h, TaskState.DEAD_LETTERED, row=2)
    h.checker.keeping.purge_asked(*KEY)
    remove(h, 2, before_ms=None)
    h.checker.keeping.purged(KEY, 2)
    assert h.checker.violations == []
