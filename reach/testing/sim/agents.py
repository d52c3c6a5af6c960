"""Agents, as our SDK makes them: their processes and their streams. What runs in them is in `attempts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import agent_pb2
from reach.core.instance_states import Availability
from reach.core.model import Fault
from reach.errors import ErrorClass
from reach.testing.sim.agent_door import AgentDoor
from reach.testing.sim.attempts import RESEND_S, Attempts
from reach.testing.sim.link import ClientEnd, Frame, Stream
from reach.testing.sim.loop import Due, Process
from reach.testing.sim.work import Manners, Outcome
from reach.wire.agents import read_registration

if TYPE_CHECKING:
    from reach.testing.sim.world import World

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0


class AgentStream(ClientEnd):
    """The agent's end of one stream; what comes over an old one is not heard."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def heard(self, items: Frame) -> None:
        if self._agent.end is self:
            for kind, *rest in items:
                self._agent.heard += 1
                getattr(self._agent, f"on_{kind}")(*rest)

    def lost(self) -> None:
        if self._agent.end is self:
            self._agent.disconnected()


class Agent(Attempts):
    """One instance: a process that is started again whenever it has ended."""

    more: tuple[str, ...] = ()
    """What it can do that agents of other types can do too."""

    def __init__(self, world: World, name: str, agent_type: str, slots: int, manners: Manners) -> None:
        super().__init__(world, name, manners)
        self._type = agent_type
        self._slots = slots
        self.sessions: dict[tuple[str, str], None] = {}
        """Sessions that its process has had tasks of."""
        self.hellos = 0
        self._forget_stream()

    def _forget_stream(self) -> None:
        self.end: AgentStream | None = None
        self.stream: Stream | None = None
        self._before: Stream | None = None
        self._connecting: Due | None = None
        self.heard = 0
        """Items that arrived over this stream."""
        self._new_stream = False
        self._tries = 0
        self._heartbeat_ms = 5_000

    def _clear(self) -> None:
        """A process knows nothing of the one before."""
        self.forget()
        self.sessions.clear()
        self.hellos = 0
        self._forget_stream()

    # -- its process --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process."""
        self.boots += 1
        self._clear()
        self.world.checker.fleet.undrained(self.name)
        self.leaving = False
        self.process = Process(self.world.loop, self.random)
        registration = agent_pb2.Registration(
            agent_id=self._type,
            agent_type=self._type,
            version=self.world.version(),
            instance_id=self.name,
            boot_id=self.boot,
            max_concurrency=self._slots,
            ready=True if self.random.random() < 0.8 else None,
            allowed_tenants=["beta"],
        )
        for capability in (f"can-{self._type}", *self.more):
            registration.capabilities.add(name=capability, version="1")
        _, self._joining = read_registration(registration)
        self.tell("starts (process {})", self.boots)
        self._connect()
        self.process.call_later(RESEND_S / 5, self._send_late)
        self.process.call_later(self._heartbeat_ms / 1_000, self._beat)

    def die(self) -> None:
        """Its process ends at once."""
        if self.process.dead:
            return
        self.tell("dies")
        self.process.die()
        if self.stream is not None:
            self.stream.break_now()
        self._clear()

    def leave(self) -> None:
        """It is asked to end: gives back what runs, and says goodbye."""
        if self.process.dead or self.leaving:
            return
        self.tell("leaves")
        self.leaving = True
        self.put("beat", {"availability": Availability.DRAINING}, self.heard)
        for run in list(self.running.values()):
            self.conclude(run, Outcome(run.key, run.attempt, ("released", "the agent leaves")))
            run.cancelled = True
        self.process.call_later(0.3, self._leave_when_settled)

    def _leave_when_settled(self) -> None:
        if self.unacknowledged and self.random.random() < 0.8:
            self.process.call_later(0.3, self._leave_when_settled)
            return
        for name in self.sessions:
            self._say_snapshot(name)
        self.put("goodbye")
        self.process.call_later(0.3, self.die)

    # -- its connection -----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Opens a stream; one that is still open ends when the new one works."""
        self._connecting = None
        self.welcomed = False
        if not self.world.server.up:
            self._connect_later()
            return
        if self.stream is not None:
            self._before = self.stream
        self.end = AgentStream(self)
        door = AgentDoor(self.world.server, "acme")
        self.stream = self.world.server.connect(self.world.network, self.process, self.end, door)
        self._new_stream = True
        self.heard = 0
        self._hello()
        stream = self.stream
        self.process.call_later(10.0, lambda: self._give_up(stream))

    def _give_up(self, stream: Stream) -> None:
        if self.stream is stream and not self.welcomed:
            stream.break_now()

    def _connect_later(self) -> None:
        if self._connecting is None:
            most = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._tries, 10))
            self._tries += 1
            self._connecting = self.process.call_later(0.01 + most * self.random.random(), self._connect)

    def disconnected(self) -> None:
        """The stream is over."""
        self.tell("has lost its stream")
        self.end = self.stream = None
        self.welcomed = False
        self._connect_later()

    def put(self, *item: Any) -> None:
        """See Attempts."""
        if self.welcomed and self.stream is not None:
            self.stream.up.put(item)

    def _hello(self) -> None:
        """Who speaks, and all that runs or has ended with an outcome that follows."""
        self.greeting = True
        running: list[tuple[str, str, int, int]] = []
        for run in self.running.values():
            if run.flow is not None:
                run.flow.named = run.flow.last
            running.append((*run.key, run.attempt, run.flow.last if run.flow is not None else 0))
        running += [(*outcome.key, outcome.attempt, 0) for outcome in self.unacknowledged.values()]
        self.tell("says hello, runs {}", [f"{one[1]} #{one[2]}" for one in running])
        assert self.stream is not None
        self.hellos += 1
        status = {"availability": Availability.DRAINING} if self.leaving else {}
        self.stream.up.put(("hello", self._type, self._joining, running, self.hellos, status))

    def on_welcome(self, generation: int, unknown: Any, replay: Any, heartbeat_ms: int) -> None:
        """The hello is answered."""
        new_stream, self._new_stream = self._new_stream, False
        self.welcomed, self.greeting, self._tries = True, False, 0
        self._heartbeat_ms = heartbeat_ms
        if self._before is not None:
            self._before.break_now()
            self._before = None
        for tenant, task_id, attempt in unknown:
            self.cancel((tenant, task_id), attempt, silent=True)
        asked = {((tenant, task_id), attempt) for tenant, task_id, attempt in replay}
        for run in list(self.running.values()):
            self.restore(run, (run.key, run.attempt) in asked, new_stream)
        for outcome in self.unacknowledged.values():
            if new_stream:
                outcome.make_whole()
            self.send(outcome)

    def on_closed(self, fault: Fault) -> None:
        """The link is refused or superseded."""
        self.tell("is refused: {}", fault.reason.name)
        if fault.error_class is ErrorClass.INVALID_REQUEST:
            self.die()
            self.world.loop.call_later(1.0, self._start_again)
        elif self.stream is not None:
            self.stream.break_now()

    def on_reopen(self) -> None:
        """The server wants another stream instead of this one, now."""
        if self._connecting is None:
            self._connect()

    def on_resync(self) -> None:
        """The server lacks our hello: again."""
        self._hello()
        for outcome in self.unacknowledged.values():
            self.send(outcome)

    def on_drain(self) -> None:
        """An operator asks to finish."""

    def on_session(self, tenant: str, session: str) -> None:
        """A task of a session follows."""
        self.sessions[tenant, session] = None

    def on_handoff(self, tenant: str, session: str) -> None:
        """The server asks what is known of a session: nearly always it is told in time."""
        if self.random.random() > self.manners.bad:
            self.process.call_later(self.random.choice((0.001, 0.2, 0.9, 3.0)), self._say_snapshot, (tenant, session))

    def _say_snapshot(self, name: tuple[str, str]) -> None:
        if name in self.sessions:
            self.put("snapshot", *name, f"{name[0]}|{name[1]}|{self.boot}".encode())

    def _beat(self) -> None:
        self.put("beat", {}, self.heard)
        self.process.call_later(self._heartbeat_ms / 1_000, self._beat)

    def _send_late(self) -> None:
        for outcome in self.unacknowledged.values():
            if self.welcomed and outcome.sent_at <= self.world.loop.now - RESEND_S:
                self.send(outcome)
        self.process.call_later(RESEND_S / 5, self._send_late)
