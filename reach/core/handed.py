"""What an owner that gives a shard up in peace leaves to its heir of its streams: how far they were told, the latest
events, and what the deltas of the running attempt came to. With that the heir numbers on where the giver stopped, and
no reader sees a gap, even if it was on its way to another node just then (DLV-13, STR-2). An heir without it goes on
behind all numbers that may have been used. Of tasks that have ended, too: their readers may not have heard it yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reach.core.effects import Turn
from reach.core.model import FIRST_TERMINAL, Task, TaskState
from reach.core.pieces import Delta, Kind, Mode
from reach.core.stream import Event, TaskLog, emit, reserve, resumed_at

HANDED_BYTES = 16 << 20
"""What deltas came to, and events, of all tasks together: a statement must not take long. Who is behind has numbers
only."""
HANDED_STREAMS = 10_000
"""Tasks, for the same reason: 100,000 took longer than a statement may. Those that somebody reads come first."""

_PLAIN = frozenset(
    {
        Kind.ACCEPTED,
        Kind.STARTED,
        Kind.DELTA,
        Kind.PROGRESS,
        Kind.ATTEMPT_RESET,
        Kind.RESUMED,
        Kind.HANDOFF,
        Kind.INPUT_GIVEN,
    }
)
"""Kinds of events that are text and numbers."""

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
    events: tuple[Event, ...] = ()
    """The latest, without a gap between them, up to `sequence`; of a task that has ended, up to its end."""


def handed(tasks: Iterable[Task]) -> list[StreamRow]:
    """Of all tasks with events that do not follow from their fields. Nothing may happen to them any more."""
    found, left = [], HANDED_BYTES
    told = [task for task in tasks if _is_told(task)]
    told.sort(key=lambda task: (task.state >= FIRST_TERMINAL, not task.log.readers))
    for task in told[:HANDED_STREAMS]:
        log: TaskLog = task.log
        pieces: tuple[Delta, ...] | None = None
        events: tuple[Event, ...] = ()
        if log.fold_whole and log.fold.size <= left and task.state < FIRST_TERMINAL:
            pieces, left = tuple(log.fold.snapshot()), left - log.fold.size  # to look at too much costs time, too
        if log.bytes <= left:
            events, left = _latest(log), left - log.bytes
        found.append(StreamRow(task.row, task.pool.shard, task.sequence, task.attempt_sequence, pieces, events))
    return found


def _is_told(task: Task) -> bool:
    log: TaskLog | None = task.log
    if log is None or task.volatile or task.row <= 0:
        return False
    return task.state < FIRST_TERMINAL or bool(log.fold.channels or log.readers)


def _latest(log: TaskLog) -> tuple[Event, ...]:
    """The latest events, as far back as they are plain. How a task ended, its outcome says."""
    events = list(log.events)
    if events and events[-1][3] == Kind.COMPLETE:
        events.pop()
    first = len(events)
    while first and events[first - 1][3] in _PLAIN:
        first -= 1
    return tuple(events[first:])


def resume(task: Task, row: StreamRow, turn: Turn) -> None:
    """A task goes on as it was handed over. Before anything else is told of it."""
    task.attempt_sequence = row.attempt_sequence
    reserve(task, row.sequence + 1, turn)
    log = resumed_at(task, row.sequence + 1, turn, row.events)
    log.fold_whole = row.pieces is not None
    for piece in row.pieces if row.pieces is not None else (UNKNOWN,):
        log.fold.add(piece)


def ask_anew(task: Task, turn: Turn) -> None:
    """A question that is open is told again: who lacks events gets a gap for them, and must hear what is asked."""
    if task.state is TaskState.WAITING and not task.dialogue.given_ms:
        emit(task, Kind.WAITING, task.dialogue.question, turn)
