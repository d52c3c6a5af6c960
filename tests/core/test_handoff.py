"""Sessions that move: the old instance is asked, the new one is given, the pin follows (SES-4)."""

import pytest

from reach.core import events as ev
from reach.core import handoff
from reach.core.effects import AskSnapshot
from reach.core.handoff import ASK_MS
from reach.core.model import TaskState
from reach.core.pieces import Kind
from reach.errors import ErrorClass, Reason
from tests.core.harness import LONG, TENANT, Shell, of, only

NAME = (TENANT, "app:user:1")


class TalkingLink:
    """A link of an agent that says what it knows of its sessions."""

    hands_over = True


def shell_of(*names, **parts):
    shell = Shell()
    for name in names:
        shell.join(name, slots=4, heartbeat_ms=60_000, link=TalkingLink(), **parts)
    return shell


def begun(*names, **parts):
    """A shell whose session has had a turn, and where."""
    shell = shell_of(*names, **parts)
    task = shell.submit(session=NAME[1], **LONG)
    instance = task.instance
    shell.report(task)
    return shell, instance


def pinned(shell):
    return shell.pool.pins.look(NAME, shell.now_ms)


def given(shell, task):
    return shell.pool.handoffs.given(task)


def unready(shell, instance, ready=False):
    """It still answers, and takes no work."""
    return shell.step(ev.Beat(instance, {"ready": ready}))


def came(shell, instance, snapshot=b"notes", name=NAME):
    return shell.step(ev.SnapshotCame(instance, name, snapshot))


def test_SES_4_the_old_instance_is_asked_and_the_new_one_gets_the_answer_until_it_takes_up():
    shell, old = begun("a", "b")
    unready(shell, old)
    task = shell.submit(session=NAME[1], **LONG)
    ask = only(shell.sends[-3:], AskSnapshot)
    assert (ask.link, ask.tenant, ask.session, ask.timeout_ms) == (old.link, *NAME, ASK_MS)
    assert (task.state, task.pending_reason) == (TaskState.PENDING, "handoff")
    came(shell, old)
    assert task.state is TaskState.DELIVERED
    assert task.instance is not old
    assert given(shell, task) == (b"notes", 1)
    shell.take_up(task)
    assert given(shell, task) == (b"", 0)
    assert pinned(shell).instance_id == task.instance_id
    assert pinned(shell).handoffs == 1
    assert len(shell.pool.handoffs) == 0
    again = shell.submit(session=NAME[1], **LONG)
    assert again.instance is task.instance
    assert given(shell, again) == (b"", 0)


def test_SES_4_an_instance_that_is_gone_is_not_asked():
    shell, old = begun("a", "b")
    shell.lose(old)
    task = shell.submit(session=NAME[1], **LONG)
    assert of(shell.sends, AskSnapshot) == []
    assert task.state is TaskState.DELIVERED
    assert given(shell, task) == (b"", 1)
    assert pinned(shell).instance_id == task.instance_id


def test_SES_4_an_answer_is_waited_for_for_a_second_and_then_not_asked_for_again_for_a_while():
    shell, old = begun("a", "b")
    unready(shell, old)
    task = shell.submit(session=NAME[1], **LONG)
    shell.advance(ASK_MS - 50)
    assert task.pending_reason == "handoff"
    shell.advance(100)
    assert task.state is TaskState.DELIVERED
    assert given(shell, task) == (b"", 1)
    shell.take_up(task)
    unready(shell, old, ready=True)
    other = [shell.submit(session=f"app:user:{number}") for number in range(20)]
    for one in other:
        shell.report(one)
    here = next(one.session for one in other if one.instance_id == old.instance_id)
    unready(shell, old)
    moved = shell.submit(session=here, **LONG)
    assert moved.state is TaskState.DELIVERED, "nobody waits for one that has just not answered"
    assert len(of(shell.sends, AskSnapshot)) == 1


def test_a_task_in_a_hurry_waits_for_half_of_its_time():
    shell, old = begun("a", "b")
    unready(shell, old)
    task = shell.submit(session=NAME[1], schedule_to_start_ms=300, **LONG)
    assert of(shell.sends, AskSnapshot)[-1].timeout_ms == 150
    shell.advance(200)
    assert task.state is TaskState.DELIVERED


def test_SES_4_many_sessions_are_asked_for_at_once():
    shell = Shell()
    old = shell.join("a", slots=100, heartbeat_ms=60_000, link=TalkingLink())
    tasks = [shell.submit(session=f"app:user:{number}") for number in range(50)]
    for task in tasks:
        shell.report(task)
    unready(shell, old)
    shell.join("b", slots=100, heartbeat_ms=60_000, link=TalkingLink())
    waiting = [shell.submit(session=task.session, **LONG) for task in tasks]
    assert len(of(shell.sends, AskSnapshot)) == 50
    shell.step(*(ev.SnapshotCame(old, (TENANT, task.session), task.session.encode()) for task in tasks))
    assert all(task.instance_id == "b" for task in waiting)
    assert [given(shell, task)[0] for task in waiting] == [task.session.encode() for task in waiting]


def test_SES_4_the_pin_moves_only_when_the_new_instance_has_taken_up():
    shell, old = begun("a", "b", "c")
    shell.step(ev.Drained(old, 0, False, None))
    task = shell.submit(session=NAME[1], **LONG)
    came(shell, old)
    first = task.instance
    assert pinned(shell).instance_id == old.instance_id
    assert shell.journal.rows.pins[-1].instance_id == old.instance_id
    beside = shell.submit(session=NAME[1], **LONG)
    assert beside.instance is first, "the session is on its way there, and nowhere else"
    assert given(shell, beside) == (b"notes", 1)
    shell.lose(first)
    assert task.instance not in (first, old)
    assert pinned(shell).instance_id == old.instance_id
    assert given(shell, task) == (b"notes", 1)
    shell.take_up(task)
    assert pinned(shell).instance_id == task.instance_id
    assert shell.journal.rows.pins[-1].instance_id == task.instance_id
    assert pinned(shell).handoffs == 1


def test_an_answer_without_a_take_up_is_one():
    shell, old = begun("a", "b")
    shell.step(ev.Drained(old, 0, False, None))
    task = shell.submit(session=NAME[1], **LONG)
    came(shell, old)
    shell.report(task)
    assert pinned(shell).instance_id == task.instance_id != old.instance_id


def test_SES_4_the_callers_stream_says_so_also_when_it_is_read_later():
    shell, old = begun("a", "b")
    shell.lose(old)
    reader = shell.reader()
    task = shell.submit(session=NAME[1], reader=reader)
    new = task.instance_id
    shell.report(task)
    late = shell.read(task)
    for one in (reader, late):
        (told,) = [event[4] for event in shell.seen[one.reference] if event[3] == Kind.HANDOFF]
        assert told == (old.instance_id, new)


def test_SES_4_a_leaving_instance_may_say_unasked_what_it_knows():
    shell, old = begun("a", "b")
    came(shell, old, b"before it goes")
    shell.step(ev.Left(old))
    task = shell.submit(session=NAME[1], **LONG)
    assert of(shell.sends, AskSnapshot) == []
    assert given(shell, task) == (b"before it goes", 1)


def test_a_snapshot_is_old_when_the_session_goes_on_where_it_was():
    shell, old = begun("a", "b")
    came(shell, old, b"too early")
    shell.report(shell.submit(session=NAME[1]))
    shell.lose(old)
    assert given(shell, shell.submit(session=NAME[1], **LONG)) == (b"", 1)


@pytest.mark.parametrize("other", [("acme", "app:user:2"), ("globex", NAME[1])])
def test_nobody_speaks_for_sessions_of_others(other):
    shell, old = begun("a", "b")
    came(shell, old, b"a lie", other)
    assert len(shell.pool.handoffs) == 0
    new = next(one for one in shell.pool.instances.values() if one is not old)
    came(shell, new, b"a lie")
    assert len(shell.pool.handoffs) == 0


def test_SES_4_a_new_process_of_the_same_instance_is_told_once_that_the_session_is_new_to_it():
    shell, old = begun("a")
    shell.join(old.instance_id, boot="b2", slots=4, link=TalkingLink())
    task = shell.submit(session=NAME[1], **LONG)
    assert given(shell, task) == (b"", 1)
    shell.take_up(task)
    assert given(shell, shell.submit(session=NAME[1], **LONG)) == (b"", 0)
    assert pinned(shell).handoffs == 0


def test_a_retry_elsewhere_hands_the_session_over_too():
    shell, old = begun("a", "b")
    task = shell.submit(session=NAME[1], retry="quick", **LONG)
    shell.report(task, error=(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE))
    shell.advance(400)
    assert (task.state, task.pending_reason) == (TaskState.PENDING, "handoff")
    came(shell, old)
    assert task.instance is not old
    assert given(shell, task) == (b"notes", 1)


def test_a_session_that_was_deleted_is_handed_to_nobody():
    shell, old = begun("a", "b")
    came(shell, old)
    shell.step(ev.SessionForgotten(NAME))
    assert pinned(shell) is None
    assert len(shell.pool.handoffs) == 0
    assert shell.journal.rows.pins[-1].instance_id == ""
    assert given(shell, shell.submit(session=NAME[1], **LONG)) == (b"", 0)


def test_what_waits_for_the_pinned_instance_of_a_deleted_session_may_go_anywhere():
    shell = Shell()
    for name in ("a", "b"):
        shell.join(name, slots=1)
    shell.submit(session=NAME[1], **LONG)
    waits = shell.submit(session=NAME[1], **LONG)
    assert waits.pending_reason == "pinned_instance_full"
    shell.step(ev.SessionForgotten(NAME))
    assert waits.state is TaskState.DELIVERED


def test_snapshots_are_bounded_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(handoff, "HELD_BYTES", 250)
    shell = shell_of("a")
    old = shell.pool.instances["a"]
    for number in range(3):
        shell.report(shell.submit(session=f"app:user:{number}"))
        came(shell, old, b"x" * 100, (TENANT, f"app:user:{number}"))
    shell.join("b", slots=9)
    shell.step(ev.Left(old))
    sizes = [len(given(shell, shell.submit(session=f"app:user:{number}", **LONG))[0]) for number in range(3)]
    assert sizes == [0, 100, 100]


def test_snapshots_of_a_pool_that_nobody_goes_on_with_do_not_take_the_room_of_another(monkeypatch):
    monkeypatch.setattr(handoff, "HELD_BYTES", 250)
    shells = [shell_of("a"), shell_of("a")]
    shells[1].pool.handoffs.room = shells[0].pool.handoffs.room
    for number in (0, 1):
        shells[0].report(shells[0].submit(session=f"app:user:{number}"))
        came(shells[0], shells[0].pool.instances["a"], b"x" * 100, (TENANT, f"app:user:{number}"))
    shell, old = shells[1], shells[1].pool.instances["a"]
    shell.report(shell.submit(session=NAME[1]))
    came(shell, old, b"y" * 100)
    shell.join("b", slots=9)
    shell.step(ev.Left(old))
    assert given(shell, shell.submit(session=NAME[1], **LONG))[0] == b"y" * 100
    assert shell.pool.handoffs.room.bytes <= 250


def test_sessions_on_their_way_are_bounded(monkeypatch):
    monkeypatch.setattr(handoff, "MOVING", 2)
    shell = shell_of("a")
    for number in range(4):
        shell.report(shell.submit(session=f"app:user:{number}"))
        came(shell, shell.pool.instances["a"], b"x", (TENANT, f"app:user:{number}"))
    assert len(shell.pool.handoffs) == 2
