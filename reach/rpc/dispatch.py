"""DispatchService: convert, call the door, convert back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, task_pb2
from reach.core.decision_record import Told, record_of
from reach.core.dialogue import Input
from reach.core.model import FIRST_TERMINAL, Fault, Task, TaskState
from reach.core.pieces import Kind, size_in_bytes
from reach.core.questions import INPUT_BYTES
from reach.core.stream import Interest, Reader
from reach.errors import ErrorClass, InvalidRequest, Reason, Timeout
from reach.rpc import callers, far_tasks
from reach.rpc.principal import credentials_ended, principal_of
from reach.rpc.proxy import placed
from reach.rpc.services import RECHECK_SECONDS, Services, error_of_fault
from reach.rpc.waiting import Answer, EventSink, WaitingSink
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.past import not_found
from reach.store.base import TaskQuery
from reach.telemetry.tracing import current_trace
from reach.wire.answers import (
    content_of,
    duration,
    event_size,
    fill_decision,
    fill_error,
    fill_event,
    fill_result,
    fill_task,
)
from reach.wire.pages import PAGE_BYTES, page_number, page_size
from reach.wire.requests import check_id, duration_ms, invalid, session_name

WAIT_MS = 300_000
"""Longest wait of WaitForResult without a deadline."""
PAGE = 50
FRAME_EVENTS_BYTES = 512 << 10
ANSWER_SECONDS = 0.1
"""What is left of the deadline of a call that waits, for its answer to travel."""
CANDIDATES = 1_000
"""Instances that a preview tells of, the best first."""


class DispatchServicer(dispatch_pb2_grpc.DispatchServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reach = services.reach

    def _read(self, context: Any, spec: task_pb2.TaskSpec) -> tuple[Task, Any]:
        services, principal = self._services, principal_of(context)
        if principal.agent_types:
            principal.check_type(spec.selector.agent_type)
        task, selector = services.tasks.read(principal.tenant, spec, services.clock.new_id)
        services.begin_trace(task, spec.trace.traceparent or current_trace().traceparent)
        return task, selector

    async def Dispatch(self, request: dispatch_pb2.DispatchRequest, context: Any) -> dispatch_pb2.DispatchResponse:
        """See the contract."""
        wait_ms = duration_ms("wait", request.wait) if request.HasField("wait") else 0
        task, selector = self._read(context, request.task)
        sink = self._services.until_stopped(WaitingSink())
        reader = Reader(sink, 0, Interest.ANSWER if wait_ms else Interest.ACCEPTANCE)
        self._reach.submit(task, selector, reader, placed())
        try:
            if wait_ms:
                # Not a timeout around the future, which would cancel it. If it is not done by then the task goes on,
                # and the answer says where it stands.
                await asyncio.wait({sink.outcome}, timeout=_patience(context, wait_ms))
            state = await sink.acceptance
        except Elsewhere:
            self._services.end_trace(task.key)
            raise
        finally:
            if not sink.outcome.done():
                self._reach.unsubscribe(reader, *task.key)
                if request.task.cancel_with_caller and wait_ms:
                    self._reach.cancel(task.tenant, task.task_id, "the caller is gone", None)
        answer = dispatch_pb2.DispatchResponse(task_id=task.task_id, deduplicated=sink.deduplicated)
        answer.warnings.extend(self._reach.warnings(task.tenant, selector))
        if sink.outcome.done():
            ended = sink.outcome.result()
            state = ended.state
            if ended.outcome is not None:
                fill_result(answer.result, ended, ended.outcome)
        elif wait_ms and sink.task is not None and sink.task.state < FIRST_TERMINAL:  # else its end is not written yet
            state = sink.task.state
        answer.state = int(state)  # type: ignore[assignment]
        return answer

    async def Run(self, request: dispatch_pb2.RunRequest, context: Any) -> AsyncIterator[dispatch_pb2.RunResponse]:
        """See the contract."""
        task, selector = self._read(context, request.task)
        sink = self._services.until_stopped(EventSink())
        reader = Reader(sink, 0, Interest.EVENTS)
        self._reach.submit(task, selector, reader, placed())
        ended = False
        try:
            async for frame in read_events(self._reach, sink, reader, dispatch_pb2.RunResponse):
                yield frame
            ended = True
        except Elsewhere:
            ended = True  # here
            self._services.end_trace(task.key)
            raise
        finally:
            self._reach.unsubscribe(reader, *task.key)
            if request.task.cancel_with_caller and not ended:
                self._reach.cancel(task.tenant, task.task_id, "the caller is gone", None)

    async def DispatchStream(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        """See the contract."""
        trace = current_trace()  # a root of our own is the stream's, and must not decide for each of its tasks
        await callers.serve(self._services, principal_of(context), context, "" if trace.root else trace.traceparent)

    async def GetTask(self, request: dispatch_pb2.GetTaskRequest, context: Any) -> dispatch_pb2.GetTaskResponse:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        _check_view(request.view)
        found = await self._reach.tasks.explained(principal_of(context).tenant, task_id)
        if found is None:
            raise error_of_fault(not_found(task_id))
        answer = dispatch_pb2.GetTaskResponse()
        task, decisions = found
        full = request.view != task_pb2.TASK_VIEW_BASIC
        fill_task(answer.task, task, full=full, decisions=decisions if full else None)
        return answer

    async def ListTasks(self, request: dispatch_pb2.ListTasksRequest, context: Any) -> dispatch_pb2.ListTasksResponse:
        """See the contract."""
        query = _query(principal_of(context).tenant, request)
        _check_view(request.view)
        page, full = await self._reach.tasks.page(query), request.view == task_pb2.TASK_VIEW_FULL
        answer = dispatch_pb2.ListTasksResponse()
        messages: list[tuple[int, task_pb2.Task]] = []
        for task in page.tasks:  # before anything is waited for: what becomes of it meanwhile may still be undone
            messages.append((task.row, task_pb2.Task()))
            fill_task(messages[-1][1], task, full=full)
        told: dict[str, task_pb2.Task] = {}
        if page.elsewhere and self._services.peers is not None:
            told, lost = await far_tasks.ask(self._services.peers, query.tenant, page.elsewhere, full=full)
            answer.lost_nodes.extend(sorted(lost))
        wanted = set(request.filter.states)
        labels = dict(request.filter.labels)
        last, size = 0, 0
        for row, message in messages:
            if size > PAGE_BYTES:
                answer.next_page_token = str(last)
                return answer
            last = row
            far = told.get(message.spec.task_id)
            if wanted and int(message.state if far is None else far.state) not in wanted:
                continue
            if far is not None:
                far.spec.CopyFrom(message.spec)
                message = far
            if labels and any(message.spec.labels.get(name) != value for name, value in labels.items()):
                continue
            answer.tasks.append(message)
            size += message.ByteSize()
        if page.more:
            answer.next_page_token = str(page.tasks[-1].row)
        return answer

    async def WaitForResult(
        self, request: dispatch_pb2.WaitForResultRequest, context: Any
    ) -> dispatch_pb2.WaitForResultResponse:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        wait_ms = duration_ms("timeout", request.timeout) if request.HasField("timeout") else WAIT_MS
        tenant = principal_of(context).tenant
        sink = self._services.until_stopped(WaitingSink())
        reader = Reader(sink, 0, Interest.OUTCOME)
        self._reach.subscribe(tenant, task_id, reader)
        try:
            async with asyncio.timeout(_patience(context, wait_ms)):
                task = await sink.outcome
        except TimeoutError:
            message = f"task {task_id!r} did not end within the time of this call; it goes on"
            raise Timeout(message, Reason.WAIT_EXPIRED) from None
        finally:
            self._reach.unsubscribe(reader, tenant, task_id)
        answer = dispatch_pb2.WaitForResultResponse()
        assert task.outcome is not None
        fill_result(answer.result, task, task.outcome)
        return answer

    async def CancelTask(
        self, request: dispatch_pb2.CancelTaskRequest, context: Any
    ) -> dispatch_pb2.CancelTaskResponse:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        reason = check_id("reason", request.reason)
        reply = Answer()
        self._reach.cancel(principal_of(context).tenant, task_id, reason, reply)
        task: Task = await reply.future
        answer = dispatch_pb2.CancelTaskResponse(state=int(task.state))  # type: ignore[arg-type]
        if task.outcome is not None:
            fill_result(answer.result, task, task.outcome)
        return answer

    async def SendInput(self, request: dispatch_pb2.SendInputRequest, context: Any) -> dispatch_pb2.SendInputResponse:
        """See the contract."""
        task_id = check_id("task_id", request.task_id, required=True)
        if not request.input_id:
            request.input_id = self._services.clock.new_id()  # one, also if it is brought to several nodes
        given = Input(
            check_id("input_id", request.input_id),
            "",
            check_id("payload.media_type", request.payload.media_type),
            content_of(request.payload)[1],
        )
        size = size_in_bytes(given.content)
        if size > INPUT_BYTES:
            message = f"the answer has {size} bytes, at most {INPUT_BYTES} are allowed"
            raise InvalidRequest(message, Reason.PAYLOAD_TOO_LARGE, limit=str(INPUT_BYTES))
        reply = Answer()
        self._reach.send_input(
            principal_of(context).tenant, task_id, given, check_id("question", request.question), reply
        )
        task, known = await reply.future
        answer = dispatch_pb2.SendInputResponse(repeated_input=known, input_id=given.input_id)
        answer.state = int(task.state)  # type: ignore[assignment]
        return answer

    async def PreviewRoute(
        self, request: dispatch_pb2.PreviewRouteRequest, context: Any
    ) -> dispatch_pb2.PreviewRouteResponse:
        """See the contract."""
        services = self._services
        principal = principal_of(context)
        principal.check_type(request.task.selector.agent_type)
        task, selector = services.tasks.read(principal.tenant, request.task, services.clock.new_id)
        await self._reach.texts.understand(task.tenant, selector)
        pool, seen = self._reach.preview(task, selector, placed())
        verdict = seen.verdict
        answer = dispatch_pb2.PreviewRouteResponse(pool=pool.key.agent_type)
        decision = answer.decision
        rows = tuple(Told(row.instance.instance_id, *row[1:]) for row in seen.rows[:CANDIDATES])
        fill_decision(decision, record_of(verdict)._replace(candidates=rows, dropped=seen.dropped))
        decision.registry_revision = self._services.host.directory.revision
        decision.cause = "pin" if verdict.cause == "pin" else "new"
        if verdict.chosen is None:
            lack = self._reach.lack(task.tenant, selector)
            fill_error(answer.refusal, lack or _would_wait(verdict.cause, bool(seen.rows), seen.pinned))
        task.instance = verdict.chosen
        answer.start_to_close.CopyFrom(duration(pool.deadlines.start_to_close_ms(task)))
        answer.retry_delays.extend(duration(delay) for delay in pool.delivery.policy_of(task).delays_ms)
        return answer


async def read_events(reach: Any, sink: EventSink, reader: Reader, new_frame: Any) -> AsyncIterator[Any]:
    """Frames of events for one reader, until the last event; credit comes back when a frame has been taken."""
    last = False
    while not last and (events := await _take(sink)):
        frame, size = new_frame(), 0
        for event in events:
            task = sink.task
            assert task is not None
            weight = event_size(event[3], event[4])
            if size and size + weight > FRAME_EVENTS_BYTES:
                yield frame
                reach.credit(reader, size)
                frame, size = new_frame(), 0
            fill_event(frame.events.add(), task, event)
            size += weight
            last = event[3] == Kind.COMPLETE
        yield frame
        reach.credit(reader, size)


async def _take(sink: EventSink) -> list[Any]:
    """The next events, as long as the key that opened the call still opens it."""
    principal = principal_of(None)
    while True:
        if not principal.still_valid():
            raise credentials_ended()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECHECK_SECONDS):
                return await sink.take()


def _patience(context: Any, wait_ms: int) -> float:
    """How long to wait, in seconds: so much less than the call may last that the answer still gets there."""
    left = context.time_remaining()
    return wait_ms / 1_000 if left is None else max(0.0, min(wait_ms / 1_000, left - min(ANSWER_SECONDS, left / 2)))


def _query(tenant: str, request: dispatch_pb2.ListTasksRequest) -> TaskQuery:
    wanted = request.filter
    known = {int(state) for state in TaskState}
    if any(state not in known for state in wanted.states):
        raise invalid("filter.states", "has an unknown state")
    states = {int(state) if state >= TaskState.SUCCEEDED else int(TaskState.PENDING) for state in wanted.states}
    return TaskQuery(
        tenant,
        tuple(sorted(states)),
        session_name(wanted.session) if wanted.HasField("session") else "",
        check_id("filter.agent_type", wanted.agent_type),
        check_id("filter.root_task_id", wanted.root_task_id),
        _wall_ms("filter.accepted_after", wanted.accepted_after) if wanted.HasField("accepted_after") else 0,
        _wall_ms("filter.accepted_before", wanted.accepted_before) if wanted.HasField("accepted_before") else 0,
        page_number(request.page_token),
        page_size(request.page_size, PAGE),
    )


def _wall_ms(field: str, value: Timestamp) -> int:
    """A time in milliseconds of the wall clock; never 0, which says nothing."""
    try:
        return value.ToMilliseconds() or 1
    except ValueError:
        raise invalid(field, "is not a time between the years 1 and 9999") from None


def _would_wait(cause: str, registered: bool, pinned: str) -> Fault:
    """Why a task would not go at once."""
    if pinned:
        message = f"its session is with {pinned!r}, which is full: it would wait for it"
        return Fault(ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, message)
    if cause == "no_match":
        message = "no instance matches what the task asks for" if registered else "no agent is registered for it"
        return Fault(ErrorClass.INVALID_REQUEST, Reason.NO_MATCHING_AGENT, f"{message}: it would wait for one")
    message = f"the instances that match take no more now ({cause}): it would wait"
    return Fault(ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, message)


def _check_view(view: int) -> None:
    if view not in task_pb2.TaskView.values():
        raise invalid("view", f"has no value {view}")
