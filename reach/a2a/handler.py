"""A2A's methods, as calls of ours: what the SDK's bindings over gRPC, JSON-RPC and REST call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2
from a2a.utils import errors as a2a
from a2a.utils.proto_utils import validate_proto_required_fields

from agentreach.v1 import dispatch_pb2, event_pb2, result_pb2, task_pb2
from reach.a2a.caller import Caller, caller_of
from reach.a2a.cards import Cards
from reach.a2a.listing import listed
from reach.a2a.story import Story, Told, fold
from reach.a2a.tasks import Asker, context_of, input_id_of, spec_of, state_of, task_of
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.inner_calls import InnerCalls
from reach.wire.a2a.errors import a2a_error
from reach.wire.a2a.parts import media_type_of, one_payload
from reach.wire.a2a.states import TERMINAL, WORKING
from reach.wire.a2a.words import CURSOR, route_of

WAIT_SECONDS: Final = 300.0
"""How long `SendMessage` waits for a task to end or to ask something; then it answers with the task as it is."""
MARGIN_SECONDS: Final = 0.5
"""How long before the deadline of a call it is answered."""
FOLD_SECONDS: Final = 0.5
"""How long `SubscribeToTask` waits for what was said before: it is there at once, or the server has lost it."""

_DISPATCH: Final = "/agentreach.v1.DispatchService/"
_STREAM: Final = "/agentreach.v1.ResultService/StreamResult"

Failed = Callable[[str, Exception, str], ReachError]
"""Logs and counts what nobody expected: the method, what failed, who called."""


class A2aHandler(RequestHandler):
    """See the module.

    Args:
        calls: What is behind all doors.
        cards: Says what agents there are.
        failed: See `Failed`.
    """

    def __init__(self, calls: InnerCalls, cards: Cards, failed: Failed) -> None:
        self._calls = calls
        self._cards = cards
        self._failed = failed

    # -- what the SDK calls ------------------------------------------------------------------------------------------

    async def on_message_send(self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Gives a task, or an answer to a task's question, and waits for what comes of it."""
        caller = self._enter(params, context)
        with self._telling("SendMessage", caller):
            configuration = params.configuration
            task_id, after = await self._give(params, caller, context.tenant)
            if not configuration.return_immediately:
                await self._settled(task_id, after, caller)
            history = configuration.history_length if configuration.HasField("history_length") else None
            return task_of(await self._task(task_id, caller), history)

    async def on_message_send_stream(
        self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Told, None]:
        """The same, and tells what happens until it ends or asks something."""
        caller = self._enter(params, context)
        begun = False
        try:
            task_id, after = await self._give(params, caller, context.tenant)
            found = await self._task(task_id, caller)
            configuration = params.configuration
            history = configuration.history_length if configuration.HasField("history_length") else None
            first = task_of(found, history, artifacts=False)
            if first.status.state in TERMINAL:  # it was sent before: what came of it follows
                first.status.state = WORKING
                first.status.ClearField("message")
            begun = True
            yield first
            story = Story(first)
            async with aclosing(self._frames(task_id, after, caller)) as frames:
                async for frame in frames:
                    for event in frame.events:
                        for update in story.tell(event):
                            yield update
                        if await self._settles(event, task_id, caller):
                            return
        except Exception as failure:  # noqa: BLE001 - each becomes an error that the caller can be told
            raise self._told("SendStreamingMessage", failure, caller, begun=begun) from None

    async def on_subscribe_to_task(
        self, params: a2a_pb2.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Told, None]:
        """Tells how a task stands, then what happens, until it ends."""
        caller = self._enter(params, context)
        begun = False
        try:
            found = await self._task(params.id, caller)
            resumes = caller.after is not None and CURSOR in caller.extensions
            if state_of(found) in TERMINAL and not resumes:
                raise a2a.UnsupportedOperationError("the task has ended: get it")
            task = task_of(found, artifacts=False)
            if task.status.state in TERMINAL:
                task.status.state = WORKING
                task.status.ClearField("message")
            story = Story(task)
            after = caller.after or 0 if resumes else 0
            async with aclosing(_Steps(self._frames(params.id, after, caller))) as steps:
                if not resumes:
                    told = await steps.soon(FOLD_SECONDS)
                    fold(task, [update for event in told for update in story.tell(event)])
                begun = True
                yield task
                if story.over and not resumes:
                    return
                async for frame in steps.rest():
                    for event in frame.events:
                        for update in story.tell(event):
                            yield update
                        if story.over:
                            return
        except Exception as failure:  # noqa: BLE001 - each becomes an error that the caller can be told
            raise self._told("SubscribeToTask", failure, caller, begun=begun) from None

    async def on_get_task(self, params: a2a_pb2.GetTaskRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """One task."""
        caller = self._enter(params, context)
        with self._telling("GetTask", caller):
            history = params.history_length if params.HasField("history_length") else None
            return task_of(await self._task(params.id, caller), history)

    async def on_list_tasks(
        self, params: a2a_pb2.ListTasksRequest, context: ServerCallContext
    ) -> a2a_pb2.ListTasksResponse:
        """Tasks by filter, what changed last first."""
        caller = self._enter(params, context)
        with self._telling("ListTasks", caller):
            route = route_of(params.tenant or context.tenant or caller.route)
            app_id = self._calls.who(caller.credentials[0], caller.credentials[2], caller.credentials[3]).app_id
            return await listed(params, Asker(app_id, route), lambda name, request: self._call(name, request, caller))

    async def on_cancel_task(self, params: a2a_pb2.CancelTaskRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Cancels a task that has not ended."""
        caller = self._enter(params, context)
        with self._telling("CancelTask", caller):
            if state_of(await self._task(params.id, caller)) in TERMINAL:
                raise a2a.TaskNotCancelableError("the task has ended")
            request = dispatch_pb2.CancelTaskRequest(task_id=params.id, reason="cancelled over A2A")
            answer = await self._call("CancelTask", request, caller)
            if answer.state != task_pb2.TASK_STATE_CANCELLED:
                raise a2a.TaskNotCancelableError("the task has ended meanwhile")
            return task_of(await self._task(params.id, caller))

    async def on_get_extended_agent_card(
        self, params: a2a_pb2.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> a2a_pb2.AgentCard:
        """The card, as this caller may see it."""
        caller = self._enter(params, context)
        with self._telling("GetExtendedAgentCard", caller):
            route = route_of(params.tenant or context.tenant or caller.route)
            return await self._cards.card(caller, route, extended=True)

    async def on_create_task_push_notification_config(
        self, params: a2a_pb2.TaskPushNotificationConfig, context: ServerCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Not there: cards say so."""
        raise self._no_pushes(context)

    async def on_get_task_push_notification_config(
        self, params: a2a_pb2.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Not there: cards say so."""
        raise self._no_pushes(context)

    async def on_list_task_push_notification_configs(
        self, params: a2a_pb2.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> a2a_pb2.ListTaskPushNotificationConfigsResponse:
        """Not there: cards say so."""
        raise self._no_pushes(context)

    async def on_delete_task_push_notification_config(
        self, params: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Not there: cards say so."""
        raise self._no_pushes(context)

    # -- what is behind ----------------------------------------------------------------------------------------------

    def _no_pushes(self, context: ServerCallContext) -> Exception:
        caller = caller_of(context)
        caller.entered = True
        try:
            self._calls.who(caller.credentials[0], caller.credentials[2], caller.credentials[3])
        except ReachError as error:
            return self._told("pushes", error, caller)
        return a2a.PushNotificationNotSupportedError("give the task with a webhook over HTTP or gRPC instead")

    def _enter(self, params: Any, context: ServerCallContext) -> Caller:
        """The caller of a request that has what it must have."""
        caller = caller_of(context)
        caller.entered = True
        validate_proto_required_fields(params)
        return caller

    @contextmanager
    def _telling(self, name: str, caller: Caller) -> Iterator[None]:
        """Whatever fails becomes an error that the caller can be told."""
        try:
            yield
        except Exception as failure:  # noqa: BLE001 - see above
            raise self._told(name, failure, caller) from None

    def _told(self, name: str, failure: Exception, caller: Caller, *, begun: bool = False) -> Exception:
        """What the SDK is to be told of a failure: an error of A2A, or one of ours, which the door tells."""
        if isinstance(failure, a2a.A2AError):
            return failure
        error = failure
        if not isinstance(error, ReachError):
            error = self._failed(f"A2AService/{name}", failure, caller.credentials[2])
        told = a2a_error(error)
        if told is not None:
            return told
        if begun and not caller.over_grpc:
            return a2a.InternalError(f"{error.reason.name}: {error.message}")  # the answer has begun: it ends with this
        caller.fault = error
        return error

    async def _call(self, name: str, request: Any, caller: Caller) -> Any:
        return await self._calls.unary(_DISPATCH + name, request, *caller.credentials)

    def _frames(self, task_id: str, after: int, caller: Caller) -> AsyncGenerator[Any, None]:
        request = result_pb2.StreamResultRequest(task_id=task_id, after_sequence=after)
        return self._calls.streaming(_STREAM, request, *caller.credentials)

    async def _task(self, task_id: str, caller: Caller) -> task_pb2.Task:
        request = dispatch_pb2.GetTaskRequest(task_id=task_id, view=task_pb2.TASK_VIEW_FULL)
        found: task_pb2.Task = (await self._call("GetTask", request, caller)).task
        return found

    async def _give(self, params: a2a_pb2.SendMessageRequest, caller: Caller, tenant: str) -> tuple[str, int]:
        """Hands a message over: the task that it made or answered, and the sequence that what comes of it follows."""
        if params.configuration.task_push_notification_config.url:
            raise a2a.PushNotificationNotSupportedError("give the task with a webhook over HTTP or gRPC instead")
        if params.message.task_id:
            return await self._answer(params.message, caller)
        route = route_of(params.tenant or tenant or caller.route)
        app_id = self._calls.who(caller.credentials[0], caller.credentials[2], caller.credentials[3]).app_id
        spec = spec_of(params, Asker(app_id, route))
        refused = await self._cards.refuses(caller, route, [media_type_of(part) for part in params.message.parts])
        if refused:
            raise a2a.ContentTypeNotSupportedError(f"no agent of this route takes {refused}")
        answer = await self._call("Dispatch", dispatch_pb2.DispatchRequest(task=spec), caller)
        return answer.task_id, 0

    async def _answer(self, message: a2a_pb2.Message, caller: Caller) -> tuple[str, int]:
        """What somebody says to a task that is there: the answer to what it asked."""
        found = await self._task(message.task_id, caller)
        if message.context_id and message.context_id != context_of(found):
            raise InvalidRequest("the task is of another context", Reason.INVALID_FIELD, field="message.context_id")
        request = dispatch_pb2.SendInputRequest(
            task_id=message.task_id, input_id=input_id_of(message.message_id), payload=one_payload(message.parts)
        )
        try:
            await self._call("SendInput", request, caller)
        except ReachError as error:
            if error.reason is not Reason.WRONG_STATE:
                raise
            ended = state_of(found) in TERMINAL
            text = "the task has ended" if ended else "the task asks nothing now: send a message without its id"
            raise a2a.UnsupportedOperationError(text) from None
        return message.task_id, found.last_sequence

    async def _settled(self, task_id: str, after: int, caller: Caller) -> None:
        """Waits until a task has ended or asks something, as long as the call may take."""
        left = caller.remaining()
        seconds = WAIT_SECONDS if left is None else min(WAIT_SECONDS, max(0.0, left - min(MARGIN_SECONDS, left / 2)))
        try:
            async with asyncio.timeout(seconds), aclosing(self._frames(task_id, after, caller)) as frames:
                async for frame in frames:
                    for event in frame.events:
                        if await self._settles(event, task_id, caller):
                            return
        except TimeoutError:
            return

    async def _settles(self, event: event_pb2.TaskEvent, task_id: str, caller: Caller) -> bool:
        """Whether nothing more comes by itself: it ended, or asks something that was not answered long ago."""
        kind = event.WhichOneof("kind")
        if kind != "waiting":
            return kind == "complete"
        request = dispatch_pb2.GetTaskRequest(task_id=task_id, view=task_pb2.TASK_VIEW_BASIC)
        answer = await self._call("GetTask", request, caller)
        return bool(answer.task.state == task_pb2.TASK_STATE_WAITING)


class _Steps:
    """Frames of a stream of which the first is waited for, for a while."""

    def __init__(self, frames: AsyncGenerator[Any, None]) -> None:
        self._frames = frames
        self._first: asyncio.Task[Any] | None = None

    async def soon(self, seconds: float) -> list[Any]:
        """The events of the first frame, or none if it is not there yet."""
        self._first = asyncio.create_task(self._next(), name="a2a-first-frame")
        done, _ = await asyncio.wait({self._first}, timeout=seconds)
        frame = await self._taken() if done else None
        return [] if frame is None else list(frame.events)

    async def rest(self) -> AsyncGenerator[Any, None]:
        """All frames that were not told."""
        while (frame := await (self._next() if self._first is None else self._taken())) is not None:
            yield frame

    async def aclose(self) -> None:
        """Nothing is waited for any more."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._frames.aclose()

    async def _taken(self) -> Any:
        assert self._first is not None
        frame = await self._first
        self._first = None
        return frame

    async def _next(self) -> Any:
        return await anext(self._frames, None)
