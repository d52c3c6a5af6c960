"""How an agent over HTTP is asked how it is: GET of its health path, each on a connection of its own (`seam.Sounder`).

A connection that is kept could be closed by the agent in the moment it is used, which would look like a lost probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentreach.v1 import endpoint_pb2
from reach.transports.http_bodies import whole
from reach.transports.refusals import all_refuse
from reach.transports.seam import CheckOutcome, ProbeOutcome
from reach.wire.agent_http import RUNNING_HEADER, believed_text, read_health, said_in

if TYPE_CHECKING:
    from reach.transports.http_endpoint import HttpWay

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
CONNECTIONS: Final = 4
"""Probes and checks of one endpoint at a time."""
BODY_BYTES: Final = 64 << 10
_NOTHING: Final = frozenset({404, 405, 501})
"""There is no health path: it has answered, so it is alive."""
_REFUSED: Final = frozenset({401, 403})
_OTHERS: Final = frozenset({502, 504})
"""Somebody before the agent answered in its place."""


class _Asked(NamedTuple):
    """What a GET came to."""

    status: int = 0
    headers: Mapping[str, str] = _NONE
    body: bytes = b""
    error: str = ""
    refused: bool = False


class HttpSounder:
    """See the module."""

    def __init__(self, way: HttpWay, timeout_s: float) -> None:
        self._way = way
        self._timeout_s = timeout_s
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def probe(self) -> ProbeOutcome:
        """See Sounder."""
        pool = self._pool or await self._opened()  # what is loaded with the first is no part of the round trip
        started = asyncio.get_running_loop().time()
        asked = await self._get(pool)
        rtt_ms = (asyncio.get_running_loop().time() - started) * 1_000
        if asked.error or asked.status in _OTHERS:
            return ProbeOutcome(False, 0.0, asked.error or f"HTTP {asked.status}", asked.refused)
        if asked.status in _NOTHING or asked.status in _REFUSED:
            return ProbeOutcome(True, rtt_ms)
        return ProbeOutcome(True, rtt_ms, serving=read_health(asked.status, asked.headers, asked.body).ready)

    async def check(self, running: Iterable[tuple[str, str, int]], tenant: str) -> CheckOutcome:
        """See Sounder. What it runs is asked only where attempts can be joined again; others may say so."""
        more = {RUNNING_HEADER: believed_text(running, tenant)} if self._way.rejoins else {}
        asked = await self._get(self._pool or await self._opened(), more)
        if asked.error or asked.status in _OTHERS:
            return CheckOutcome(None, asked.error or f"HTTP {asked.status}", asked.refused)
        if asked.status in _REFUSED:
            return CheckOutcome(None, f"it refused our credentials (HTTP {asked.status})")
        path = self._way.health.path
        if asked.status in _NOTHING:
            text = f"there is nothing at {path}, so that nobody knows whether it is ready"
            return CheckOutcome(endpoint_pb2.CheckResponse(), text, knows=False)
        if 300 <= asked.status < 400:
            return CheckOutcome(None, f"{path} answered {asked.status}: redirects are not followed")
        health = read_health(asked.status, asked.headers, asked.body)
        return CheckOutcome(health.answer, knows=health.knows)

    async def _get(self, pool: Any, more: Mapping[str, str] = _NONE) -> _Asked:
        guarded = import_module("reach.transports.guarded")
        target = self._way.health
        headers = self._way.headers(target, {"accept": "application/json, */*;q=0.5", **more})
        try:
            async with asyncio.timeout(self._timeout_s):
                async with pool.stream("GET", guarded.url_of(target), headers=headers) as response:
                    body = await whole(response, BODY_BYTES, cut=True)
                    return _Asked(response.status, said_in(response.headers), body)
        except TimeoutError:
            return _Asked(error="no answer in time")
        except guarded.FAILURES as failure:
            if await all_refuse(self._way.ips, target.port, self._timeout_s):
                return _Asked(error="connection refused", refused=True)
            return _Asked(error=guarded.said_of(failure))

    async def _opened(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._way.pool(CONNECTIONS, 0, 0.0)
            return self._pool

    async def close(self) -> None:
        """See Sounder."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()
