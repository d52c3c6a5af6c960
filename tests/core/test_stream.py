"""Event streams of tasks: replay, gaps, folding, credits, bounds (STR-1 … STR-5, cases A14, D1 … D4, P4)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import events as ev
from reach.core.effects import Events, Noted, Refused, Turn
from reach.core.model import TaskState
from reach.core.pieces import EVENT_OVERHEAD, FOLD_LIMIT, Delta, Fold, Kind, Mode
from reach.core.stream import KEEP_BYTES, KEEP_MS, RESERVE, Interest, log_of
from reach.errors import ErrorClass, Reason
from tests.core.harness import Shell, of, only

A, S, D, C = Kind.ACCEPTED, Kind.STARTED, Kind.DELTA, Kind.COMPLETE


def running(**fields):
    shell = Shell()
    shell.join()
    return shell, shell.submit(**fields)


def text_of(events, channel=""):
    """What a reader ends up with, applying what it was told in order."""
    text = ""
    for _, _, _, kind, data in events:
        if kind == Kind.DELTA and data.channel == channel:
            text = data.content if data.mode is Mode.REPLACE else text + data.content
        elif kind == Kind.ATTEMPT_RESET:
            text = ""
        elif kind == Kind.GAP:
            text = "".join(one.content for one in data.snapshot if one.channel == channel)
    return text


def test_a_plain_answer_is_accepted_started_complete_whenever_one_reads():
    shell, task = running()
    during = shell.read(task)
    shell.take_up(task)
    shell.report(task, "42")
    after = shell.read(task)
    assert shell.kinds(during) == shell.kinds(after) == [A, S, C]
    assert shell.numbers(after) == [1, 2, 3]
    assert shell.seen[during.reference] == shell.seen[after.reference]
    outcome = shell.seen[after.reference][-1][4]
    assert outcome.content == "42"
    assert outcome.sequence == 3


def test_without_a_reader_nothing_is_kept_and_the_same_events_come_out():
    shell, task = running()
    shell.take_up(task)
    shell.now_ms += 5
    shell.report(task, "42")
    assert task.log is None
    late = shell.read(task)
    walls = [event[2] for event in shell.seen[late.reference]]
    assert walls == [shell.wall_ms - 5, shell.wall_ms - 5, shell.wall_ms]
    assert [event[1] for event in shell.seen[late.reference]] == [0, 1, 1]


def test_every_kind_of_end_has_one_final_event_for_early_and_late_readers():
    """D4, P4."""
    for end in ("report", "fail", "cancel", "cancel waiting"):
        shell, task = running()
        if end == "cancel waiting":
            task = shell.submit()
        early = shell.read(task)
        if end == "report":
            shell.report(task)
        elif end == "fail":
            shell.report(task, error=(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED))
        else:
            shell.cancel(task)
        late = shell.read(task)
        for reader in (early, late):
            assert shell.kinds(reader).count(C) == 1
            assert shell.kinds(reader)[-1] == C
        assert not task.log.readers


def test_deltas_reach_all_readers_in_the_same_order():
    """D3, STR-4."""
    shell, task = running()
    readers = [shell.read(task) for _ in range(3)]
    for number in range(1, 101):
        shell.delta(task, number, f"{number} ")
    shell.report(task, folded=100)
    for reader in readers:
        assert shell.numbers(reader) == list(range(1, 104))
        assert shell.seen[reader.reference] == shell.seen[readers[0].reference]
    assert task.outcome.content == "".join(f"{number} " for number in range(1, 101))


@pytest.mark.parametrize("after", range(14))
def test_reading_on_after_any_event_gives_what_follows_once(after):
    """D1, STR-2."""
    shell, task = running()
    for number in range(1, 8):
        shell.delta(task, number)
    reader = shell.reader(after=after)
    sends = shell.step(ev.Subscribed(task.tenant, task.task_id, reader))
    if after > 9:
        assert only(sends, Refused).fault.reason is Reason.SEQUENCE_OUT_OF_RANGE
        return
    for number in range(8, 11):
        shell.delta(task, number)
    shell.report(task, folded=10)
    assert shell.numbers(reader) == list(range(after + 1, 14))


def test_a_reader_that_has_had_the_last_event_is_told_that_there_is_no_more():
    shell, task = running()
    shell.report(task)
    reader = shell.reader(after=3)
    sent = only(shell.step(ev.Subscribed(task.tenant, task.task_id, reader)), Events)
    assert (sent.reader, sent.events) == (reader, [])


def test_old_events_become_a_gap_with_a_snapshot():
    shell, task = running(start_to_close_ms=100_000)
    shell.delta(task, 1, "Hel")
    shell.delta(task, 2, "lo")
    shell.now_ms += KEEP_MS + 1
    shell.delta(task, 3, "!")
    reader = shell.read(task, after=1)
    ((number, attempt, _, kind, gap),) = shell.seen[reader.reference]
    assert (number, attempt, kind) == (5, 1, Kind.GAP)
    assert (gap.first, gap.last) == (2, 5)
    assert gap.snapshot == [Delta("", Mode.REPLACE, "text/plain", "Hello!")]
    shell.delta(task, 4, "?")
    assert shell.numbers(reader) == [5, 6]
    assert text_of(shell.seen[reader.reference]) == "Hello!?"


def test_a_final_event_is_never_part_of_a_gap():
    shell, task = running(start_to_close_ms=100_000)
    shell.delta(task, 1, "Hello")
    shell.now_ms += KEEP_MS + 1
    shell.report(task, folded=1)
    reader = shell.read(task)
    assert shell.kinds(reader) == [Kind.GAP, C]
    assert shell.numbers(reader) == [3, 4]


def test_what_is_held_of_one_task_is_bounded():
    """A14, STR-2: 1 MiB, the latest event whatever its size."""
    shell, task = running(start_to_close_ms=100_000)
    reader = shell.read(task, credit=1)
    for number in range(1, 100):
        shell.delta(task, number, "x" * 65_536, replace=True)
        assert task.log.bytes <= KEEP_BYTES
    shell.delta(task, 100, "y" * (3 << 20), replace=True)
    assert len(task.log.events) == 1
    assert shell.numbers(reader) == [1, 2, 3][: len(shell.numbers(reader))]
    sends = shell.step(ev.Credited(reader, 10 << 20))
    assert shell.kinds(reader)[-1] == Kind.GAP
    assert [note.kind for note in of(sends, Noted)] == ["gap"], "and operators can count it"
    assert text_of(shell.seen[reader.reference]) == "y" * (3 << 20)


def test_a_reader_without_credit_slows_nobody_and_goes_on_where_it_stopped():
    shell, task = running()
    slow, fast = shell.read(task, credit=2 * EVENT_OVERHEAD), shell.read(task)
    for number in range(1, 20):
        shell.delta(task, number, "abc")
    assert shell.numbers(fast) == list(range(1, 22))
    assert shell.numbers(slow) == [1, 2]
    shell.step(ev.Credited(slow, 1))
    assert shell.numbers(slow) == [1, 2, 3]
    shell.step(ev.Credited(slow, 1_000_000))
    assert shell.numbers(slow) == shell.numbers(fast)


def test_credit_that_comes_after_the_end_still_delivers_the_end():
    shell, task = running()
    slow = shell.read(task, credit=1)
    shell.delta(task, 1, "abc")
    shell.report(task, folded=1)
    shell.now_ms += KEEP_MS + 1
    shell.step()
    assert task.key not in shell.pool.tasks
    shell.step(ev.Credited(slow, 1_000_000))
    assert shell.kinds(slow)[-1] == C
    assert not task.log.readers


def test_STR_5_readers_that_leave_are_forgotten_and_the_task_goes_on():
    shell, task = running()
    events, outcome = shell.read(task), shell.reader(Interest.OUTCOME)
    shell.step(ev.Subscribed(task.tenant, task.task_id, outcome))
    shell.step(ev.Unsubscribed(events), ev.Unsubscribed(outcome), ev.Unsubscribed(shell.reader()))
    shell.delta(task, 1)
    shell.report(task)
    assert shell.kinds(events) == [A]
    assert not task.waiters
    assert task.state is TaskState.SUCCEEDED


def test_another_attempt_begins_the_text_anew():
    """STR-3: it is never doubled."""
    shell, task = running()
    reader = shell.read(task)
    shell.delta(task, 1, "Hel")
    shell.join("two")
    shell.lose(shell.pool.instances["one"])
    assert shell.kinds(reader)[-1] == Kind.ATTEMPT_RESET
    shell.delta(task, 1, "Hello")
    shell.report(task, folded=1)
    assert text_of(shell.seen[reader.reference]) == "Hello"
    assert task.outcome.content == "Hello"


def test_the_reset_is_told_when_it_happens_though_the_task_had_to_wait():
    shell, task = running()
    reader = shell.read(task)
    shell.delta(task, 1, "Hel")
    shell.lose(shell.pool.instances["one"])
    assert shell.kinds(reader)[-1] == Kind.RETRYING
    shell.join("two")
    assert shell.kinds(reader)[-1] == Kind.ATTEMPT_RESET


def test_repeated_deltas_are_dropped_and_missing_ones_make_us_ask_for_the_whole():
    shell, task = running()
    for number in (1, 2, 2, 1, 5):
        shell.delta(task, number, str(number))
    sends = shell.report(task, folded=5)
    assert task.state is TaskState.RUNNING
    assert task.log.fold.content() == ("text/plain", "125")
    assert [send.fault.reason for send in sends if hasattr(send, "fault")] == [Reason.UNEXPECTED_FRAME]
    shell.report(task, "12345")
    assert task.outcome.content == "12345"


def test_a_first_delta_that_is_not_the_first_is_not_taken_for_the_whole():
    shell, task = running()
    shell.delta(task, 3, "lo")
    shell.report(task, folded=3)
    assert task.state is TaskState.RUNNING


def test_after_a_reset_the_deltas_are_whole_again():
    shell, task = running()
    reader = shell.read(task)
    shell.delta(task, 3, "lo")
    shell.join("two")
    shell.lose(shell.pool.instances["one"])
    shell.delta(task, 1, "Hello")
    shell.report(task, folded=1)
    assert (task.outcome.content, shell.kinds(reader).count(Kind.ATTEMPT_RESET)) == ("Hello", 1)


def test_no_deltas_at_all_fold_to_nothing():
    for watched in (False, True):
        shell, task = running()
        if watched:
            shell.read(task)
        shell.report(task, folded=0)
        assert task.outcome is not None
        assert task.outcome.content == ""


def test_too_large_an_answer_fails_alone():
    shell, task = running()
    for number in range(1, 6):
        if task.state is TaskState.RUNNING or number == 1:
            shell.delta(task, number, "x" * (1 << 20))
    assert task.outcome.fault is not None
    assert task.outcome.fault.reason is Reason.RESULT_TOO_LARGE
    assert task.state is TaskState.FAILED


# -- numbering over a crash --------------------------------------------------------------------------------------------


def test_one_row_reserves_the_first_thousand():
    shell, task = running()
    rows = shell.journal.rows
    assert [row.reserved for row in rows.tasks] == [RESERVE]
    assert rows.reserves == []
    assert rows.attempts == []
    for number in range(1, RESERVE - 1):
        shell.delta(task, number)
    assert (task.sequence, rows.reserves) == (RESERVE, [])
    shell.delta(task, RESERVE)
    assert [row.reserved for row in rows.reserves] == [2 * RESERVE]


def test_volatile_tasks_reserve_nothing():
    shell, task = running(volatile=True)
    for number in range(1, RESERVE + 5):
        shell.delta(task, number)
    rows = shell.journal.rows
    assert rows.tasks == rows.reserves == rows.outcomes == rows.attempts == []


@pytest.mark.parametrize("between", [0, 1, 5])
def test_no_number_is_used_twice_however_often_we_crash(between):
    """D2, STR-1."""
    shell, task = running()
    told: set[int] = set()
    for _ in range(4):
        reader = shell.read(task, after=max(told, default=0))
        for _ in range(between):
            shell.progress(task)
        fresh = [event[0] for event in shell.seen.get(reader.reference, []) if event[3] == Kind.PROGRESS]
        assert len(fresh) == between
        assert told.isdisjoint(fresh)
        told.update(fresh)
        (task,) = shell.crash_and_load()
        assert log_of(task, Turn(0, 0)).events[0][3] == Kind.RESUMED
        shell.step(shell.joined("one", running=[(task.tenant, task.task_id, 1, 0)]))
        assert task.state is TaskState.RUNNING


def test_after_a_load_a_reader_gets_a_gap_without_a_snapshot_then_what_is_held():
    shell, task = running()
    shell.delta(task, 1, "Hel")
    (task,) = shell.crash_and_load()
    reader = shell.read(task, after=3)
    assert shell.kinds(reader)[0] == Kind.GAP
    first = shell.seen[reader.reference][0][4]
    assert (first.first, first.last, first.snapshot) == (4, RESERVE, [])
    assert shell.numbers(reader)[1] == RESERVE + 1


# -- folding -----------------------------------------------------------------------------------------------------------

PIECES = st.lists(
    st.tuples(
        st.sampled_from(["", "thoughts"]),
        st.sampled_from(list(Mode)),
        st.one_of(st.text(max_size=5), st.binary(max_size=5)),
    ),
    max_size=30,
)


@given(PIECES)
def test_the_fold_equals_joining_by_hand(pieces):
    fold = Fold()
    plain: dict[str, Any] = {}
    for channel, mode, content in pieces:
        assert fold.add(Delta(channel, mode, "", content))
        plain[channel] = [content] if mode is Mode.REPLACE else [*plain.get(channel, []), content]
    for channel, contents in plain.items():
        whole: str | bytes
        if all(isinstance(one, str) for one in contents):
            whole = "".join(contents)
        else:
            whole = b"".join(one.encode() if isinstance(one, str) else one for one in contents)
        assert fold.content(channel) == ("", whole)
    sizes = sum(len(one.encode() if isinstance(one, str) else one) for c in plain.values() for one in c)
    named = EVENT_OVERHEAD + len("thoughts") if "thoughts" in plain else 0
    assert fold.size == sizes + named
    assert [delta.channel for delta in fold.snapshot()] == list(plain)


def test_the_fold_takes_exactly_its_limit_in_bytes_and_a_refused_piece_changes_nothing():
    fold = Fold()
    assert fold.add(Delta("", Mode.APPEND, "", "ü" * (FOLD_LIMIT // 2)))
    assert not fold.add(Delta("", Mode.APPEND, "", "x"))
    assert not fold.add(Delta("", Mode.REPLACE, "", "x" * (FOLD_LIMIT + 1)))
    assert fold.size == FOLD_LIMIT
    assert fold.add(Delta("", Mode.REPLACE, "", "x"))
    assert fold.size == 1


def test_very_many_small_pieces_and_channels_stay_small():
    fold = Fold()
    for _ in range(10_000):
        assert fold.add(Delta("", Mode.APPEND, "", ""))
    assert len(fold.channels[""][1]) <= 1_025
    taken = sum(fold.add(Delta(str(number), Mode.APPEND, "", "")) for number in range(100_000))
    assert taken < 70_000


def test_agents_get_room_for_what_they_sent_in_bytes():
    shell, task = running()
    sends = shell.delta(task, 1, "ü" * 10)
    assert [send.bytes for send in sends if hasattr(send, "bytes")] == [20]
    assert of(shell.delta(task, 1, "ü"), Events) == []


def test_PRF_8_a_loaded_task_makes_its_log_when_somebody_reads():
    """100,000 logs that nobody reads took half of the memory and a third of the time of a start."""
    shell, task = running()
    (task,) = shell.crash_and_load()
    assert task.log is None
    reader = shell.read(task, after=0)
    assert shell.kinds(reader)[-1] == Kind.RESUMED
    assert shell.numbers(reader)[-1] == RESERVE + 1
    assert not log_of(task, Turn(0, 0)).fold_whole
