"""The link of an agent that is dialled, as the core sees it: each attempt is one call.

What the agent says becomes the same events as on an Attach stream, so the core sees no difference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from agentreach.v1 import attempt_pb2, endpoint_pb2, result_pb2
from reach.core import events as ev
from reach.core.dialogue import Input
from reach.core.effects import Welcome
from reach.core.endpoint import Endpoint
from reach.core.model import FIRST_TERMINAL, Fault, Instance, Task, TaskState
from reach.core.pool import Pool
from reach.errors import ErrorClass, Reason
from reach.runtime.reach_api import Reach
from reach.transports.executions import Execution
from reach.transports.seam import Way
from reach.wire.attempts import offer_of
from reach.wire.sessions import session_key

log = logging.getLogger(__name__)

DEADLINE_MARGIN_S: Final = 5.0
"""How much later than our own time limit the agent's deadline is: it is told to stop first, and has a grace for it."""


class DialledLink:
    """One instance that is dialled (`runtime.agents.AgentLink`)."""

    def __init__(
        self,
        reach: Reach,
        tenant: str,
        pool: Pool,
        endpoint: Endpoint,
        way: Way,
        who: result_pb2.Reporter,
        on_lost: Callable[[], None],
        on_doubt: Callable[[], None],
        unkept: set[tuple[str, str, int]],
    ) -> None:
        self.tenant = tenant
        self.line = way.line(endpoint, who)
        self.payload_limit = way.payload_limit
        self.hands_over = endpoint.hands_over
        self.instance: Instance | None = None
        """Who is there, once the core has taken the link."""
        self.running: list[tuple[str, str, int, int]] = []
        """What the hello named: (tenant, task_id, attempt, last attempt_sequence)."""
        self.opened: asyncio.Future[Instance | Fault] = asyncio.get_running_loop().create_future()
        """The core has taken the link, or refused it."""
        self._reach = reach
        self._pool = pool
        self._endpoint = endpoint
        self._on_lost = on_lost
        self.doubted = on_doubt
        """The connection of one call broke: it should be probed now."""
        self.unkept = unkept
        """Outcomes that came, and are not kept yet as far as is known; outlives the link."""
        self._executions: dict[tuple[str, str, int], Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = False

    def post(self, event: Any) -> None:
        """Something the agent said."""
        self._reach.post(self._pool, event)

    # -- what the core says -------------------------------------------------------------------------------------------

    def welcome(self, effect: Welcome) -> None:
        """See AgentLink. What the agent still runs is joined again, if it can do that; else it reports by itself."""
        self.instance = effect.instance
        if not self.opened.done():
            self.opened.set_result(effect.instance)
        unknown = set(effect.unknown)
        self.unkept -= unknown
        for name in effect.unknown:
            self.cancel_there(name)
        for tenant, task_id, attempt, last in self.running:
            task = self._pool.tasks.get((tenant, task_id))
            if (tenant, task_id, attempt) in unknown or task is None or task.attempt != attempt:
                continue
            if task.state >= FIRST_TERMINAL or task.state is TaskState.WAITING:
                continue  # it may have ended since the hello
            if task.handle:
                self._resume(task)
            elif self._endpoint.rejoins:
                self._execute(task, "", 0 if (tenant, task_id, attempt) in effect.replay else last)
        self.running = []

    def offer(self, task: Task, instance: Instance, traceparent: str, context: bytes = b"") -> None:
        """See AgentLink."""
        self._execute(task, traceparent, 0, context, begun=False)

    def _execute(self, task: Task, traceparent: str, last: int, context: bytes = b"", *, begun: bool = True) -> None:
        execution = self._execution(task, last, begun=begun)
        if execution is not None:
            request = endpoint_pb2.ExecuteRequest(offer=offer_of(task, self.tenant, traceparent, context))
            limit_s, handle = self._limit_s(task), task.handle
            self._own(execution.run(lambda: self.line.execute(request, limit_s, handle)))

    def _execution(self, task: Task, last: int, *, begun: bool) -> Execution | None:
        if self._gone or (*task.key, task.attempt) in self._executions:
            return None
        execution = Execution(self, task.tenant, task.task_id, task.attempt, last)
        execution.heard = begun  # who joins an attempt, and is refused, knows nothing of what has begun there
        self._executions[execution.name] = execution
        return execution

    @staticmethod
    def _limit_s(task: Task) -> float | None:
        limit = task.start_to_close_ms
        return limit / 1_000 + DEADLINE_MARGIN_S if limit is not None else None

    def _resume(self, task: Task) -> None:
        """Goes on with an attempt that the agent accepted, by its handle."""
        execution = self._execution(task, task.attempt_sequence, begun=True)
        if execution is None:
            return
        execution.handle = task.handle
        request, handle = endpoint_pb2.ExecuteRequest(offer=offer_of(task, self.tenant, "")), task.handle
        limit_s = self._limit_s(task)
        self._own(execution.run(lambda: self.line.resume(request, handle, limit_s)))

    def stop(self, tenant: str, task_id: str, attempt: int, reason: Reason) -> None:
        """See AgentLink."""
        execution = self._executions.get((tenant, task_id, attempt))
        if execution is not None:
            execution.stop()
        else:
            self.cancel_there((tenant, task_id, attempt))

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """See AgentLink. A call that is open nevertheless is of no use: the agent has reported."""
        self.unkept.discard((tenant, task_id, attempt))
        execution = self._executions.get((tenant, task_id, attempt))
        if execution is not None and not execution.over:
            execution.abandon()

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """See AgentLink."""
        self.unkept.discard((tenant, task_id, attempt))
        execution = self._executions.get((tenant, task_id, attempt))
        if fault.reason is Reason.UNEXPECTED_FRAME and self.instance is not None:
            report = ev.Reported(self.instance, tenant, task_id, attempt)  # deltas are missing, and it said no more
            report.fault = Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, fault.message)
            self.post(report)
        elif execution is not None:
            execution.stop()

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """See AgentLink. Dialled agents ask by a call of their own, which has the answer."""

    def give_input(self, task: Task, given: Input, context: bytes = b"") -> None:
        """See AgentLink. The call that asked is over, or about to be: the attempt is called anew, with all answers."""
        former = self._executions.pop((*task.key, task.attempt), None)
        if former is not None:
            former.abandon()
        self._execute(task, "", task.attempt_sequence, context)

    def credit(self, tenant: str, task_id: str, attempt: int, count: int) -> None:
        """See AgentLink."""
        execution = self._executions.get((tenant, task_id, attempt))
        if execution is not None:
            execution.credit(count)

    def drain(self, deadline_ms: int) -> None:
        """See AgentLink. The contract has no word for it: it gets nothing new, and finishes what it has."""

    def prepare_handoff(self, tenant: str, session: str, timeout_ms: int) -> None:
        """See AgentLink."""
        self._own(self._prepare_handoff(tenant, session, timeout_ms / 1_000))

    async def _prepare_handoff(self, tenant: str, session: str, timeout_s: float) -> None:
        request = endpoint_pb2.PrepareHandoffRequest(session=session_key(session))
        request.tenant = tenant if tenant != self.tenant else ""
        snapshot = await self.line.prepare_handoff(request, timeout_s)
        if self.instance is not None:
            self.post(ev.SnapshotCame(self.instance, (tenant, session), snapshot))

    def close(self, fault: Fault) -> None:
        """See AgentLink."""
        if not self.opened.done():
            self.opened.set_result(fault)
        self.shut()

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def lost(self, why: str) -> None:
        """The connection broke. An unanswered ping of ours is suspicion, so the work waits for the agent to come back;
        anything else is the peer's doing, and certain."""
        if self._gone or self.instance is None:
            return
        ours = "ping timeout" in why or "keepalive" in why
        self.post(ev.LinkEnded(self.instance, self, ours, f"its connection broke: {why}"))
        self.shut()
        self._on_lost()

    def shut(self) -> None:
        """Ends all calls; the core knows already."""
        if self._gone:
            return
        self._gone = True
        for execution in list(self._executions.values()):
            execution.abandon()
        self._own(self.line.close())

    @property
    def gone(self) -> bool:
        """It was shut."""
        return self._gone

    def calls(self, name: tuple[str, str, int]) -> bool:
        """Whether an attempt has a call of its own."""
        return name in self._executions

    def forget(self, execution: Execution) -> None:
        """A call is over."""
        if self._executions.get(execution.name) is execution:
            del self._executions[execution.name]

    def cancel_there(self, name: tuple[str, str, int]) -> None:
        """Tells the agent to stop an attempt."""
        if self._gone:
            return
        execution, task = self._executions.get(name), self._pool.tasks.get(name[:2])
        handle = execution.handle if execution is not None else ""
        if not handle and task is not None and task.attempt == name[2]:
            handle = task.handle
        self._own(self.line.cancel(self._key(name), handle))

    def _key(self, name: tuple[str, str, int]) -> attempt_pb2.AttemptKey:
        tenant, task_id, attempt = name
        return attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant="" if tenant == self.tenant else tenant)

    async def ended(self) -> None:
        """Shuts, and returns when all of it has ended."""
        self.shut()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        """Bounded by the slots of the instance: one for each attempt, and one for each that is stopped."""
        task = asyncio.get_running_loop().create_task(work, name="dialled")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a call to a dialled agent broke", exc_info=error)
