"""One agent that is dialled: its probes, its checks, and its link, over losses and restarts of either side.

A Check that the agent answers is its hello: it says which process it is and what it runs, so that running attempts are
adopted or given up by the same rule as on Attach. Without an answer the instance is registered but has no link; probes
go on, and the first good one is followed by a Check.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, Protocol

from agentreach.v1 import endpoint_pb2, result_pb2
from reach.core import events as ev
from reach.core.dialled import Answered, Processes
from reach.core.endpoint import Endpoint
from reach.core.joining import NO_BOOT_ID, Joining
from reach.core.model import FIRST_TERMINAL, Fault, Instance, PoolKey
from reach.core.pool import Pool
from reach.errors import ErrorClass, ReachError, Reason, error_of
from reach.runtime.reach_api import Reach
from reach.transports.dialled_link import DialledLink
from reach.transports.seam import CheckOutcome, Sounder, Way
from reach.wire.agents import read_key
from reach.wire.statuses import read_status

log = logging.getLogger(__name__)

UNNAMED: Final = 2
"""Checks in a row that must leave out an attempt whose call is gone, before it is given up."""
UNWANTED: Final = 256
"""Attempts that one Check has stopped, of those that nobody waits for."""
ANOTHER: Final = "another process answers there; it has to register"

Name = tuple[str, str, int]


class Dialling(Protocol):
    """What an agent that is dialled needs of the one who dials all of them."""

    reach: Reach
    timeout_s: float
    beat_ms: int

    async def way(self, tenant: str, endpoint: Endpoint) -> tuple[Way | None, list[str]]:
        """Where an endpoint is, and what is odd about it."""

    def hasten(self, target: Dialled) -> None:
        """Its next probe is due now."""

    def forget(self, target: Dialled) -> None:
        """It is gone."""

    async def card_changed(self, target: Dialled, card: bytes) -> None:
        """Its card says something new."""


class Dialled:
    """One instance that is dialled (`runtime.probes.Target`)."""

    def __init__(self, dialler: Dialling, tenant: str, agent_type: str, joining: Joining) -> None:
        self._dialler = dialler
        self.tenant = tenant
        self.agent_type = agent_type
        self.joining = joining
        self.instance: Instance | None = None
        self.pool: Pool | None = None
        self.lock = asyncio.Lock()
        """One registration or hello at a time."""
        self._link: DialledLink | None = None
        self._probes: Sounder | None = None
        self._way: Way | None = None
        self._endpoint: Endpoint | None = None
        self._serving = True
        self._processes = Processes()
        self._told_lost = False
        self._unnamed: dict[Name, int] = {}
        self._unkept: set[Name] = set()
        """Outcomes that came, and are not kept yet as far as we know: the agent holds them as long as we ask for them.
        Bound: the slots of the instance, for who is asked again says what it still has."""

    # -- Target -------------------------------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Its instance has left the registry."""
        pool, instance = self.pool, self.instance
        return pool is not None and instance is not None and pool.instances.get(instance.instance_id) is not instance

    @property
    def probe_due_ms(self) -> int:
        """As the core says."""
        return self.instance.probe_due_ms if self.instance is not None else 0

    def leave(self) -> None:
        """Its channels go."""
        self._dialler.forget(self)

    async def probe(self) -> None:
        """HLT-3. A good one of an instance without a link is followed by a hello."""
        instance = self.instance
        if instance is None or self.elsewhere or self._is_in_doubt():
            return
        line = self._probes or await self._find_way()
        sounding = await line.probe() if line is not None else None
        if sounding is None or self._probes is not line:  # it has moved meanwhile
            return
        if sounding.refused:
            self._lost("connection refused")
        self.post(ev.Probed(instance, sounding.ok, sounding.rtt_ms, sounding.error))
        if sounding.ok and sounding.serving is not self._serving:
            self._serving = sounding.serving
            self.post(ev.Checked(instance, True, {"ready": sounding.serving}, None, ""))
        if sounding.ok and not self.up and not self.lock.locked():
            async with self.lock:
                self._say_hello(await self.look())
        elif instance.probe_status == "unreachable" and not self.lock.locked():
            async with self.lock:
                await self._look_again()
        elif sounding.ok and sounding.serving and instance.ready is False:
            await self.check()  # it may be ready since a moment after it was asked: `check_interval` is long

    async def check(self) -> None:
        """HLT-4."""
        line = self._probes
        if line is None or self.lock.locked() or self.elsewhere or self._is_in_doubt():
            return
        outcome = await self.look()
        instance = self.instance if self._probes is line else None
        if instance is None or self._is_in_doubt() or self.lock.locked():
            return
        if outcome.answer is None:
            if outcome.refused:
                self._lost("connection refused")
            self.post(ev.Checked(instance, False, None, None, outcome.error))
        elif self.up:
            self._checked(instance, outcome.answer, knows=outcome.knows)
        else:
            async with self.lock:
                self._say_hello(outcome)
        if outcome.card is not None:
            await self._dialler.card_changed(self, outcome.card)

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """It has a link that works."""
        link = self._link
        return link is not None and not link.gone and self.instance is not None and self.instance.link is link

    @property
    def elsewhere(self) -> bool:
        """Its process has opened an Attach stream: it is reached by that, and not to be judged by its address."""
        return self.instance is not None and self.holds(self.instance)

    def holds(self, instance: Instance) -> bool:
        """Whether an instance has a link that is none of ours."""
        return instance.link is not None and instance.link is not self._link

    def _is_in_doubt(self) -> bool:
        """It is another node's, or may be: that one knows what is to run there, and what it has received (CLU-2)."""
        return self.gone or self._dialler.reach.host.committer.doubt()

    def post(self, event: Any) -> None:
        """Something is known of it."""
        if self.pool is not None and not self.gone:
            self._dialler.reach.post(self.pool, event)

    def _believed(self) -> list[Name]:
        """The attempts that we believe to be running there."""
        running = self.instance.running.values() if self.instance is not None else ()
        return [(*task.key, task.attempt) for task in running]

    async def look(self) -> CheckOutcome:
        """A Check whose answer is of the process that we know."""
        if self._probes is None:
            return CheckOutcome(None, "it has no address that may be dialled")
        outcome = await self._probes.check(dict.fromkeys([*self._believed(), *self._unkept]), self.tenant)
        boot_id = outcome.answer.boot_id if outcome.answer is not None else ""
        if not boot_id or boot_id == self.joining.boot_id:
            return outcome
        if self.joining.boot_id != NO_BOOT_ID:
            return CheckOutcome(None, ANOTHER)
        answered = self._processes.answered(boot_id)
        if answered is not Answered.ANOTHER:
            return outcome if answered is Answered.SAME else outcome._replace(knows=False)
        self._lost("another process answers at its address")  # it never registered one: what it does not name is gone
        return outcome._replace(knows=True)

    def _checked(self, instance: Instance, answer: endpoint_pb2.CheckResponse, *, knows: bool) -> None:
        idle = answer.worker_idle_share if answer.HasField("worker_idle_share") else None
        try:
            status = read_status(answer.status)
        except ReachError as error:
            self.post(ev.Checked(instance, False, None, None, f"its status cannot be read: {error.message}"))
            return
        self.post(ev.Checked(instance, True, status, idle, ""))
        if knows:
            named = set(self._named(answer))
            self._give_up_unnamed(instance, named)
            self._stop_unwanted(named)

    def _named(self, answer: endpoint_pb2.CheckResponse) -> list[Name]:
        names = []
        for key in answer.running:
            try:
                names.append(read_key("running", key, self.tenant))
            except ReachError:
                log.debug("%s names an attempt in a way that cannot be read", self.joining.instance_id)
        return names

    def _give_up_unnamed(self, instance: Instance, named: set[Name]) -> None:
        """Attempts that were adopted and have no call of their own: one that the agent no longer names, and whose
        outcome did not come, is lost."""
        link = self._link
        assert link is not None
        before, self._unnamed = self._unnamed, {}
        for name in self._believed():
            if name in named or link.calls(name):
                continue
            self._unnamed[name] = before.get(name, 0) + 1
            if self._unnamed[name] >= UNNAMED:
                report = ev.Reported(instance, *name)
                message = f"instance {instance.instance_id!r} no longer runs it, and gave no outcome"
                report.fault = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, message)
                self.post(report)

    def _stop_unwanted(self, named: set[Name]) -> None:
        """Attempts that are over, and that the agent names nevertheless: it missed our word, so it is told again."""
        link, pool = self._link, self.pool
        assert link is not None
        assert pool is not None
        for name in sorted(named)[:UNWANTED]:
            task = pool.tasks.get(name[:2])
            wanted = task is not None and task.attempt == name[2] and task.state < FIRST_TERMINAL
            if not wanted and not link.calls(name):
                link.cancel_there(name)

    def _lost(self, why: str) -> None:
        """Its process is gone, for certain: its work moves at once. Told once, for work may wait for it afterwards."""
        link, instance = self._link, self.instance
        if link is not None and not link.gone:
            link.lost(why)
        elif instance is not None and instance.link is None and not self._told_lost:
            self._told_lost = True
            self.post(ev.LinkEnded(instance, None, False, why))

    def _link_lost(self) -> None:
        """A link told the core that it is lost."""
        self._told_lost = True
        self._dialler.hasten(self)

    def _doubted(self) -> None:
        """A call broke: is its process there?"""
        self._dialler.hasten(self)

    # -- dialling -----------------------------------------------------------------------------------------------------

    async def prepare(self, joining: Joining) -> None:
        """Takes over a registration: finds where it is, and what is odd about that.

        Raises:
            InvalidRequest: it must not be dialled.
        """
        endpoint = joining.endpoint
        assert endpoint is not None
        way, warnings = await self._dialler.way(self.tenant, endpoint)
        joining.warnings = (*joining.warnings, *warnings)
        if joining.heartbeat_ms is None:  # probes are its beats
            joining.heartbeat_ms = self._dialler.beat_ms
        if endpoint != self._endpoint:
            self._leave_link("it moved to another address")
        self.joining = joining
        await self._take(way, endpoint)

    async def _take(self, way: Way | None, endpoint: Endpoint) -> None:
        former, self._probes = self._probes, None
        if former is not None:
            await former.close()
        if way is not None and self._way is not None:
            way.takes_over(self._way)
        self._endpoint, self._way = endpoint, way
        self._probes = way.sounder(self._dialler.timeout_s) if way is not None else None

    async def _find_way(self) -> Sounder | None:
        """Looks the address up anew; that this gives nothing counts as a failed probe."""
        endpoint = self.joining.endpoint
        assert endpoint is not None
        try:
            way, warnings = await self._dialler.way(self.tenant, endpoint)
        except ReachError as error:
            if self.instance is not None:
                self.post(ev.Probed(self.instance, False, 0.0, error.message))
            return None
        self.joining.warnings = tuple(warnings)
        await self._take(way, endpoint)
        if way is None and self.instance is not None:
            self.post(ev.Probed(self.instance, False, 0.0, "it has no address that may be dialled"))
        return self._probes

    async def _look_again(self) -> None:
        """Its name may lead elsewhere by now. Not all agents register again when they move: adopted ones do not."""
        endpoint, way = self.joining.endpoint, self._way
        assert endpoint is not None
        found = None
        with suppress(ReachError):
            found, _ = await self._dialler.way(self.tenant, endpoint)
        if found is not None and way is not None and set(found.ips) != set(way.ips):
            self._leave_link("its name leads to other addresses")
            await self._take(found, endpoint)
            self._dialler.hasten(self)

    def _leave_link(self, why: str) -> None:
        """It is no longer where its link leads. What runs there waits for it to be heard of again."""
        link = self._link
        if link is not None and not link.gone:
            if link.instance is not None:
                self.post(ev.LinkEnded(link.instance, link, True, why))
            link.shut()

    def hello(self, outcome: CheckOutcome) -> DialledLink:
        """Opens a link on what the agent said of itself; `opened` of the link says whether the core took it.

        Raises:
            InvalidRequest: The status in the answer cannot be read.
        """
        dialler, joining, answer, way = self._dialler, self.joining, outcome.answer, self._way
        endpoint = joining.endpoint
        assert answer is not None
        assert way is not None
        assert endpoint is not None
        status = read_status(answer.status)
        if outcome.facts is not None:
            status["adopted"] = outcome.facts  # kept up to date in place
        key = PoolKey(self.tenant, self.agent_type)
        pool = dialler.reach.host.pool(key)
        who = result_pb2.Reporter(instance_id=joining.instance_id, boot_id=joining.boot_id)
        link = DialledLink(
            dialler.reach, self.tenant, pool, endpoint, way, who, self._link_lost, self._doubted, self._unkept
        )
        names = self._named(answer) if outcome.knows else self._believed()
        link.running = [(*name, self._last_of(pool, name, rejoins=endpoint.rejoins)) for name in names]
        former, self._link = self._link, link
        if former is not None:
            former.shut()
        self._serving, self._told_lost = True, False
        self._unnamed.clear()
        event = ev.Joined(joining, dialler.reach.host.next_revision(), link, link.running, status)
        self.pool = dialler.reach.host.join(key, event)
        return link

    async def opened(self, link: DialledLink) -> Instance:
        """Waits for the core to take a link, for the first time.

        Raises:
            ReachError: It does not.
        """
        taken = await link.opened
        if isinstance(taken, Fault):
            raise error_of(taken.error_class, taken.reason, taken.message, metadata=taken.metadata)
        self.instance = taken
        self.first_beat(taken)
        return taken

    def first_beat(self, instance: Instance) -> None:
        """It has answered a check, so that counts as one."""
        self.post(ev.Checked(instance, True, None, None, ""))

    @staticmethod
    def _last_of(pool: Pool, name: Name, *, rejoins: bool) -> int:
        """Up to where we have its deltas. If we have none and it can say them again, 1, for that asks for all."""
        task = pool.tasks.get(name[:2])
        last = task.attempt_sequence if task is not None else 0
        return last or int(rejoins)

    def _say_hello(self, outcome: CheckOutcome) -> None:
        """A hello that nobody waits for."""
        instance = self.instance
        if instance is None or self.gone or self.up or self._dialler.reach.stopping:
            return
        if outcome.answer is None:
            self.post(ev.Checked(instance, False, None, None, outcome.error))
            return
        try:
            self.hello(outcome)
        except ReachError as error:
            self.post(ev.Checked(instance, False, None, None, error.message))
        else:
            self.first_beat(instance)

    async def close(self) -> None:
        """Ends all that is open; the core is told nothing."""
        if self._link is not None:
            await self._link.ended()
        if self._probes is not None:
            await self._probes.close()
