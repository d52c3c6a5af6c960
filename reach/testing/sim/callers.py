"""Callers, as our SDK makes them: what is not answered is asked again on the next stream, under the same id."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from agentreach.v1 import task_pb2
from reach.core.model import Fault
from reach.core.pieces import EVENT_OVERHEAD, Kind
from reach.core.stream import Interest
from reach.errors import ErrorClass
from reach.testing.sim.caller_door import CallerDoor
from reach.testing.sim.link import ClientEnd, Frame, Stream
from reach.testing.sim.loop import Process
from reach.testing.sim.readers import Text
from reach.wire.requests import session_name

if TYPE_CHECKING:
    from reach.testing.sim.world import World

AGAIN = (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE)
"""Refusals after which the same is asked again."""


class Entry:
    """Something that waits for an answer."""

    __slots__ = ("credit", "dead", "interest", "known", "reference", "spec", "task_id", "text")

    def __repr__(self) -> str:
        return f"Entry({self.reference}, {self.task_id}, interest {self.interest}, known {self.known}, {self.text})"

    def __init__(self, reference: int, task_id: str, spec: task_pb2.TaskSpec | None, interest: int) -> None:
        self.reference = reference
        self.task_id = task_id
        self.spec = spec
        """The request; None for one that reads, or cancels, what another one brought."""
        self.interest = interest
        """0 for a cancel."""
        self.known = spec is None
        """It was accepted, so it is read from now on, and not submitted."""
        self.text: Text | None = None
        self.credit = 1 << 18
        self.dead = False
        """Nobody reads what comes, ever."""


class CallerStream(ClientEnd):
    """The caller's end of one stream."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def heard(self, items: Frame) -> None:
        if self._caller.end is self:
            for kind, *rest in items:
                getattr(self._caller, f"on_{kind}")(*rest)

    def lost(self) -> None:
        if self._caller.end is self:
            self._caller.disconnected()


class Caller:
    """A program that has tasks for agents."""

    def __init__(self, world: World, name: str, tenant: str) -> None:
        self.world = world
        self.name = name
        self.tenant = tenant
        self._random: Random = world.random
        self._reference = 0
        self._tries = 0
        self.process = Process(world.loop, self._random)
        self.end: CallerStream | None = None
        self.stream: Stream | None = None
        self.entries: dict[int, Entry] = {}

    def tell(self, what: str, *details: Any) -> None:
        """A line of the story."""
        self.world.story.tell(self.name, what, *details)

    def die(self) -> None:
        """Its process ends, and a new one knows nothing of what was asked."""
        self.tell("dies, and starts again")
        self.process.die()
        if self.stream is not None:
            self.stream.break_now()
        self.entries.clear()
        self.end = self.stream = None
        self.process = Process(self.world.loop, self._random)
        self.process.call_later(0.2, self.connect)

    # -- what it wants ------------------------------------------------------------------------------------------------

    def submit(self, task_id: str, spec: task_pb2.TaskSpec, interest: int) -> None:
        """Brings a task, and waits for what it is interested in."""
        self.world.checker.submitted((self.tenant, task_id), volatile=spec.durability == task_pb2.DURABILITY_VOLATILE)
        if spec.HasField("session"):
            self.world.checker.sessions.belongs((self.tenant, task_id), session_name(spec.session))
        self._add(task_id, spec, interest)

    def read(self, task_id: str, interest: int) -> None:
        """Reads a task that exists, from its beginning."""
        if not self._entries_of(task_id):
            self._add(task_id, None, interest)

    def cancel(self, task_id: str) -> None:
        """Cancels a task."""
        self._add(task_id, None, 0)

    def look(self, task_id: str) -> None:
        """Looks at a task, once."""
        self._put("get", 0, task_id)

    def repeat(self) -> None:
        """Asks something again that it has asked already: the user clicks twice."""
        entries = [entry for entry in self.entries.values() if entry.spec is not None]
        if entries:
            self._ask(self._random.choice(entries))

    def _add(self, task_id: str, spec: task_pb2.TaskSpec | None, interest: int) -> None:
        self._reference += 1
        entry = self.entries[self._reference] = Entry(self._reference, task_id, spec, interest)
        if interest == Interest.EVENTS:
            world = self.world
            entry.text = Text(world.checker, (self.tenant, task_id), f"{self.name}/{self._reference}", world.said)
            chance = self._random.random()
            if chance < 0.3:
                entry.credit = self._random.choice((1, 200, 700))
                entry.dead = chance < 0.05
        self._ask(entry)

    def _ask(self, entry: Entry) -> None:
        """Asks, or asks again. On one stream the server has one reader for a task: the latest, which must see all that
        any of us wants to see."""
        if self.entries.get(entry.reference) is not entry:
            return
        if entry.interest == 0:
            self._put("cancel", entry.reference, entry.task_id)
            return
        submits = not (entry.known or (entry.text is not None and entry.text.last))
        if submits:
            self._put("submit", entry.reference, entry.spec, entry.interest, entry.credit)
        readers = [one for one in self._entries_of(entry.task_id) if one.text is not None]
        if entry.interest == Interest.ACCEPTANCE or (submits and readers in ([], [entry])):
            return
        after = min((reader.text.last for reader in readers if reader.text is not None), default=0)
        first, interest = (readers[0], Interest.EVENTS) if readers else (entry, Interest.OUTCOME)
        self._put("subscribe", first.reference, entry.task_id, interest, after, first.credit)

    def _done(self, entry: Entry) -> None:
        self.entries.pop(entry.reference, None)

    def waiting(self) -> list[Entry]:
        """What it still wants to hear; who shares a stream with one that does not read hears nothing more either."""
        dead = {entry.task_id for entry in self.entries.values() if entry.dead}
        return [entry for entry in self.entries.values() if entry.task_id not in dead]

    # -- its connection -----------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Opens a stream, and asks for all that is not answered."""
        world = self.world
        if self.stream is not None:
            return
        if not world.server.up:
            self._connect_later()
            return
        self._tries = 0
        self.tell("opens a stream")
        self.end = CallerStream(self)
        door = CallerDoor(world.server, self.tenant, self.name)
        self.stream = world.server.connect(world.network, self.process, self.end, door)
        for entry in list(self.entries.values()):
            self._ask(entry)

    def _connect_later(self) -> None:
        most = min(5.0, 0.1 * 2 ** min(self._tries, 10))
        self._tries += 1
        self.process.call_later(0.01 + most * self._random.random(), self.connect)

    def disconnected(self) -> None:
        """The stream is over."""
        self.tell("has lost its stream")
        self.end = self.stream = None
        self._connect_later()

    def _put(self, *item: Any) -> None:
        if self.stream is not None:
            self.stream.up.put(item)

    # -- what the server says -----------------------------------------------------------------------------------------

    def on_accepted(self, reference: int, task_id: str) -> None:
        """A task is accepted."""
        entry = self.entries.get(reference)
        if entry is None:
            return
        if entry.interest == Interest.ACCEPTANCE:
            self._done(entry)
        elif entry.interest == Interest.EVENTS:
            entry.known = True

    def on_refused(self, reference: int, fault: Fault, task_id: str = "") -> None:
        """What was asked is refused. If that was the reader of all who want to hear of a task, it is asked again."""
        entry = self.entries.get(reference) or next(iter(self._entries_of(task_id)), None)
        if entry is None:
            return
        if entry.reference != reference:
            self.process.call_later(0.5 + 0.5 * self._random.random(), self._ask, entry)
            return
        if fault.error_class in AGAIN:
            delay = (fault.retry_after_ms or 500) / 1_000 * (0.5 + 0.5 * self._random.random())
            self.process.call_later(delay, self._ask, entry)
            return
        self._done(entry)
        if entry.interest > Interest.ACCEPTANCE:
            for other in self._entries_of(entry.task_id):
                self._ask(other)

    def on_ended(self, reference: int, task_id: str, ending: Any) -> None:
        """A task has ended. Who reads its events, and was pushed aside on this stream, asks for them again."""
        for entry in self._entries_of(task_id):
            if entry.interest != Interest.EVENTS:
                self._done(entry)
            else:
                entry.known = True
                self._ask(entry)

    def on_events(self, reference: int, task_id: str, told: list[Any], over: bool) -> None:
        """Events of a task."""
        entries = self._entries_of(task_id)
        readers = [entry for entry in entries if entry.text is not None]
        weight = 0
        for event in told:
            weight += _weight(event)
            for reader in readers:
                if reader.text is not None:
                    reader.text.hear(event)
        if over:
            for entry in entries:
                self._done(entry)
        elif weight and not all(reader.dead for reader in readers):
            delay = 0.0 if readers[0].credit > 1_000 else 1.5 * self._random.random()
            self.process.call_later(delay, self._put, "credit", task_id, weight)

    def _entries_of(self, task_id: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.task_id == task_id and entry.interest]

    def on_cancelled(self, reference: int) -> None:
        """A cancel is done."""
        entry = self.entries.get(reference)
        if entry is not None:
            self._done(entry)

    def on_seen(self, reference: int) -> None:
        """A look at a task is answered."""

    def on_closing(self) -> None:
        """The server ends the stream: a new one, now."""
        self.end = self.stream = None
        self._connect_later()


def _weight(event: Any) -> int:
    kind, data = event[3], event[4]
    if kind == Kind.DELTA:
        return EVENT_OVERHEAD + len(data.content)
    if kind == Kind.WAITING:
        return EVENT_OVERHEAD + len(data.ask.content)
    if kind == Kind.GAP:
        return EVENT_OVERHEAD + sum(len(delta.content) for delta in data.snapshot)
    if kind == Kind.COMPLETE and data[1] is not None:
        return EVENT_OVERHEAD + len(data[1])
    return EVENT_OVERHEAD
