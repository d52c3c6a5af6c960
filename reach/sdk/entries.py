"""What waits for an answer on the caller's stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from agentreach.v1 import dispatch_pb2, event_pb2
from reach.core.model import TaskState
from reach.core.pieces import EVENT_OVERHEAD
from reach.errors import ReachError
from reach.sdk.answers import Result
from reach.sdk.payloads import Fields

if TYPE_CHECKING:
    from reach.sdk.dispatch import Line

CREDIT_STEP: Final = 64 << 10
"""Room that a reader has made is told in steps of this many bytes."""

ACCEPTANCE: Final = 1
OUTCOME: Final = 2
EVENTS: Final = 3


def subscribe_item(reference: int, task_id: str, after: int, interest: int) -> bytes:
    """Asks to read a task that exists."""
    fields: Fields = {"reference": reference, "task_id": task_id, "after_sequence": after, "interest": interest}
    items: Fields = {"subscribes": [fields]}
    return dispatch_pb2.DispatchStreamRequest(**items).SerializeToString()


class Entry:
    """Something that waits for an answer. `future` gets it, or the error.

    `item` asks for it: a submit, a cancel; of one that only reads a task that exists it is empty, and made when needed.
    """

    __slots__ = ("beside", "future", "item", "patient", "reference", "shared", "since", "task_id")

    reads: ClassVar[bool] = True
    """It reads its task; the server has one reader for each task of a stream, which all that read it here share."""

    def __init__(self, reference: int, task_id: str, item: bytes, future: asyncio.Future[Any]) -> None:
        self.reference = reference
        self.task_id = task_id
        self.item = item
        self.future = future
        self.beside: Entry | None = None
        """Another one that reads the same task."""
        self.shared = False
        """There is, or was, another one that reads the same task."""
        self.since = 0.0
        """Since when it has been waiting for a server that takes it; 0: it does not."""
        self.patient = False
        """It has a time limit of its own."""

    def ask(self) -> bytes:
        """The item that asks for the answer."""
        return self.item or subscribe_item(self.reference, self.task_id, 0, OUTCOME)

    def event(self, event: event_pb2.TaskEvent, line: Line) -> None:
        """An event of its task."""

    def acknowledged(self, answer: dispatch_pb2.SubmitAcknowledgement, line: Line) -> None:
        """Its task was accepted."""

    def failed(self, error: ReachError) -> None:
        """There will be no answer."""
        if not self.future.done():
            self.future.set_exception(error)


class OutcomeEntry(Entry):
    """Waits for the result."""

    __slots__ = ()

    def event(self, event: event_pb2.TaskEvent, line: Line) -> None:
        if event.HasField("complete"):
            line.remove(self)
            if not self.future.done():
                self.future.set_result(Result(event.complete))


class AcceptanceEntry(Entry):
    """Waits until the task is accepted."""

    __slots__ = ()
    reads = False

    def acknowledged(self, answer: dispatch_pb2.SubmitAcknowledgement, line: Line) -> None:
        line.remove(self)
        if not self.future.done():
            self.future.set_result(answer)


class CancelEntry(Entry):
    """Waits until the task is cancelled."""

    __slots__ = ()
    reads = False

    def cancelled(self, answer: dispatch_pb2.CancelAcknowledgement, line: Line) -> None:
        """The server's answer."""
        line.remove(self)
        if not self.future.done():
            self.future.set_result(TaskState(answer.state))


class EventsEntry(Entry):
    """Reads the events of a task. Its buffer is bounded by the credit that the server has of us."""

    __slots__ = ("_events", "_taken", "last")

    def __init__(self, reference: int, task_id: str, item: bytes, future: asyncio.Future[Any], last: int = 0) -> None:
        super().__init__(reference, task_id, item, future)
        self.last = last
        """Sequence of the last event that came."""
        self._events: deque[event_pb2.TaskEvent] = deque()
        self._taken = 0

    def ask(self) -> bytes:
        self._taken = 0
        return self.item or subscribe_item(self.reference, self.task_id, self.last, EVENTS)

    def event(self, event: event_pb2.TaskEvent, line: Line) -> None:
        if not self._is_next(event):
            return
        self.last = event.sequence
        self.item = b""  # the task exists: from now on it is read, not submitted
        self._events.append(event)
        if event.HasField("complete"):
            line.remove(self)
        if not self.future.done():
            self.future.set_result(None)

    def _is_next(self, event: event_pb2.TaskEvent) -> bool:
        """Whether an event is for this reader. Several that read one task share what the server tells: what was on its
        way for one of them may be too early for another, who gets it again when it is due."""
        if event.sequence <= self.last:
            return False
        if not self.shared or event.sequence == self.last + 1 or event.HasField("resumed"):
            return True
        return event.HasField("gap") and event.gap.from_sequence <= self.last + 1

    def acknowledged(self, answer: dispatch_pb2.SubmitAcknowledgement, line: Line) -> None:
        self.item = b""

    async def next(self, line: Line) -> event_pb2.TaskEvent:
        """The next event."""
        while not self._events:
            await self.future
            self.future = line.new_future()
        event = self._events.popleft()
        self._taken += _weight(event)
        if self._taken >= CREDIT_STEP:
            line.put(credits=[{"task_id": self.task_id, "bytes": self._taken}])
            self._taken = 0
        return event


def _weight(event: event_pb2.TaskEvent) -> int:
    """What an event takes of a reader's credit, as the server counts it."""
    if event.HasField("delta"):
        payload = event.delta.payload
        return EVENT_OVERHEAD + len(payload.text) + len(payload.data)
    if event.HasField("waiting"):
        return EVENT_OVERHEAD + len(event.waiting.prompt.text) + len(event.waiting.prompt.data)
    if event.HasField("gap"):
        sizes = (len(delta.payload.text) + len(delta.payload.data) for delta in event.gap.snapshot)
        return EVENT_OVERHEAD + sum(sizes)
    return EVENT_OVERHEAD
