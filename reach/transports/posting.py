"""One POST to a receiver of webhooks: by the addresses that were judged, bounded in time and size, never redirected."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from reach.wire.urls import Target

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


class Pool(Protocol):
    """Connections to receivers (`transports.guarded.GuardedPool`)."""

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """One try, without an end in time."""

    async def close(self) -> None:
        """Ends all connections."""


class Poster:
    """POSTs to receivers. The HTTP client and the authorities of the system are loaded with the first one: that takes a
    third of a second, and most servers never send any.

    Args:
        refusal: Judges addresses.
        timeout_s: For one try, from the look-up to the end of the answer.
        tls: Whom to trust; None: the authorities of the system.
        find: Looks names up; tests give another one.
    """

    def __init__(
        self, refusal: Refusal, timeout_s: float, tls: ssl.SSLContext | None = None, find: LookUp = look_up
    ) -> None:
        self._refusal = refusal
        self._timeout_s = timeout_s
        self._tls = tls
        self._find = find
        self._pool: Pool | None = None
        self._making = asyncio.Lock()

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """One try. Raises nothing but what cancels it."""
        pool = self._pool or await self._made()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await pool.post(target, headers, body)
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")

    async def _made(self) -> Pool:
        async with self._making:
            if self._pool is None:
                self._pool = await asyncio.to_thread(self._make)
            return self._pool

    def _make(self) -> Pool:
        from reach.transports.guarded import GuardedPool

        return GuardedPool(self._refusal, self._find, self._tls or ssl.create_default_context())

    async def close(self) -> None:
        """Ends all connections."""
        if self._pool is not None:
            await self._pool.close()
