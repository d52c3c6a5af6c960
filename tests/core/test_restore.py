"""After a restart: what ran goes on, what waited waits, no clock expires anything (DLV-2, CLU-3, fault F9)."""

import pytest

from reach.core.model import TaskState
from reach.errors import ErrorClass, Reason
from tests.core.harness import Shell, ended, named, outcome_of, running


def test_running_work_survives_a_restart():
    """CLU-3: agents come back with what they run, and it is kept."""
    shell, task, _ = running("one")
    shell.crash_and_load()
    (task,) = shell.pool.tasks.values()
    shell.advance(20_000)
    assert task.attempt == 1
    shell.step(shell.joined("one", running=named(task)))
    shell.report(task, "42")
    ended(task, TaskState.SUCCEEDED)
    assert outcome_of(task).attempts == 1


@pytest.mark.parametrize("back", [False, True])
def test_after_a_restart_what_nobody_claims_runs_again(back):
    shell, _, _ = running("one", "two", schedule_to_start_ms=1_000)
    (task,) = shell.crash_and_load()
    shell.join("two")
    if back:
        shell.join("one")
    else:
        shell.advance_beating(31_000, shell.pool.instances["two"])
    assert (task.attempt, task.instance_id, task.state) == (2, "two", TaskState.DELIVERED)


def test_retries_are_remembered_over_a_restart():
    shell, task, _ = running("one")
    shell.report(task, error=(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
    (task,) = shell.crash_and_load()
    assert (task.state, task.attempt, task.retries, task.avoided) == (TaskState.PENDING, 1, 1, ("one",))
    shell.join("one")
    shell.advance(400)
    assert task.attempt == 2


@pytest.mark.parametrize("limits", [{"schedule_to_close_ms": 60_000}, {"schedule_to_start_ms": 60_000}])
def test_a_clock_that_leapt_while_we_were_down_expires_nothing(limits, monkeypatch):
    """F9."""
    shell = Shell()
    for _ in range(3):
        shell.submit(**limits)
    monkeypatch.setattr(Shell, "wall_ms", property(lambda self: 1_700_003_600_000 + self.now_ms))
    made = shell.crash_and_load()
    shell.advance(20_000)
    assert {task.state for task in made} == {TaskState.PENDING}
