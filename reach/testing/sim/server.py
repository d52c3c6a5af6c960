"""The server: the real host in a process that can die, over a journal that outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from reach.core import effects as fx
from reach.core import events as ev
from reach.core.model import Fault, Task, TaskKey
from reach.errors import ReachError
from reach.runtime.host import Host
from reach.runtime.idle_pools import IdlePools
from reach.runtime.loading import restore, unapplied_turns
from reach.runtime.outbox import Bounds
from reach.runtime.probes import Probes
from reach.runtime.reach_api import Reach
from reach.runtime.retention import Retention
from reach.runtime.settings import Settings
from reach.store.base import StoreError
from reach.testing.sim.agent_door import AgentDoor
from reach.testing.sim.caller_door import CallerDoor
from reach.testing.sim.calls import Exchange, SimDialler
from reach.testing.sim.checker import Checker
from reach.testing.sim.faults import FaultyJournal
from reach.testing.sim.fleet import DECIDED, DRAIN_MS, FleetTruth
from reach.testing.sim.link import ClientEnd, Network, Stream
from reach.testing.sim.loop import Process, VirtualClock, VirtualLoop, VirtualReads, VirtualWriter, WallClock
from reach.testing.sim.story import Story
from reach.testing.sim.webhooks import DELAYS_S, Receivers, Rules
from reach.transports.credentials import Credentials
from reach.transports.dialler import DialSettings
from reach.transports.webhooks import Webhooks, WebhookSettings
from reach.wire.addresses import AgentRules
from reach.wire.codec import ProtoCodec
from reach.wire.requests import TaskReader
from reach.wire.webhooks import FAILED, KIND

IDLE_SECONDS = 4.0
"""How often pools that nobody needs are looked for (a minute in a node)."""
COMMITS_ON_LOOP = (0.0, 0.5, 0.95)
"""Share of a process's commits that take no time, on the loop."""
CHECK_MS = 5_000
DIALLING = DialSettings(
    rules=AgentRules(on_loopback=False),
    payload_limit=4 << 20,
    timeout_s=2.0,
    interval_ms=5_000,
    credentials=Credentials([], None),
)
RULES = Rules()
READER = TaskReader()
READER.take_webhooks(RULES.read)
CODEC = ProtoCodec(READER)


class Quiet:
    """Hears of what operators would like to know (`runtime.host.Notes`), and counts it."""

    def __init__(self, fleet: FleetTruth) -> None:
        self._fleet = fleet
        self.counts: dict[str, int] = {}

    def noted(self, note: fx.Noted) -> None:
        """See Notes."""
        self.counts[note.kind] = self.counts.get(note.kind, 0) + 1
        if note.instance is not None and note.kind in DECIDED:
            self._fleet.decided(note.kind, note.instance)

    def ended(self, task: Task) -> None:
        """See Notes."""

    def began(self, task: Task) -> str:
        """See Notes."""
        return ""

    def committed(self, rows: int, ms: float) -> None:
        """See Notes."""

    def webhook(self, outcome: str) -> None:
        """See WebhookNotes."""


class Server:
    """One address; behind it one process after the other."""

    def __init__(
        self, loop: VirtualLoop, random: Random, checker: Checker, story: Story, settings: Settings, slow_disk: float
    ) -> None:
        self.loop = loop
        self.random = random
        self.checker = checker
        self.story = story
        self.wall = WallClock(loop)
        self.journal = FaultyJournal(random, checker, story)
        self.notes = Quiet(checker.fleet)
        self.receivers = Receivers(loop, random, checker, lambda *words: story.tell("webhook", *words))
        self.doors: dict[CallerDoor | AgentDoor, None] = {}
        self.process = Process(loop, random)
        self.process.dead = True
        self.starts = 0
        self.asked: set[tuple[TaskKey, int]] = set()
        """Attempts that asked something."""
        self._settings = settings
        self._slow_disk = slow_disk
        self._writer: VirtualWriter | None = None
        self._looking: dict[asyncio.Task[None], None] = {}
        self.exchange: Exchange
        self.dialler: SimDialler
        self.host: Host
        self.reach: Reach

    @property
    def up(self) -> bool:
        """Whether it can be reached."""
        return not self.process.dead

    def tell(self, what: str, *details: Any) -> None:
        """A line of the story."""
        self.story.tell("server", what, *details)

    def start(self) -> None:
        """A new process takes over what the journal holds."""
        self.starts += 1
        random = self.random
        self.process = process = Process(self.loop, random)
        here = random.choice(COMMITS_ON_LOOP)
        writer = self._writer = VirtualWriter(self.loop, process, self._commit_time, lambda: random.random() < here)
        reads = VirtualReads(self.loop, process, lambda: 0.0005 + 0.01 * random.random() ** 3)
        clock = VirtualClock(self.loop, random, self.wall)
        before = asyncio._get_running_loop()  # noqa: SLF001 - the host asks for the loop that it runs on
        asyncio._set_running_loop(process)  # type: ignore[arg-type]  # noqa: SLF001
        try:
            self.host = Host(self.journal, CODEC, self.notes, clock, self._settings, self._broken, writer, reads)
            self.host.level_1.default_retry = READER.default_retry
            self.reach = Reach(self.host, "sim")
            self._deliver_webhooks(process)
            self._keep(process)
            restored = restore(self.host, self.journal.load(), unapplied_turns(self.journal))
            self._dial(process)
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        self.tell("starts (process {}), {} tasks go on", self.starts, restored)
        self.checker.fleet.compare(self.host)
        self._drop_idle(IdlePools(self.host))

    def _deliver_webhooks(self, process: Process) -> None:
        host = self.host
        settings = WebhookSettings(delays_s=DELAYS_S)
        deliveries = Webhooks(
            host.outbox.done, host.committer.submit, self.reach.tasks.get, self.receivers.post, RULES, host.clock,
            self.notes, settings, process,
        )  # fmt: skip
        host.outbox.register(KIND, deliveries, Bounds(facts=self.random.choice((2, 64)), lanes=8))

    def _keep(self, process: Process) -> None:
        """Removes what has been kept long enough."""
        keep, clock = self.checker.keeping.keep, self.host.clock
        if keep is not None:
            kept = Retention(self.journal, self.reach.tending, clock.wall_ms, keep, FAILED, clock.now_ms)
            process.create_task(kept.run())

    def _dial(self, process: Process) -> None:
        """Dials those that want it, those of the journal at once."""
        probes = Probes(self.host.clock.now_ms, self.random.choice((2, 64)), CHECK_MS)
        self.dialler = SimDialler(self.reach, probes, DIALLING)
        self.dialler.exchange, self.dialler.process = self.exchange, process
        self.dialler.resume()
        if self.exchange.agents:
            process.create_task(probes.run())

    def _drop_idle(self, idle: IdlePools) -> None:
        idle.drop()
        self.process.call_later(IDLE_SECONDS, self._drop_idle, idle)

    def _commit_time(self) -> float:
        chance = self.random.random()
        return 0.5 + chance if chance < self._slow_disk else 0.0005 + 0.005 * chance

    def _broken(self, error: StoreError) -> None:
        self.tell("ends: the store is broken ({})", error)
        self.crash(torn=False)

    def crash(self, *, torn: bool) -> None:
        """The process dies at once. `torn`: a commit that is open becomes durable, and nobody hears of it."""
        if not self.up:
            return
        self.tell("dies{}", ", in the middle of a commit" if torn else "")
        if torn and self._writer is not None:
            self._writer.flush()
        self.process.die()
        self.exchange.server_died()
        self.checker.server_died()
        for look in list(self._looking):
            look.cancel()
        doors, self.doors = self.doors, {}
        for door in doors:
            if door.stream is not None:
                door.stream.break_now()

    def stop(self) -> None:
        """Takes nothing new, says goodbye to streams, and ends when all is written."""
        if not self.up:
            return
        self.tell("is asked to stop")
        self.reach.stopping = True
        self.process.call_later(self.random.random(), self._leave)

    def _leave(self) -> None:
        for door in list(self.doors):
            door.end()
        self.process.call_later(0.2, self._close)

    def _close(self) -> None:
        if self.host.committer.held is None and self._writer is not None:
            self._writer.stop()
        self.crash(torn=False)

    # -- what the doors need ------------------------------------------------------------------------------------------

    def connect(self, network: Network, client: Process, end: ClientEnd, door: AgentDoor | CallerDoor) -> Stream:
        """Opens a stream to the process of now."""
        stream = Stream(network, client, self.process, end, door)
        door.stream = stream
        self.doors[door] = None
        return stream

    @staticmethod
    def read(tenant: str, spec: Any) -> tuple[Task, Any]:
        """A request becomes a task."""
        return READER.read(tenant, spec)

    def look_up(self, tenant: str, task_id: str, answer: Callable[[Task | None], None]) -> None:
        """GetTask."""

        async def look() -> None:
            try:
                task = await self.reach.tasks.get(tenant, task_id)
            except StoreError:
                return
            if self.process is process and not process.dead:
                answer(task)

        process = self.process
        looking = self.loop.create_task(look())
        self._looking[looking] = None
        looking.add_done_callback(lambda done: self._looking.pop(done, None))

    def drain(
        self, tenant: str, instance_id: str, *, undo: bool, then: Callable[[Any], object] = lambda answer: None
    ) -> None:
        """An operator stops new work for an instance, or allows it again, and hears of it."""
        if undo:
            self.checker.fleet.undrained(instance_id)
        try:
            pool, instance = self.reach.instance(tenant, instance_id)
        except ReachError as error:
            then(error)
            return
        self.reach.post(pool, ev.Drained(instance, DRAIN_MS, undo, _Answer(then)))


class _Answer:
    """Where the answer to an operator goes (`runtime.agents.Reply`)."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Any], object]) -> None:
        self._then = then

    def done(self, value: Any) -> None:
        """It is done."""
        self._then(value)

    def refused(self, fault: Fault) -> None:
        """It is refused."""
        self._then(fault)
