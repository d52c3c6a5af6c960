"""What an owner that gives a shard up leaves to its heir, so that readers see no gap (DLV-13, STR-2)."""

from __future__ import annotations

from typing import Any

import pytest

from reach.core import events as ev
from reach.core import handed as module
from reach.core.effects import CreditAttempt, Turn
from reach.core.handed import handed, resume
from reach.core.model import TaskState
from reach.core.pieces import Delta, Kind, Mode
from reach.core.stream import RESERVE, Interest
from tests.core.harness import Shell
from tests.core.test_stream import running, text_of


def streaming(pieces: int = 3):
    shell, task = running(start_to_close_ms=100_000)
    reader = shell.read(task)
    for number in range(1, pieces + 1):
        shell.delta(task, number, f"{number} ")
    return shell, task, shell.numbers(reader)[-1]


def comes_back(shell: Shell, task, last: int) -> list:
    """The agent says hello to the heir; what it is asked to say again."""
    sends = shell.step(shell.joined("one", running=[(task.tenant, task.task_id, 1, last)]))
    return next(send.replay for send in sends if hasattr(send, "replay"))


@pytest.mark.parametrize("said", [3, 5], ids=["nothing was under way", "two pieces were under way"])
def test_DLV_13_a_stream_goes_on_at_the_heir_without_a_gap_and_without_a_reset(said: int) -> None:
    shell, task, last = streaming()
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last)
    assert comes_back(shell, task, said) == ([(task.tenant, task.task_id, 1)] if said > 3 else [])
    for number in range(1 if said > 3 else 4, 7):  # who is asked to says all of it again
        shell.delta(task, number, f"{number} ")
    shell.report(task, folded=6)
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.STARTED, *[Kind.DELTA] * 3, Kind.COMPLETE]
    assert shell.numbers(reader) == list(range(last + 1, last + 7))
    assert text_of(shell.seen[reader.reference]) == "4 5 6 "
    assert task.outcome.content == "1 2 3 4 5 6 "


def test_DLV_13_the_whole_answer_at_the_end_is_no_reset_when_readers_have_all_of_it() -> None:
    shell, task, last = streaming()
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last)
    comes_back(shell, task, 3)
    shell.report(task, "1 2 3 ")
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.STARTED, Kind.COMPLETE]


def test_STR_2_a_reader_that_was_on_its_way_is_told_what_it_lacks_by_the_heir() -> None:
    """It lost its node while the shard moved, say: nothing was told to it, and all of it was told."""
    shell, task, last = streaming()
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last - 2)
    assert shell.kinds(reader) == [Kind.DELTA, Kind.DELTA, Kind.RESUMED]
    assert text_of(shell.seen[reader.reference]) == "2 3 "
    (task,) = shell.hand_over()
    reader = shell.read(task)
    assert shell.numbers(reader) == list(range(1, last + 3)), "and by the heir of that one"


def test_STR_2_what_no_text_and_no_number_says_is_told_by_a_gap() -> None:
    shell, task, last = streaming()
    shell.ask(task, "May I?")
    shell.answer(task)
    (row,) = handed([task])
    assert [event[3] for event in row.events] == [Kind.INPUT_GIVEN]
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last)
    assert shell.kinds(reader) == [Kind.GAP]


def test_STR_2_of_a_task_that_has_ended_with_a_stream_its_readers_may_lack_something() -> None:
    shell, task, last = streaming()
    shell.report(task, folded=3)
    (row,) = handed([task])
    assert (row.sequence, row.pieces) == (last + 1, None)
    assert [event[0] for event in row.events] == list(range(1, last + 1))


def test_DLV_13_a_reader_that_is_behind_gets_what_it_came_to(monkeypatch) -> None:
    monkeypatch.setattr(module, "HANDED_BYTES", 100)  # not enough for the events
    shell, task, last = streaming()
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last - 2)
    ((number, _, _, kind, gap),) = shell.seen[reader.reference]
    assert (kind, gap.first, gap.last, number) == (Kind.GAP, last - 1, last + 1, last + 1)
    assert text_of(shell.seen[reader.reference]) == "1 2 3 "


def test_DLV_13_who_reads_a_task_that_has_only_begun_sees_no_gap_either() -> None:
    shell, task = running(start_to_close_ms=100_000)
    reader = shell.read(task)
    shell.take_up(task)
    assert shell.numbers(reader) == [1, 2]
    (task,) = shell.hand_over()
    reader = shell.read(task, after=2)
    comes_back(shell, task, 0)
    shell.delta(task, 1, "1 ")
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.STARTED, Kind.DELTA]
    assert shell.numbers(reader) == [3, 4, 5]


def test_DLV_13_a_task_that_waits_for_an_agent_goes_on_where_it_was() -> None:
    shell = Shell()
    reader = shell.reader()
    task = shell.submit(reader=reader)
    assert shell.numbers(reader) == [1]
    (task,) = shell.hand_over()
    reader = shell.read(task, after=1)
    shell.join()
    shell.take_up(task)
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.STARTED]
    assert shell.numbers(reader) == [2, 3]


def test_STR_1_no_number_is_used_twice_when_an_heir_dies() -> None:
    """What it was left is no more true then, and its reserve is what counts."""
    shell, task, last = streaming()
    (task,) = shell.hand_over()
    comes_back(shell, task, 3)
    shell.delta(task, 4)
    told = task.sequence
    assert told == last + 3
    (task,) = shell.crash_and_load()
    assert task.sequence == RESERVE + 1 > told


def test_STR_1_numbers_behind_the_reserve_are_reserved_before_they_are_told() -> None:
    shell, task, last = streaming()
    reserved = shell.journal.reserved(task.row)
    for number in range(4, reserved - last + 4):
        shell.delta(task, number)
    assert task.sequence == reserved
    (task,) = shell.hand_over()
    comes_back(shell, task, task.attempt_sequence)
    shell.delta(task, task.attempt_sequence + 1)
    assert task.sequence == reserved + 3
    assert shell.journal.reserved(task.row) == reserved + RESERVE


def test_STR_1_heirs_of_heirs_give_no_number_twice() -> None:
    """Found by the simulation: each says that it resumes, and only the first of them may do so behind the reserve."""
    shell, task, _ = streaming()
    told: dict[int, Any] = {}
    (task,) = shell.crash_and_load()
    for _ in range(3):
        reader = shell.read(task, after=max(told, default=RESERVE))
        told |= {event[0]: event[3:] for event in shell.seen[reader.reference]}
        (task,) = shell.hand_over()
    (task,) = shell.crash_and_load()
    comes_back(shell, task, 0)
    reader = shell.read(task)
    for number, _, _, *event in shell.seen[reader.reference]:
        assert told.setdefault(number, tuple(event)) == tuple(event)


def test_STR_1_a_task_that_came_from_another_shard_is_numbered_on_from_what_its_heir_told() -> None:
    """Found by the simulation: that it came with nothing told but its acceptance was believed once more."""
    shell = Shell()
    task = shell.submit(reader=shell.reader())
    (row,) = handed([task])
    task.log, task.reserved = None, 1
    turn = Turn(shell.now_ms, shell.wall_ms)
    resume(task, row, turn)
    assert task.sequence == 2
    (reserve,) = turn.writes.reserves
    assert reserve.reserved >= 2


def test_DLV_13_a_question_that_is_open_is_told_again() -> None:
    shell, task = running(start_to_close_ms=100_000)
    reader = shell.read(task)
    shell.ask(task, "May I?")
    last = shell.numbers(reader)[-1]
    (task,) = shell.hand_over()
    assert task.state is TaskState.WAITING
    reader = shell.read(task, after=last)
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.WAITING]
    late = shell.read(task, after=1)
    assert shell.kinds(late) == [Kind.GAP, Kind.WAITING]


def test_DLV_13_nothing_is_left_of_what_follows_from_a_task_or_has_no_row() -> None:
    shell, task, _ = streaming()
    shell.join("two", slots=3)
    shell.submit(reader=shell.reader(Interest.OUTCOME))
    volatile = shell.submit(reader=shell.reader(), volatile=True)
    ended = shell.submit(reader=shell.reader())
    shell.report(ended)
    assert volatile.log is not None
    assert [row.row for row in handed(shell.pool.tasks.values())] == [task.row]


def test_DLV_13_what_streams_came_to_is_left_as_far_as_there_is_room(monkeypatch) -> None:
    _, task, _ = streaming()
    (row,) = handed([task])
    assert row.pieces == (Delta("", Mode.REPLACE, "text/plain", "1 2 3 "),)
    monkeypatch.setattr(module, "HANDED_BYTES", 5)
    (row,) = handed([task])
    assert (row.sequence, row.attempt_sequence, row.pieces) == (task.sequence, 3, None)


def test_DLV_13_pieces_that_were_lost_stay_lost() -> None:
    """The heir knows what the giver did not have: the whole is asked for."""
    shell, task, last = streaming()
    shell.delta(task, 6)
    (row,) = handed([task])
    assert row.pieces is None
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last + 1)  # as far as it was told
    assert comes_back(shell, task, 7) == [(task.tenant, task.task_id, 1)]
    for number in range(1, 8):
        shell.delta(task, number, f"{number} ")
    assert shell.kinds(reader)[:3] == [Kind.RESUMED, Kind.STARTED, Kind.ATTEMPT_RESET]
    assert text_of(shell.seen[reader.reference]) == "1 2 3 4 5 6 7 "


def test_STR_4_an_agent_gets_room_for_what_it_says_again_though_it_was_there() -> None:
    """It says all of it, and has only so much room: the rest would never come."""
    shell, task, _ = streaming()
    (task,) = shell.hand_over()
    comes_back(shell, task, 5)

    def given(number: int) -> list[int]:
        return [send.bytes for send in shell.delta(task, number, "1 ") if isinstance(send, CreditAttempt)]

    assert [given(number) for number in (1, 2, 3, 4)] == [[2]] * 4
    assert given(4) == [], "a repeat that nobody asked for"


def test_STR_3_the_whole_answer_takes_back_what_lacked_a_piece_at_the_giver() -> None:
    """Found by walks (`test_handed_walks`): the heir did not know that readers had anything, and they kept it."""
    shell, task, last = streaming()
    shell.delta(task, 5, "5 ")
    (task,) = shell.hand_over()
    reader = shell.read(task, after=last + 1)
    comes_back(shell, task, 5)
    shell.report(task, "1 2 3 4 5 ")
    assert shell.kinds(reader) == [Kind.RESUMED, Kind.STARTED, Kind.ATTEMPT_RESET, Kind.COMPLETE]


def test_DLV_13_of_very_many_streams_those_that_are_read_are_handed_over(monkeypatch) -> None:
    """Found on PostgreSQL: 100,000 took longer than a statement may, and nothing was given up."""
    monkeypatch.setattr(module, "HANDED_STREAMS", 2)
    shell = Shell()
    shell.join(slots=9)
    tasks = [shell.submit() for _ in range(4)]
    readers = [shell.read(task) for task in tasks]
    for left in (0, 2):
        shell.step(ev.Unsubscribed(readers[left]))
    assert [row.row for row in handed(tasks)] == [tasks[1].row, tasks[3].row]
