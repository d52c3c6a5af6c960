"""Granted effects and checkpoints (DLV-7, DLV-8, HAZARDS 10)."""

import pytest

from reach.core.effects import Noted, Offer, StopAttempt
from reach.core.model import TaskState
from reach.errors import ErrorClass, Reason
from tests.core.harness import ended, named, of, only, running


def test_a_granted_effect_is_written_once_and_bound_to_its_attempt():
    shell, task, _ = running("one")
    for _ in range(2):
        (grant,) = shell.ask_effect(task)
        assert (grant.effect, grant.attempt, grant.fault) == ("pay", 1, None)
    assert [(row.number, row.effect) for row in shell.journal.rows.effects] == [(1, "pay")]
    shell.report(task)
    (refused,) = shell.ask_effect(task, instance=shell.pool.instances["one"])
    assert refused.fault.reason is Reason.STALE_ATTEMPT


@pytest.mark.parametrize("ours", [False, True])
def test_a_granted_effect_waits_for_its_lost_instance_then_the_outcome_is_unknown(ours):
    """DLV-7, HAZARDS 10: after the grant nothing is tried again."""
    shell, task, one = running("one", "two")
    shell.ask_effect(task)
    shell.lose(one, ours=ours)
    shell.advance(29_900)
    assert (task.attempt, task.outcome) == (1, None)
    sends = shell.advance(200)
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)
    assert [note.kind for note in of(sends, Noted) if note.task] == ["dead_letter"]
    assert one.inflight == 0


def test_it_may_come_back_with_its_result():
    shell, task, one = running("one")
    shell.ask_effect(task)
    shell.lose(one)
    shell.advance(20_000)
    shell.step(shell.joined("one", running=named(task)))
    shell.report(task, "paid")
    ended(task, TaskState.SUCCEEDED)


@pytest.mark.parametrize("limit", ["start_to_close_ms", "schedule_to_close_ms", "silence_ms"])
def test_a_limit_that_passes_after_the_grant_leaves_the_outcome_unknown(limit):
    shell, task, _ = running("one", "two", **{limit: 2_000})
    shell.ask_effect(task)
    sends = shell.advance(2_020)
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)
    assert only(sends, StopAttempt).attempt == 1


def test_a_new_process_leaves_the_outcome_unknown_at_once():
    shell, task, _ = running("one", "two")
    shell.ask_effect(task)
    shell.join("one", "b2")
    ended(task, TaskState.DEAD_LETTERED, Reason.OUTCOME_UNKNOWN)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ((ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED), TaskState.FAILED),
        ((ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY), TaskState.DEAD_LETTERED),
    ],
)
def test_what_the_agent_itself_says_after_the_grant_is_known(error, state):
    shell, task, _ = running("one", "two")
    shell.ask_effect(task)
    shell.report(task, error=error)
    ended(task, state, error[1])


def test_a_checkpoint_reaches_the_next_attempt():
    """DLV-8."""
    shell, task, one = running("one", "two")
    shell.progress(task, checkpoint=b"1")
    shell.progress(task, checkpoint=b"half")
    assert [row.data for row in shell.journal.rows.checkpoints] == [b"1", b"half"]
    sends = shell.lose(one)
    assert only(sends, Offer).task.checkpoint == b"half"
