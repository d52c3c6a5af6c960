"""Sinks and replies for calls that wait: one future each."""

from __future__ import annotations

import asyncio
from typing import Any

from reach.core.model import Fault, Task
from reach.core.stream import Reader
from reach.errors import ErrorClass, Reason
from reach.rpc.services import error_of_fault
from reach.runtime.elsewhere import Elsewhere


class Answer:
    """A reply to one request (`runtime.agents.Reply`), and a link for one report, as far as it answers."""

    __slots__ = ("future", "tenant")

    def __init__(self, tenant: str = "") -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.tenant = tenant
        """Of the agent that reports."""

    def done(self, value: Any = None) -> None:
        """It is done."""
        if not self.future.done():
            self.future.set_result(value)

    def refused(self, fault: Fault) -> None:
        """It is refused."""
        if not self.future.done():
            self.future.set_exception(error_of_fault(fault))

    def elsewhere(self, where: Elsewhere) -> None:
        """Another node has to do it."""
        if not self.future.done():
            self.future.set_exception(where)

    def close(self, fault: Fault) -> None:
        """The registration is refused."""
        self.refused(fault)

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The outcome is committed."""
        self.done()

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """What was said of the attempt is refused."""
        self.refused(fault)

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """Permission, or not."""
        if fault is None:
            self.done()
        else:
            self.refused(fault)


class StillMine(Answer):
    """A reply to those who say that they work on an attempt: once its task has ended, they are to stop."""

    __slots__ = ()

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The task has ended."""
        self.refused(over(task_id, attempt))


def over(task_id: str, attempt: int) -> Fault:
    """The answer to those who go on with what has ended."""
    message = f"attempt {attempt} of task {task_id!r} is over"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, message)


class WaitingSink:
    """For one task of one unary call: acceptance first, then the outcome."""

    __slots__ = ("__weakref__", "acceptance", "deduplicated", "outcome", "task")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.acceptance: asyncio.Future[int] = loop.create_future()
        self.outcome: asyncio.Future[Task] = loop.create_future()
        self.deduplicated = False
        self.task: Task | None = None

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        """See Sink."""
        self.deduplicated = deduplicated
        self.task = task
        if not self.acceptance.done():
            self.acceptance.set_result(state)

    def refused(self, reader: Reader, fault: Fault) -> None:
        """See Sink."""
        for future in (self.acceptance, self.outcome):
            if not future.done():
                future.set_exception(error_of_fault(fault))
                future.exception()  # whoever awaits the other one sees it; this one may have nobody

    def elsewhere(self, reader: Reader, task_id: str, spec: bytes, where: Elsewhere) -> None:
        """See Sink."""
        for future in (self.acceptance, self.outcome):
            if not future.done():
                future.set_exception(where)
                future.exception()

    def events(self, reader: Reader, task: Task, events: list[Any]) -> None:
        """See Sink. Not asked for."""

    def ended(self, reader: Reader, task: Task) -> None:
        """See Sink."""
        if not self.outcome.done():
            self.outcome.set_result(task)


class EventSink:
    """For one reader of events: a list that one coroutine takes from. Bounded by the reader's credit."""

    __slots__ = ("__weakref__", "_events", "_fault", "_over", "_wake", "_where", "deduplicated", "task")

    def __init__(self) -> None:
        self._events: list[tuple[int, int, int, int, Any]] = []
        self._fault: Fault | None = None
        self._where: Elsewhere | None = None
        self._over = False
        self._wake = asyncio.Event()
        self.task: Task | None = None
        self.deduplicated = False

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        """See Sink."""
        self.task, self.deduplicated = task, deduplicated

    def refused(self, reader: Reader, fault: Fault) -> None:
        """See Sink."""
        self._fault = fault
        self._wake.set()

    def elsewhere(self, reader: Reader, task_id: str, spec: bytes, where: Elsewhere) -> None:
        """See Sink."""
        self._where = where
        self._wake.set()

    def events(self, reader: Reader, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """See Sink."""
        self.task = task
        self._events.extend(events)
        self._over = not events
        self._wake.set()

    def ended(self, reader: Reader, task: Task) -> None:
        """See Sink. Not asked for."""

    async def take(self) -> list[tuple[int, int, int, int, Any]]:
        """The next events, none if the reader had them all; raises what the task was refused with."""
        while not self._events and not self._over:
            if self._fault is not None:
                raise error_of_fault(self._fault)
            if self._where is not None:
                raise self._where
            self._wake.clear()
            await self._wake.wait()
        events, self._events = self._events, []
        return events
