"""What the checker must see of what callers hear: each violation planted once."""

from __future__ import annotations

import pytest

from reach.core.model import Fault, TaskState
from reach.core.pieces import Kind
from reach.errors import ErrorClass, Reason
from reach.testing.sim.checker import VOLATILE_SECONDS
from tests.sim.history import KEY, NOT_FOUND, OTHER_SPEC, REUSED, SPEC, History, Planted, delta, outcome

PLANTED = Planted()


@PLANTED("ACCEPTED_IS_DURABLE")
def accepted_before_the_commit(h: History) -> None:
    h.checker.callers.accepted(KEY)


@PLANTED("SAME_ID_SAME_CONTENT")
def other_content_under_a_taken_id_is_accepted(h: History) -> None:
    h.accept()
    h.checker.callers.accepted(KEY, OTHER_SPEC)


@PLANTED("TERMINAL_ABSORBS")
def it_ends_otherwise_for_another_caller(h: History) -> None:
    h.accept()
    h.end()
    h.checker.callers.ended(KEY, outcome())
    h.checker.callers.ended(KEY, outcome("else"))


@PLANTED("TERMINAL_ABSORBS")
def it_goes_on_after_its_end(h: History) -> None:
    h.accept()
    h.end()
    h.checker.callers.ended(KEY, outcome())
    h.checker.callers.open(KEY, TaskState.RUNNING)


@PLANTED("TOLD_IS_DURABLE")
def an_end_is_told_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.callers.ended(KEY, outcome())


@PLANTED("TOLD_IS_DURABLE")
def what_is_told_is_not_what_is_written(h: History) -> None:
    h.accept()
    h.end()
    h.checker.callers.ended(KEY, outcome("else"))


@PLANTED("ACCEPTED_IS_KNOWN")
def an_accepted_task_is_not_found(h: History) -> None:
    h.accept()
    h.checker.callers.refused(KEY, NOT_FOUND, None, h.checker.callers.is_known(KEY))


@PLANTED("ACCEPTED_IS_KNOWN")
def the_same_request_is_another_one(h: History) -> None:
    h.accept()
    h.checker.callers.refused(KEY, REUSED, SPEC, h.checker.callers.is_known(KEY))


@PLANTED("NO_INNER_FAULT")
def a_caller_hears_of_an_inner_fault(h: History) -> None:
    h.checker.callers.refused(KEY, Fault(ErrorClass.INTERNAL, Reason.INTERNAL_FAULT, "oops"), None, False)


@PLANTED("SEQUENCES_ARE_UNIQUE")
def one_number_for_two_events(h: History) -> None:
    h.accept()
    h.read((2, Kind.DELTA, delta("a")), after=1)
    h.read((2, Kind.DELTA, delta("b")), after=1)


@PLANTED("SEQUENCES_ARE_RESERVED")
def a_number_that_another_owner_may_use_too(h: History) -> None:
    h.accept()
    h.read((1_002, Kind.DELTA, delta("a")), after=1_001)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED[name][0] in PLANTED.found(name)


def test_the_content_that_counts_is_accepted() -> None:
    history = History()
    history.accept()
    history.checker.callers.accepted(KEY, SPEC)
    assert history.checker.violations == []


def test_what_is_volatile_may_begin_anew_once_it_ended_long_ago_though_it_is_told_once_more() -> None:
    """Found by seed 6003414: a server that stood still tells an end that it forgets in the same moment."""
    h = History()
    end, other = (outcome(state=state) for state in (TaskState.CANCELLED, TaskState.FAILED))
    h.checker.submitted(KEY, volatile=True)
    h.checker.callers.ended(KEY, end)
    h.checker.now = lambda: VOLATILE_SECONDS + 1
    h.checker.callers.ended(KEY, end)
    h.checker.callers.open(KEY, TaskState.PENDING)
    assert h.checker.violations == []
    h.checker.callers.ended(KEY, other)
    h.checker.callers.open(KEY, TaskState.PENDING)
    assert [one.name for one in h.checker.violations] == ["TERMINAL_ABSORBS"], "this one has just ended"
