"""The checker finds what it is for: each history here is one that must never be, and what is right is let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reach.core.model import Fault, Outcome, TaskState
from reach.core.rows import AttemptRow, CheckpointRow, EffectRow, FailureRow, OutcomeRow, TaskRow, Writes
from reach.core.stream import Delta, Gap, Kind, Mode
from reach.errors import ErrorClass, Reason
from reach.testing.sim.checker import Checker
from reach.testing.sim.readers import ReaderCheck, Text

KEY = ("acme", "t")
UNAVAILABLE = Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "later")
NOT_FOUND = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_NOT_FOUND, "not found")
REUSED = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_ID_REUSED, "reused")


def task_row(row: int = 1, attempt: int = 1, instance: str = "one") -> TaskRow:
    return TaskRow(row, 0, *KEY, "acme", "echo", b"spec", 0, 1_000, "", "", attempt, instance, "echo", 1)


def outcome_row(attempts: int = 1, content: Any = "done", state: int = TaskState.SUCCEEDED) -> OutcomeRow:
    return OutcomeRow(1, 0, state, 5, 3, "echo", "one", attempts, 0, 0, 0, "", content, 0, 0, "", None, None)


def outcome(content: Any = "done", state: TaskState = TaskState.SUCCEEDED, attempts: int = 1) -> Outcome:
    made = Outcome(state, content)
    made.attempts, made.instance_id = attempts, "one"
    return made


class History:
    """A checker and short words for what it hears."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.checker.submitted(KEY, volatile=False)

    def write(self, **rows: list[Any]) -> None:
        writes = Writes()
        for kind, some in rows.items():
            setattr(writes, kind, some)
        self.checker.durable(writes, [])

    def accept(self) -> None:
        self.write(tasks=[task_row()])
        self.checker.accepted(KEY)

    def fail(self, number: int = 1) -> None:
        self.write(failures=[FailureRow(1, 0, number, 0, 3, 17, "", 1, 0, 0)])

    def attempt(self, number: int, instance: str = "two") -> None:
        self.write(attempts=[AttemptRow(1, 0, number, instance, "echo", 1, 0, 1_000)])

    def effect(self, number: int) -> None:
        self.write(effects=[EffectRow(1, 0, number, "pay", 0)])

    def answer(self, attempt: int = 1, instance: str = "one", content: str = "done") -> None:
        self.checker.says(KEY, attempt, instance, content)

    def end(self) -> None:
        self.answer()
        self.write(outcomes=[outcome_row()])

    def read(self, *events: tuple[int, Kind, Any], after: int = 0) -> None:
        check = ReaderCheck(self.checker, KEY, "reader", after)
        for number, kind, data in events:
            check.told((number, 1, 0, kind, data))

    def text(self, said: str, *events: tuple[int, Kind, Any]) -> Text:
        text = Text(self.checker, KEY, "reader", lambda key, attempt: [said])
        for number, kind, data in events:
            text.hear((number, 1, 0, kind, data))
        return text


def delta(text: str) -> Delta:
    return Delta("", Mode.APPEND, "text/plain", text)


def good(h: History) -> None:
    h.accept()
    h.checker.offered(KEY, 1, "one")
    h.fail()
    h.attempt(2)
    h.checker.offered(KEY, 2, "two")
    h.effect(2)
    h.checker.granted(KEY, 2, "two")
    h.checker.acts(KEY, 2, "two")
    h.answer(2, "two")
    row = outcome_row(2)._replace(instance_id="two")
    h.write(outcomes=[row])
    h.write(outcomes=[row])  # a batch whose outcome was unknown is sent again
    h.checker.acknowledged(KEY, 2, True)
    told = outcome(attempts=2)
    told.instance_id = "two"
    h.checker.ended(KEY, told)
    h.checker.ended(KEY, told)
    h.checker.refused(KEY, UNAVAILABLE, None, True)
    h.checker.refused(KEY, REUSED, b"other spec", True)
    h.read((1, Kind.ACCEPTED, None), (3, Kind.GAP, Gap(2, 3, [])), (4, Kind.DELTA, delta("a")))
    h.text("abc", (1, Kind.ACCEPTED, None), (2, Kind.DELTA, delta("ab")), (3, Kind.DELTA, delta("c")))
    h.checker.finish()


PLANTED: dict[str, tuple[str, Callable[[History], None]]] = {}


def planted(name: str) -> Callable[[Callable[[History], None]], None]:
    """A history that violates an invariant."""

    def add(act: Callable[[History], None]) -> None:
        PLANTED[act.__name__] = (name, act)

    return add


@planted("ACCEPTED_IS_DURABLE")
def accepted_before_the_commit(h: History) -> None:
    h.checker.accepted(KEY)


@planted("ONE_ROW")
def two_rows_of_one_task(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row(row=2)])


@planted("ONE_ROW")
def one_row_of_two_tasks(h: History) -> None:
    h.accept()
    h.write(tasks=[task_row()._replace(task_id="other")])


@planted("VOLATILE_IS_NOT_KEPT")
def a_volatile_task_is_written(h: History) -> None:
    h.checker.submitted(KEY, volatile=True)
    h.write(tasks=[task_row()])


@planted("ENDS_ONCE")
def it_ends_twice(h: History) -> None:
    h.accept()
    h.end()
    h.write(outcomes=[outcome_row(state=TaskState.CANCELLED)])


@planted("WINNER_IS_CURRENT")
def a_superseded_attempt_ends_it(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.end()


@planted("ANSWER_IS_THE_WINNERS")
def the_answer_is_another_attempts(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.answer(1, "one", "mine")
    h.write(outcomes=[outcome_row(2, "mine")._replace(instance_id="two")])


@planted("ONE_ATTEMPT")
def one_attempt_in_two_places(h: History) -> None:
    h.accept()
    h.attempt(1, "two")


@planted("ATTEMPTS_COUNT_UP")
def an_attempt_is_left_out(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(3)


@planted("ONE_LIVE_ATTEMPT")
def two_live_attempts(h: History) -> None:
    h.accept()
    h.attempt(2)


@planted("NOT_RUN_AGAIN")
def it_runs_after_its_end(h: History) -> None:
    h.accept()
    h.end()
    h.checker.offered(KEY, 1, "one")


@planted("OFFER_IS_DURABLE")
def an_offer_leaves_before_the_commit(h: History) -> None:
    h.checker.offered(KEY, 1, "one")


@planted("OFFER_IS_CURRENT")
def an_old_attempt_is_offered(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.checker.offered(KEY, 1, "one")


@planted("CHECKPOINT_IS_LATEST")
def a_checkpoint_is_forgotten(h: History) -> None:
    h.accept()
    h.write(checkpoints=[CheckpointRow(1, 0, 1, b"half")])
    h.checker.offered(KEY, 1, "one")


@planted("ONE_EFFECT")
def two_attempts_get_the_effect(h: History) -> None:
    h.accept()
    h.effect(1)
    h.fail()
    h.attempt(2)
    h.effect(2)


@planted("ONE_EFFECT")
def the_effect_happens_twice(h: History) -> None:
    h.accept()
    h.effect(1)
    h.checker.granted(KEY, 1, "one")
    h.checker.acts(KEY, 1, "one.1")
    h.checker.acts(KEY, 1, "one.2")


@planted("GRANT_IS_DURABLE")
def a_grant_leaves_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.granted(KEY, 1, "one")


@planted("GRANT_IS_CURRENT")
def a_superseded_attempt_gets_the_effect(h: History) -> None:
    h.accept()
    h.effect(1)
    h.fail()
    h.attempt(2)
    h.checker.granted(KEY, 1, "one")


@planted("GRANT_IS_CURRENT")
def the_effect_of_what_has_ended(h: History) -> None:
    h.accept()
    h.effect(1)
    h.end()
    h.checker.granted(KEY, 1, "one")


@planted("ACTS_WHEN_GRANTED")
def an_agent_acts_without_a_grant(h: History) -> None:
    h.accept()
    h.checker.acts(KEY, 1, "one")


@planted("ACKNOWLEDGED_IS_DURABLE")
def an_answer_is_acknowledged_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.acknowledged(KEY, 1, True)


@planted("ACKNOWLEDGED_IS_DURABLE")
def a_failure_is_acknowledged_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.acknowledged(KEY, 1, False)


@planted("TERMINAL_ABSORBS")
def it_ends_otherwise_for_another_caller(h: History) -> None:
    h.accept()
    h.end()
    h.checker.ended(KEY, outcome())
    h.checker.ended(KEY, outcome("else"))


@planted("TERMINAL_ABSORBS")
def it_goes_on_after_its_end(h: History) -> None:
    h.accept()
    h.end()
    h.checker.ended(KEY, outcome())
    h.checker.open(KEY, TaskState.RUNNING)


@planted("TOLD_IS_DURABLE")
def an_end_is_told_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.ended(KEY, outcome())


@planted("TOLD_IS_DURABLE")
def what_is_told_is_not_what_is_written(h: History) -> None:
    h.accept()
    h.end()
    h.checker.ended(KEY, outcome("else"))


@planted("ACCEPTED_IS_KNOWN")
def an_accepted_task_is_not_found(h: History) -> None:
    h.accept()
    h.checker.refused(KEY, NOT_FOUND, None, h.checker.is_known(KEY))


@planted("ACCEPTED_IS_KNOWN")
def the_same_request_is_another_one(h: History) -> None:
    h.accept()
    h.checker.refused(KEY, REUSED, b"spec", h.checker.is_known(KEY))


@planted("NO_INNER_FAULT")
def a_caller_hears_of_an_inner_fault(h: History) -> None:
    h.checker.refused(KEY, Fault(ErrorClass.INTERNAL, Reason.INTERNAL_FAULT, "oops"), None, False)


@planted("NO_GAP_NO_DOUBLE")
def an_event_is_missing(h: History) -> None:
    h.accept()
    h.read((1, Kind.ACCEPTED, None), (3, Kind.DELTA, delta("a")))


@planted("NO_GAP_NO_DOUBLE")
def an_event_comes_twice(h: History) -> None:
    h.accept()
    h.read((2, Kind.DELTA, delta("a")), (2, Kind.DELTA, delta("a")), after=1)


@planted("NO_GAP_NO_DOUBLE")
def a_gap_says_too_little(h: History) -> None:
    h.accept()
    h.read((4, Kind.GAP, Gap(3, 4, [])), after=1)


@planted("NO_GAP_NO_DOUBLE")
def something_comes_after_the_end(h: History) -> None:
    h.accept()
    h.read((1, Kind.COMPLETE, outcome()), (2, Kind.PROGRESS, (None, "")))


@planted("SEQUENCES_ARE_UNIQUE")
def one_number_for_two_events(h: History) -> None:
    h.accept()
    h.read((2, Kind.DELTA, delta("a")), after=1)
    h.read((2, Kind.DELTA, delta("b")), after=1)


@planted("SEQUENCES_ARE_RESERVED")
def a_number_that_another_owner_may_use_too(h: History) -> None:
    h.accept()
    h.read((1_002, Kind.DELTA, delta("a")), after=1_001)


@planted("TEXT_IS_THE_WINNERS")
def a_piece_is_told_twice(h: History) -> None:
    h.text("ab", (1, Kind.DELTA, delta("a")), (2, Kind.DELTA, delta("a")))


@planted("TEXT_IS_THE_WINNERS")
def the_text_ends_too_early(h: History) -> None:
    h.text("abc", (1, Kind.DELTA, delta("ab")), (2, Kind.COMPLETE, (5, "abc", 0, 1, "one")))


@planted("TEXT_IS_THE_WINNERS")
def a_snapshot_is_not_what_was_said(h: History) -> None:
    h.text("abc", (3, Kind.GAP, Gap(1, 3, [delta("ac")])))


@planted("EVERY_TASK_ENDS")
def a_task_never_ends(h: History) -> None:
    h.accept()
    h.checker.finish()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    invariant, act = PLANTED[name]
    history = History()
    act(history)
    assert invariant in [violation.name for violation in history.checker.violations]


def test_a_right_history_passes() -> None:
    history = History()
    good(history)
    assert history.checker.violations == []


def test_the_text_of_a_dead_attempt_must_be_taken_back() -> None:
    history = History()
    text = Text(history.checker, KEY, "reader", lambda key, attempt: ["a", "b"])
    text.hear((1, 1, 0, Kind.DELTA, delta("a")))
    text.hear((2, 2, 0, Kind.DELTA, delta("b")))
    assert [violation.name for violation in history.checker.violations] == ["TEXT_IS_THE_WINNERS"]


def test_there_are_enough_of_them() -> None:
    assert len(PLANTED) >= 20
