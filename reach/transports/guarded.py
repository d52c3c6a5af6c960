"""HTTP to receivers of webhooks: connects to the addresses that were judged, and to nothing else.

Imported with the first webhook that is sent, see `posting`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

import httpcore

from reach.transports.posting import Answer, LookUp, Refusal, Refused
from reach.version import VERSION
from reach.wire.status import bounded_text
from reach.wire.webhooks import Target

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
        raise Refused("there are no webhooks to sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class GuardedPool:
    """Connections to receivers, kept for a while."""

    def __init__(self, refusal: Refusal, find: LookUp, tls: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,  # whoever calls bounds how many there are
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Guarded(refusal, find),
        )

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `posting.Pool`."""
        url = httpcore.URL(
            scheme=b"https" if target.tls else b"http",
            host=target.host.encode(),
            port=target.port,
            target=target.path.encode(),
        )
        sent = {"host": _authority(target), "user-agent": f"agentreach/{VERSION}", "accept": "*/*", **headers}
        try:
            return await self._post(url, list(sent.items()), body)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as failure:
            if isinstance(failure, TimeoutError):
                raise  # of the whole try
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
        """See `posting.Pool`."""
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
