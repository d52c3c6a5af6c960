"""Time limits by phase (DLV-6, DLV-7, cases A15, B1, B2, C1, C10)."""

import pytest

from reach.core import events as ev
from reach.core.effects import Done, StopAttempt
from reach.core.model import TaskState
from reach.core.retry import POLICIES
from reach.core.wheel import SLOT_MS
from reach.errors import Reason
from tests.core.harness import UNAVAILABLE, Shell, ended, only, outcome_of


def one_agent(slots=1, **joining):
    shell = Shell()
    return shell, shell.join("one", slots=slots, **joining)


def failed_attempts(task):
    return [past.fault.reason for past in task.history or ()]


@pytest.mark.parametrize("limit", ["schedule_to_start", "schedule_to_close", "start_to_close", "silence"])
@pytest.mark.parametrize("limit_ms", [1, 200, 999, 1_000, 1_001])
def test_A15_a_short_limit_of_a_new_attempt_is_met(limit, limit_ms):
    """A new attempt has a rough timer of a second, which must not be in the way of a limit that is shorter."""
    shell, _ = one_agent()
    task = shell.submit(retry=POLICIES["never"], **{f"{limit}_ms": limit_ms})
    shell.advance(limit_ms + SLOT_MS)
    assert outcome_of(task).fault.reason is Reason[limit.upper()]


@pytest.mark.parametrize("limit", ["start_to_close", "silence"])
@pytest.mark.parametrize("limit_ms", [100, 999, 1_000, 1_001, 5_000])
@pytest.mark.parametrize("after_ms", [50, 980])
def test_A15_the_limit_of_an_attempt_that_was_taken_up_later_is_met(limit, limit_ms, after_ms):
    """It keeps the timer of its offer, if that comes soon."""
    shell, _ = one_agent()
    task = shell.submit(retry=POLICIES["never"], **{f"{limit}_ms": limit_ms})
    after_ms = min(after_ms, limit_ms - 20)
    shell.advance(after_ms)
    shell.take_up(task)
    shell.advance(limit_ms - SLOT_MS)
    assert task.state is TaskState.RUNNING
    shell.advance(2 * SLOT_MS)
    assert outcome_of(task).fault.reason is Reason[limit.upper()]


def test_schedule_to_start_of_a_task_that_waits():
    shell = Shell()
    task = shell.submit(schedule_to_start_ms=2_000)
    shell.advance(1_990)
    assert task.state is TaskState.PENDING
    shell.advance(20)
    ended(task, TaskState.FAILED, Reason.SCHEDULE_TO_START)
    assert "no_match" in outcome_of(task).fault.message


def test_schedule_to_start_of_a_task_that_is_offered_and_not_taken_up():
    shell, _ = one_agent()
    task = shell.submit(schedule_to_start_ms=2_000)
    sends = shell.advance(2_010)
    ended(task, TaskState.FAILED, Reason.SCHEDULE_TO_START)
    assert only(sends, StopAttempt).reason is Reason.SCHEDULE_TO_START


def test_schedule_to_start_is_over_once_it_has_started_and_begins_after_the_delay():
    shell, _ = one_agent(slots=2)
    started = shell.submit(schedule_to_start_ms=1_000, start_to_close_ms=60_000)
    delayed = shell.submit(schedule_to_start_ms=1_000, start_delay_ms=5_000, start_to_close_ms=60_000)
    shell.take_up(started)
    shell.advance(5_500)
    assert (started.state, delayed.state) == (TaskState.RUNNING, TaskState.DELIVERED)
    shell.advance(600)
    ended(delayed, TaskState.FAILED, Reason.SCHEDULE_TO_START)


@pytest.mark.parametrize("phase", ["waiting", "running", "back-off", "delayed"])
def test_schedule_to_close_bounds_everything(phase):
    """A15: an agent that takes longer is told to stop, and there is no further attempt."""
    shell = Shell()
    if phase != "waiting":
        shell.join()
    task = shell.submit(schedule_to_close_ms=200, start_delay_ms=5_000 if phase == "delayed" else 0)
    if phase == "back-off":
        shell.report(task, error=UNAVAILABLE)
    if phase == "running":
        shell.take_up(task)
    shell.advance(190)
    assert task.outcome is None
    sends = shell.advance(20)
    ended(task, TaskState.FAILED, Reason.SCHEDULE_TO_CLOSE)
    assert [type(send) for send in sends].count(StopAttempt) == (phase == "running")
    shell.advance(60_000)
    assert task.attempt == (phase in ("running", "back-off"))


def test_a_set_start_to_close_does_not_move_with_progress():
    shell, _ = one_agent()
    task = shell.submit(start_to_close_ms=3_000)
    shell.advance(1_000)
    shell.take_up(task)
    for _ in range(5):
        shell.advance(500)
        shell.progress(task)
    assert task.history is None
    sends = shell.advance(520)
    assert failed_attempts(task) == [Reason.START_TO_CLOSE]
    assert only(sends, StopAttempt).reason is Reason.START_TO_CLOSE
    assert task.state is TaskState.PENDING


def test_without_one_set_it_follows_the_usual_time_and_moves_with_progress():
    """max(5 s, usual × (inflight + 1) × 1.5)."""
    shell, one = one_agent(slots=2)
    assert shell.pool.deadlines.start_to_close_ms(shell.submit()) == 30_000  # unknown: 10 s × 2 × 1.5
    one.latency_ms = 4_000.0
    task = shell.submit()
    assert shell.pool.deadlines.start_to_close_ms(task) == 18_000
    one.latency_ms = 100.0
    assert shell.pool.deadlines.start_to_close_ms(task) == 5_000
    shell.take_up(task)
    for _ in range(10):
        shell.advance_beating(4_000, one)
        shell.progress(task)
    assert task.state is TaskState.RUNNING
    shell.advance_beating(6_000, one)
    assert failed_attempts(task) == [Reason.START_TO_CLOSE]


def test_a_limit_that_moved_on_does_not_wake_us_again_and_again():
    shell, one = one_agent()
    one.latency_ms = 100.0
    task = shell.submit()
    shell.take_up(task)
    wakes = 0
    for _ in range(100):
        shell.now_ms += 1_000
        shell.step(ev.Beat(one, {}))
        shell.progress(task)
        while (due := shell.pool.next_wake_ms()) is not None and due <= shell.now_ms:
            shell.step()
            wakes += 1
    assert task.state is TaskState.RUNNING
    assert wakes < 10


def test_silence_between_events():
    """B2: beats go on, the work hangs."""
    shell, one = one_agent()
    task = shell.submit(silence_ms=2_000, start_to_close_ms=60_000)
    shell.take_up(task)
    for _ in range(6):
        shell.advance_beating(1_500, one, every_ms=500)
        shell.progress(task)
    assert task.state is TaskState.RUNNING
    shell.advance_beating(2_500, one, every_ms=500)
    assert failed_attempts(task) == [Reason.SILENCE]


def test_an_extended_lease_keeps_a_long_task_on_its_instance():
    """C1: one execution."""
    shell, one = one_agent(heartbeat_ms=1_000)
    task = shell.submit(start_to_close_ms=300_000)
    for _ in range(20):
        shell.advance(10_000)
        event = ev.LeaseExtended(one, task.tenant, task.task_id, 1, "reply")
        assert only(shell.step(event), Done).value == 33_000
    shell.report(task)
    assert outcome_of(task).attempts == 1


def test_the_lease_lapses_half_a_minute_after_the_instance_is_unhealthy():
    """DLV-7; B1: not sooner, though it is out of routing long since."""
    shell, one = one_agent()
    shell.join("two", heartbeat_ms=60_000)
    task = shell.submit(start_to_close_ms=300_000, requirement=shell.task().requirement._replace(instance_id="one"))
    shell.take_up(task)
    shell.advance(44_980)
    assert one.blocked_by == "unhealthy"
    assert task.instance is one
    sends = shell.advance(40)
    assert failed_attempts(task) == [Reason.INSTANCE_UNHEALTHY]
    assert only(sends, StopAttempt).reason is Reason.INSTANCE_UNHEALTHY
    assert task.retries == 1


def test_any_beat_renews_all_leases():
    shell, one = one_agent(slots=3)
    tasks = [shell.submit(start_to_close_ms=300_000) for _ in range(3)]
    for _ in range(10):
        shell.advance(20_000)
        shell.step(ev.Beat(one, {}))
    assert {task.state for task in tasks} == {TaskState.DELIVERED}
    assert {task.attempt for task in tasks} == {1}
