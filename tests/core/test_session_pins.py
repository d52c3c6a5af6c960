"""Pins of sessions: life, counts, bounds, and how tasks follow them (RTE-7, SES-1, SES-2, SES-4, case E4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import events as ev
from reach.core import session
from reach.core.effects import Offer
from reach.core.model import Requirement, TaskState
from reach.core.pieces import Kind
from reach.core.session import PIN_WAIT_MS, Pins
from tests.core.harness import LONG, TENANT, Shell, of

NAME = (TENANT, "app:user:1")


def test_a_pin_expires_when_idle_and_is_renewed_by_use():
    pins = Pins(ttl_ms=100)
    pins.set(NAME, "one", 0)
    assert pins.get(NAME, 99) is not None
    pins.set(NAME, "one", 99)
    assert pins.get(NAME, 198) is not None
    assert pins.get(NAME, 199) is None
    assert len(pins) == 0
    assert pins.counts == {}


def test_expired_pins_go_without_being_asked_for():
    pins = Pins(ttl_ms=100)
    for number in range(50):
        pins.set((TENANT, str(number)), "old", 0)
    for number in range(20):
        pins.set((TENANT, f"new {number}"), "new", 1_000)
    assert pins.counts == {"new": 20}


def test_too_many_pins_forget_the_one_that_was_used_least_lately(monkeypatch):
    monkeypatch.setattr(session, "MAX_PINS", 3)
    pins = Pins(ttl_ms=1_000)
    for number in range(3):
        pins.set((TENANT, str(number)), "one", number)
    pins.set((TENANT, "0"), "one", 5)
    pins.set((TENANT, "3"), "one", 6)
    assert pins.get((TENANT, "1"), 7) is None
    assert len(pins) <= 3
    assert pins.counts == {"one": len(pins)}


def test_moving_counts_a_handoff():
    pins = Pins()
    pins.set(NAME, "one", 0)
    assert pins.set(NAME, "one", 1).handoffs == 0
    assert pins.set(NAME, "two", 2).handoffs == 1
    assert pins.counts == {"two": 1}


@given(st.lists(st.tuples(st.sampled_from("sdg"), st.integers(0, 5), st.integers(0, 2), st.integers(0, 40))))
def test_counts_are_those_of_the_pins(acts):
    pins, plain, now = Pins(ttl_ms=100), {}, 0
    for act, number, instance, passed in acts:
        now += passed
        name = (TENANT, str(number))
        if act == "s":
            pins.set(name, f"i{instance}", now)
            plain[name] = (f"i{instance}", now + 100)
        elif act == "d":
            pins.drop(name)
            plain.pop(name, None)
        else:
            pin = pins.get(name, now)
            known = plain.get(name)
            assert (pin.instance_id if pin else None) == (known[0] if known and known[1] > now else None)
        held = [pin.instance_id for pin in pins._pins.values()]
        assert pins.counts == {one: held.count(one) for one in set(held)}


# -- in a pool ---------------------------------------------------------------------------------------------------------


def fleet(count=3, slots=4, **shell):
    made = Shell(**shell)
    for number in range(count):
        made.join(f"i{number}", slots=slots)
    return made


def run(shell, name, **fields):
    task = shell.submit(session=name, **fields)
    where = task.instance_id
    shell.report(task)
    return where


def test_a_session_stays_where_it_began_though_others_join_and_leave():
    shell = fleet()
    where = {f"s{number}": run(shell, f"s{number}") for number in range(60)}
    assert len(set(where.values())) == 3
    for number in range(3, 6):
        shell.join(f"i{number}", slots=4)
    assert {name: run(shell, name) for name in where} == where
    shell.step(ev.Left(shell.pool.instances["i1"]))
    after = {name: run(shell, name) for name in where}
    for name, instance_id in where.items():
        assert (after[name] == instance_id) is (instance_id != "i1")
    assert len({after[name] for name in where if where[name] == "i1"}) > 1


def test_the_same_session_of_two_tenants_is_two_sessions():
    shell = fleet()
    run(shell, "app:user:1")
    run(shell, "app:user:1", tenant="other")
    assert len(shell.pool.pins) == 2


def test_a_full_pinned_instance_is_waited_for_then_left():
    shell = fleet(2, slots=1)
    first = shell.submit(session="s")
    second = shell.submit(session="s")
    assert (second.state, second.pending_reason) == (TaskState.PENDING, "pinned_instance_full")
    shell.advance(PIN_WAIT_MS - 100)
    assert second.attempt == 0
    shell.advance(200)
    assert second.state is TaskState.DELIVERED
    assert second.instance_id != first.instance_id


def test_a_wait_for_a_pin_that_is_over_does_not_wake_us_again_and_again():
    shell = fleet(2, slots=1, overcommit=1.0)
    for session_name in ("", "s"):
        shell.submit(session=session_name, start_to_close_ms=300_000)
    waits = shell.submit(session="s")
    assert waits.pin_until_ms
    shell.advance(PIN_WAIT_MS + 20)
    wakes = 0
    end = shell.now_ms + 1_000
    while (due := shell.pool.next_wake_ms()) is not None and due <= end:
        shell.now_ms = due
        shell.step()
        wakes += 1
    assert wakes < 3
    assert (waits.state, waits.pin_until_ms) == (TaskState.PENDING, 0)


def test_a_full_pinned_instance_that_frees_a_slot_gets_the_task():
    shell = fleet(2, slots=1)
    first = shell.submit(session="s")
    second = shell.submit(session="s")
    where = first.instance_id
    shell.report(first)
    assert second.instance_id == where
    assert second.state is TaskState.DELIVERED


def test_who_waits_for_a_pin_does_not_block_others():
    shell = fleet(2, slots=1)
    shell.submit(session="s")
    waits = shell.submit(session="s")
    other = shell.submit()
    assert waits.state is TaskState.PENDING
    assert other.state is TaskState.DELIVERED


def test_a_wait_for_a_pin_that_begins_in_the_queue_is_bounded_too():
    shell = fleet(2, slots=1)
    one, two = (shell.submit(session=name, start_to_close_ms=60_000) for name in ("s", ""))
    pinned = one.instance
    shell.step(ev.Drained(pinned, 0, False, None))
    late = shell.submit(session="s")
    assert late.pending_reason == "capacity"
    shell.step(ev.Drained(pinned, 0, True, None))
    shell.report(two)
    assert late.pending_reason == "pinned_instance_full"
    shell.advance(PIN_WAIT_MS + 20)
    assert late.state is TaskState.DELIVERED
    assert late.instance is not pinned


def test_a_pinned_instance_that_does_not_match_is_not_waited_for():
    shell = Shell()
    shell.join("plain", slots=1)
    run(shell, "s")
    shell.join("gpu", slots=1, tags=("gpu",))
    task = shell.submit(session="s", requirement=Requirement(required_tags=("gpu",)))
    assert task.instance_id == "gpu"


def test_a_move_tells_the_reader_and_is_written_with_the_attempt():
    shell = fleet(2)
    run(shell, "s")
    where = shell.pool.pins.get((TENANT, "s"), shell.now_ms).instance_id
    shell.lose(shell.pool.instances[where])
    reader = shell.reader()
    task = shell.submit(session="s", reader=reader)
    assert Kind.HANDOFF in shell.kinds(reader)
    assert [row.instance_id for row in shell.journal.rows.pins] == [where, task.instance_id]
    assert shell.journal.rows.pins[-1].handoffs == 1
    assert task.instance_id != where


def test_new_sessions_do_not_overtake_those_who_wait():
    shell = fleet(1, slots=1)
    running = shell.submit()
    waits = shell.submit()
    sends = shell.step(shell.reported(running), ev.Submitted(shell.task(session="new"), shell.reader()))
    assert [offer.task for offer in of(sends, Offer)] == [waits]


def test_SES_2_a_session_at_work_is_not_idle_however_long_that_takes():
    shell = Shell(ttl_ms=10_000)
    one = shell.join("one", slots=4, heartbeat_ms=1_000)
    task = shell.submit(session="s", schedule_to_close_ms=900_000, **LONG)
    shell.take_up(task)
    shell.advance_beating(30_000, one)
    assert shell.pool.pins.look((TENANT, "s"), shell.now_ms) is not None
    shell.pool.pins.sweep(shell.now_ms)
    shell.pool.pins.live(shell.now_ms)
    assert shell.pool.pins.get((TENANT, "s"), shell.now_ms) is not None
    shell.report(task)
    assert shell.pool.pins.get((TENANT, "s"), shell.now_ms + 9_999) is not None, "its end is activity"
    assert shell.pool.pins.get((TENANT, "s"), shell.now_ms + 10_000) is None


def test_a_pin_is_written_when_it_is_made_and_when_half_of_its_time_has_passed():
    shell = Shell(ttl_ms=10_000)
    one = shell.join("one", slots=4, heartbeat_ms=1_000)
    for passed, rows in ((0, 1), (4_000, 1), (2_000, 2), (1_000, 2)):
        shell.advance_beating(passed, one)
        run(shell, "s")
        assert len(shell.journal.rows.pins) == rows, passed
    shell.crash_and_load()
    assert shell.pool.pins.look((TENANT, "s"), shell.now_ms + 5_000) is not None


def test_volatile_tasks_write_no_pins():
    shell = fleet(1)
    shell.submit(session="s", volatile=True)
    assert shell.journal.rows.pins == []
    assert len(shell.pool.pins) == 1


# -- session slots, moves and neighbours -------------------------------------------------------------------------------


def test_RTE_8_session_slots_are_counted_apart():
    shell = Shell()
    shell.join("one", slots=50, max_sessions=2)
    shell.join("two", slots=50, max_sessions=3)
    tasks = [shell.submit(session=f"a:u:{number}", **LONG) for number in range(6)]
    went = [task.instance_id for task in tasks]
    assert (went.count("one"), went.count("two")) == (2, 3)
    assert (tasks[5].state, tasks[5].pending_reason) == (TaskState.PENDING, "session_slots")
    assert shell.submit(session="a:u:0", **LONG).instance_id == tasks[0].instance_id, "old sessions go on"
    assert shell.submit(**LONG).state is TaskState.DELIVERED, "so do tasks without one"


def test_RTE_8_a_new_session_gets_the_slot_of_one_that_expired():
    shell = Shell(ttl_ms=10_000)
    one = shell.join("one", slots=50, max_sessions=1, heartbeat_ms=60_000)
    shell.report(shell.submit(session="a:u:0"))
    waits = shell.submit(session="a:u:1", **LONG)
    assert waits.pending_reason == "session_slots"
    shell.advance(9_000)
    assert waits.state is TaskState.PENDING
    shell.advance(1_200)
    assert waits.instance is one


def test_RTE_8_more_session_slots_are_used_at_once():
    shell = Shell()
    shell.join("one", slots=50, max_sessions=1)
    shell.submit(session="a:u:0", **LONG)
    waits = shell.submit(session="a:u:1", **LONG)
    shell.join("one", slots=50, max_sessions=2)
    assert waits.instance_id == "one"


def test_E4_RTE_7_a_fourth_instance_moves_no_living_session_and_a_lost_one_only_its_own():
    shell = Shell()
    for number in range(3):
        shell.join(f"i{number}", slots=2_000, heartbeat_ms=60_000)
    sessions = [f"a:u:{number}" for number in range(300)]
    before = {one: shell.submit(session=one, **LONG).instance_id for one in sessions}
    share = {name: list(before.values()).count(name) for name in set(before.values())}
    assert max(share.values()) <= 1.25 * 300 / 3 + 1
    shell.join("i3", slots=2_000, heartbeat_ms=60_000)
    assert {one: shell.submit(session=one, **LONG).instance_id for one in sessions} == before
    fresh = [shell.submit(session=f"new:u:{number}", **LONG).instance_id for number in range(100)]
    assert fresh.count("i3") > 0
    shell.lose(shell.pool.instances["i1"])
    after = {one: shell.submit(session=one, **LONG).instance_id for one in sessions}
    assert {one for one in sessions if after[one] != before[one]} == {one for one in sessions if before[one] == "i1"}
    assert len({after[one] for one in sessions if before[one] == "i1"}) > 1, "to its neighbours on the ring"


@pytest.mark.parametrize("back", [True, False])
def test_E4_SES_4_after_a_restart_or_a_move_a_session_waits_for_its_instance(back):
    """A pool that goes to another node finds its agents one after the other: that is no reason to move sessions."""
    shell = Shell()
    for number in range(2):
        shell.join(f"i{number}", slots=50)
    sessions = [f"a:u:{number}" for number in range(20)]
    before = {one: shell.submit(session=one, **LONG).instance_id for one in sessions}
    assert set(before.values()) == {"i0", "i1"}
    shell.crash_and_load()
    shell.join("i0", slots=50)
    later = {one: shell.submit(session=one, **LONG) for one in sessions}
    assert {task.instance_id for one, task in later.items() if before[one] == "i0"} == {"i0"}
    assert {task.state for one, task in later.items() if before[one] == "i1"} == {TaskState.PENDING}
    if back:
        shell.advance_beating(1_000, shell.pool.instances["i0"])
        shell.join("i1", slots=50)
        assert {one: task.instance_id for one, task in later.items()} == before
    else:
        shell.advance_beating(6_000, shell.pool.instances["i0"])
        assert {task.instance_id for task in later.values()} == {"i0"}


def test_a_pin_that_is_waited_for_is_settable_and_spills():
    shell = Shell(overcommit=1.0)
    shell.pool.pin_wait_ms = 0
    shell.join("one", slots=1)
    first = shell.submit(session="a:u:s", **LONG)
    shell.join("two", slots=1)
    second = shell.submit(session="a:u:s", **LONG)
    assert (first.instance_id, second.instance_id) == ("one", "two")
    assert second.decision.moved_from == "one"
