"""HTTP: whether the process lives, whether it serves, and what it measured; on a port of its own in the same loop.

    http = HttpServer(create_app(ready, metrics), "127.0.0.1", 8800)
    port = http.bind()                   # refuses a port that is taken, before anything runs
    tasks.create_task(http.serve())      # until stop()
    await http.stop()

Signals stay with the server as a whole: uvicorn must not catch them here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reach.errors import InvalidRequest, Unavailable
from reach.store.base import KeyStore
from reach.telemetry.exposition import CONTENT_TYPE

Readiness = Callable[[], tuple[bool, Mapping[str, object]]]
"""Whether the server takes work, and what each check said: short words, for everybody to read."""

MetricsText = Callable[[], bytes]
"""All metrics as Prometheus reads them."""

MayRead = Callable[[str], bool]
"""Whether the `Authorization` header (empty if there is none) opens `/metrics`."""

_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_CONNECTIONS: Final = 256
_GRACE_S: Final = 2

_log: Final = logging.getLogger(__name__)


def _everybody(_authorization: str) -> bool:
    """Nobody is asked who he is."""
    return True


def create_app(ready: Readiness, metrics: MetricsText | None = None, may_read: MayRead = _everybody) -> Starlette:
    """The routes: `/healthz` (also `/livez`) and `/readyz` are open, `/metrics` (if there are any) for whom
    `may_read` says."""

    async def healthz(_request: Request) -> Response:
        return _json({"state": "alive"})

    async def readyz(_request: Request) -> Response:
        try:
            is_ready, checks = ready()
        except Exception as error:  # noqa: BLE001 - a check that fails is an answer too
            _log.warning("the readiness check failed", extra={"error": type(error).__name__})
            is_ready, checks = False, {"readiness": "check failed"}
        body = {"state": "ready" if is_ready else "not ready", "checks": dict(checks)}
        return _json(body, 200 if is_ready else 503)

    async def measured(request: Request) -> Response:
        if not may_read(request.headers.get("authorization", "")):
            refusal = _error(401, "UNAUTHENTICATED", "an API key with the scope reader or operator is needed")
            refusal.headers["www-authenticate"] = "Bearer"
            return refusal
        assert metrics is not None
        return Response(metrics(), headers=_HEADERS, media_type=CONTENT_TYPE)

    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "INVALID_REQUEST")
        return _error(error.status_code, reason, error.detail)

    routes = [Route("/healthz", healthz), Route("/livez", healthz), Route("/readyz", readyz)]
    if metrics is not None:
        routes.append(Route("/metrics", measured))
    return Starlette(routes=routes, exception_handlers={HTTPException: failed})


def _json(body: Mapping[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, _HEADERS, "application/json")


def _error(status: int, reason: str, message: str) -> Response:
    return _json({"error": {"reason": reason, "message": message}}, status)


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catches none: see the module."""
        yield


class HttpServer:
    """Serves an application in the running loop, from `bind` to `stop`."""

    def __init__(self, app: Any, host: str, port: int, *, tls: tuple[str, str] | None = None) -> None:
        """`tls` names the files of certificate chain and key (PEM)."""
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=_CONNECTIONS,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_GRACE_S,
                h11_max_incomplete_event_size=16_384,
                ssl_certfile=tls[0] if tls else None,
                ssl_keyfile=tls[1] if tls else None,
            )
        )

    def bind(self) -> int:
        """Takes the port, and says which it is. Unavailable if it is taken, InvalidRequest if the address is wrong."""
        where = f"{self._host}:{self._port}"
        is_ipv6 = ":" in self._host
        try:
            self._socket = socket.create_server(
                (self._host, self._port),
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                backlog=128,
                dualstack_ipv6=self._host == "::" and socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"the HTTP port {where} is taken by another process: stop it, or set server.admin_port"
                raise Unavailable(message, field="server.admin_port") from error
            message = f"cannot listen for HTTP on {where}: {error.strerror or error}"
            raise InvalidRequest(message, field="server.host") from error
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Answers until `stop`, or until it is cancelled. Its owner runs it as a task, after `bind`."""
        assert self._socket is not None, "bind() comes first"
        if self._server.should_exit:
            return
        self._ended.clear()
        try:
            await self._server.serve(sockets=[self._socket])
        except asyncio.CancelledError:
            if self._server.started:
                await self._server.shutdown(sockets=[self._socket])
            raise
        finally:
            self._socket.close()
            self._ended.set()

    async def stop(self) -> None:
        """Takes no more connections, lets answers under way finish for 2 s, and returns when `serve` has.

        Gives the port back even if `serve` never ran.
        """
        self._server.should_exit = True
        await self._ended.wait()
        if self._socket is not None:
            self._socket.close()


def readers_of(keys: KeyStore | None) -> MayRead:
    """Who may read `/metrics`: on a server with authentication, keys with the scope reader or operator."""

    def may_read(authorization: str) -> bool:
        if keys is None:
            return True
        key = keys.verify(authorization.removeprefix("Bearer "))
        return key is not None and not key.scopes.isdisjoint({"reader", "operator"})

    return may_read
