"""One attempt at an A2A agent (`seam.Call`): the message, the stream or the polling, and what the end means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from a2a.types.a2a_pb2 import SendMessageRequest, StreamResponse, Task

from agentreach.v1 import attempt_pb2, endpoint_pb2
from reach.core.model import Fault
from reach.errors import ErrorClass, Reason
from reach.transports.a2a.calls import CallFailed, invalid
from reach.transports.a2a.guarded_http import HEARD
from reach.transports.a2a.handle import Handle
from reach.transports.a2a.messages import Saying, first_message, next_message
from reach.transports.a2a.told import BrokenProtocol, Told
from reach.transports.seam import Failed
from reach.wire.a2a.states import INTERRUPTED

if TYPE_CHECKING:
    from reach.transports.a2a.line import A2aLine

Frame = endpoint_pb2.ExecuteResponse

POLL_FIRST_S: Final = 0.2
POLL_MOST_S: Final = 2.0
POLL_GROWS: Final = 1.5
CUTS: Final = 6
"""How often in a row an agent that cannot be asked, but is not known to be gone, is asked again."""

_NO_STREAMS: Final = ("UNSUPPORTED_OPERATION", "METHOD_NOT_FOUND")
REFUSED: Final = "connection refused"


class A2aCall:
    """See the module.

    Args:
        line: What it goes over.
        offer: The task.
        handle: Of the attempt, if it runs there already.
        timeout_s: How long it may take in all; None: no limit.
    """

    def __init__(self, line: A2aLine, offer: attempt_pb2.Offer, handle: Handle | None, timeout_s: float | None) -> None:
        self.told = Told(len(offer.inputs))
        self._line = line
        self._offer = offer
        self._handle = handle
        self._began = asyncio.get_running_loop().time()
        self._until = None if timeout_s is None else self._began + timeout_s
        self._limit: asyncio.Timeout | None = None
        self._cancelled = asyncio.Event()
        self._frames = self._work()

    async def read(self) -> Frame | None:
        """See Call."""
        if self._cancelled.is_set():
            await self._frames.aclose()
            return None
        if HEARD.get() is None:
            HEARD.set(bytearray())
        try:
            async with asyncio.timeout_at(self._until) as self._limit:
                return await anext(self._frames, None)
        except TimeoutError:
            if self._cancelled.is_set() or self.told.over():
                return None
            fault = Fault(ErrorClass.TIMEOUT, Reason.START_TO_CLOSE, "the agent ran out of time")
            raise self._failed(Failed(fault)) from None
        except (BrokenProtocol, CallFailed) as failure:
            if self.told.over():
                return None  # what follows the outcome is of no use
            raise await self._what(failure) from failure

    async def _what(self, failure: BrokenProtocol | CallFailed) -> Failed:
        """What a failure of the call is for the attempt."""
        if isinstance(failure, BrokenProtocol):
            await self._give_up()
            heard = HEARD.get()
            raw = failure.raw or (bytes(heard).decode("utf-8", "replace") if heard else "")
            return self._failed(Failed(invalid(str(failure), raw)))
        return self._failed(await self._end_of(failure))

    def cancel(self) -> None:
        """See Call."""
        if not self._cancelled.is_set():
            self._cancelled.set()
            self._line.forget(self)
            if self._limit is not None and not self._limit.expired():
                with suppress(RuntimeError):  # nobody reads just now
                    self._limit.reschedule(0)

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _work(self) -> AsyncGenerator[Frame]:
        offer, told, handle = self._offer, self.told, self._handle
        request: SendMessageRequest | None
        saying: Saying | None = None
        if handle is None:
            saying = first_message(offer, self._line.contexts, waits=self._line.streams)
            request = saying.request
        else:
            told.task, told.context = handle.task, handle.context
            task = await self._resumed(handle.task)
            unsaid = len(offer.inputs) > handle.inputs
            request = next_message(offer, handle, waits=self._line.streams) if unsaid else None
            if request is None or task.status.state not in INTERRUPTED:
                for frame in self._kept(saying, told.snapshot(task)):
                    yield frame
                request = None
            else:  # kept before it is said: an answer that is lost with us is asked for again, and never given twice
                yield self._accepted(told)
        cut = handle is not None and request is None
        if request is not None:
            try:
                async with aclosing(self._said(request)) as events:
                    async for event in events:
                        for frame in self._kept(saying, told.take(event)):
                            yield frame
            except CallFailed as failure:
                if not told.heard or not failure.cut:
                    raise
                cut = True
        async with aclosing(self._followed(cut=cut)) as frames:
            async for frame in frames:
                yield frame

    async def _resumed(self, name: str) -> Task:
        """The remote task of an attempt that runs there already. That it cannot be asked just now ends nothing, or it
        would run twice: whoever restarts us may restart what stands before the agent, too."""
        pause_s, cuts = POLL_FIRST_S, 0
        while True:
            try:
                return await self._line.calls.get(name)
            except CallFailed as failure:
                cuts += 1
                if _ends(failure, cuts):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(POLL_MOST_S, pause_s * POLL_GROWS)

    async def _said(self, request: SendMessageRequest) -> AsyncGenerator[StreamResponse]:
        """Says it, and what is answered at once: a stream, where the agent has them."""
        line, trace = self._line, self._offer.task.trace.traceparent
        if line.streams:
            try:
                async with aclosing(line.calls.stream(request, trace)) as events:
                    async for event in events:  # also what follows the outcome: the connection is of use then
                        yield event
                if self.told.task or self.told.over():
                    return
                raise BrokenProtocol("it ended the stream without a task or a message")
            except CallFailed as failure:
                if self.told.heard or failure.reason not in _NO_STREAMS:
                    raise
            line.streams = False  # whatever its card says
            request.configuration.return_immediately = True
        yield await line.calls.send(request, trace)

    async def _followed(self, *, cut: bool) -> AsyncGenerator[Frame]:
        """To the end of a task whose stream has ended before it, or that has none."""
        told, line = self.told, self._line
        pause_s, cuts = (0.0 if cut else POLL_FIRST_S), 0
        while not told.over():
            await asyncio.sleep(pause_s)
            pause_s = min(POLL_MOST_S, max(POLL_FIRST_S, pause_s * POLL_GROWS))
            try:
                task = await line.calls.get(told.task)
                cuts = 0
                for frame in self._kept(None, told.snapshot(task)):
                    yield frame
                async with aclosing(self._subscribed()) as events:
                    async for event in events:
                        for frame in self._kept(None, told.take(event)):
                            yield frame
            except CallFailed as failure:
                cuts += 1
                if _ends(failure, cuts):
                    raise

    async def _subscribed(self) -> AsyncGenerator[StreamResponse]:
        """What it says from now on, if it says it to those who come later."""
        line = self._line
        if self.told.over() or not (line.streams and line.subscribes):
            return
        try:
            async with aclosing(line.calls.subscribe(self.told.task)) as events:
                async for event in events:
                    yield event
        except CallFailed as failure:
            if failure.reason not in _NO_STREAMS:
                raise
            # It has ended meanwhile, or there is no such call: it is asked on.
            line.subscribes = failure.reason != "METHOD_NOT_FOUND"

    def _kept(self, saying: Saying | None, frames: Iterable[Frame]) -> Iterable[Frame]:
        """Frames, the first of them with the handle, and the last with what the agent can take by now."""
        for frame in frames:
            if frame.HasField("accept"):
                frame = self._accepted(self.told)
                if saying is not None and saying.key is not None and self.told.context:
                    self._line.contexts.began(saying.key, self.told.context, saying.told, self._offer.task.task_id)
            elif frame.HasField("result"):
                if saying is not None and saying.key is not None and self.told.context and not self.told.task:
                    self._line.contexts.began(saying.key, self.told.context, saying.told, self._offer.task.task_id)
                self._ended(frame)
            yield frame

    def _accepted(self, told: Told) -> Frame:
        """It works on it, and where it can be asked."""
        told.heard = True
        offer, line = self._offer, self._line
        handle = Handle(told.task, told.context, len(offer.inputs))
        line.keep(self.name, handle)
        return Frame(accept=attempt_pb2.AttemptAccept(handle=handle.write()))

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> tuple[str, str, int]:
        """(tenant, task_id, attempt); the tenant is empty where it is the agent's own."""
        return self._offer.tenant, self._offer.task.task_id, self._offer.attempt

    def _ended(self, frame: Frame) -> None:
        """It said its outcome."""
        line, result = self._line, frame.result
        if result.HasField("waiting"):
            return
        line.let_go(self.name)
        took_ms = (asyncio.get_running_loop().time() - self._began) * 1_000
        slots = line.way.called(took_ms, line.held, error=result.error.message if result.HasField("error") else "")
        if slots:
            result.status.max_concurrency = slots

    def _failed(self, failed: Failed) -> Failed:
        self._line.way.failed(failed.fault, str(failed))
        self._line.let_go(self.name)
        return failed

    async def _end_of(self, failure: CallFailed) -> Failed:
        """What a call that came to nothing means for the attempt."""
        fault, told = failure.fault, self.told
        if failure.refused or (failure.cut and await self._line.is_refused()):
            return Failed(None, lost=REFUSED, unbegun=not failure.reached and not told.heard)
        if failure.reason == "TASK_NOT_FOUND":  # it was another process that took it, and that had the contexts
            fault = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, "the agent no longer knows the task")
            self._line.contexts.forget()
        unbegun = not failure.reached or failure.turned_away
        return Failed(fault, unbegun=unbegun and self._handle is None, doubtful=failure.cut)

    async def _give_up(self) -> None:
        """Nobody will hear the end of what it does."""
        if self.told.task:
            with suppress(CallFailed):
                await self._line.calls.cancel(self.told.task)


def _ends(failure: CallFailed, cuts: int) -> bool:
    """Whether a question that came to nothing, so often in a row, ends the attempt."""
    gone = failure.refused or failure.reason == "TASK_NOT_FOUND"
    return gone or cuts > CUTS or not (failure.cut or failure.turned_away)
