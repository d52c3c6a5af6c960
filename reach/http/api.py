"""The JSON door: paths under `/v1` are methods of the contract (`routes.py`), called as gRPC calls them.

It reads a request, fills the message, makes the call and writes the answer; who may, where it is done and what it says
is decided behind `Calls`, where all doors meet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from reach.errors import InvalidRequest, ReachError, Reason, Unavailable
from reach.http import sse, websocket
from reach.http.bodies import Refused, read_whole
from reach.http.calls import Calls
from reach.http.certificates import Certificate, certificate_of
from reach.http.guard import Guard
from reach.http.messages import encode, fill, read_body
from reach.http.problems import HEADERS, TRACE_KEY, no_such_path, problem, trace_of_call, wrong_verb
from reach.http.routes import PREFIX, find
from reach.wire.requests import ID_BYTES

BODY_MARGIN: Final = 1 << 20
"""What a body may have beside twice the largest payload (as base64, or with escapes), in bytes."""
CLOSE_SECONDS: Final = 1.0
"""How long calls under way may go on when the server stops."""


class Heard(NamedTuple):
    """A request, as HTTP has it."""

    body: bytes
    headers: Headers
    query: list[tuple[str, str]]
    given: dict[str, str]
    """What the path says."""


class Asked(NamedTuple):
    """A request, as the contract has it."""

    method: str
    """Full name."""
    request: Any
    write: Callable[[Any], bytes]
    """Makes JSON of the answer."""


class ApiSettings(NamedTuple):
    """What the door takes, and from whom."""

    body_limit: int
    """Largest body, in bytes."""
    guard: Guard = Guard()
    """What browsers may do."""


class Api:
    """See the module: an ASGI application.

    Args:
        calls: What is behind the door.
        settings: What it takes, and from whom.
    """

    def __init__(self, calls: Calls, settings: ApiSettings) -> None:
        self._calls = calls
        self.scopes = calls.scopes
        self.settings = settings
        self._closing = False
        self._calling: set[asyncio.Future[Any]] = set()
        self._streams: set[asyncio.Future[Any]] = set()
        self._sockets: set[websocket.Socket] = set()
        self._count = websocket.Count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or has a WebSocket to its end."""
        steps = [unquote(step) for step in _raw_path(scope).removeprefix(PREFIX).strip("/").split("/")]
        if steps == [websocket.PATH]:
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await no_such_path()(scope, receive, send)
            return
        row, given, verbs = find(scope["method"], steps)
        if row is None:
            await (wrong_verb(verbs) if verbs else no_such_path())(scope, receive, send)
            return

        def ask(heard: Heard) -> Asked:
            request = read_body(row, heard.body) if row.has_body else row.request()
            headers = heard.headers
            key, last = headers.get("idempotency-key", ""), headers.get("last-event-id", "")
            fill(row, request, heard.given, heard.query, key[: ID_BYTES + 1], last)
            return Asked(row.method, request, encode)

        stream = sse.EventStream(row) if row.streams else None
        await self.respond(scope, receive, send, ask, given, stream, row.method)

    async def respond(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        ask: Callable[[Heard], Asked],
        given: dict[str, str],
        stream: sse.EventStream | None = None,
        method: str = "",
    ) -> None:
        """Reads a request, makes the call that `ask` makes of it, and writes the answer, or the `stream` of answers.
        Nobody sends a body who may not make the call: of the `method`, if that is known before."""
        headers = Headers(scope=scope)
        certificate = certificate_of(scope)
        caller = headers.get("authorization", ""), headers.get("traceparent", ""), peer_of(scope), certificate
        try:
            if self._closing:
                raise stopping()
            self.settings.guard.check(scope["method"], headers)
            body = b""
            if scope["method"] == "POST":
                self._calls.admit(caller[0], caller[2], method, certificate)
                body = await read_whole(headers, receive, self.settings.body_limit)
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
            asked = ask(Heard(body, headers, query, given))
        except Refused as refused:
            await problem(refused.error, refused.status)(scope, receive, send)
            return
        except UnicodeDecodeError:
            await problem(InvalidRequest("the query is not UTF-8", Reason.MALFORMED_MESSAGE))(scope, receive, send)
            return
        except ReachError as error:
            await problem(error)(scope, receive, send)
            return
        if stream is not None:
            await self._stream(stream, (asked.method, asked.request, *caller), send, receive)
        else:
            await self._answer(asked, caller, scope, receive, send)

    async def _answer(
        self, asked: Asked, caller: tuple[str, str, str, Certificate], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A call with one response. A caller that goes does not wait any more: the call is cancelled."""
        work = asyncio.ensure_future(self._response(asked, caller))
        gone = asyncio.ensure_future(until_gone(receive))
        self._calling.add(work)
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                response = problem(stopping()) if work.cancelled() else work.result()
                await response(scope, receive, send)
        finally:
            self._calling.discard(work)
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _response(self, asked: Asked, caller: tuple[str, str, str, Certificate]) -> Response:
        try:
            answer = await self._calls.unary(asked.method, asked.request, *caller)
        except ReachError as error:
            return problem(error, trace_id=trace_of_call())
        return Response(asked.write(answer), 200, {**HEADERS, TRACE_KEY: trace_of_call()}, "application/json")

    async def _stream(self, out: sse.EventStream, call: tuple[Any, ...], send: Send, receive: Receive) -> None:
        """A call with a stream of responses, until it ends, the reader goes, or the server stops."""
        reading = asyncio.ensure_future(out.write(self._calls.streaming(*call), send))
        beating = asyncio.ensure_future(out.beat(send))
        gone = asyncio.ensure_future(until_gone(receive))
        self._streams.add(reading)
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(reading)
            for task in (reading, beating, gone):
                task.cancel()
            await asyncio.gather(reading, beating, gone, return_exceptions=True)
        if not gone.done() or gone.cancelled():
            await out.end(send, stopping())

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket, if its client may have one; what refuses it is a plain answer."""
        headers, offered = Headers(scope=scope), scope.get("subprotocols", [])
        caller = websocket.caller_of(headers, offered, peer_of(scope), certificate_of(scope))
        try:
            if scope["type"] != "websocket":
                raise Refused(426, InvalidRequest("this path speaks WebSocket", Reason.MALFORMED_MESSAGE))
            if self._closing:
                raise stopping()
            self.settings.guard.check("CONNECT", headers)
            if offered and websocket.PROTOCOL not in offered:
                message = f"offer the protocol {websocket.PROTOCOL}, or none"
                raise InvalidRequest(message, Reason.VERSION_NOT_SUPPORTED)
            self._calls.admit(caller.authorization, caller.peer, certificate=caller.certificate)
        except Refused as refused:
            upgrade = {"upgrade": "websocket", "connection": "upgrade"}
            await problem(refused.error, refused.status, headers=upgrade)(scope, receive, send)
            return
        except ReachError as error:
            await problem(error)(scope, receive, send)
            return
        await receive()  # that it is asked for
        await send({"type": "websocket.accept", "subprotocol": websocket.PROTOCOL if offered else None})
        one = websocket.Socket(self._calls, caller, self.settings.body_limit, self._count, receive, send)
        self._sockets.add(one)
        try:
            await one.serve()
        finally:
            self._sockets.discard(one)

    async def close(self) -> None:
        """The server stops: nothing new, streams end at once, and what is being answered has a second."""
        self._closing = True
        for reading in self._streams:
            reading.cancel()
        await asyncio.gather(*(one.leave() for one in self._sockets))
        if self._calling:
            await asyncio.wait(set(self._calling), timeout=CLOSE_SECONDS)
        for work in self._calling:
            work.cancel()


def stopping() -> Unavailable:
    """What a call gets that comes, or is open, while the server stops."""
    return Unavailable("the server is shutting down", Reason.SHUTTING_DOWN)


async def until_gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


def _raw_path(scope: Scope) -> str:
    """The path as it came: a slash within an id is told from one between steps."""
    raw: bytes | None = scope.get("raw_path")
    return raw.decode("ascii", "replace") if raw else str(scope["path"])


def peer_of(scope: Scope) -> str:
    """Where a request comes from, for the log of refusals."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
