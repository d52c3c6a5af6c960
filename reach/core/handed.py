"""What an owner that gives a shard up in peace leaves to its heir of the streams that are read: how far they were told,
and what the deltas of the running attempt came to. With that the heir numbers on where the giver stopped, and no reader
sees a gap (DLV-13, STR-2). An heir without it goes on behind all numbers that may have been used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reach.core.effects import Turn
from reach.core.model import FIRST_TERMINAL, Task, TaskState
from reach.core.pieces import Delta, Kind, Mode
from reach.core.stream import TaskLog, emit, reserve, resumed_at

HANDED_BYTES = 16 << 20
"""What deltas came to, of all tasks together: a statement must not take long. Who is behind has numbers only."""
HANDED_STREAMS = 10_000
"""Tasks, for the same reason: 100,000 took longer than a statement may. Those that somebody reads come first."""

UNKNOWN = Delta("", Mode.APPEND, "", "")
"""Stands for what readers have of which nobody knows what it came to: the whole answer takes it back."""


class StreamRow(NamedTuple):
    """How far a task was told."""

    row: int
    shard: int
    sequence: int
    """Of the last event: nothing behind it was told to anybody."""
    attempt_sequence: int
    """Of the last delta of the current attempt that came."""
    pieces: tuple[Delta, ...] | None
    """What the deltas came to, by channel; None: that is not known, or was too much."""


def handed(tasks: Iterable[Task]) -> list[StreamRow]:
    """Of all tasks with events that do not follow from their fields. Nothing may happen to them any more."""
    found, left = [], HANDED_BYTES
    told = [task for task in tasks if _is_told(task)]
    told.sort(key=lambda task: not task.log.readers)
    for task in told[:HANDED_STREAMS]:
        log: TaskLog = task.log
        pieces = None
        if log.fold_whole and log.fold.size <= left:  # to look at what is too much costs time, too
            pieces, left = tuple(log.fold.snapshot()), left - log.fold.size
        found.append(StreamRow(task.row, task.pool.shard, task.sequence, task.attempt_sequence, pieces))
    return found


def _is_told(task: Task) -> bool:
    return task.log is not None and not task.volatile and task.row > 0 and task.state < FIRST_TERMINAL


def resume(task: Task, row: StreamRow, turn: Turn) -> None:
    """A task goes on as it was handed over. Before anything else is told of it."""
    task.attempt_sequence = row.attempt_sequence
    reserve(task, row.sequence + 1, turn)
    log = resumed_at(task, row.sequence + 1, turn)
    log.fold_whole = row.pieces is not None
    for piece in row.pieces if row.pieces is not None else (UNKNOWN,):
        log.fold.add(piece)


def ask_anew(task: Task, turn: Turn) -> None:
    """A question that is open is told again: who lacks events gets a gap for them, and must hear what is asked."""
    if task.state is TaskState.WAITING and not task.dialogue.given_ms:
        emit(task, Kind.WAITING, task.dialogue.question, turn)
