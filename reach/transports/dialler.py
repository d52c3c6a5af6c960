"""All agents that this node dials: their registrations, where they may be dialled (GOV-6), and those of the journal."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from reach.cancelling import finished
from reach.core.endpoint import Endpoint
from reach.core.joining import Joining
from reach.core.model import Fault, Instance
from reach.errors import InvalidRequest, Reason, ResourceExhausted, Unavailable, error_of
from reach.runtime.probes import Probes
from reach.runtime.reach_api import Reach
from reach.transports.adopting import card_changed
from reach.transports.credentials import Credentials
from reach.transports.dialled import Dialled
from reach.transports.seam import Approach, CheckOutcome, Way
from reach.transports.ways import load_a2a, way_to
from reach.wire.addresses import AgentRules, read_address
from reach.wire.requests import invalid

TARGETS: Final = 10_000
"""Instances that one node dials."""
REGISTRATIONS: Final = 64
"""Registrations that are checked at the same time; others wait."""
LOOKUP_S: Final = 2.0
"""How long a name may take to be looked up."""


class DialSettings:
    """What the configuration says of dialling."""

    def __init__(
        self, *, rules: AgentRules, payload_limit: int, timeout_s: float, interval_ms: int, credentials: Credentials
    ) -> None:
        self.rules = rules
        """Where agents may be (GOV-6)."""
        self.payload_limit = payload_limit
        self.timeout_s = timeout_s
        self.interval_ms = interval_ms
        self.credentials = credentials


class Dialler:
    """All instances that this node dials."""

    def __init__(self, reach: Reach, probes: Probes, settings: DialSettings) -> None:
        self.reach = reach
        self.probes = probes
        self.settings = settings
        self._targets: dict[tuple[str, str], Dialled] = {}
        self._registering = asyncio.Semaphore(REGISTRATIONS)
        self._closing: set[asyncio.Task[None]] = set()
        self.timeout_s = settings.timeout_s
        self.beat_ms = max(1_000, min(60_000, settings.interval_ms))
        """How often an agent that does not beat by itself is expected to answer a probe."""

    async def register(self, tenant: str, agent_type: str, joining: Joining) -> tuple[Instance, list[str]]:
        """Registers an instance that wants to be dialled, and checks it at once (HLT-4).

        Returns:
            The instance, and what its check found wrong.

        Raises:
            ReachError: It is refused.
        """
        key = (tenant, joining.instance_id)
        target = self._targets.get(key)
        if target is None or target.gone or target.agent_type != agent_type:
            if len(self._targets) >= TARGETS:
                raise ResourceExhausted(f"this node dials {TARGETS} agents, which is the limit", Reason.RATE_LIMITED)
            target = Dialled(self, tenant, agent_type, joining)
        async with self._registering, target.lock:
            self.reach.check_type(tenant, joining, agent_type)
            known = self._known(tenant, joining)
            if target.instance is None and known is not None and known.boot_id == joining.boot_id:
                target.instance = known  # it is asked about what it runs: what is not named, it takes for received
            await target.prepare(joining)
            checkup = await target.look()
            self._not_overtaken(joining, known, self._known(tenant, joining))
            attached = known is not None and known.boot_id == joining.boot_id and target.holds(known)
            instance = await finished(self._take(target, joining, checkup, attached=attached))
        return instance, [f"the check failed: {checkup.error}"] if checkup.error else []

    async def _take(self, target: Dialled, joining: Joining, checkup: CheckOutcome, *, attached: bool) -> Instance:
        """Has the core take an instance, and probes it from then on. Raises ReachError."""
        renewed = target.instance is not None and target.instance.boot_id != joining.boot_id
        if checkup.answer is None or attached or (target.up and not renewed):
            reply = _Registered()
            self.reach.register(target.tenant, target.agent_type, joining, reply)
            taken = target.instance = await reply.future
            target.pool = self.reach.host.pool(taken.pool_key)
        else:
            taken = await target.opened(target.hello(checkup))
        key = (target.tenant, joining.instance_id)
        if self._targets.get(key) is not target:
            self._targets[key] = target
            self.probes.add(target)
        return taken

    @staticmethod
    def _not_overtaken(joining: Joining, before: Instance | None, now: Instance | None) -> None:
        """A check takes its time. Another process that came later, and was registered meanwhile, must not be replaced
        by this one: who called may be dead, and the successor would be refused for good."""
        if now is not None and now.boot_id != joining.boot_id and (before is None or before.boot_id != now.boot_id):
            message = f"another process of {joining.instance_id!r} has registered meanwhile"
            raise Unavailable(message, Reason.AGENT_UNAVAILABLE)

    def _known(self, tenant: str, joining: Joining) -> Instance | None:
        """The instance as it is registered. A process that was replaced must not turn the calls for its successor to
        itself (REG-2)."""
        key = self.reach.host.directory.where(tenant, joining.instance_id)
        known = self.reach.host.pool(key).instances.get(joining.instance_id) if key is not None else None
        if known is not None and joining.boot_id in known.stale_boots:
            message = f"a newer process of {joining.instance_id!r} has registered; this one is stale"
            raise InvalidRequest(message, Reason.STALE_GENERATION)
        return known

    def resume(self) -> int:
        """After a restart, and when shards come: dials what the journal knows. Returns how many instances that are."""
        for pool in self.reach.host.pools():
            for instance in pool.instances.values():
                known = self._targets.get((pool.key.tenant, instance.instance_id))
                if known is not None and known.instance is instance:
                    continue
                if instance.endpoint is not None and len(self._targets) < TARGETS:
                    joining = self.reach.host.codec.joining_of(instance.registration, instance.boot_id)
                    joining.instance_id = instance.instance_id
                    joining.heartbeat_ms = joining.heartbeat_ms or self.beat_ms
                    target = Dialled(self, pool.key.tenant, pool.key.agent_type, joining)
                    target.instance, target.pool = instance, pool
                    self._targets[pool.key.tenant, instance.instance_id] = target
                    self.probes.add(target)
                    self.probes.hasten(target)
        return len(self._targets)

    async def way(self, tenant: str, endpoint: Endpoint) -> tuple[Way | None, list[str]]:
        """Where an endpoint is, and what is odd about it; None where it must not be dialled but may be registered.

        Raises:
            InvalidRequest: INVALID_FIELD: it may never be dialled, or its credentials are not for it.
        """
        settings, address = self.settings, read_address(endpoint.url)
        token, warning = settings.credentials.token(tenant, endpoint.auth_reference, address)
        warnings = [warning] if warning else []
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await asyncio.get_running_loop().getaddrinfo(
                    address.host, address.port, type=socket.SOCK_STREAM
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or "no answer in time"
            return None, [*warnings, f"{address.host} cannot be looked up: {said}"]
        ips = list(dict.fromkeys(str(one[4][0]) for one in found))
        judgement = settings.rules.judge(address.host, ips)
        if judgement.refusal and not judgement.warning:
            raise invalid("registration.endpoints.url", judgement.refusal)
        if judgement.warning:
            warnings.append(judgement.warning)
        if judgement.refusal:
            return None, warnings
        if endpoint.card:
            await load_a2a()
        approach = Approach(
            address,
            tuple(ips),
            token,
            settings.credentials.tls_roots,
            settings.payload_limit,
            settings.rules.refusal,
        )
        return way_to(endpoint, approach), warnings

    def hasten(self, target: Dialled) -> None:
        """Its next probe is due now."""
        self.probes.hasten(target)

    async def card_changed(self, target: Dialled, card: bytes) -> None:
        """The card of an A2A agent says something new."""
        await card_changed(self, target, card)

    def forget(self, target: Dialled) -> None:
        """An instance is gone."""
        key = (target.tenant, target.joining.instance_id)
        if self._targets.get(key) is target:
            del self._targets[key]
        closing = asyncio.create_task(target.close(), name="dialled-close")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def stop(self) -> None:
        """Ends all connections. What runs at agents goes on there, as far as they can without us."""
        await asyncio.gather(*(target.close() for target in self._targets.values()), *self._closing)


class _Registered:
    """Hears how a registration went (`runtime.agents.Reply`)."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()

    def done(self, value: Instance) -> None:
        """It is done."""
        if not self.future.done():
            self.future.set_result(value)

    def refused(self, fault: Fault) -> None:
        """It is refused."""
        if not self.future.done():
            self.future.set_exception(error_of(fault.error_class, fault.reason, fault.message))
