"""HTTP to whom we were told of: connects to the addresses that were judged, follows no redirects, uses no proxies of
the environment (GOV-6). One room for all that is not in the configuration: webhooks, agents, cards, keys of issuers.

    pool = guarded_pool(rules.refusal, tls=tls)          # AgentRules or WebhookRules
    async with pool.stream("POST", url_of(target), headers=[*headers_of(target).items()], content=body) as answer: ...

Imported when it is first needed, see `posting` and `fetching`: the client takes a third of a second.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

import httpcore

from reach.transports.posting import Answer, LookUp, Refusal, Refused, look_up
from reach.version import VERSION
from reach.wire.status import bounded_text
from reach.wire.urls import Target

ANSWER_BYTES: Final = 64 << 10
"""What is read of an answer, which says nothing but its status; then the connection is closed."""
IDLE_CONNECTIONS: Final = 16
IDLE_SECONDS: Final = 30.0
RETRY_AFTER_DIGITS: Final = 6


class _Guarded(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were judged. Between judging and connecting nobody is asked again, so a name that
    answers differently the second time is of no use."""

    def __init__(self, refusal: Refusal, find: LookUp) -> None:
        self._refusal = refusal
        self._find = find
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses: list[str] = await self._find(host, port)
        if why := self._refusal(host, addresses):
            raise Refused(why)
        failure: Exception = OSError("it has no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise Refused("sockets of this machine are not connected to")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


def guarded_pool(
    refusal: Refusal,
    find: LookUp = look_up,
    tls: ssl.SSLContext | None = None,
    *,
    connections: int | None = None,
    idle: int = IDLE_CONNECTIONS,
    idle_s: float = IDLE_SECONDS,
) -> httpcore.AsyncConnectionPool:
    """Connections to the addresses that `refusal` has nothing against.

    Args:
        refusal: Judges all addresses of a host, each time one is connected to.
        find: Looks names up.
        tls: Whom to trust; None: the authorities of the system.
        connections: How many there may be at a time; None: whoever calls bounds them.
        idle: How many are kept for the next call.
        idle_s: How long.
    """
    return httpcore.AsyncConnectionPool(
        ssl_context=tls or ssl.create_default_context(),
        max_connections=connections,
        max_keepalive_connections=idle,
        keepalive_expiry=idle_s,
        network_backend=_Guarded(refusal, find),
    )


def url_of(target: Target) -> httpcore.URL:
    """A target as the client wants it."""
    return httpcore.URL(
        scheme=b"https" if target.tls else b"http",
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )


def headers_of(target: Target) -> dict[str, str]:
    """What each request has."""
    return {"host": target.authority, "user-agent": f"agentreach/{VERSION}", "accept": "*/*"}


def said_of(failure: Exception) -> str:
    """Why there was no answer, in few words."""
    return bounded_text(getattr(failure, "strerror", None) or str(failure) or type(failure).__name__, 256)


FAILURES: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError)
"""What a call may raise; a refused address is an OSError too (`Refused`)."""


class GuardedPool:
    """Connections to receivers of webhooks, kept for a while."""

    def __init__(self, refusal: Refusal, find: LookUp, tls: ssl.SSLContext) -> None:
        self._pool = guarded_pool(refusal, find, tls)

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `posting.Pool`."""
        try:
            return await self._post(url_of(target), [*{**headers_of(target), **headers}.items()], body)
        except FAILURES as failure:
            if isinstance(failure, TimeoutError):
                raise  # of the whole try
            return Answer(error=said_of(failure))

    async def _post(self, url: httpcore.URL, headers: list[tuple[str, str]], body: bytes) -> Answer:
        headers.append(("content-length", str(len(body))))
        async with self._pool.stream("POST", url, headers=headers, content=body) as response:
            size = 0
            async for piece in response.aiter_stream():
                size += len(piece)
                if size > ANSWER_BYTES:
                    break  # what is left makes the connection useless, and it is closed
            return Answer(response.status, retry_after_s=_retry_after(response.headers))

    async def close(self) -> None:
        """See `posting.Pool`."""
        await self._pool.aclose()


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Seconds of a Retry-After header; dates are not read: clocks differ."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) <= RETRY_AFTER_DIGITS:
            return int(value)
    return 0
