"""Many calls on one WebSocket, `/v1/ws`: each is one of those that the paths make, its answers come as they come, and
each frame names the call that it is of.

A frame of the client is a JSON object: `{"id", "method", "request"}` makes a call, `{"id", "stop": true}` ends it,
`{"id", "credit"}` gives it room, `{"ping"}` is answered. A frame of the server is `{"id", "response"}` or
`{"id", "problem"}`; the last one of a call has `"end": true`. Nothing is decided here: see api.py.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing, suppress
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.datastructures import Headers
from starlette.types import Receive, Send

from reach.errors import InvalidRequest, ReachError, Reason, ResourceExhausted
from reach.http.calls import Calls
from reach.http.certificates import Certificate
from reach.http.messages import encode, request_of
from reach.http.problems import document, trace_of_call
from reach.http.routes import ROWS, Row

PATH: Final = "ws"
"""Behind the prefix."""
PROTOCOL: Final = "agentreach.v1"
"""The name of what is spoken here, for clients that offer names (RFC 6455, 1.9)."""
BEARER: Final = "bearer."
"""A name that a browser offers beside it: its key, for a page cannot send headers with a socket."""
CALLS: Final = 500
"""Open calls of one socket. A stream holds at most one frame (512 KiB, or one larger item) that is not yet sent."""
ALL_CALLS: Final = 5_000
"""Open calls of all sockets of a node: a quarter of its streams, so that agents find a place (A11)."""
FRAMES: Final = 1_000
"""Frames that are taken in a second; those above wait, and those behind them with the client."""
HELD_FRAMES: Final = 4
"""What the requests of open calls may hold, in frames of the largest size."""
RECHECK_SECONDS: Final = 30.0
"""How often a socket is asked whether its key is still one."""
CLOSE_SECONDS: Final = 1.0
"""How long a close may take to be written."""

NOT_TEXT, NOT_ALLOWED, LEAVING = 1003, 1008, 1012
"""Codes of closes (RFC 6455, 7.4.1)."""

_REASON_BYTES: Final = 120
_AT_ONCE: Final = 16
"""Frames of one socket that are taken before others have their turn."""
_Id = Annotated[str, Meta(min_length=1, max_length=256)] | Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
_BY_METHOD: Final = {row.rpc: row for row in reversed(ROWS)}


class Frame(msgspec.Struct, forbid_unknown_fields=True):
    """What a client says."""

    id: _Id | UnsetType = UNSET
    """Chosen by the client; free again once its call has ended."""
    method: str | UnsetType = UNSET
    """Service and method."""
    request: dict[str, Any] | UnsetType = UNSET
    credit: Annotated[int, Meta(ge=1, le=1 << 40)] | UnsetType = UNSET
    """Bytes of answers that the client will take (with `method`: to begin with; otherwise: in addition)."""
    traceparent: Annotated[str, Meta(max_length=256)] = ""
    stop: bool = False
    ping: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET


class _Named(msgspec.Struct):
    """As much of a frame that is wrong as its answer needs."""

    id: _Id | UnsetType = UNSET


_frame: Final = msgspec.json.Decoder(Frame)
_named: Final = msgspec.json.Decoder(_Named)


class Caller(NamedTuple):
    """Who has the socket."""

    authorization: str
    peer: str
    certificate: Certificate


def caller_of(headers: Headers, offered: list[str], peer: str, certificate: Certificate) -> Caller:
    """Who asks for a socket: by the header, or by the name that a page of a browser offers in its place."""
    keys = (f"Bearer {name[len(BEARER) :]}" for name in offered if name.startswith(BEARER))
    return Caller(headers.get("authorization") or next(keys, ""), peer, certificate)


class Count:
    """Calls that are open on all sockets."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


class _Call:
    """One call."""

    __slots__ = ("credit", "name", "room", "stopped", "task", "weight")

    def __init__(self, name: bytes, credit: int | None, weight: int) -> None:
        self.name = name
        """The id, as JSON."""
        self.credit = credit
        """What may still be told, in bytes; None: as fast as the socket is read."""
        self.weight = weight
        """What its request holds, in bytes."""
        self.room = asyncio.Event()
        self.stopped = False
        """Its end is on the way."""
        self.task: asyncio.Task[None] | None = None


class Socket:
    """One socket, from its opening to its end.

    Args:
        calls: What is behind the door.
        caller: Who has it.
        frame_limit: Largest frame of the client, in bytes.
        count: Of all sockets of this node.
        receive: Of the connection (ASGI), which is accepted.
        send: The same.
    """

    def __init__(
        self, calls: Calls, caller: Caller, frame_limit: int, count: Count, receive: Receive, send: Send
    ) -> None:
        self._calls = calls
        self._caller = caller
        self._held_limit = HELD_FRAMES * frame_limit
        self._count = count
        self._receive = receive
        self._send = send
        self._open: dict[str | int, _Call] = {}
        self._held = 0
        self._turn = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()

    async def serve(self) -> None:
        """Until the client goes, its key is none any more, or the server leaves."""
        try:
            code, reason = await self._serve()
            if code:
                await self._close(code, reason)
        finally:
            self._ended.set()

    async def _serve(self) -> tuple[int, str]:
        """Returns why to close; (0, "") if the client has done so."""
        reading = asyncio.ensure_future(self._read())
        leaving = asyncio.ensure_future(self._leaving.wait())
        both = {reading, leaving}
        try:
            while not (await asyncio.wait(both, timeout=RECHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
                self._calls.admit(self._caller.authorization, self._caller.peer, certificate=self._caller.certificate)
            if reading.done():
                return reading.result()
            return LEAVING, f"{Reason.SHUTTING_DOWN.name}: go on at another node, or here later"
        except ReachError as error:
            return NOT_ALLOWED, f"{error.reason.name}: {error.message}"
        finally:
            tasks = [reading, leaving, *(call.task for call in self._open.values() if call.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """The server stops: says so, and returns when the socket is closed, or after a second."""
        self._leaving.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._ended.wait()

    async def _close(self, code: int, reason: str) -> None:
        short = reason.encode()[:_REASON_BYTES].decode(errors="ignore")
        with suppress(TimeoutError, OSError):  # it does not read, or is gone
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": short})

    # -- up -----------------------------------------------------------------------------------------------------------

    async def _read(self) -> tuple[int, str]:
        """Takes frames until the client goes: (0, "") then, otherwise why to close."""
        loop = asyncio.get_running_loop()
        allowed, at = float(FRAMES), loop.time()
        for number in itertools.count():
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # frames that are here already come without a pause
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return 0, ""
            text = message.get("text")
            if text is None:
                return NOT_TEXT, "frames are JSON, as text"
            now = loop.time()
            allowed, at = min(float(FRAMES), allowed + (now - at) * FRAMES) - 1, now
            if allowed < 0:
                await asyncio.sleep(-allowed / FRAMES)
            try:
                await self._take(text)
            except ReachError as error:
                name = _name_of(text)
                is_open = name is not None and name in self._open
                await self._tell(b"" if name is None else msgspec.json.encode(name), _problem(error, ends=not is_open))
        raise AssertionError("there is always a next one")

    async def _take(self, text: str) -> None:
        """One frame. Raises InvalidRequest or ResourceExhausted."""
        try:
            frame = _frame.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise _wrong(f"the frame is none: {said}") from None
        if frame.ping is not UNSET:
            await self._write(b'{"pong":' + msgspec.json.encode(frame.ping) + b"}")
            return
        if frame.id is UNSET:
            raise _wrong("a frame needs an `id`")
        call = self._open.get(frame.id)
        if frame.method is not UNSET:
            if call is not None:
                raise _wrong("this `id` is that of a call which is open")
            self._begin(frame.id, frame.method, frame, len(text))
            await asyncio.sleep(0)  # it begins, or to stop it would be to forget it
        elif frame.stop:
            if call is not None and call.task is not None and not call.stopped:
                call.stopped = True
                call.task.cancel()
        elif frame.credit is not UNSET:
            if call is not None and call.credit is not None:
                call.credit += frame.credit
                call.room.set()
        else:
            raise _wrong("a frame has one of `method`, `stop`, `credit` and `ping`")

    def _begin(self, call_id: str | int, method: str, frame: Frame, weight: int) -> None:
        """A call."""
        row = _BY_METHOD.get(method)
        if row is None:
            raise InvalidRequest("there is no such method here; one is DispatchService/Run", Reason.NOT_IMPLEMENTED)
        if len(self._open) >= CALLS:
            raise _full(f"this socket has {CALLS} open calls already", CALLS)
        if self._count.open >= ALL_CALLS:
            raise _full(f"the sockets of this node have {ALL_CALLS} open calls already", ALL_CALLS)
        if self._held + weight > self._held_limit:
            raise _full(f"the open calls of this socket hold {self._held_limit} bytes", self._held_limit)
        request = request_of(row, {} if frame.request is UNSET else frame.request)
        call = _Call(msgspec.json.encode(call_id), None if frame.credit is UNSET else frame.credit, weight)
        self._open[call_id] = call
        self._held += weight
        self._count.open += 1
        call.task = asyncio.ensure_future(self._run(call_id, call, row, request, frame.traceparent))
        call.task.add_done_callback(lambda _: self._forget(call_id, call))

    def _forget(self, call_id: str | int, call: _Call) -> None:
        """A call is over, and its id is free."""
        if self._open.get(call_id) is call:
            del self._open[call_id]
            self._held -= call.weight
            self._count.open -= 1

    # -- down ---------------------------------------------------------------------------------------------------------

    async def _run(self, call_id: str | int, call: _Call, row: Row, request: Any, traceparent: str) -> None:
        """Makes a call and tells what comes of it, to its end."""
        caller = self._caller.authorization, traceparent, self._caller.peer, self._caller.certificate
        try:
            if row.streams:
                async with aclosing(self._calls.streaming(row.method, request, *caller)) as answers:
                    async for answer in answers:
                        await _room(call, await self._tell_answer(call, answer))
                last = b',"end":true'
            else:
                answer = await self._calls.unary(row.method, request, *caller)
                last = b',"response":' + encode(answer) + b',"end":true'
        except ReachError as error:
            last = _problem(error)
        except asyncio.CancelledError:
            if not call.stopped:
                raise
            last = b',"end":true'
        call.stopped = True  # it has ended by itself, and its last frame is not to be lost
        await self._tell(call.name, last)
        self._forget(call_id, call)  # at once: the client may use the id again

    async def _tell(self, name: bytes, what: bytes) -> None:
        """One frame about a call."""
        await self._write(b'{"id":' + name + what + b"}" if name else b"{" + what[1:] + b"}")

    async def _tell_answer(self, call: _Call, answer: Any) -> int:
        """One response of a stream; returns its bytes. JSON is made of it when its turn has come."""
        async with self._turn:
            data = encode(answer)
            await self._put(b'{"id":' + call.name + b',"response":' + data + b"}")
        return len(data)

    async def _write(self, data: bytes) -> None:
        """One at a time: behind a slow reader waits one frame, and each call with its own."""
        async with self._turn:
            await self._put(data)

    async def _put(self, data: bytes) -> None:
        with suppress(OSError):  # the client is gone, as the reading side is about to hear
            await self._send({"type": "websocket.send", "text": data.decode()})


async def _room(call: _Call, used: int) -> None:
    """Waits until the client takes more of this call; others go on."""
    if call.credit is None:
        return
    call.credit -= used
    while call.credit <= 0:
        call.room.clear()
        await call.room.wait()


def _problem(error: ReachError, *, ends: bool = True) -> bytes:
    told = document(error, trace_id=trace_of_call())
    return b',"problem":' + msgspec.json.encode(told) + b',"end":true' * ends


def _name_of(text: str) -> str | int | None:
    """The id of a frame that is wrong; None if it has none that can be read."""
    try:
        name = _named.decode(text).id
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if name is UNSET else name


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(message, Reason.MALFORMED_MESSAGE)


def _full(message: str, limit: int) -> ResourceExhausted:
    return ResourceExhausted(message, Reason.TOO_MANY_STREAMS, retry_after_ms=1_000, limit=str(limit))
