"""The event stream of a task (STR): numbering, replay, gaps, folding, and readers with credits.

Readers are positions in the log, not buffers: a slow one costs nothing, and when what it needs is no longer held it
gets a `gap` with the folded snapshot. Most tasks have three events (accepted, started, complete) that follow from
the fields of the task; their log is made only when there is more to keep or somebody reads along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from reach.core.effects import Events, Noted, Turn
from reach.core.model import FIRST_TERMINAL, Content, Task, TaskState
from reach.core.pieces import EVENT_OVERHEAD, Fold, Gap, Kind
from reach.core.rows import ReserveRow

KEEP_MS = 10_000
KEEP_BYTES = 1 << 20
"""How much of a task's events is held for replay (STR-2)."""
RESERVE = 1_000
"""Sequences reserved at a time."""
READER_CREDIT = 256 << 10
"""Bytes of event payload that a reader can take at first."""

Event = tuple[int, int, int, int, Any]
"""(sequence, attempt, wall_ms, kind, data)"""


class Interest(IntEnum):
    """What a reader wants to hear; numbers as in the contract."""

    ACCEPTANCE = 1
    OUTCOME = 2
    EVENTS = 3
    ANSWER = 4
    """Of calls that wait, not in the contract: the acceptance, then the outcome."""


_ACCEPTED, _STARTED, _COMPLETE = Kind.ACCEPTED, Kind.STARTED, Kind.COMPLETE  # see core/at_hand.py

AT_END = (Interest.OUTCOME, Interest.ANSWER)
"""Those who hear of the end and of no event before."""


class Reader:
    """Somebody who follows a task. `sink` and `reference` mean nothing to the core."""

    __slots__ = ("after", "credit", "interest", "left", "reads", "reference", "sink", "task", "told")

    def __init__(self, sink: Any, reference: int, interest: int, after: int = 0) -> None:
        self.sink = sink
        self.reference = reference
        self.interest = interest
        self.after = after
        self.told = after
        """As `after`, of what has left: the shell's, and only of those that can be asked for anew."""
        self.credit = READER_CREDIT
        self.reads = False
        """It has submitted nothing, and only reads what another one did."""
        self.task: Task | None = None
        """What it reads; set by the pool."""
        self.left = False
        """It was let go: where it waits to come to its task, it does not come."""


class TaskLog:
    """The events of one task that are held, and who reads them."""

    __slots__ = ("ages", "bytes", "events", "fold", "fold_whole", "readers", "said_again")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.ages: deque[tuple[int, int]] = deque()
        """(now_ms, bytes) of each event."""
        self.bytes = 0
        self.fold = Fold()
        self.fold_whole = True
        """False if deltas of the current attempt came before this log began, or were over the limit."""
        self.readers: list[Reader] = []
        self.said_again = False
        """The agent was asked to say again what it said, and comes to what is new behind what is here."""

    def append(self, event: Event, size: int, now_ms: int) -> None:
        """Adds an event and lets go of what is too old or too much. The latest event is always held."""
        self.events.append(event)
        self.ages.append((now_ms, size))
        self.bytes += size
        while len(self.ages) > 1 and (self.bytes > KEEP_BYTES or self.ages[0][0] < now_ms - KEEP_MS):
            self.events.popleft()
            self.bytes -= self.ages.popleft()[1]

    def lacks_pieces_of(self, answer: Content | None) -> bool:
        """Whether readers lack pieces of the answer, or may: some never came, or what came is only how it begins. An
        answer that is something else is the agent's choice."""
        if not self.fold.channels or not self.fold_whole:
            return bool(self.fold.channels)
        said = self.fold.content()[1]
        if isinstance(answer, str) and isinstance(said, str):
            return len(answer) > len(said) and answer.startswith(said)
        if isinstance(answer, bytes) and isinstance(said, bytes):
            return len(answer) > len(said) and answer.startswith(said)
        return False


def size_of(kind: int, data: Any) -> int:
    """What an event counts against bounds and credits: characters or bytes, never more than a reader counts itself."""
    if kind == Kind.DELTA or (kind == Kind.COMPLETE and data.content is not None):
        return EVENT_OVERHEAD + len(data.content)
    if kind == Kind.WAITING:
        return EVENT_OVERHEAD + len(data.ask.content)
    return EVENT_OVERHEAD


def place_of(task: Task) -> tuple[str, str]:
    """(instance_id, agent_id) of the current attempt."""
    instance = task.instance
    if instance is not None:
        return task.instance_id, instance.agent_id
    return task.instance_id, task.outcome.agent_id if task.outcome is not None else ""


def log_of(task: Task, turn: Turn) -> TaskLog:
    """The task's log, made with the events that follow from its fields if there is none yet.

    A question that is open is told again: readers must hear what is asked, and that numbers jump, a gap tells. Its new
    number is reserved first, as that of any event: another process may have something else to tell by then.
    """
    if task.log is None:
        _make_log(task, turn)
        dialogue = task.dialogue
        if task.state is TaskState.WAITING and not dialogue.given_ms:
            emit(task, Kind.WAITING, dialogue.question, turn)
    log: TaskLog = task.log
    return log


def _make_log(task: Task, turn: Turn) -> None:
    now_ms = turn.now_ms
    if task.sequence > 3:  # without a log: it was loaded, and nothing happened since
        resumed_at(task, task.sequence, turn).fold_whole = False
        return
    log = task.log = TaskLog()
    if task.sequence >= 1:
        log.append((1, 0, task.accepted_wall_ms, Kind.ACCEPTED, None), EVENT_OVERHEAD, now_ms)
    if task.sequence >= 2:
        wall = task.accepted_wall_ms + max(0, task.started_ms - task.accepted_ms)
        started = (2, task.attempt, wall, Kind.STARTED, place_of(task))
        log.append(started, EVENT_OVERHEAD, now_ms)
    if task.sequence >= 3 and task.outcome is not None:
        ended = (3, task.attempt, task.outcome.ended_wall_ms, Kind.COMPLETE, task.outcome)
        log.append(ended, size_of(Kind.COMPLETE, task.outcome), now_ms)


def resumed_at(task: Task, sequence: int, turn: Turn, before: Iterable[Event] = ()) -> TaskLog:
    """A log with the event that the task was resumed, under this number, behind those that were told before."""
    log = task.log = TaskLog()
    task.sequence = sequence
    for event in before:
        log.append(event, size_of(event[3], event[4]), turn.now_ms)
    log.append((sequence, 0, task.accepted_wall_ms, Kind.RESUMED, sequence - 1), EVENT_OVERHEAD, turn.now_ms)
    return log


def emit(task: Task, kind: Kind, data: Any, turn: Turn) -> None:
    """Numbers an event and keeps it. Readers get it when the step ends (`flush`). What STARTED says is made here, for
    most are not kept."""
    if task.log is None:
        number = task.sequence + 1
        if kind == _ACCEPTED or (kind == _STARTED and number == 2) or (kind == _COMPLETE and number == 3):
            task.sequence = number  # it follows from the task's fields
            return
        if kind == Kind.WAITING:
            _make_log(task, turn)
        else:
            log_of(task, turn)
    task.sequence += 1
    reserve(task, task.sequence, turn)
    if kind == _STARTED:
        data = place_of(task)
    task.log.append((task.sequence, task.attempt, turn.wall_ms, kind, data), size_of(kind, data), turn.now_ms)


def reserve(task: Task, sequence: int, turn: Turn) -> None:
    """Nobody else gives this number to another event of the task, whenever this process ends."""
    if sequence > task.reserved > 0 and not task.volatile:
        task.reserved += RESERVE
        turn.writes.reserves.append(ReserveRow(task.row, task.pool.shard, task.reserved))


def resume_after_load(task: Task, turn: Turn) -> None:
    """Numbering goes on behind the reserve, so that no sequence ever repeats; the first event says so (`log_of`).

    The next block is reserved with the next event: until then there is nothing that another owner could number anew.
    Of a task that came from another shard before anything but its acceptance was told, nothing is lost.
    """
    if task.reserved == 1:
        task.sequence, task.reserved = 1, RESERVE
        turn.writes.reserves.append(ReserveRow(task.row, task.pool.shard, task.reserved))
    else:
        task.sequence = task.reserved + 1


def told_of(task: Task) -> int:
    """What another shard is told of the numbering of a task that goes there: 1, or where the events begin that do not
    follow from a task's fields."""
    return 1 if task.sequence <= 1 else max(task.sequence, 3)


def unsubscribe(reader: Reader) -> None:
    """Lets a reader go."""
    task = reader.task
    if task is None:
        return
    if task.waiters is not None and reader in task.waiters:
        task.waiters.remove(reader)
    if task.log is not None and reader in task.log.readers:
        task.log.readers.remove(reader)


def ends_with(events: list[Event]) -> bool:
    """Whether a reader that is told these events has the last one then; none: it had it before."""
    return not events or events[-1][3] == _COMPLETE


def flush(task: Task, turn: Turn) -> None:
    """Gives each reader what it has credit for; those who got the last event are let go."""
    log: TaskLog = task.log
    for reader in log.readers:
        events = _next_events(task, log, reader)
        if events:
            turn.sends.append(Events(reader, task, events))
            if events[0][3] == Kind.GAP:
                turn.sends.append(Noted("gap", "", task))
    if task.state >= FIRST_TERMINAL:
        log.readers = [reader for reader in log.readers if reader.after < task.sequence]


def _next_events(task: Task, log: TaskLog, reader: Reader) -> list[Event]:
    events: list[Event] = []
    if reader.after >= task.sequence or reader.credit <= 0:
        return events
    first = log.events[0][0]
    if reader.after + 1 < first:
        gap = _gap(task, log, reader.after + 1)
        events.append(gap)
        reader.after = gap[0]
        reader.credit -= EVENT_OVERHEAD + sum(len(delta.content) for delta in gap[4].snapshot)
    skip = reader.after + 1 - first
    for index in range(max(0, skip), len(log.events)):
        if reader.credit <= 0:
            break
        event = log.events[index]
        events.append(event)
        reader.after = event[0]
        reader.credit -= log.ages[index][1]
    return events


def _gap(task: Task, log: TaskLog, first: int) -> Event:
    """Stands for everything from `first` up to now, but for an end, or a question that is open: these are always told
    themselves."""
    latest = log.events[-1]
    told = latest[3] == Kind.COMPLETE or (latest[3] == Kind.WAITING and task.state is TaskState.WAITING)
    last = latest[0] - 1 if told else latest[0]
    if not log.fold_whole:
        last = log.events[0][0] - 1  # no snapshot can stand for what we never had: replay all that is held
        return (last, task.attempt, latest[2], Kind.GAP, Gap(first, last, []))
    return (last, task.attempt, latest[2], Kind.GAP, Gap(first, last, log.fold.snapshot()))
