"""The server's end of a caller's stream: the sink of all its readers. It stands where `rpc` stands, and does as it
does; what leaves the server here, the checker hears first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reach.core.model import FIRST_TERMINAL, Fault, Outcome, Task
from reach.core.pieces import Kind
from reach.core.stream import Interest, Reader, ends_with
from reach.errors import ErrorClass, Reason
from reach.testing.sim.link import Frame, ServerEnd, Stream
from reach.testing.sim.readers import ReaderCheck
from reach.testing.sim.story import TaskName
from reach.testing.sim.truth import ending_of

if TYPE_CHECKING:
    from reach.testing.sim.server import Server


class CallerDoor(ServerEnd):
    """One caller's stream: the sink of all its readers."""

    def __init__(self, server: Server, tenant: str, name: str) -> None:
        self.server = server
        self.tenant = tenant
        self.name = name
        self.stream: Stream | None = None
        self._readers: dict[str, Reader] = {}
        self._checks: dict[int, ReaderCheck] = {}
        self._with_caller: set[str] = set()
        self._asked: dict[int, tuple[bytes | None, bool]] = {}
        """reference -> (what was submitted, whether the task was known by then)"""
        self._late: dict[int, bool] = {}
        """id of a reader -> whether its task had been said to have ended when it came"""

    def _say(self, *item: Any) -> None:
        if self.stream is not None:
            self.stream.down.put(item)

    # -- up -----------------------------------------------------------------------------------------------------------

    def heard(self, items: Frame) -> None:
        acts: dict[str, Callable[..., None]] = {
            "submit": self._submit, "subscribe": self._subscribe, "drop": self._drop, "credit": self._credit,
            "cancel": self._cancel, "get": self._get,
        }  # fmt: skip
        for kind, *rest in items:
            acts[kind](*rest)

    def _reader(self, reference: int, task_id: str, interest: int, after: int, credit: int) -> Reader:
        reader = Reader(self, reference, interest, after)
        reader.credit = credit
        self._late[id(reader)] = self.server.checker.truth((self.tenant, task_id)).told is not None
        if interest == Interest.EVENTS:
            key = (self.tenant, task_id)
            self._checks[id(reader)] = ReaderCheck(self.server.checker, key, f"{self.name}/{reference}", after)
        return reader

    def _ask(self, reference: int, task_id: str, spec: bytes | None) -> None:
        self._asked[reference] = (spec, self.server.checker.callers.is_known((self.tenant, task_id)))

    def _submit(self, reference: int, spec: Any, interest: int, credit: int) -> None:
        task, selector = self.server.read(self.tenant, spec)
        self._ask(reference, task.task_id, task.spec)
        self.server.checker.trees.comes(task.key, spec)
        if interest != Interest.ACCEPTANCE:
            self._drop(task.task_id)
        reader = self._reader(reference, task.task_id, interest, 0, credit)
        if interest != Interest.ACCEPTANCE:
            self._readers[task.task_id] = reader
            if spec.cancel_with_caller:
                self._with_caller.add(task.task_id)
        self.server.reach.submit(task, selector, reader)

    def _subscribe(self, reference: int, task_id: str, interest: int, after: int, credit: int) -> None:
        self._drop(task_id)
        self._ask(reference, task_id, None)
        reader = self._readers[task_id] = self._reader(reference, task_id, interest, after, credit)
        self.server.reach.subscribe(self.tenant, task_id, reader)

    def _drop(self, task_id: str) -> None:
        reader = self._readers.pop(task_id, None)
        if reader is not None:
            self.server.reach.unsubscribe(reader, self.tenant, task_id)

    def _credit(self, task_id: str, count: int) -> None:
        reader = self._readers.get(task_id)
        if reader is not None:
            self.server.reach.credit(reader, count)

    def _cancel(self, reference: int, task_id: str) -> None:
        self._ask(reference, task_id, None)
        self.server.reach.cancel(self.tenant, task_id, "changed my mind", _Cancelling(self, reference, task_id))

    def _get(self, reference: int, task_id: str) -> None:
        checker, key = self.server.checker, (self.tenant, task_id)
        known, ended = checker.callers.is_known(key), checker.truth(key).told is not None

        def answer(task: Task | None) -> None:
            self.server.tell("shows {} to {}: {}", TaskName(task_id), self.name, task.state.name if task else "unknown")
            if task is None:
                missing = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_NOT_FOUND, "not found")
                checker.callers.refused(key, missing, None, known)
            elif task.outcome is not None:
                checker.sessions.seen(key)
                checker.callers.ended(key, task.outcome)
            elif ended:
                checker.callers.open(key, task.state)

        self.server.look_up(self.tenant, task_id, answer)

    def lost(self) -> None:
        for task_id, reader in list(self._readers.items()):
            if task_id in self._with_caller and (reader.task is None or reader.task.outcome is None):
                self.server.reach.cancel(self.tenant, task_id, "the caller is gone", None)
        for task_id, reader in list(self._readers.items()):
            self.server.reach.unsubscribe(reader, self.tenant, task_id)
        self._readers.clear()
        self.server.doors.pop(self, None)

    def end(self) -> None:
        """The server ends the stream."""
        self._say("closing")
        self.lost()

    # -- down (Sink) --------------------------------------------------------------------------------------------------

    def _ends(self, task: Task, outcome: Outcome) -> None:
        checker = self.server.checker
        if self.server.host.tasks.get(task.key) is not task:  # as the journal has it
            checker.sessions.seen(task.key)
        checker.callers.ended(task.key, outcome)

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        """See Sink."""
        if reader.interest == Interest.OUTCOME:
            return
        self.server.tell("accepts {} of {}", TaskName(task.task_id), self.name)
        self.server.checker.callers.accepted(task.key, self._asked[reader.reference][0])
        if state < FIRST_TERMINAL and self._late[id(reader)]:
            self.server.checker.callers.open(task.key, state)
        self._say("accepted", reader.reference, task.task_id)

    def refused(self, reader: Reader, fault: Fault) -> None:
        """See Sink."""
        task_id = next((name for name, one in self._readers.items() if one is reader), "")
        self._readers.pop(task_id, None)
        self.refuse(reader.reference, task_id, fault)

    def refuse(self, reference: int, task_id: str, fault: Fault) -> None:
        """Something that the caller asked is refused."""
        self.server.tell("refuses {} of {}: {}", TaskName(task_id), self.name, fault.reason.name)
        if task_id:
            spec, known = self._asked[reference]
            self.server.checker.callers.refused((self.tenant, task_id), fault, spec, known)
        self._say("refused", reference, fault, task_id)

    def events(self, reader: Reader, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """See Sink."""
        check = self._checks[id(reader)]
        for event in events:
            check.told(event)
            if event[3] == Kind.COMPLETE:
                self._ends(task, event[4])
        if events:
            names = ", ".join(f"{event[0]} {Kind(event[3]).name}" for event in events)
            self.server.tell("tells {} of {}: {}", self.name, TaskName(task.task_id), names)
        over = ends_with(events)
        if over and self._readers.get(task.task_id) is reader:
            del self._readers[task.task_id]
        told = [(*event[:4], event[4] if event[3] != Kind.COMPLETE else ending_of(event[4])) for event in events]
        self._say("events", reader.reference, task.task_id, told, over)

    def ended(self, reader: Reader, task: Task) -> None:
        """See Sink."""
        outcome = task.outcome
        assert outcome is not None
        self.server.tell("tells {} that {} ended: {}", self.name, TaskName(task.task_id), outcome.state.name)
        self._ends(task, outcome)
        if self._readers.pop(task.task_id, None) is not None:
            self._say("ended", reader.reference, task.task_id, ending_of(outcome))


class _Cancelling:
    """Where the answer to a cancel goes."""

    __slots__ = ("_door", "_reference", "_task_id")

    def __init__(self, door: CallerDoor, reference: int, task_id: str) -> None:
        self._door = door
        self._reference = reference
        self._task_id = task_id

    def done(self, task: Task) -> None:
        """It has ended, thus or otherwise."""
        assert task.outcome is not None
        self._door.server.tell("has cancelled {}: {}", TaskName(self._task_id), task.outcome.state.name)
        self._door.server.checker.callers.ended(task.key, task.outcome)
        self._door._say("cancelled", self._reference)  # noqa: SLF001 - one of the door

    def refused(self, fault: Fault) -> None:
        """There is no such task."""
        self._door.refuse(self._reference, self._task_id, fault)
