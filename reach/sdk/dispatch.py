"""The caller's stream: many tasks, their answers and their events on one DispatchStream.

Each thing that waits for an answer is an *entry* and knows the item that asks for it. After a reconnect every entry
asks again, which is safe: the task_id is made here, so that a task that was accepted is not accepted twice; and a
reader names the last sequence it has, so that nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from agentreach.v1 import dispatch_pb2
from reach.errors import ReachError, Reason, ResourceExhausted, Timeout, Unavailable
from reach.sdk.channel import PROTOCOL_VERSION, Target
from reach.sdk.connection import Connection
from reach.sdk.entries import EVENTS, CancelEntry, Entry, EventsEntry, subscribe_item
from reach.sdk.payloads import PAYLOAD_LIMIT, Fields
from reach.wire.status import bounded_text, error_from_proto

DISPATCH_STREAM: Final = "/agentreach.v1.DispatchService/DispatchStream"
MOST_ENTRIES: Final = 100_000
"""Things that may wait for an answer at once."""
MOST_UNSENT: Final = 16 << 20
"""Bytes that may wait for the stream before callers wait for it too."""

_AGAIN: Final = frozenset({Reason.SHUTTING_DOWN, Reason.OWNER_UNAVAILABLE, Reason.STORE_UNAVAILABLE})
"""Refusals that pass by themselves: asked again after a while."""


class Line:
    """The caller's end of the stream. Lives on one loop."""

    def __init__(self, target: Target, connect_timeout: float, reconnect_timeout: float | None) -> None:
        self.connection = Connection(target, DISPATCH_STREAM, dispatch_pb2.DispatchStreamResponse.FromString, self)
        self.outbox = self.connection.outbox
        self.payload_limit = PAYLOAD_LIMIT
        self.entries: dict[int, Entry] = {}
        self.was_up = False
        """The server was reached at least once."""
        self._open = False
        self._last_error: ReachError | None = None
        self._worked = False
        """The current stream was welcomed."""
        self._tasks: dict[str, Entry] = {}
        self._address = target.address
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._loop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[Any]] = self._loop.create_future
        """For an entry."""
        self._down_since = self._loop.time()
        self._impatience: asyncio.TimerHandle | None = None
        self._reference = 0

    def new_reference(self) -> int:
        """A number that no entry has. Raises ResourceExhausted if too many wait already."""
        if len(self.entries) >= MOST_ENTRIES:
            raise ResourceExhausted(f"{MOST_ENTRIES} tasks of this client wait for their answer", Reason.QUEUE_FULL)
        self._reference += 1
        return self._reference

    def limit(self, entry: Entry, timeout: float, cancel: bool) -> asyncio.TimerHandle:
        """Lets an entry fail after so many seconds. `cancel`: and cancels its task then."""
        entry.patient = True
        return self._loop.call_later(timeout, self._too_late, entry, timeout, cancel)

    def add(self, entry: Entry) -> None:
        """Asks, now or when there is a stream."""
        self.entries[entry.reference] = entry
        together = None
        if entry.reads:
            together = entry.beside = self._tasks.get(entry.task_id)
            self._tasks[entry.task_id] = entry
            if together is not None:
                entry.shared = together.shared = True
        if self._open:
            if together is None:
                self.outbox.put(entry.item or entry.ask())
            else:
                self._join(entry)
        if not self.connection.up:
            entry.since = self._loop.time()
            if self._impatience is None:
                self._expire()

    def remove(self, entry: Entry) -> bool:
        """It waits no longer. Whether it did."""
        if self.entries.pop(entry.reference, None) is None:
            return False
        if not entry.reads:
            return True
        first = self._tasks[entry.task_id]
        if first is entry:
            if entry.beside is None:
                del self._tasks[entry.task_id]
            else:
                self._tasks[entry.task_id] = entry.beside
            return True
        while first.beside is not entry:
            assert first.beside is not None
            first = first.beside
        first.beside = entry.beside
        return True

    def forget(self, entry: Entry) -> None:
        """Nobody waits for it any more."""
        if self.remove(entry) and entry.reads and entry.task_id not in self._tasks:
            self.put(unsubscribes=[{"task_id": entry.task_id}])

    def put(self, **items: Any) -> None:
        """Sends something that nobody waits for."""
        if self._open:
            self.outbox.put(dispatch_pb2.DispatchStreamRequest(**items).SerializeToString())

    async def room(self) -> None:
        """Returns when what waits for the stream is within bounds."""
        while self._open and self.outbox.size > MOST_UNSENT:  # noqa: ASYNC110 - seldom; an event would cost always
            await asyncio.sleep(0.005)

    def unreachable(self) -> Unavailable:
        """The error of whoever waited in vain for the server."""
        if self.was_up:
            text = f"the connection to Agent-Reach at {self._address} is lost; a task that was accepted goes on"
        else:
            text = f"cannot reach Agent-Reach at {self._address}; is `reach serve` running?"
            if self._last_error is not None:
                text += f" ({bounded_text(self._last_error.message, 300)})"
        return Unavailable(text, Reason.OWNER_UNAVAILABLE)

    def fail_all(self, error: ReachError) -> None:
        """The stream has ended for good."""
        if self._impatience is not None:
            self._impatience.cancel()
        entries = list(self.entries.values())
        self.entries.clear()
        self._tasks.clear()
        for entry in entries:
            entry.failed(error)

    # Peer

    def opening(self) -> Iterable[bytes]:
        """Who speaks; and everything is asked again."""
        self.outbox.clear()
        self._open = True
        for entry in self.entries.values():
            if not entry.reads or (entry.beside is None and self._tasks[entry.task_id] is entry):
                self.outbox.put(entry.ask())
        for first in self._tasks.values():
            if first.beside is not None:
                self._ask_together(first)
        opening: Fields = {"opening": {"protocol_version": PROTOCOL_VERSION}}
        yield dispatch_pb2.DispatchStreamRequest(**opening).SerializeToString()

    def gather(self) -> None:
        """Nothing waits for the last moment."""

    def prefix(self) -> bytes:
        """Frames of this stream have no number."""
        return b""

    def received(self, frame: dispatch_pb2.DispatchStreamResponse) -> None:
        """A frame came."""
        events, tasks = frame.events, self._tasks
        has_more = len(frame.ListFields()) > bool(events)
        if has_more:
            self._received_first(frame)
        for event in events:
            entry = tasks.get(event.task_id)
            while entry is not None:
                following = entry.beside
                entry.event(event, self)
                entry = following
        if has_more:
            self._received_rest(frame)

    def _received_first(self, frame: dispatch_pb2.DispatchStreamResponse) -> None:
        if frame.HasField("welcome"):
            self._welcome(frame.welcome)
        if frame.HasField("nodes"):
            self.connection.hear_of(frame.nodes.addresses)
        for answer in frame.acknowledgements:
            entry = self.entries.get(answer.reference)
            if entry is not None:
                entry.acknowledged(answer, self)

    def _received_rest(self, frame: dispatch_pb2.DispatchStreamResponse) -> None:
        entries = self.entries
        for refusal in frame.refusals:
            entry = entries.get(refusal.reference)
            if entry is not None:
                self._refused(entry, error_from_proto(refusal.error))
            elif refusal.task_id in self._tasks:  # of one who waits no longer, and the reader of all who do
                self._ask_later(refusal.task_id, error_from_proto(refusal.error))
        for cancelled in frame.cancelled:
            entry = entries.get(cancelled.reference)
            if isinstance(entry, CancelEntry):
                entry.cancelled(cancelled, self)
        if frame.closing:  # nothing more comes on this one: all that waits is asked again on the next
            self.connection.reopen()

    def lost(self, error: ReachError) -> None:
        """The stream broke, or could not be opened."""
        self._open = False
        self._last_error = error
        if self._worked:
            self._worked = False
            self._down_since = self._loop.time()
        if self._impatience is None:
            self._expire()

    def _welcome(self, welcome: dispatch_pb2.StreamWelcome) -> None:
        if welcome.payload_limit:
            self.payload_limit = welcome.payload_limit
        self.was_up = self._worked = True
        for entry in self.entries.values():
            entry.since = 0.0
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
        self.connection.established()

    def _too_late(self, entry: Entry, timeout: float, cancel: bool) -> None:
        if cancel:
            self.put(cancels=[{"task_id": entry.task_id, "reason": "the caller's time is over"}])
        if self.connection.up:
            text = f"no answer within {timeout:g} s; the task {'is cancelled' if cancel else 'goes on'}"
            entry.failed(Timeout(text, Reason.WAIT_EXPIRED, task_id=entry.task_id))
        else:
            entry.failed(self.unreachable())

    def _refused(self, entry: Entry, error: ReachError) -> None:
        now = self._loop.time()
        # A server that shuts down is one that is lost: another one takes its place.
        limit = self._reconnect_timeout if error.reason is Reason.SHUTTING_DOWN else self._connect_timeout
        waits = entry.patient or limit is None or now - (entry.since or now) < limit
        if error.reason in _AGAIN and waits:
            entry.since = entry.since or now
            if entry.reads:
                self._ask_later(entry.task_id, error)
            else:
                self._loop.call_later(_delay_of(error), self._ask_again, entry)
        else:
            self.remove(entry)
            entry.failed(error)
            if entry.reads:
                self._ask_for(entry.task_id)

    def _ask_again(self, entry: Entry) -> None:
        if self._open and self.entries.get(entry.reference) is entry:
            self.outbox.put(entry.ask())

    def _ask_later(self, task_id: str, error: ReachError) -> None:
        """The server tells nobody of a task any more, whoever of us it was that asked for its reader."""
        self._loop.call_later(_delay_of(error), self._ask_for, task_id)

    def _ask_for(self, task_id: str) -> None:
        """Asks for all that read one task, if anybody does."""
        first = self._tasks.get(task_id)
        if first is None or not self._open:
            return
        if first.beside is None:
            self.outbox.put(first.ask())
        else:
            self._ask_together(first)

    def _join(self, entry: Entry) -> None:
        """Others read the same task already. The server has one reader for it on this stream: the latest, which must
        see all that any of us wants to see."""
        if entry.item:
            self.outbox.put(entry.item)
        if entry.item or isinstance(entry, EventsEntry):
            self._read_together(self._tasks[entry.task_id])

    def _ask_together(self, first: Entry) -> None:
        """Asks for all that read one task."""
        submits = [entry.item for entry in _chain(first) if entry.item]
        for item in submits:
            self.outbox.put(item)
        if not self._read_together(first) and not submits:
            self.outbox.put(first.ask())

    def _read_together(self, first: Entry) -> bool:
        """Has the server's reader tell events, from the earliest that one of us lacks. False if nobody wants events."""
        readers = [entry for entry in _chain(first) if isinstance(entry, EventsEntry)]
        if readers:
            after = min(reader.last for reader in readers)
            self.outbox.put(subscribe_item(readers[0].reference, first.task_id, after, EVENTS))
        return bool(readers)

    def _expire(self) -> None:
        """While there is no stream: gives up on what has waited too long and has no time limit of its own."""
        self._impatience = None
        if self.connection.up or not self.entries:
            return
        limit = self._reconnect_timeout if self.was_up else self._connect_timeout
        self._impatience = self._loop.call_later(0.5, self._expire)
        if limit is None:
            return
        now = self._loop.time()
        for entry in list(self.entries.values()):
            if not entry.patient and now - max(entry.since, self._down_since) > limit:
                self.remove(entry)
                entry.failed(self.unreachable())


def _delay_of(error: ReachError) -> float:
    """How many seconds to wait before it is asked again."""
    return (error.retry_after_ms or 500) / 1000 * random.uniform(0.5, 1.0)


def _chain(first: Entry) -> Iterator[Entry]:
    entry: Entry | None = first
    while entry is not None:
        yield entry
        entry = entry.beside
