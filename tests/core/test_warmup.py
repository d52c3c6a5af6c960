"""Readiness and slow start (HLT-10, case B9)."""

from collections import Counter

import pytest

from reach.core import events as ev
from reach.core import warmup
from reach.core.effects import Noted
from reach.core.instance_states import Condition, Health
from reach.core.model import Requirement, TaskState
from tests.core.harness import Shell, of


def test_HLT_10_never_traffic_while_ready_is_false():
    shell = Shell()
    one = shell.join(ready=False)
    waits = shell.submit()
    shell.advance_beating(20_000, one)
    assert (waits.state, one.blocked_by, one.health) == (TaskState.PENDING, "not_ready", Health.STARTING)
    shell.step(ev.Beat(one, {"ready": True}))
    assert (waits.instance, one.blocked_by, one.health) == (one, "", Health.HEALTHY)


def test_HLT_10_who_says_ready_in_its_hello_takes_work_at_once():
    shell = Shell()
    waits = shell.submit()
    shell.step(shell.joined("one", status={"ready": True}))
    assert waits.state is TaskState.DELIVERED
    assert [state for _, state, _ in shell.pool.instances["one"].history] == ["STARTING", "HEALTHY", "WARMING"]


def test_HLT_10_who_never_says_is_ready_after_two_beats():
    shell = Shell()
    one = shell.join(ready=None)
    waits = shell.submit()
    assert one.conditions[Condition.NOT_READY][0] == "it does not say that it is ready, and 0 of 2 beats have come"
    shell.advance(5_000)
    shell.step(ev.Beat(one, {}))
    assert waits.state is TaskState.PENDING
    shell.advance(5_000)
    shell.step(ev.Beat(one, {}))
    assert waits.instance is one


def test_HLT_10_unready_for_five_minutes_is_an_alert_once():
    shell = Shell()
    one = shell.join(ready=False)
    sends = shell.advance_beating(299_000, one)
    assert of(sends, Noted) == []
    sends = shell.advance_beating(600_000, one)
    assert [(note.kind, note.instance) for note in of(sends, Noted)] == [("unready", one)]
    shell.step(ev.Beat(one, {"ready": True}), ev.Beat(one, {"ready": False}))
    sends = shell.advance_beating(310_000, one)
    assert [note.kind for note in of(sends, Noted)] == ["unready"]


def test_B9_a_start_has_a_limit_of_its_own():
    """It loads a model for 20 s and says nothing meanwhile, though the heartbeat timeout is 3 s."""
    shell = Shell()
    one = shell.join(ready=False, heartbeat_ms=1_000)
    sends = shell.advance(20_000)
    assert (one.health, of(sends, Noted)) == (Health.STARTING, [])
    shell.step(ev.Beat(one, {"ready": True}))
    assert (one.health, one.blocked_by) == (Health.HEALTHY, "")
    shell.join("other")
    shell.advance(4_000)
    assert one.health is Health.UNHEALTHY, "from then on the usual limit holds"


def test_B9_a_start_that_never_ends_is_given_up():
    shell = Shell()
    one = shell.join(ready=False)
    shell.advance(300_010)
    assert (one.health, one.blocked_by) == (Health.OFFLINE, "offline")


def share_of(shell, one, tasks=400):
    """How much of the work it gets, while all have room."""
    chosen: Counter[str] = Counter()
    for number in range(tasks):
        verdict = shell.pool.router.pick(Requirement(), (), 1, number)
        chosen[verdict.chosen.instance_id] += 1
    return chosen[one.instance_id] / tasks


def test_HLT_10_a_restarted_instance_ramps_up_over_30_s():
    shell = Shell()
    warm = shell.join("warm", slots=9)
    shell.advance_beating(31_000, warm)
    assert Condition.WARMING not in warm.conditions
    new = shell.join("new", slots=9)
    shares = [share_of(shell, new)]
    for _ in range(3):
        shell.advance_beating(10_000, warm, new)
        shares.append(share_of(shell, new))
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.05, abs=0.03)
    assert shares[1] == pytest.approx(0.20, abs=0.06)
    assert shares[3] == pytest.approx(0.5, abs=0.07)
    assert (new.ramp, Condition.WARMING in new.conditions, shell.pool.router.slow_start.cold) == (1.0, False, 0)


def test_HLT_10_who_starts_slowly_is_used_when_nobody_else_has_a_slot():
    shell = Shell()
    warm = shell.join("warm")
    shell.advance_beating(31_000, warm)
    shell.join("new")
    assert {shell.submit().instance_id, shell.submit().instance_id} == {"warm", "new"}


def test_HLT_10_a_pool_that_starts_as_a_whole_is_spread_evenly():
    shell = Shell()
    one = shell.join("one", slots=9)
    shell.join("two", slots=9)
    assert share_of(shell, one) == pytest.approx(0.5, abs=0.07)


def test_HLT_10_a_restart_of_ours_or_a_new_stream_is_no_new_start():
    shell = Shell()
    one = shell.join("one")
    shell.advance_beating(31_000, one)
    shell.lose(one, ours=True)
    shell.join("one")
    assert Condition.WARMING not in one.conditions
    shell.crash_and_load()
    shell.join("one")
    again = shell.pool.instances["one"]
    assert (again.blocked_by, Condition.WARMING in again.conditions) == ("", False)


def test_HLT_10_a_new_process_begins_anew():
    shell = Shell()
    shell.join("other")
    one = shell.join("one")
    shell.advance_beating(31_000, one)
    shell.join("one", "b2", ready=False)
    assert (one.blocked_by, one.health) == ("not_ready", Health.STARTING)


def test_HLT_10_a_changed_registration_keeps_its_step():
    shell = Shell()
    one = shell.join("one")
    shell.join("one", tags=("new",), registration=b"other")
    assert shell.pool.router.slow_start.cold == 1 << one.bit


@pytest.mark.parametrize("length", [1, 9, 1_000, 30_000, 30_001])
def test_steps_begin_where_they_say(length):
    for step in range(1, warmup.STEPS + 1):
        at = warmup.step_begins_ms(step, length)
        assert warmup.step_at(at, length) >= step
        if at:
            assert warmup.step_at(at - 1, length) < step


def test_each_step_takes_part_in_as_many_tenths_of_the_decisions():
    start = warmup.SlowStart()
    for step in range(1, warmup.STEPS + 1):
        start.place(step, step)
    for step in range(1, warmup.STEPS + 1):
        takes_part = sum(not start.stand_back(draw) >> step & 1 for draw in range(warmup.STEPS))
        assert takes_part == step


def test_HLT_10_who_starts_slowly_is_used_when_the_task_fits_nowhere_else():
    shell = Shell()
    warm = shell.join("warm", slots=3)
    shell.advance_beating(31_000, warm)
    shell.submit()
    shell.join("new", slots=3)
    assert {shell.submit(cost=3).instance_id, shell.submit().instance_id} == {"warm", "new"}


def test_HLT_10_new_sessions_come_slowly_too_and_are_taken_if_nobody_else_can():
    shell = Shell()
    warm = shell.join("warm", slots=1_000)
    shell.advance_beating(31_000, warm)
    new = shell.join("new", slots=1_000)
    chosen = Counter(shell.submit(session=f"s{number}").instance_id for number in range(200))
    assert 1 <= chosen["new"] <= 45  # a tenth of the decisions, and the bounded load prefers it in these
    shell.advance_beating(31_000, warm, new)
    chosen = Counter(shell.submit(session=f"t{number}").instance_id for number in range(200))
    assert chosen["new"] >= 70
    other = Shell()
    other.join("new")
    assert other.submit(session="s").instance_id == "new"
