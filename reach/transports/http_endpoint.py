"""Agents that are dialled over HTTP (`http(s)://host[:port][/path]`): the way there, and their work (`seam`).

Each attempt is one POST of an AgentRequest envelope, on a connection of its own while it lasts. That a connection
breaks says something of one attempt; that it is refused, of all. Probes have other connections (`http_probing`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from functools import lru_cache
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

import msgspec

from agentreach.v1 import attempt_pb2, endpoint_pb2, result_pb2
from reach.core.endpoint import Endpoint
from reach.transports.http_call import HttpCall
from reach.transports.http_probing import HttpSounder
from reach.transports.seam import Approach, Failed, Way
from reach.wire.agent_http import HEALTH_PATH
from reach.wire.agent_requests import envelope_of
from reach.wire.urls import Target

log = logging.getLogger(__name__)

CONNECTIONS: Final = 1_024
"""For the work of one endpoint at a time; an attempt that finds none goes elsewhere."""
ASIDE: Final = 64
"""For questions about attempts that were accepted, and cancels: work that hangs must not keep them."""
IDLE_CONNECTIONS: Final = 16
IDLE_S: Final = 2.0
"""Shorter than servers keep a connection that says nothing (most for 5 s), so that we are not the ones to find it
closed under a task."""
CONNECT_S: Final = 5.0
CANCEL_S: Final = 5.0
POLL_S: Final = 10.0
"""For one question about an attempt that was accepted."""
MARGIN_BYTES: Final = 256 << 10
"""What an answer may have beside one payload of the largest size."""
ACCEPTS: Final = "application/json, text/event-stream, application/x-ndjson, text/plain, */*;q=0.5"


class HttpWay:
    """How an endpoint is reached (`seam.Way`)."""

    def __init__(self, endpoint: Endpoint, approach: Approach) -> None:
        address = approach.address
        self.url = endpoint.url
        self.ips = approach.ips
        self.payload_limit = approach.payload_limit
        self.target = Target(address.tls, address.host, address.port, address.path or "/")
        self.health = self.target._replace(path=endpoint.health_path or HEALTH_PATH)
        self.authorization = f"Bearer {approach.token}" if approach.token else ""
        self.rejoins = endpoint.rejoins
        self._roots = approach.tls_roots

    def takes_over(self, former: Way) -> None:
        """See Way. Nothing is learned."""

    def line(self, endpoint: Endpoint, who: result_pb2.Reporter) -> HttpLine:
        """See Way."""
        return HttpLine(self, endpoint, who)

    def sounder(self, timeout_s: float) -> HttpSounder:
        """See Way."""
        return HttpSounder(self, timeout_s)

    async def pool(self, connections: int, idle: int, idle_s: float) -> Any:
        """Connections to the addresses that were judged, and to nothing else; the name is not looked up again."""
        guarded = await asyncio.to_thread(import_module, "reach.transports.guarded")
        tls = await asyncio.to_thread(_tls, self._roots) if self.target.tls else _plain()
        return guarded.guarded_pool(
            lambda host, found: "", self._find, tls, connections=connections, idle=idle, idle_s=idle_s
        )

    async def _find(self, host: str, port: int) -> list[str]:
        return list(self.ips)

    def headers(self, target: Target, more: dict[str, str]) -> list[tuple[str, str]]:
        """Of a request: what each has, and more."""
        headers = import_module("reach.transports.guarded").headers_of(target)
        headers["accept-encoding"] = "identity"
        if self.authorization:
            headers["authorization"] = self.authorization
        return [*{**headers, **more}.items()]


@lru_cache(maxsize=4)
def _tls(roots: bytes | None) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=roots.decode() if roots is not None else None)


@lru_cache(maxsize=1)
def _plain() -> ssl.SSLContext:
    """For who needs none: to load the authorities of the system takes a while."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HttpLine:
    """The connections for the work of one endpoint (`seam.Line`)."""

    def __init__(self, way: HttpWay, endpoint: Endpoint, who: result_pb2.Reporter) -> None:
        self.url = way.url
        self.answer_limit = way.payload_limit + MARGIN_BYTES
        self.takes_html = endpoint.gives_html
        self._way = way
        self._cancels = endpoint.cancels
        self._who = who
        self._pools: dict[int, Any] = {}
        self._opening = asyncio.Lock()
        self._calls: dict[tuple[str, str, int], HttpCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- Line ---------------------------------------------------------------------------------------------------------

    def execute(self, request: endpoint_pb2.ExecuteRequest, timeout_s: float | None, handle: str = "") -> HttpCall:
        """See Line."""
        offer = request.offer
        name = (offer.tenant, offer.task.task_id, offer.attempt)
        return self._begin(name, timeout_s, lambda call: self._post(call, offer))

    def resume(self, request: endpoint_pb2.ExecuteRequest, handle: str, timeout_s: float | None) -> HttpCall | None:
        """See Line."""
        if not handle.startswith("/"):
            return None
        offer = request.offer
        name = (offer.tenant, offer.task.task_id, offer.attempt)
        call = self._begin(name, timeout_s, lambda call: call.follow())
        call.handle, call.detached = handle, True
        return call

    async def cancel(self, key: attempt_pb2.AttemptKey, handle: str) -> None:
        """See Line. By DELETE where the agent offers that; else the connection is closed."""
        call = self._calls.get((key.tenant, key.task_id, key.attempt))
        path = handle
        if not path and self._cancels:
            base = self._way.target.path.partition("?")[0].rstrip("/")
            path = f"{base}/{quote(key.task_id, safe='')}?attempt={key.attempt}"
        if path:
            await self._delete(path)
        if call is not None and (call.detached or not path):
            call.cancel()

    async def prepare_handoff(self, request: endpoint_pb2.PrepareHandoffRequest, timeout_s: float) -> bytes:
        """See Line. There is no word for it over HTTP."""
        return b""

    async def close(self) -> None:
        """See Line."""
        for call in list(self._calls.values()):
            call.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        for pool in self._pools.values():
            await pool.aclose()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _begin(
        self, name: tuple[str, str, int], timeout_s: float | None, work: Callable[[HttpCall], Coroutine[Any, Any, None]]
    ) -> HttpCall:
        call = HttpCall(self, timeout_s)
        task = call.begin(work)
        self._calls[name] = call
        self._tasks.add(task)

        def done(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if self._calls.get(name) is call:
                del self._calls[name]

        task.add_done_callback(done)
        return call

    async def _post(self, call: HttpCall, offer: attempt_pb2.Offer) -> None:
        body = msgspec.json.encode(envelope_of(offer, self._who))
        more = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "accept": ACCEPTS,
            "idempotency-key": quote(offer.task.task_id, safe="!#$&'()*+,/:;=?@[]~ "),
            "agentreach-attempt": str(offer.attempt),
        }
        if offer.task.trace.traceparent:
            more["traceparent"] = offer.task.trace.traceparent
        await self._ask(CONNECTIONS, "POST", self._way.target, more, body, call.answered)
        if call.detached:
            await call.follow()

    async def poll(self, call: HttpCall) -> bool:
        """Asks about an attempt that was accepted; whether that was its end."""
        over: list[bool] = []

        async def polled(response: Any) -> None:
            over.append(await call.polled(response))

        target = self._way.target._replace(path=call.handle)
        try:
            async with asyncio.timeout(POLL_S):
                await self._ask(ASIDE, "GET", target, {"accept": ACCEPTS}, b"", polled)
        except TimeoutError:
            return False
        except Failed as failure:
            unasked = failure.unbegun and not failure.lost
            if failure.doubtful or unasked:  # suspicion: it may be there the next time, and its time is limited
                return False
            raise
        return over == [True]

    async def _delete(self, path: str) -> None:
        async def ignored(response: Any) -> None:
            """Whatever it says."""

        try:
            async with asyncio.timeout(CANCEL_S):
                await self._ask(ASIDE, "DELETE", self._way.target._replace(path=path), {}, b"", ignored)
        except (Failed, TimeoutError) as failure:
            log.debug("an agent does not take a cancel: %s", failure)

    async def _ask(
        self,
        connections: int,
        verb: str,
        target: Target,
        more: dict[str, str],
        body: bytes,
        take: Callable[[Any], Coroutine[Any, Any, None]],
    ) -> None:
        """One request over one of so many, its answer taken by `take`. Raises Failed, and what that raises."""
        pool = self._pools.get(connections) or await self._opened(connections)
        guarded = import_module("reach.transports.guarded")
        limits = {"timeout": {"connect": CONNECT_S, "pool": CONNECT_S}}
        sent = self._way.headers(target, more)
        try:
            async with pool.stream(
                verb, guarded.url_of(target), headers=sent, content=body, extensions=limits
            ) as response:
                await take(response)
        except TimeoutError:
            raise
        except guarded.FAILURES as failure:
            end_of = import_module("reach.transports.http_failures").end_of
            raise await end_of(failure, self._way.ips, target.port) from failure

    async def _opened(self, connections: int) -> Any:
        async with self._opening:
            if connections not in self._pools:
                self._pools[connections] = await self._way.pool(connections, IDLE_CONNECTIONS, IDLE_S)
            return self._pools[connections]
