"""HTTP: the JSON door (`api.py`), whether the process lives and serves, and what it measured; on a port of its own in
the same loop.

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
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from reach.errors import InvalidRequest, Reason, Unavailable
from reach.http.api import Api
from reach.http.certificates import Certificate, certificate_of
from reach.http.crowds import Crowds
from reach.http.early import EarlyAnswers
from reach.http.known import known_routes
from reach.http.page import described
from reach.http.problems import HEADERS, no_such_path, problem, wrong_verb
from reach.http.protocol import HANDSHAKE_SECONDS, Protocol, socket_protocol
from reach.http.routes import PREFIX
from reach.telemetry.exposition import CONTENT_TYPE

Readiness = Callable[[], tuple[bool, Mapping[str, object]]]
"""Whether the server takes work, and what each check said: short words, for everybody to read."""

MetricsText = Callable[[], bytes]
"""All metrics as Prometheus reads them."""

MayRead = Callable[[str, Certificate], bool]
"""Whether the `Authorization` header (empty if there is none), or a certificate, opens `/metrics`."""

CONNECTIONS: Final = 1_000
"""Connections at the same time, where nothing else is said."""
FRAME_BYTES: Final = 1 << 20
"""Largest message of a WebSocket, where nothing else is said."""
_HEADER_BYTES: Final = 16_384
_GRACE_S: Final = 2

_log: Final = logging.getLogger(__name__)


def _everybody(_authorization: str, _certificate: Certificate) -> bool:
    """Nobody is asked who he is."""
    return True


def create_app(
    ready: Readiness,
    metrics: MetricsText | None = None,
    may_read: MayRead = _everybody,
    api: Api | None = None,
    doors: Sequence[BaseRoute] = (),
) -> Starlette:
    """The routes: `/healthz` (also `/livez`) and `/readyz` are open, `/metrics` (if there are any) for whom
    `may_read` says; `/v1` is the JSON door, `/openapi.json` and `/docs` its description; `doors` are other ones."""

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
        if not may_read(request.headers.get("authorization", ""), certificate_of(request.scope)):
            message = "an API key with the scope reader or operator is needed"
            return problem(InvalidRequest(message, Reason.UNAUTHENTICATED))
        assert metrics is not None
        return Response(metrics(), headers=HEADERS, media_type=CONTENT_TYPE)

    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return no_such_path()
        if error.status_code == 405:
            return wrong_verb(tuple(Headers(error.headers).get("allow", "GET").split(", ")))
        return problem(InvalidRequest(error.detail, Reason.INVALID_FIELD), error.status_code)

    routes: list[BaseRoute] = [Route("/healthz", healthz), Route("/livez", healthz), Route("/readyz", readyz)]
    if metrics is not None:
        routes.append(Route("/metrics", measured))
    if api is not None:
        routes += [Mount(PREFIX, app=api), *known_routes(api), *described(api.scopes)]
    routes += doors
    middleware = api.settings.guard.middleware() if api is not None else []
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: failed})


def _json(body: Mapping[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, HEADERS, "application/json")


class _Config(uvicorn.Config):
    def __init__(self, app: Any, tls: ssl.SSLContext | None, crowds: Crowds, **settings: Any) -> None:
        super().__init__(app, **settings)
        self._tls = tls
        self.crowds = crowds

    def load(self) -> None:
        """Takes the context that it was given; uvicorn would make one of files, once."""
        super().load()
        self.ssl = self._tls


class _Uvicorn(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it on sockets that are there, with a bound on the time that TLS may take."""
        await self.lifespan.startup()
        loop, config = asyncio.get_running_loop(), self.config

        def protocol() -> asyncio.Protocol:
            return Protocol(config, self.server_state, self.lifespan.state)

        patience = HANDSHAKE_SECONDS if config.ssl else None
        self.servers = [
            await loop.create_server(
                protocol, sock=one, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=patience
            )
            for one in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catches none: see the module."""
        yield


class HttpServer:
    """Serves an application in the running loop, from `bind` to `stop`."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
        connections: int = CONNECTIONS,
        of_address: int = 0,
        frame_limit: int = FRAME_BYTES,
    ) -> None:
        """`tls` has certificate and key; `closing` ends what is open when this stops;
        of more than so many `connections` each is answered with 503, and with 429 of more than so many `of_address`
        (0: half) that come from one; `frame_limit` is that of a WebSocket's
        messages, in bytes."""
        self._closing = closing
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self._server = _Uvicorn(
            _Config(
                EarlyAnswers(app),
                tls,
                Crowds(of_address or connections // 2),
                http=Protocol,
                ws=cast("Any", socket_protocol),
                ws_max_size=frame_limit,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=connections,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=_GRACE_S,
                h11_max_incomplete_event_size=_HEADER_BYTES,
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
        if self._closing is not None:
            await self._closing()
        await self._ended.wait()
        if self._socket is not None:
            self._socket.close()
