"""What the checker must see of attempts: each violation planted once."""

from __future__ import annotations

import pytest

from reach.core.rows import CheckpointRow
from tests.sim.history import KEY, History, Planted, outcome, outcome_row, task_row

PLANTED = Planted()


@PLANTED("ANSWER_IS_THE_WINNERS")
def the_answer_is_another_attempts(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.answer(1, "one", "mine")
    h.write(outcomes=[outcome_row(2, "mine")._replace(instance_id="two")])


@PLANTED("ONE_ATTEMPT")
def one_attempt_in_two_places(h: History) -> None:
    h.accept()
    h.attempt(1, "two")


@PLANTED("ATTEMPTS_COUNT_UP")
def an_attempt_is_left_out(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(3)


@PLANTED("ONE_LIVE_ATTEMPT")
def two_live_attempts(h: History) -> None:
    h.accept()
    h.attempt(2)


@PLANTED("NOT_RUN_AGAIN")
def it_runs_after_its_end(h: History) -> None:
    h.accept()
    h.end()
    h.checker.attempts.offered(KEY, 1, "one")


@PLANTED("OUTCOMES_ARE_TAKEN")
def an_outcome_is_out_of_order(h: History) -> None:
    h.accept()
    h.checker.attempts.refuses(KEY, 1, "one")


@PLANTED("OFFER_IS_DURABLE")
def an_offer_leaves_before_the_commit(h: History) -> None:
    h.checker.attempts.offered(KEY, 1, "one")


@PLANTED("OFFER_IS_CURRENT")
def an_old_attempt_is_offered(h: History) -> None:
    h.accept()
    h.fail()
    h.attempt(2)
    h.checker.attempts.offered(KEY, 1, "one")


@PLANTED("CHECKPOINT_IS_LATEST")
def a_checkpoint_is_forgotten(h: History) -> None:
    h.accept()
    h.write(checkpoints=[CheckpointRow(1, 0, 1, b"half")])
    h.checker.attempts.offered(KEY, 1, "one")


@PLANTED("ONE_EFFECT")
def two_attempts_get_the_effect(h: History) -> None:
    h.accept()
    h.effect(1)
    h.fail()
    h.attempt(2)
    h.effect(2)


@PLANTED("ONE_EFFECT")
def the_effect_happens_twice(h: History) -> None:
    h.accept()
    h.effect(1)
    h.checker.attempts.granted(KEY, 1, "one")
    h.checker.attempts.acts(KEY, 1, "one.1")
    h.checker.attempts.acts(KEY, 1, "one.2")


@PLANTED("GRANT_IS_DURABLE")
def a_grant_leaves_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.attempts.granted(KEY, 1, "one")


@PLANTED("GRANT_IS_CURRENT")
def a_superseded_attempt_gets_the_effect(h: History) -> None:
    h.accept()
    h.effect(1)
    h.fail()
    h.attempt(2)
    h.checker.attempts.granted(KEY, 1, "one")


@PLANTED("GRANT_IS_CURRENT")
def the_effect_of_what_has_ended(h: History) -> None:
    h.accept()
    h.effect(1)
    h.end()
    h.checker.attempts.granted(KEY, 1, "one")


@PLANTED("ACTS_WHEN_GRANTED")
def an_agent_acts_without_a_grant(h: History) -> None:
    h.accept()
    h.checker.attempts.acts(KEY, 1, "one")


@PLANTED("ACKNOWLEDGED_IS_DURABLE")
def an_answer_is_acknowledged_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.attempts.acknowledged(KEY, 1, True)


@PLANTED("ACKNOWLEDGED_IS_DURABLE")
def a_failure_is_acknowledged_before_the_commit(h: History) -> None:
    h.accept()
    h.checker.attempts.acknowledged(KEY, 1, False)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED[name][0] in PLANTED.found(name)


def test_an_agent_that_was_away_may_say_what_it_said_of_any_task_of_that_id() -> None:
    """Found by seed 8018233: the id was free again twice."""
    h = History()
    for row in (1, 2, 3):
        h.write(tasks=[task_row(row)])
        if row == 1:
            h.answer()
        h.write(outcomes=[outcome_row()._replace(row=row)])
        h.checker.callers.ended(KEY, outcome())
        if row < 3:
            h.checker.forget_row(row)
    assert h.checker.violations == []
