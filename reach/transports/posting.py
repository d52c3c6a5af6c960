"""One POST to a receiver of webhooks: by the addresses that were judged, bounded in time and size, never redirected."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import httpcore

from reach.version import VERSION
from reach.wire.status import bounded_text
from reach.wire.webhooks import Target

ANSWER_BYTES: Final = 64 << 10
"""What is read of an answer, which says nothing but its status; then the connection is closed."""
IDLE_CONNECTIONS: Final = 16
IDLE_SECONDS: Final = 30.0
RETRY_AFTER_DIGITS: Final = 6

LookUp = Callable[[str, int], Any]
"""Coroutine function: the addresses of (host, port). Raises OSError."""
Refusal = Callable[[str, list[str]], str]
"""Why a host with these addresses must not be connected to; empty if it may be (`WebhookRules.refusal`)."""


class Answer(NamedTuple):
    """What a try came to."""

    status: int = 0
    """Of HTTP; 0: there was no answer."""
    error: str = ""
    """Why there was none."""
    retry_after_s: int = 0
    """When the receiver wants the next try, if it said so in seconds."""


class Refused(OSError):
    """The host has an address that must not be connected to."""


async def look_up(host: str, port: int) -> list[str]:
    """All addresses that a name has now."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


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
        raise Refused("there are no webhooks to sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class Poster:
    """POSTs to receivers. Connections are kept for a while.

    Args:
        refusal: Judges addresses.
        timeout_s: For one try, from the look-up to the end of the answer.
        tls: Whom to trust; None: the authorities of the system.
        find: Looks names up; tests give another one.
    """

    def __init__(
        self, refusal: Refusal, timeout_s: float, tls: ssl.SSLContext | None = None, find: LookUp = look_up
    ) -> None:
        self._timeout_s = timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=None,  # whoever calls bounds how many there are
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Guarded(refusal, find),
        )

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """One try. Raises nothing but what cancels it."""
        url = httpcore.URL(
            scheme=b"https" if target.tls else b"http",
            host=target.host.encode(),
            port=target.port,
            target=target.path.encode(),
        )
        sent = {"host": _authority(target), "user-agent": f"agentreach/{VERSION}", "accept": "*/*", **headers}
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, list(sent.items()), body)
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as failure:
            said = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
            return Answer(error=bounded_text(said, 256))

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
        """Ends all connections."""
        await self._pool.aclose()


def _authority(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == (443 if target.tls else 80) else f"{host}:{target.port}"


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Seconds of a Retry-After header; dates are not read: clocks differ."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) <= RETRY_AFTER_DIGITS:
            return int(value)
    return 0
