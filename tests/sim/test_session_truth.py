"""The checker finds what must not be of sessions and their turns, and lets pass what is right (SES-1, SES-3)."""

from __future__ import annotations

import pytest

from agentreach.v1 import attempt_pb2
from reach.core.model import TaskState
from tests.sim.history import KEY, History, Planted, outcome, outcome_row, task_row

PLANTED = Planted()
ROWS = {name: row for row, name in enumerate(("t", "one", "two", "three", "other"), 1)}
CANCELLED = TaskState.CANCELLED


def begin(h: History, *names: str, session: str = "s", rows: int = 0) -> None:
    """Tasks of a session; `rows` is added to the numbers of their rows."""
    h.write(tasks=[task_row(ROWS[name] + rows)._replace(task_id=name, session=session) for name in names])


def end(h: History, *names: str, told: bool = True, rows: int = 0) -> None:
    for name in names:
        h.write(outcomes=[outcome_row(state=CANCELLED)._replace(row=ROWS[name] + rows)])
        if told:
            h.checker.callers.ended((KEY[0], name), outcome(state=CANCELLED))


def offer(h: History, *turns: str, handoff: bytes = b"", number: int = 0) -> None:
    """The task is offered a moment later, with these turns."""
    h.checker.now = lambda: 1.0
    offered = attempt_pb2.Offer()
    offered.session_context.handoff, offered.session_context.handoff_number = handoff, number
    for name in turns:
        offered.session_context.turns.add(task_id=name)
    h.checker.sessions.offered(KEY, offered.SerializeToString())


@PLANTED("TURNS_ARE_THERE")
def a_turn_that_was_told_does_not_go_along(h: History) -> None:
    begin(h, "t", "one", "two")
    end(h, "one", "two")
    offer(h, "one")


@PLANTED("TURNS_ARE_IN_ORDER")
def turns_go_along_in_another_order(h: History) -> None:
    begin(h, "t", "one", "two")
    end(h, "one", "two")
    offer(h, "two", "one")


@PLANTED("TURNS_COUNT_ONCE")
def a_turn_goes_along_twice(h: History) -> None:
    begin(h, "t", "one", "two")
    end(h, "one", "two", told=False)
    offer(h, "one", "one")


@PLANTED("TURNS_ARE_DURABLE")
def a_turn_goes_along_before_it_is_written(h: History) -> None:
    begin(h, "t", "one")
    offer(h, "one")


@PLANTED("SESSIONS_NEVER_MEET")
def a_snapshot_of_another_session_goes_along(h: History) -> None:
    begin(h, "t")
    offer(h, handoff=f"{KEY[0]}|other|1".encode(), number=1)


@PLANTED("SNAPSHOT_HAS_A_NUMBER")
def a_snapshot_without_a_number_goes_along(h: History) -> None:
    begin(h, "t")
    offer(h, handoff=f"{KEY[0]}|s|1".encode())


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED[name][0] in PLANTED.found(name)


def test_what_is_right_is_let_pass() -> None:
    h = History()
    begin(h, "t", "one", "two", "three")
    begin(h, "other", session="another")
    end(h, "one", "other", "two")
    end(h, "three", told=False)  # it may come along, and need not
    offer(h, "one", "two")
    offer(h, "one", "two", "three")
    assert h.checker.violations == []


def test_who_was_removed_and_comes_again_may_have_either_place() -> None:
    """Found by seed 8014132: its first turn was lost with the process, as it was removed before that was kept."""
    h = History()
    begin(h, "t", "one", "two", "three")
    end(h, "one", "two")
    h.checker.forget_row(ROWS["one"])
    begin(h, "one", rows=10)
    end(h, "one", rows=10)
    end(h, "three")
    for turns in (("one", "two", "three"), ("two", "one", "three"), ("two", "three")):
        offer(h, *turns)
    assert h.checker.violations == []
    offer(h, "three", "two")
    assert [one.name for one in h.checker.violations] == ["TURNS_ARE_IN_ORDER", "TURNS_ARE_THERE"]


def test_what_was_removed_and_came_again_may_take_all_the_room() -> None:
    """Found by seed 8024638."""
    h = History()
    again = ["a", "b", "c", "d", "e"]
    ROWS.update({name: 20 + row for row, name in enumerate(again)})
    begin(h, "t", "one", *again)
    end(h, *again, "one")
    for name in again:
        h.checker.forget_row(ROWS[name])
    begin(h, *again, rows=20)
    end(h, *again, rows=20)
    offer(h, *again)
    assert h.checker.violations == []
    offer(h, *again[1:])
    assert [one.name for one in h.checker.violations] == ["TURNS_ARE_THERE"], "there was room for it"


def test_who_reads_the_journal_may_hear_of_an_end_before_the_session_does() -> None:
    """Found by seed 8013782."""
    h = History()
    begin(h, "t", "one")
    h.write(outcomes=[outcome_row(state=CANCELLED)._replace(row=ROWS["one"])])
    h.checker.sessions.seen((KEY[0], "one"))
    h.checker.callers.ended((KEY[0], "one"), outcome(state=CANCELLED))
    offer(h)
    assert h.checker.violations == []
