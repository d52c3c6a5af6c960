"""The story of a task, as people read it (OBS-5)."""

from reach.core.history import PastAttempt
from reach.core.model import Fault, Outcome, Requirement, Task, TaskState
from reach.errors import ErrorClass, Reason
from reach.wire.story import story_of


def ended(state, attempts, faults, fault=None):
    """A task that only the journal has: `faults` of its attempts, in order."""
    task = Task("acme", "t1", b"", Requirement())
    task.attempt = attempts
    task.history = [
        PastAttempt(number, f"i{number}", "agent", 1, 1_000, 1_000 + 5 * number, one) for number, one in faults.items()
    ]
    task.outcome = Outcome(state, fault=fault)
    task.outcome.attempts, task.outcome.transfers, task.outcome.ran_ms = attempts, attempts - 1, 7
    task.state = state
    return task


def test_OBS_5_an_attempt_that_succeeded_is_not_told_as_one_without_an_outcome():
    story = story_of(ended(TaskState.SUCCEEDED, 1, {1: None}), {})
    assert story[1].startswith("attempt 1 went to i1; the reasons were not kept")
    assert story[2:] == ["ended SUCCEEDED after 1 attempt and 0 moves, 0 ms waiting, 7 ms running"]


def test_OBS_5_each_attempt_that_failed_is_told():
    lost = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, "its stream ended")
    story = story_of(ended(TaskState.SUCCEEDED, 2, {1: lost, 2: None}), {})
    assert [line for line in story if "ended" in line and "attempt 1" in line] == [
        "attempt 1 ended after 5 ms: INSTANCE_LOST: its stream ended"
    ]
    assert story[-1] == "ended SUCCEEDED after 2 attempts and 1 move, 0 ms waiting, 7 ms running"


def test_OBS_5_long_times_are_told_in_seconds():
    task = ended(TaskState.SUCCEEDED, 1, {1: None})
    assert task.outcome is not None
    task.outcome.ran_ms = 70_520
    assert story_of(task, {})[-1].endswith("0 ms waiting, 70.5 s running")


def test_OBS_5_a_dead_letter_says_what_to_do_with_it():
    crashed = Fault(ErrorClass.INTERNAL, Reason.AGENT_CRASHED, "a bug")
    story = story_of(ended(TaskState.DEAD_LETTERED, 1, {1: crashed}, crashed), {})
    assert story[-1] == "it is kept as a dead letter: `reach dlq requeue t1` tries it again"
    unknown = Fault(ErrorClass.INTERNAL, Reason.OUTCOME_UNKNOWN, "lost")
    story = story_of(ended(TaskState.DEAD_LETTERED, 1, {1: unknown}, unknown), {})
    assert "look whether its effect happened" in story[-1]
