"""Draining, session slots, and what becomes of those that are gone (REG-7, REG-11, RTE-8)."""

import pytest

from reach.core import events as ev
from reach.core.effects import DrainLink, Noted
from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import TaskState
from reach.core.pieces import Kind
from reach.core.preview import preview
from reach.core.rows import AgentGone
from reach.core.vitals import KEEP_OFFLINE_MS
from tests.core.harness import LONG, TENANT, Shell, of, only


def ready(shell: Shell, *names: str, **parts):
    """Instances that take work."""
    made = [shell.join(name, ready=True, **parts) for name in names]
    shell.advance_beating(40_000, *made)  # over the slow start
    return made


def talk(shell: Shell, session: str):
    """A task of a session, done; the instance that had it."""
    task = shell.submit(session=session, **LONG)
    assert task.instance is not None, task.pending_reason
    where = task.instance.instance_id
    shell.report(task)
    return where


def test_REG_7_old_sessions_stay_until_the_deadline_and_new_ones_go_elsewhere_at_once():
    shell = Shell()
    one, two = ready(shell, "one", "two", slots=9)
    at = {name: talk(shell, name) for name in "abcdefgh"}
    old = [name for name, where in at.items() if where == "one"]
    assert old
    assert len(old) < 8
    sends = shell.step(ev.Drained(one, 30_000, False, "reply"))
    assert only(sends, DrainLink).deadline_ms == 30_000
    assert [note.kind for note in of(sends, Noted)] == ["drained"]
    assert one.history[-1][1:] == ("DRAINING", "drained; its sessions may stay for 30000 ms")
    assert {talk(shell, f"new {number}") for number in range(20)} == {"two"}
    assert shell.submit(**LONG).instance is two, "what has no session is no old session"
    shell.advance_beating(29_000, one, two)
    shown = preview(shell.pool, shell.task(session=old[0]), shell.now_ms).verdict
    assert (shown.chosen, shown.cause) == (one, "pin"), "RTE-12: the preview knows"
    assert {talk(shell, name) for name in old} == {"one"}
    shell.advance_beating(2_000, one, two)
    task = shell.submit(session=old[0], **LONG)
    reader = shell.read(task)
    assert (task.instance, Kind.HANDOFF in shell.kinds(reader)) == (two, True)
    assert {talk(shell, name) for name in old} == {"two"}


def test_REG_7_an_old_session_waits_for_its_full_draining_instance_no_longer_than_the_deadline():
    shell = Shell()
    one, two = ready(shell, "one", "two")
    first = shell.submit(session="s", **LONG)
    pinned, other = first.instance, two if first.instance is one else one
    shell.step(ev.Drained(pinned, 2_000, False, None))
    waits = shell.submit(session="s", **LONG)
    assert (waits.state, waits.pending_reason) == (TaskState.PENDING, "pinned_instance_full")
    shell.advance(2_020)
    assert waits.instance is other
    assert first.instance is pinned, "what runs is finished"


@pytest.mark.parametrize("condition", [Condition.DEAF, Condition.STALLED, Condition.NOT_READY])
def test_REG_7_draining_is_all_that_an_old_session_overlooks(condition):
    shell = Shell()
    one, _ = ready(shell, "one", "two", slots=9)
    names = [name for name in "abcdefgh" if talk(shell, name) == "one"]
    shell.step(ev.Drained(one, 30_000, False, None))
    one.conditions[condition] = ("seen", shell.now_ms)
    assert {talk(shell, name) for name in names} == {"two"}


def test_REG_7_what_an_instance_says_of_itself_has_no_deadline():
    shell = Shell()
    one, _ = ready(shell, "one", "two", slots=9)
    names = [name for name in "abcdefgh" if talk(shell, name) == "one"]
    shell.step(ev.Beat(one, {"availability": Availability.DRAINING}))
    assert {talk(shell, name) for name in names} == {"two"}


def test_REG_7_undone_or_a_new_process_it_is_as_before():
    shell = Shell()
    one, _ = ready(shell, "one", "two", slots=9)
    for again in ("undo", "new process"):
        shell.step(ev.Drained(one, 60_000, False, None))
        assert one.blocked_by == "draining"
        if again == "undo":
            shell.step(ev.Drained(one, 0, True, None))
            assert one.history[-1][1] == "READY"
        else:
            shell.step(shell.joined("one", "b2", ready=True, slots=9))
        assert (one.blocked_by, one.drain_until_ms, one.availability) == ("", 0, Availability.READY)


def test_REG_11_a_drained_version_never_blocks_a_new_one():
    """Two drained instances of the old version, one of the new: all goes there, sessions too after the deadline."""
    shell = Shell()
    old = ready(shell, "old 1", "old 2", version="1", slots=9)
    sessions = {name: talk(shell, name) for name in "abcd"}
    for one in old:
        shell.step(ev.Drained(one, 1_000, False, None))
    waits = shell.submit(**LONG)
    assert waits.state is TaskState.PENDING
    new = shell.join("new", ready=True, slots=99, version="2")
    assert waits.instance is new, "at once"
    shell.advance_beating(2_000, new, *old)
    assert {talk(shell, name) for name in sessions} == {"new"}
    assert {talk(shell, f"new {number}") for number in range(9)} == {"new"}


def test_REG_11_one_that_is_gone_for_long_is_removed_and_its_sessions_are_free():
    shell = Shell()
    one, two = ready(shell, "one", "two", slots=9)
    names = [name for name in "abcdefgh" if talk(shell, name) == "one"]
    shell.lose(one)
    assert {talk(shell, name) for name in names} == {"two"}
    sends = shell.advance_beating(KEEP_OFFLINE_MS - 2_000, two)
    assert not [note for note in of(sends, Noted) if note.kind == "removed"]
    sends = shell.advance_beating(4_000, two)
    assert [note.instance for note in of(sends, Noted) if note.kind == "removed"] == [one]
    assert shell.journal.rows.agents_gone == [AgentGone(TENANT, "one", "echo")]
    assert shell.pool.instances.keys() == {"two"}
    assert "one" not in shell.pool.pins.counts


def test_REG_11_one_that_only_registered_and_fell_silent_is_removed_too():
    shell = Shell()
    shell.join("lonely", link=None)
    shell.advance(300_000 + KEEP_OFFLINE_MS + 20_000)
    assert shell.pool.instances == {}


def test_REG_11_after_a_restart_those_that_do_not_come_back_are_removed():
    shell = Shell()
    shell.join("one")
    shell.crash_and_load()
    assert shell.pool.instances["one"].health is Health.OFFLINE
    shell.advance(KEEP_OFFLINE_MS + 20)
    assert shell.pool.instances == {}
    assert shell.journal.rows.agents_gone == [AgentGone(TENANT, "one", "echo")]


def test_RTE_8_session_slots_are_counted_apart():
    shell = Shell(ttl_ms=60_000)
    one, two = ready(shell, "one", "two", slots=9, max_sessions=2)
    where = [talk(shell, name) for name in "abcd"]
    assert sorted(where) == ["one", "one", "two", "two"]
    late = shell.submit(session="e", **LONG)
    assert (late.state, late.pending_reason) == (TaskState.PENDING, "session_slots")
    assert shell.submit(**LONG).instance is not None, "tasks without a session need none"
    assert talk(shell, "a") == where[0], "and sessions that are there go on"
    shell.advance_beating(66_000, one, two)
    assert late.instance is not None, "the session that was idle for longest has made room"


def test_REG_7_what_waits_for_a_draining_instance_goes_on_though_nobody_else_has_room():
    shell = Shell()
    (one,) = ready(shell, "one")
    first, second = shell.submit(session="s", **LONG), shell.submit(session="s", **LONG)
    shell.step(ev.Drained(one, 30_000, False, None))
    shell.report(first)
    assert second.instance is one


@pytest.mark.parametrize("away_ms", [0, 10_000, 60_000])
def test_REG_7_an_operators_drain_outlives_the_server(away_ms):
    shell = Shell()
    one, _ = ready(shell, "one", "two", slots=9)
    at = {name: talk(shell, name) for name in "abcdefgh"}
    old = next(name for name, where in at.items() if where == "one")
    shell.step(ev.Drained(one, 30_000, False, None))
    shell.now_ms += away_ms
    shell.crash_and_load()
    sends = shell.step(shell.joined("one", ready=True, slots=9))
    assert only(sends, DrainLink).deadline_ms == max(0, 30_000 - away_ms)
    shell.join("two", ready=True, slots=9)
    one = shell.pool.instances["one"]
    assert (one.availability, one.blocked_by) == (Availability.DRAINING, "draining")
    assert {talk(shell, f"new {number}") for number in range(9)} == {"two"}
    assert talk(shell, old) == ("one" if away_ms < 30_000 else "two")


def test_REG_7_a_drain_that_was_undone_stays_undone():
    shell = Shell()
    (one,) = ready(shell, "one")
    shell.step(ev.Drained(one, 30_000, False, None))
    shell.step(ev.Drained(one, 0, True, None))
    shell.crash_and_load()
    assert not of(shell.step(shell.joined("one", ready=True)), DrainLink)
    assert talk(shell, "a") == "one"


def test_REG_11_a_drained_process_never_blocks_the_next_one_also_after_a_restart():
    shell = Shell()
    (one,) = ready(shell, "one")
    shell.step(ev.Drained(one, 30_000, False, None))
    shell.crash_and_load()
    shell.join("one", "b2", ready=True)
    assert talk(shell, "a") == "one"
    shell.crash_and_load()
    shell.join("one", "b2", ready=True)
    assert talk(shell, "b") == "one", "what was written of the new process says nothing of the drain"


def test_a_drain_of_its_own_is_its_own_to_tell_again():
    shell = Shell()
    (one,) = ready(shell, "one")
    shell.step(ev.Beat(one, {"availability": Availability.DRAINING}))
    shell.crash_and_load()
    shell.join("one", ready=True)
    assert talk(shell, "a") == "one"
