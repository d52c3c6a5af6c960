"""A2A agents behind the seam of endpoints that are dialled: the way there, and its probes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Final

import grpc
import httpx

from agentreach.v1 import agent_pb2, endpoint_pb2, result_pb2
from reach.core.endpoint import Endpoint
from reach.core.growth import Growth
from reach.core.model import Fault
from reach.errors import ErrorClass, ReachError
from reach.runtime.clock import stopwatch
from reach.transports.a2a.calls import Calls, Interface
from reach.transports.a2a.card import CARD_BYTES, card_target, read_card
from reach.transports.a2a.guarded_http import client_of
from reach.transports.a2a.line import A2aLine
from reach.transports.fetching import fetch
from reach.transports.grpc_endpoint import Route
from reach.transports.guarded import guarded_pool
from reach.transports.seam import Approach, CheckOutcome, ProbeOutcome, Way
from reach.wire.status import bounded_text

CARD_EVERY_S: Final = 30.0
"""How often a card is looked at; a check that comes earlier does without."""
CONNECT_S: Final = 2.0
ERROR_BYTES: Final = 512


class A2aWay:
    """How one A2A agent is reached (`seam.Way`), and what is known of it beyond that."""

    def __init__(self, endpoint: Endpoint, approach: Approach) -> None:
        self.approach = approach
        self.payload_limit = approach.payload_limit
        self.ips = approach.ips
        self.card = agent_pb2.AdoptedCard.FromString(endpoint.card)
        self.growth = None if self.card.terms.HasField("max_concurrency") else Growth()
        self.facts: dict[str, Any] = {"calls": 0, "failed_calls": 0}
        """Shown as `Adopted`, by whoever has it: it is changed in place."""
        self.tag = ""
        """ETag of the card, as it was read last."""
        self.body = b""
        """The card, as it was read last."""

    def takes_over(self, former: Way) -> None:
        """See Way. How much it can take, how its calls went, what its card said."""
        if not isinstance(former, A2aWay):
            return
        if self.growth is not None and former.growth is not None:
            self.growth = former.growth
        self.facts = former.facts
        self.tag, self.body = former.tag, former.body

    @property
    def headers(self) -> dict[str, str]:
        """The credentials, where the card wants them."""
        token, card = self.approach.token, self.card
        if not token:
            return {}
        header = card.credential_header or "authorization"
        scheme = card.credential_scheme or ("" if card.credential_header else "Bearer")
        return {header: f"{scheme} {token}" if scheme else token}

    def line(self, endpoint: Endpoint, who: result_pb2.Reporter) -> A2aLine:
        """See Way."""
        return A2aLine(self)

    def sounder(self, timeout_s: float) -> A2aSounder:
        """See Way."""
        return A2aSounder(self, timeout_s)

    def calls(self) -> Calls:
        """Connections for calls, to the addresses that were judged."""
        address, card = self.approach.address, self.card
        interface = Interface(
            f"http{'s' if address.tls else ''}://{address.authority}{address.path}",
            card.binding,
            card.protocol_version,
            card.tenant,
        )
        link: httpx.AsyncClient | grpc.aio.Channel
        if card.binding == "GRPC":
            link = Route(self.approach._replace(token="")).channel(keepalive=False)
        else:
            pool = guarded_pool(lambda host, found: "", self._judged, self.tls())
            link = client_of(pool, self.payload_limit, {})
        return Calls(interface, link, self.headers)

    async def _judged(self, host: str, port: int) -> list[str]:
        return list(self.approach.ips)

    def tls(self) -> ssl.SSLContext | None:
        """Whom to trust; None: the authorities of the system."""
        roots = self.approach.tls_roots
        return ssl.create_default_context(cadata=roots.decode("ascii")) if roots else None

    async def is_refused(self) -> bool:
        """Whether nobody listens at any of its addresses."""
        return all([isinstance(await self._connected(ip), ConnectionRefusedError) for ip in self.approach.ips])

    async def _connected(self, ip: str) -> Exception | None:
        """Connects, and says what came of it."""
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(ip, self.approach.address.port)
        except (OSError, TimeoutError) as failure:
            return failure
        writer.close()
        return None

    async def probe(self) -> ProbeOutcome:
        """One round trip: a connection. That it works is what its calls show."""
        loop = asyncio.get_running_loop()
        failure: Exception | None = None
        for ip in self.approach.ips:
            began = loop.time()
            failure = await self._connected(ip)
            if failure is None:
                return ProbeOutcome(True, (loop.time() - began) * 1_000)
        if isinstance(failure, ConnectionRefusedError):
            return ProbeOutcome(False, 0.0, "connection refused", refused=True)
        said = "no answer in time" if isinstance(failure, TimeoutError) else str(failure)
        return ProbeOutcome(False, 0.0, bounded_text(said, 256))

    # -- what calls show ----------------------------------------------------------------------------------------------

    def called(self, took_ms: float, held: int, error: str) -> int:
        """An attempt has its outcome. Returns how many slots the agent has from now on; 0: as many as before."""
        self.facts["calls"] += 1
        if error:
            self._erred(error)
            return 0
        return self.growth.slots if self.growth is not None and self.growth.succeeded(took_ms, held) else 0

    def failed(self, fault: Fault | None, why: str) -> None:
        """An attempt has none."""
        self.facts["calls"] += 1
        self._erred(fault.message if fault is not None else why)
        if self.growth is not None and fault is not None and fault.error_class is ErrorClass.RESOURCE_EXHAUSTED:
            self.growth.full()

    def _erred(self, why: str) -> None:
        self.facts["failed_calls"] += 1
        self.facts["last_call_error"] = bounded_text(why, ERROR_BYTES)


def _now_ms() -> int:
    """On the clock of whoever shows it (`runtime.clock`)."""
    return int(stopwatch() * 1_000)


class A2aSounder:
    """Probes of one A2A agent (`seam.Sounder`): connections for its way, its card for being found."""

    def __init__(self, way: A2aWay, timeout_s: float) -> None:
        self._way = way
        self._timeout_s = timeout_s

    async def probe(self) -> ProbeOutcome:
        """See Sounder."""
        return await self._way.probe()

    async def check(self, running: Iterable[tuple[str, str, int]], tenant: str) -> CheckOutcome:
        """See Sounder. An agent that can be reached and whose card cannot be read goes on: these are two facts."""
        way = self._way
        sounding = await way.probe()
        if not sounding.ok:
            return CheckOutcome(None, sounding.error, sounding.refused)
        changed, read_ms = None, way.facts.get("card_read_ms")
        if read_ms is None or _now_ms() - read_ms >= CARD_EVERY_S * 1_000 or "card_error" in way.facts:
            changed = await self._read_card()
        answer = endpoint_pb2.CheckResponse()
        answer.status.ready = True
        if way.growth is not None:
            answer.status.max_concurrency = way.growth.slots
        return CheckOutcome(answer, knows=False, facts=way.facts, card=changed)

    async def _read_card(self) -> bytes | None:
        """Looks at the card; what it says now, if that is something new."""
        way = self._way
        target = card_target(way.card.terms.card_url)
        sent = {"accept": "application/json", **({"if-none-match": way.tag} if way.tag else {})}
        if target.host == way.approach.address.host:
            sent.update(way.headers)
        got = await fetch(
            target, way.approach.refusal, headers=sent, tls=way.tls(), seconds=self._timeout_s, limit=CARD_BYTES
        )
        if got.status == 304:
            self._found()
            return None
        if got.error:
            way.facts["card_error"] = bounded_text(got.error, ERROR_BYTES)
            return None
        try:
            read_card(got.body)
        except ReachError as error:
            way.facts["card_error"] = bounded_text(error.message, ERROR_BYTES)
            return None
        self._found()
        way.tag = got.headers.get("etag", "")[:256]
        before, way.body = way.body, got.body
        return got.body if got.body != before else None

    def _found(self) -> None:
        self._way.facts["card_read_ms"] = _now_ms()
        self._way.facts.pop("card_error", None)

    async def close(self) -> None:
        """See Sounder. Each of its connections ends by itself."""
