"""The panic threshold: suspicion never empties a pool (HLT-13)."""

import pytest

from reach.core import events as ev
from reach.core.effects import Noted
from reach.core.instance_states import Condition, Health
from tests.core.harness import Shell, of


def pool_of(count, beat=5_000):
    shell = Shell()
    return shell, [shell.join(f"i{number}", heartbeat_ms=beat) for number in range(count)]


def silence(shell, silent, others):
    """Three beats of these are missing."""
    shell.advance_beating(16_000, *others)
    assert {one.health for one in silent} == {Health.UNHEALTHY}


@pytest.mark.parametrize(("count", "silent", "ignored"), [(2, 1, False), (4, 2, False), (4, 3, True), (3, 2, True),
                                                           (1, 1, True), (2, 2, True), (5, 2, False)])  # fmt: skip
def test_HLT_13_suspicion_excludes_at_most_half(count, silent, ignored):
    shell, instances = pool_of(count)
    silence(shell, instances[:silent], instances[silent:])
    assert [one.blocked_by for one in instances[:silent]] == [("" if ignored else "unhealthy")] * silent
    assert [one.suspected for one in instances[:silent]] == ["unhealthy"] * silent
    assert shell.pool.admission.panic is ignored


def test_HLT_13_the_only_instance_still_gets_work_and_all_are_judged_again_when_enough_are_back():
    shell, (one, two, three) = pool_of(3)
    silence(shell, [one, two], [three])
    assert not one.blocked_by
    waits = [shell.submit() for _ in range(3)]
    assert {task.instance_id for task in waits} == {"i0", "i1", "i2"}
    sends = shell.step(ev.Beat(two, {}))
    assert (one.blocked_by, two.blocked_by) == ("unhealthy", "")
    assert "panic_over" in [note.kind for note in of(sends, Noted)]


def test_HLT_13_it_is_told_once():
    shell, (one, two) = pool_of(2)
    sends = shell.advance(60_000)
    told = [note.reason for note in of(sends, Noted) if note.kind == "panic"]
    assert told == ["2 of 2 instances are suspected"]
    assert [one.blocked_by, two.blocked_by] == ["", ""]


def test_HLT_13_what_is_certain_is_never_ignored():
    shell, (one, two) = pool_of(2)
    shell.step(ev.Beat(one, {"ready": False}))
    shell.step(ev.Beat(two, {"consecutive_failure_count": 3}))
    assert (one.blocked_by, two.blocked_by) == ("not_ready", "self_reported_failures")
    assert not shell.pool.admission.panic
    assert shell.submit().instance is None


def test_HLT_13_those_that_are_barred_do_not_count_as_the_pool():
    """Of two, one is not ready: the other is the only instance left, so suspicion alone does not exclude it."""
    shell, (one, two) = pool_of(2)
    shell.step(ev.Beat(one, {"ready": False}))
    shell.step(ev.Beat(two, {"loop_stalled": 2_000}))
    assert (two.blocked_by, two.suspected) == ("", "stalled")
    shell.step(ev.Beat(one, {"ready": True}))
    assert two.blocked_by == "stalled"


def test_HLT_13_who_leaves_no_longer_counts():
    shell, (one, two, three) = pool_of(3)
    shell.step(ev.Beat(one, {"loop_stalled": 2_000}))
    assert one.blocked_by == "stalled"
    shell.step(ev.Left(two))
    assert one.blocked_by == "stalled"
    shell.step(ev.Left(three))
    assert one.blocked_by == ""
    assert Condition.STALLED in one.conditions
