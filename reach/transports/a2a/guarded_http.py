"""The HTTP of the A2A SDK, by connections of ours: to addresses that were judged, bounded, never redirected (GOV-6).

The SDK reads answers whole and lines without an end; what is too large ends here. The beginning of the latest answer is
kept for the errors of who called (`HEARD`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import httpcore
import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

for _name in ("a2a", "httpx"):  # a line for each call would be one for each task, and some have what was said (GOV-4)
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

KEPT_BYTES: Final = 1_024
"""Of each answer, for errors."""
CONNECT_S: Final = 5.0
WRITE_S: Final = 30.0
MARGIN_BYTES: Final = 1 << 20

HEARD: ContextVar[bytearray | None] = ContextVar("a2a_heard", default=None)
"""Where the calls of this task of asyncio keep the beginning of what was answered."""


class Oversized(httpx.RequestError):
    """An answer, or one line of a stream, is larger than anything we can carry."""


_FAILURES: Final[tuple[tuple[type[Exception], type[httpx.RequestError]], ...]] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.TimeoutException, httpx.ReadTimeout),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.NetworkError, httpx.ReadError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.ProtocolError, httpx.LocalProtocolError),
)


@contextmanager
def _translated(request: httpx.Request) -> Iterator[None]:
    """The connection's errors as those that the SDK knows."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as failure:
        kind = next(theirs for ours, theirs in _FAILURES if isinstance(failure, ours))
        raise kind(str(failure) or type(failure).__name__, request=request) from failure
    except OSError as failure:  # an address that was refused, or could not be looked up
        raise httpx.ConnectError(failure.strerror or str(failure), request=request) from failure


class _Body(httpx.AsyncByteStream):
    """The body of an answer. In a stream of events a line is bounded, else the whole."""

    def __init__(self, answer: httpcore.Response, request: httpx.Request, limit: int, *, events: bool) -> None:
        self._answer = answer
        self._request = request
        self._limit = limit
        self._events = events
        self._heard = HEARD.get()
        if self._heard is not None:
            self._heard.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        with _translated(self._request):
            async for piece in self._answer.aiter_stream():
                if self._heard is not None:
                    self._keep(self._heard, piece)
                end = piece.rfind(b"\n") if self._events else -1
                size = size + len(piece) if end < 0 else len(piece) - end
                if size > self._limit:
                    raise Oversized(f"the answer has more than {self._limit} bytes", request=self._request)
                yield piece

    def _keep(self, heard: bytearray, piece: bytes) -> None:
        """Of a stream the latest, of a document the first."""
        if self._events:
            heard += piece
            del heard[:-KEPT_BYTES]
        elif len(heard) < KEPT_BYTES:
            heard += piece[: KEPT_BYTES - len(heard)]

    async def aclose(self) -> None:
        await self._answer.aclose()


class GuardedTransport(httpx.AsyncBaseTransport):
    """Requests through a pool that connects to judged addresses only (`transports.guarded`)."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, payload_limit: int) -> None:
        self._pool = pool
        self._limit = 2 * payload_limit + MARGIN_BYTES  # bytes are base64 in JSON, and much is escaped

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _translated(request):
            answer: Any = await self._pool.handle_async_request(asked)
        headers = httpx.Headers(answer.headers)
        if headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            raise Oversized("the answer is compressed, which was not asked for", request=request)
        events = headers.get("content-type", "").startswith("text/event-stream")
        body = _Body(answer, request, self._limit, events=events)
        return httpx.Response(answer.status, headers=headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        """See httpx."""
        await self._pool.aclose()


def client_of(pool: httpcore.AsyncConnectionPool, payload_limit: int, headers: dict[str, str]) -> httpx.AsyncClient:
    """A client for the SDK. How long an answer may take is the caller's matter: agents that work before they answer are
    many."""
    return httpx.AsyncClient(
        transport=GuardedTransport(pool, payload_limit),
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx.Timeout(None, connect=CONNECT_S, write=WRITE_S),
        follow_redirects=False,
        trust_env=False,
    )
