"""The handlers of an agent behind HTTP: POST is an attempt, GET its health, DELETE stops an attempt.

What is asked and answered is in docs/protocol.md ("Agents that are dialled over HTTP"). Loaded with the first agent
that listens for HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote

import msgspec
import uvicorn

from agentreach.v1 import agent_pb2, attempt_pb2, endpoint_pb2, payload_pb2
from reach.core.pieces import size_in_bytes
from reach.errors import InvalidRequest, ReachError
from reach.sdk.calls import Call
from reach.wire.agent_http import BOOT_HEADER, RUNNING_HEADER, believed_in
from reach.wire.agent_requests import offer_from, plain
from reach.wire.agent_told import ERROR_STATUS, error_json, items_of, result_json
from reach.wire.answers import content_of
from reach.wire.status import error_to_proto

if TYPE_CHECKING:
    from reach.sdk.endpoint import EndpointLink, Listen

BODY_BYTES: Final = 66 << 20
QUICK_S: Final = 0.1
"""An attempt that ends within this time is answered as one JSON document; else as events."""
STOP_S: Final = 1
FOLDED_BYTES: Final = 16 << 20
"""Deltas of an attempt whose caller takes no events, put together for him."""


class HttpDoor:
    """Where one agent listens for HTTP."""

    def __init__(self, link: EndpointLink, listen: Listen) -> None:
        self._link = link
        self._listen = listen
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listens; the port. Raises InvalidRequest if that cannot be."""
        host, _, port = self._listen.address.rpartition(":")
        host = host.strip("[]")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, _TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            listener.close()
            text = f"cannot listen on {self._listen.address}: is another program using the port?"
            raise InvalidRequest(text) from error
        config = uvicorn.Config(self, lifespan="off", log_config=None, access_log=False, http="h11", ws="none",
                                timeout_graceful_shutdown=STOP_S, server_header=False, **self._tls())  # fmt: skip
        self._server = _Uvicorn(config)
        self._serving = asyncio.get_running_loop().create_task(self._server.serve([listener]), name="reach-sdk-http")
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        return int(listener.getsockname()[1])

    def _tls(self) -> dict[str, Any]:
        tls = self._listen.tls
        if tls is None:
            return {}
        if tls.cert is None or tls.key is None:
            raise InvalidRequest("to serve TLS an agent needs cert and key")
        more = {"ssl_ca_certs": tls.ca, "ssl_cert_reqs": ssl.CERT_REQUIRED} if tls.ca is not None else {}
        return {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key, **more}

    async def stop(self) -> None:
        """Ends all connections."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving})

    # -- requests -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, as ASGI has it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._link.allows(headers):
            await _whole(send, 401, {"error": "show the token of this agent"})
            return
        self._link.asked()
        if scope["method"] == "POST":
            await self._post(headers, receive, send)
        elif scope["method"] == "DELETE":
            await self._delete(scope, send)
        elif scope["method"] in ("GET", "HEAD"):
            await self._health(headers, send)
        else:
            await _whole(send, 405, {"error": "POST is a task, GET is health, DELETE stops a task"})

    async def _post(self, headers: dict[str, str], receive: Any, send: Any) -> None:
        body = await _body(receive)
        if body is None:
            await _whole(send, 413, {"error": f"a task has at most {BODY_BYTES} bytes"})
            return
        try:
            offer = offer_from(body)
        except ReachError as error:
            await _whole(send, 400, {"error": error_json(error_to_proto(error))})
            return
        calls = self._link.connection
        call = calls.open(offer)
        if call is None:
            await _whole(send, 409, {"error": "a newer attempt of this task has been here"})
            return
        try:
            if "text/event-stream" in headers.get("accept", ""):
                await self._answer(call, send)
            else:
                await self._fold(call, send)
        finally:
            calls.close(call)

    async def _answer(self, call: Call, send: Any) -> None:
        """One document for what ends at once; events for all else."""
        first: list[endpoint_pb2.ExecuteResponse] = []
        try:
            async with asyncio.timeout(QUICK_S):
                while not first or not (first[-1].HasField("result") or first[-1].deltas or first[-1].progress):
                    response = await call.next()
                    if response is None:
                        return
                    first.append(response)
        except TimeoutError:
            pass  # it takes longer: what there is, is streamed
        if first and first[-1].HasField("result") and not any(one.deltas or one.progress for one in first):
            await _whole(send, 200, result_json(first[-1].result))  # an error too: the attempt had begun
            self._link.connection.written(call, first[-1])
            return
        await _start(send, 200, "text/event-stream", [(b"cache-control", b"no-store")])
        for response in first:
            await self._events(call, response, send)
        while (response := await call.next()) is not None:
            await self._events(call, response, send)
        await send({"type": "http.response.body", "body": b""})

    async def _events(self, call: Call, response: endpoint_pb2.ExecuteResponse, send: Any) -> None:
        lines = [
            b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(said)) for name, said in items_of(response)
        ]
        await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
        self._link.connection.written(call, response)

    async def _fold(self, call: Call, send: Any) -> None:
        """Somebody who takes no events: the whole answer at its end."""
        pieces, size = [], 0
        while (response := await call.next()) is not None:
            for one in response.deltas:
                payload = one.delta.payload
                size += size_in_bytes(content_of(payload)[1])
                if not one.delta.channel and size <= FOLDED_BYTES:
                    pieces.append(payload.text or payload.data.decode("utf-8", "replace"))
            if response.HasField("result"):
                if response.result.HasField("folded"):
                    response.result.output.CopyFrom(payload_pb2.Payload(text="".join(pieces)))
                error = response.result.error if response.result.HasField("error") else None
                status = 200 if error is None else ERROR_STATUS.get(error.error_class, 422)
                await _whole(send, status, result_json(response.result))
                self._link.connection.written(call, response)
                return
            self._link.connection.written(call, response)
        await _whole(send, 503, {"error": "the attempt was taken up by another call"})

    async def _delete(self, scope: Any, send: Any) -> None:
        task_id = unquote(scope["raw_path"].decode("latin-1").rpartition("/")[2])
        query = parse_qs(scope["query_string"].decode("latin-1"))
        attempt = query.get("attempt", ["1"])[0]
        key = attempt_pb2.AttemptKey(task_id=task_id, tenant=query.get("tenant", [""])[0])
        if not attempt.isascii() or not attempt.isdigit() or not 0 < int(attempt) < 1 << 32:
            await _whole(send, 400, {"error": "attempt is a number"})
            return
        key.attempt = int(attempt)
        self._link.connection.cancel(key)
        await _whole(send, 202, {})

    async def _health(self, headers: dict[str, str], send: Any) -> None:
        link = self._link
        status = agent_pb2.AgentStatus(**link.status())
        figures = link.figures
        told: dict[str, Any] = {"status": "ok", "boot_id": link.boot_id, **plain(status)}
        told["worker_idle_share"] = max(0.0, 1 - figures.inflight / figures.max_concurrency)
        if RUNNING_HEADER in headers:
            believed = {
                ((tenant, task_id), attempt) for tenant, task_id, attempt in believed_in(headers[RUNNING_HEADER])
            }
            told["running"] = [
                {"task_id": task_id, "attempt": attempt, **({"tenant": tenant} if tenant else {})}
                for (tenant, task_id), attempt in link.connection.names(believed)
            ]
        await _whole(send, 200, told, [(BOOT_HEADER.encode(), link.boot_id.encode())])


_TCP: Final = socket.IPPROTO_TCP
"""Named, so that asyncio switches off the delay of small answers."""


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the agent's."""
        yield


async def _body(receive: Any) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)


async def _whole(send: Any, status: int, said: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    raw = msgspec.json.encode(said)
    await _start(send, status, "application/json", [(b"content-length", str(len(raw)).encode()), *(headers or ())])
    await send({"type": "http.response.body", "body": raw})


async def _start(send: Any, status: int, kind: str, headers: list[tuple[bytes, bytes]]) -> None:
    await send({
        "type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode()), *headers],
    })  # fmt: skip
