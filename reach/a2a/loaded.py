"""What needs a2a-sdk: its bindings over our handler, the cards, and errors that A2A has no word for.

The SDK answers what it does not know with 500. So errors of ours are kept by the handler (`Caller.fault`), and told
here in its stead; what fails before a request could be read is the caller's mistake.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

import msgspec
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types import a2a_pb2
from google.protobuf.message_factory import GetMessageClass
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import Message, Receive, Scope, Send

from reach.a2a.caller import SCOPE_KEY, Caller, FromGrpc, FromHttp, was_read
from reach.a2a.cards import CARD, CATALOG, PREFIX, Cards, document_of, tag_of
from reach.a2a.door import Call
from reach.a2a.handler import A2aHandler
from reach.a2a.settings import A2aSettings
from reach.errors import InvalidRequest, ReachError, Reason
from reach.http.api import stopping
from reach.http.certificates import certificate_of
from reach.http.problems import HEADERS, no_such_path, problem, status_of, wrong_verb
from reach.rpc.beside import handler_of
from reach.rpc.entrance import Entrance
from reach.rpc.inner_calls import InnerCalls
from reach.wire.a2a.errors import details_of
from reach.wire.a2a.words import route_of
from reach.wire.status import TABLE

CARD_SECONDS: Final = 30
"""How long a card may be taken for what it was."""
_RPC_ERROR: Final = -32_000
"""The code of errors of ours in JSON-RPC: the first of those that servers may choose."""
_RPC_UNREADABLE: Final = -32_700
_SHOWN: Final = frozenset({Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED})
"""Errors that have an HTTP status in JSON-RPC too, as A2A wants it."""


class Loaded:
    """See the module.

    Attributes:
        methods: gRPC handlers by the full name of the method.
    """

    def __init__(self, calls: InnerCalls, entrance: Entrance, settings: A2aSettings) -> None:
        for name in ("a2a", "sse_starlette"):
            logger = logging.getLogger(name)  # they log what callers sent (GOV-4)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        self._settings = settings
        self._entrance = entrance
        self._cards = Cards(calls, settings)
        handler = A2aHandler(calls, self._cards, entrance.failed)
        self.methods = {
            **_methods(entrance, a2a_pb2, GrpcHandler(handler, FromGrpc())),
            **_methods(entrance, a2a_v0_3_pb2, CompatGrpcHandler(handler, FromGrpc(old=True))),
        }
        rpc = JsonRpcDispatcher(handler, FromHttp(), enable_v0_3_compat=True).handle_requests
        rest = create_rest_routes(handler, FromHttp(), enable_v0_3_compat=True)
        self._router = Router(
            [
                Route(CARD, self._card),
                Route(CATALOG, self._catalog),
                Route(f"{PREFIX}{CARD}", self._card),
                Route(f"{PREFIX}/{{tenant}}{CARD}", self._card),
                # Where JSON-RPC is spoken, the card is shown to those who look.
                *_both(PREFIX, rpc, self._card),
                *_both(f"{PREFIX}/", rpc, self._card),
                *_both(f"{PREFIX}/{{tenant}}/", rpc, self._card),
                Mount(PREFIX, routes=[*rest, *_both("/{tenant}", rpc, self._card)]),
            ],
            redirect_slashes=False,
        )

    async def answer(self, scope: Scope, body: bytes, call: Call, receive: Receive, send: Send) -> None:
        """Answers one request over HTTP, whose body was read. Cancelled because the server stops, it ends with a word
        about that."""
        caller = Caller(Headers(scope=scope), call.peer, certificate_of(scope))
        scope[SCOPE_KEY] = caller
        scope["root_path"] = ""
        steps = scope["path"].removeprefix(PREFIX).strip("/").split("/")
        is_rpc = scope["method"] == "POST" and len(steps) == 1 and ":" not in steps[0]
        rpc_id: Any = None
        if is_rpc:
            try:
                sent = msgspec.json.decode(body)
                rpc_id = sent.get("id") if isinstance(sent, dict) else None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                error = {"code": _RPC_UNREADABLE, "message": "this is no JSON, or nested too deeply"}
                await _json({"jsonrpc": "2.0", "id": None, "error": error}, 200)(scope, receive, send)
                return
        out = _Answer(send, caller, call)
        try:
            await self._router(scope, receive, out.send)
        except asyncio.CancelledError:
            if call.closing and call.streams:
                await out.farewell(_refused(stopping(), rpc_id, is_rpc=is_rpc))
            elif call.closing and not out.begun:
                await _refusal(stopping(), rpc_id, is_rpc=is_rpc)(scope, receive, send)
            raise
        except HTTPException as error:
            verbs = tuple(Headers(error.headers).get("allow", "").split(", "))
            await (wrong_verb(verbs) if error.status_code == 405 else no_such_path())(scope, receive, out.send)
        except Exception as failure:  # noqa: BLE001 - the SDK lets some through, which had to become an answer
            if caller.fault is None and caller.entered:
                caller.fault = self._entrance.failed("A2AService", failure, call.peer)
        if not out.begun:
            error_ = caller.fault or InvalidRequest("the request could not be read", Reason.MALFORMED_MESSAGE)
            await _refusal(error_, rpc_id, is_rpc=is_rpc)(scope, receive, send)

    async def _card(self, request: Request) -> Response:
        caller: Caller = request.scope[SCOPE_KEY]
        tenant = request.path_params.get("tenant", "")
        try:
            card = await self._cards.card(caller, route_of(tenant))
        except ReachError as error:
            if error.reason is not Reason.UNAUTHENTICATED or caller.credentials[0] or tenant:
                return problem(error)
            card = self._cards.bare()  # anybody may know where we are, and what it takes to come in
        text, tag = document_of(card)
        return self._cached(request, text, tag)

    async def _catalog(self, request: Request) -> Response:
        try:
            listed = await self._cards.catalog(request.scope[SCOPE_KEY])
        except ReachError as error:
            return problem(error)
        text = msgspec.json.encode(listed)
        return self._cached(request, text, tag_of(text))

    def _cached(self, request: Request, text: bytes, tag: str) -> Response:
        """A document, unless the caller has it."""
        kept = "private" if self._settings.keys else "public"
        headers = {**HEADERS, "cache-control": f"{kept}, max-age={CARD_SECONDS}", "etag": tag, "vary": "authorization"}
        known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
        if known & {tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(text, 200, headers, "application/json")


class _Answer:
    """What the SDK answers, unless it is to be something else."""

    def __init__(self, send: Send, caller: Caller, call: Call) -> None:
        self._send = send
        self._caller = caller
        self._call = call
        self._swallows = self._ended = False
        self.begun = False
        """Something of it was sent."""

    async def send(self, message: Message) -> None:
        """Sends what the SDK says, but not that it does not know an error of ours."""
        if message["type"] == "http.response.start":
            caller = self._caller
            self._swallows = caller.fault is not None or (message["status"] >= 500 and not caller.entered)
            self.begun = not self._swallows
            streams = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            self._call.streams = self.begun and streams
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self._ended = True
        if not self._swallows:
            await self._send(message)

    async def farewell(self, told: dict[str, Any]) -> None:
        """Ends a stream that is under way with an error."""
        if not self._ended:
            self._ended = True
            body = b"event: error\r\ndata: " + json.dumps(told).encode() + b"\r\n\r\n"
            await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _both(path: str, posted: Any, shown: Any) -> list[Route]:
    return [Route(path, posted, methods=["POST"]), Route(path, shown, methods=["GET"])]


def _refused(error: ReachError, rpc_id: Any, *, is_rpc: bool) -> dict[str, Any]:
    """An error of ours, in the words of the binding."""
    details = details_of(error)
    if is_rpc:
        told = {"code": _RPC_ERROR, "message": error.message, "data": details}
        return {"jsonrpc": "2.0", "id": rpc_id, "error": told}
    status, name = status_of(error.reason), TABLE[error.reason].code.name
    return {"error": {"code": status, "status": name, "message": error.message, "details": details}}


def _refusal(error: ReachError, rpc_id: Any, *, is_rpc: bool) -> Response:
    """The same as an answer. JSON-RPC has a status for what A2A wants it to have one."""
    status = 200 if is_rpc and error.reason not in _SHOWN else status_of(error.reason)
    return _json(_refused(error, rpc_id, is_rpc=is_rpc), status, dict(problem(error).headers))


def _json(body: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    more = {name: value for name, value in (headers or {}).items() if name in ("retry-after", "www-authenticate")}
    return Response(json.dumps(body).encode(), status, {**HEADERS, **more}, "application/json")


def _methods(entrance: Entrance, module: Any, servicer: Any) -> dict[str, Any]:
    """The handlers of a service: its name is the same in both versions."""
    service = module.DESCRIPTOR.services_by_name["A2AService"]
    return {
        f"/{service.full_name}/{method.name}": handler_of(
            entrance,
            f"A2AService/{method.name}",
            getattr(servicer, method.name),
            GetMessageClass(method.input_type).FromString,
            GetMessageClass(method.output_type).SerializeToString,
            was_read,
        )
        for method in service.methods
    }
