"""Waking a pool in which nobody is ready (HLT-14)."""

import pytest

from reach.core import events as ev
from reach.core.effects import Noted, Wake
from reach.core.model import PoolKey, TaskState
from reach.core.wake import ARRIVE_MS, PAUSE_MS, RETRY_MS, Waker, WakeState
from tests.core.harness import TENANT, Shell, of, only


@pytest.fixture
def shell():
    made = Shell()
    made.pool.waker = Waker(made.pool)
    return made


def test_HLT_14_the_first_task_wakes_the_pool_and_others_do_not(shell):
    first = shell.submit()
    wake = only(shell.sends, Wake)
    assert (wake.pool, wake.number, wake.waiting) == (PoolKey(TENANT, "echo"), 1, 1)
    for _ in range(50):
        shell.submit()
    assert len(of(shell.sends, Wake)) == 1
    assert (shell.pool.waker.state, first.state, first.pending_reason) == (
        WakeState.REQUESTED,
        TaskState.PENDING,
        "no_match",
    )
    shell.step(ev.WakeAnswered(1, ""))
    assert shell.pool.waker.state is WakeState.ACKNOWLEDGED
    shell.advance(PAUSE_MS + 10_000)
    shell.submit()
    assert len(of(shell.sends, Wake)) == 1, "somebody is on the way"
    shell.join("one", ready=False)
    assert shell.pool.waker.state is WakeState.ACKNOWLEDGED, "registered is not ready"
    shell.step(ev.Beat(shell.pool.instances["one"], {"ready": True}))
    assert (shell.pool.waker.state, first.state) == (WakeState.RESUMED, TaskState.DELIVERED)


def test_HLT_14_a_pool_with_somebody_ready_is_not_woken(shell):
    shell.join("one")
    shell.submit()
    shell.submit()
    assert of(shell.sends, Wake) == []


def test_HLT_14_a_hook_that_fails_is_tried_three_times_with_the_same_id_then_an_alert(shell):
    shell.submit()
    numbers = [only(shell.sends, Wake).number]
    for _ in range(2):
        shell.step(ev.WakeAnswered(1, "code 1"))
        numbers += [wake.number for wake in of(shell.advance(RETRY_MS + 10), Wake)]
    sends = shell.step(ev.WakeAnswered(1, "code 1"))
    assert numbers == [1, 1, 1]
    assert [(note.kind, note.reason) for note in of(sends, Noted)] == [("wake_failed", "pool 'echo': code 1")]
    shell.submit()
    assert of(shell.advance(PAUSE_MS - 1_000), Wake) == []
    assert [wake.number for wake in of(shell.advance(2_000), Wake)] == [2], "tasks still wait"


def test_HLT_14_nobody_comes_though_it_was_acknowledged(shell):
    shell.submit()
    asked, alerts = 1, []
    for _ in range(3):
        shell.step(ev.WakeAnswered(1, ""))
        sends = shell.advance(ARRIVE_MS + 10)
        asked += len(of(sends, Wake))
        alerts += of(sends, Noted)
    assert (asked, [note.reason for note in alerts]) == (3, ["pool 'echo': nobody became ready within 120 s"])


def test_HLT_14_it_is_asked_again_when_the_pool_falls_asleep_again_but_not_at_once(shell):
    shell.submit()
    shell.step(ev.WakeAnswered(1, ""))
    one = shell.join("one")
    shell.lose(one)
    shell.submit()
    assert len(of(shell.sends, Wake)) == 1
    shell.advance(PAUSE_MS + 10)
    assert [wake.number for wake in of(shell.sends, Wake)] == [1, 2]
    shell.step(ev.WakeAnswered(1, ""))
    assert shell.pool.waker.state is WakeState.REQUESTED, "that was the first one's answer, late"


def test_HLT_14_nothing_is_asked_for_tasks_that_no_longer_wait(shell):
    task = shell.submit()
    shell.step(ev.WakeAnswered(1, "code 1"))
    shell.cancel(task)
    assert of(shell.advance(600_000), Wake) == []
    assert shell.pool.waker.state is WakeState.ASLEEP
