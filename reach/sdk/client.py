"""Callers: give tasks to agents and get their answers.

>>> async with Client() as client:
...     result = await client.send("task.process", "some text", agent_type="summarizer")
...     print(result.text)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, Self, TypeVar, Unpack
from uuid import uuid4

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc
from reach.core.model import TaskState
from reach.errors import ReachError, Reason, Unavailable
from reach.sdk.answers import Event, Result, TaskInfo, TextPiece
from reach.sdk.channel import AddressLike, ForkGuard, Target, TlsLike
from reach.sdk.dispatch import MOST_UNSENT, Line
from reach.sdk.encoding import payload_message, submit_item
from reach.sdk.entries import (
    ACCEPTANCE,
    EVENTS,
    OUTCOME,
    AcceptanceEntry,
    CancelEntry,
    Entry,
    EventsEntry,
    OutcomeEntry,
)
from reach.sdk.handle import TaskHandle
from reach.sdk.inheritance import CURRENT, inherited
from reach.sdk.payloads import Fields, checked_size, payload_fields
from reach.sdk.showing import KeyLike
from reach.sdk.specs import Heads, TaskOptions, task_id_of, trace_content, unsendable
from reach.sdk.tracing import current_trace
from reach.sdk.unary import TIMEOUT_S, UnaryCalls

E = TypeVar("E", bound=Entry)

ITEM_MARGIN: Final = 252 << 10
"""Bytes that a task may have beside a payload of the largest size, so that it fits the server's largest message."""


class Client:
    """A caller. All its tasks share one stream, which opens with the first and comes back by itself when it breaks.

    Args:
        addr: `host:port`, or several nodes of a cluster, as `a:8900,b:8900` or a list; None: the environment's
            AGENT_REACH_ADDR, else 127.0.0.1:8900.
        api_key: A key or token, or a function that gives the one of now. None: AGENT_REACH_API_KEY, else what is in
            the file that AGENT_REACH_API_KEY_FILE names.
        tls: A `Tls`, the path of a CA file, or True for the authorities of the system.
        app_id: The application, for sessions that are given as (user, conversation).
        source: What asks, for people: the `source` of all tasks that name none.
        connect_timeout: Seconds to wait for a server that was never reached, for calls without a timeout.
        reconnect_timeout: The same for a server that is lost; None: for ever.
    """

    def __init__(
        self,
        addr: AddressLike = None,
        *,
        api_key: KeyLike = None,
        tls: TlsLike = None,
        app_id: str = "",
        source: str = "",
        connect_timeout: float = 10.0,
        reconnect_timeout: float | None = 60.0,
    ) -> None:
        self._target = Target(addr, api_key, tls)
        self._app_id = app_id
        self._heads = Heads(source)
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._fork = ForkGuard()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: Line | None = None
        self._runner: asyncio.Task[None] | None = None
        self._calls: UnaryCalls | None = None

    @property
    def address(self) -> str:
        """The server; with several, all that were given."""
        return self._target.address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream. What waits gets Unavailable; tasks that were accepted go on."""
        line, runner, calls = self._line, self._runner, self._calls
        self._line = self._runner = self._calls = self._loop = None
        if runner is not None:
            runner.cancel()
            await asyncio.wait({runner})
        if line is not None:
            line.fail_all(Unavailable("the client was closed", Reason.OWNER_UNAVAILABLE))
        if calls is not None:
            await calls.close()

    async def send(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_timeout: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Result:
        """Gives a task and waits for its result. A task that fails is a result too: look at `ok` and `error`.

        Raises the refusal, if the task is not accepted; Timeout (WAIT_EXPIRED) after `timeout` seconds: the task goes
        on unless `cancel_on_timeout`. `TaskOptions` lists the options.

            >>> result = await client.send("task.process", {"text": "…"}, capability="summarization", timeout=30)
        """
        line = self._ready_line()
        entry = self._submit(line, OutcomeEntry, OUTCOME, method, payload, options)
        try:
            if line.outbox.size > MOST_UNSENT:
                await line.room()
            if timeout is None:
                result: Result = await entry.future
            else:
                result = await self._wait(line, entry, timeout, cancel_on_timeout)
        except BaseException:
            line.forget(entry)
            raise
        return result

    async def call(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_timeout: bool = False,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """`send`, for those who want the output: text as str, JSON parsed, else bytes, None if there is none. Raises
        the error of a task that did not succeed.

            >>> total = await client.call("sum", [1, 2, 3], agent_id="calculator")
        """
        result = await self.send(method, payload, timeout=timeout, cancel_on_timeout=cancel_on_timeout, **options)
        if (error := result.error) is not None:
            raise error
        return result.value

    async def submit(
        self, method: str = "", payload: Any = None, *, timeout: float | None = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle:
        """Gives a task and returns when it is accepted. Raises the refusal, or Timeout.

        >>> handle = await client.submit("task.process", text, agent_type="summarizer")
        >>> result = await handle.result()
        """
        line = self._ready_line()
        entry = self._submit(line, AcceptanceEntry, ACCEPTANCE, method, payload, options)
        try:
            return TaskHandle(self, await self._wait(line, entry, timeout))
        except BaseException:
            line.forget(entry)
            raise

    async def stream(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_exit: bool = False,
        **options: Unpack[TaskOptions],
    ) -> AsyncGenerator[Event, None]:
        """Gives a task and yields its events as they come; the last is `complete`, whether the task succeeded or not.

        After a broken connection it goes on where it was: no event is missing, none comes twice. Leaving the loop early
        leaves the task alone, unless `cancel_on_exit`. Raises as `send`.

            >>> async for event in client.stream("task.process", text, agent_type="summarizer"):
            ...     if event.kind == "delta":
            ...         print(event.text, end="")
        """
        line = self._ready_line()
        entry = self._submit(line, EventsEntry, EVENTS, method, payload, options)
        async with aclosing(self._events(line, entry, timeout, cancel_on_exit)) as events:
            async for event in events:
                yield event

    async def follow(
        self, task_id: str, *, after_sequence: int = 0, timeout: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events of a task that exists, from a position on. As `stream`."""
        line = self._ready_line()
        reference = line.new_reference()
        entry = EventsEntry(reference, task_id, b"", line.new_future(), after_sequence)
        line.add(entry)
        async with aclosing(self._events(line, entry, timeout, cancel_on_exit=False)) as events:
            async for event in events:
                yield event

    async def stream_text(
        self,
        method: str = "",
        payload: Any = None,
        *,
        timeout: float | None = None,
        cancel_on_exit: bool = False,
        **options: Unpack[TaskOptions],
    ) -> AsyncGenerator[TextPiece, None]:
        """Gives a task and yields the text of its answer, piece by piece. Raises the error of a task that fails.

        What was yielded cannot be taken back. So when the text begins again (another attempt, or a channel that is
        replaced, or pieces that were skipped because we read too slowly), the next piece has `restarts` set: all
        before it is void. An agent that does not stream gives one piece.

            >>> async for piece in client.stream_text("task.process", text, agent_type="summarizer"):
            ...     shown = str(piece) if piece.restarts else shown + piece
        """
        events = self.stream(method, payload, timeout=timeout, cancel_on_exit=cancel_on_exit, **options)
        told = void = lacking = False
        async with aclosing(events) as items:
            async for event in items:
                text, restarts = "", False
                if event.kind == "attempt_reset":
                    void, lacking = told, False
                elif event.kind == "delta" and not event.channel:
                    text, restarts = event.text, event.mode == "replace" and told
                    lacking = lacking and event.mode != "replace"
                elif event.kind == "gap":
                    lacking = "" not in event.snapshot  # pieces are gone, and only the whole can make that good
                    if not lacking:
                        text, restarts = event.snapshot[""], told
                elif event.result is not None:
                    if (error := event.result.error) is not None:
                        raise error
                    if not told or void or lacking:
                        text, restarts = event.result.text, told
                if text or restarts:
                    yield TextPiece(text, restarts or void)
                    told, void = True, False

    async def wait_for_result(self, task_id: str, timeout: float | None = None) -> Result:
        """Waits until a task ends, whoever gave it. Raises InvalidRequest (TASK_NOT_FOUND), or Timeout: the task goes
        on then."""
        line = self._ready_line()
        entry = OutcomeEntry(line.new_reference(), task_id, b"", line.new_future())
        line.add(entry)
        try:
            result: Result = await self._wait(line, entry, timeout)
        except BaseException:
            line.forget(entry)
            raise
        return result

    async def cancel(self, task_id: str, reason: str = "", *, timeout: float | None = None) -> TaskState:
        """Cancels a task and its children, and returns the state it ended in: it may have ended before. Raises
        InvalidRequest (TASK_NOT_FOUND)."""
        line = self._ready_line()
        reference = line.new_reference()
        items: Fields = {"cancels": [{"reference": reference, "task_id": task_id, "reason": reason}]}
        item = dispatch_pb2.DispatchStreamRequest(**items).SerializeToString()
        entry = CancelEntry(reference, task_id, item, line.new_future())
        line.add(entry)
        try:
            state: TaskState = await self._wait(line, entry, timeout)
        finally:
            line.remove(entry)
        return state

    async def get_task(self, task_id: str, *, timeout: float = TIMEOUT_S) -> TaskInfo:
        """A task as the server sees it now. Raises InvalidRequest (TASK_NOT_FOUND)."""
        answer = await self._unary("GetTask", dispatch_pb2.GetTaskRequest(task_id=task_id), timeout)
        return TaskInfo(answer.task)

    async def send_input(
        self, task_id: str, value: Any = None, *, question: str = "", input_id: str = "",
        timeout: float = TIMEOUT_S,
    ) -> TaskState:  # fmt: skip
        """Answers what a task asks that waits for input, and returns where the task stands.

        `question`: the name of the one that is meant, as the `waiting` event said; empty: the one that is open. An
        `input_id` counts once. Raises InvalidRequest: TASK_NOT_FOUND, WRONG_STATE (it asks nothing, or something else),
        INPUT_ID_REUSED, PAYLOAD_TOO_LARGE.

            >>> async for event in client.stream("book", "a table for two", agent_type="concierge"):
            ...     if event.kind == "waiting":
            ...         await client.send_input(event.task_id, input(event.text), question=event.question)
        """
        payload, _ = payload_fields(value)
        fields: Fields = {"task_id": task_id, "payload": payload, "question": question}
        request = dispatch_pb2.SendInputRequest(**fields, input_id=input_id or uuid4().hex)
        answer = await self._unary("SendInput", request, timeout)
        return TaskState(answer.state)

    async def _unary(self, method: str, request: Any, timeout: float) -> Any:
        self._ready_line()
        if self._calls is None:
            self._calls = UnaryCalls(self._target)
        return await self._calls.call(dispatch_pb2_grpc.DispatchServiceStub, method, request, timeout)

    def _ready_line(self) -> Line:
        """The stream, opened if it is not. Raises RuntimeError in a forked child and on another loop."""
        runner, line = self._runner, self._line
        if runner is not None and line is not None and not runner.done():
            if self._loop is asyncio.get_running_loop():  # so this is no forked child: it has another loop, or none
                return line
            self._fork.check("Client")
            raise RuntimeError("this Client is in use on another loop; each loop needs its own (or use SyncClient)")
        self._fork.check("Client")
        self._target.check_unforked()
        self._loop = asyncio.get_running_loop()
        self._line = line = Line(self._target, self._connect_timeout, self._reconnect_timeout)
        self._runner = self._loop.create_task(line.connection.run(), name="reach-sdk-client")
        self._runner.add_done_callback(lambda done: _ended(done, line))
        return line

    def _submit(
        self, line: Line, kind: Callable[..., E], interest: int, method: str, payload: Any, options: TaskOptions
    ) -> E:
        if self._app_id:
            session = options.get("session")
            if isinstance(session, tuple) and len(session) == 2:
                options["session"] = (self._app_id, *session)
        task_id = task_id_of(options.pop("task_id", None))  # the rest is what a head is kept for
        content, largest, traced = self._heads.find(method, options)
        try:
            message, size = payload_message(payload)
        except (TypeError, ValueError) as error:
            raise unsendable(error) from error
        if size > line.payload_limit or largest > line.payload_limit:
            checked_size(max(size, largest), line.payload_limit, "the payload")
        if not traced and (trace := current_trace()) is not None:
            content += trace_content(trace)
        asker = CURRENT.get()
        if asker is not None and "parent_task_id" not in options:
            content += inherited(asker, options)
        reference = line.new_reference()
        item = submit_item(reference, interest, content, task_id, message)
        if len(item) > line.payload_limit + ITEM_MARGIN:  # attachments together: one message over it ends the stream
            checked_size(len(item), line.payload_limit, "the task with its attachments")
        entry = kind(reference, task_id, item, line.new_future())
        line.add(entry)
        return entry

    async def _wait(self, line: Line, entry: Entry, timeout: float | None, cancel_on_timeout: bool = False) -> Any:
        if timeout is None:
            return await entry.future
        timer = line.limit(entry, timeout, cancel_on_timeout)
        try:
            return await entry.future
        finally:
            timer.cancel()

    async def _events(
        self, line: Line, entry: EventsEntry, timeout: float | None, cancel_on_exit: bool
    ) -> AsyncGenerator[Event, None]:
        timer = None if timeout is None else line.limit(entry, timeout, cancel=cancel_on_exit)
        ended = False
        try:
            while not ended:
                event = Event(await entry.next(line))
                ended = event.kind == "complete"
                yield event
        finally:
            if timer is not None:
                timer.cancel()
            line.forget(entry)
            if cancel_on_exit and not ended:
                line.put(cancels=[{"task_id": entry.task_id, "reason": "the reader left"}])


def _ended(runner: asyncio.Task[None], line: Line) -> None:
    """The stream has ended for good: those who wait are told why."""
    if runner.cancelled():
        return
    error = runner.exception()
    if not isinstance(error, ReachError):
        error = Unavailable(f"the connection broke: {type(error).__name__}: {error}", Reason.OWNER_UNAVAILABLE)
    line.fail_all(error)
