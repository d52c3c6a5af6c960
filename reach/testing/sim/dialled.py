"""Agents that are dialled: as our SDK makes them (`sdk.endpoint`, `sdk.calls`), and plain ones, which do less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import agent_pb2, attempt_pb2, endpoint_pb2
from reach.core.instance_states import Availability
from reach.core.model import EffectKind, Fault, TaskKey
from reach.errors import ErrorClass
from reach.testing.sim import unary
from reach.testing.sim.attempts import RESEND_S, Attempts
from reach.testing.sim.calls import EXECUTE, PORT, SERVING, Call, Exchange, refusal, stale
from reach.testing.sim.loop import Process
from reach.testing.sim.spoken import TENANT, response_of
from reach.testing.sim.story import TaskName
from reach.testing.sim.work import CREDIT, Manners, Outcome, Run
from reach.transports.probing import SERVICE
from reach.wire.agents import read_registration
from reach.wire.requests import session_name

if TYPE_CHECKING:
    from reach.testing.sim.world import World

UNASKED_S = 45.0
"""A server that asked nothing for so long has forgotten us."""
REGISTER_S = 10.0
EFFECT_S = 5.0


class DialledAgent(Attempts):
    """One instance that serves AgentEndpointService."""

    def __init__(
        self, world: World, exchange: Exchange, name: str, agent_type: str, slots: int, manners: Manners
    ) -> None:
        self.joins = world.random.random() < 0.7
        """An Execute of an attempt that runs here joins it, and it asks before effects; else it is a plain agent."""
        super().__init__(world, name, manners if self.joins else manners._replace(asks=0.0))
        self._exchange = exchange
        self._type = agent_type
        self._slots = slots
        self._version = ""
        exchange.agents[name] = self
        self.sessions: dict[tuple[str, str], None] = {}
        self._clear()

    def _clear(self) -> None:
        self.forget()
        self.welcomed = True
        self.sessions.clear()
        self._calls: dict[TaskKey, tuple[Call, int]] = {}
        self._sent: dict[TaskKey, int] = {}
        """Outcomes that were written into a call."""
        self._asked_at = 0.0
        self._registration = 0

    # -- its process --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process, under the same address."""
        self.boots += 1
        self._clear()
        self._version = self.world.version()
        self.world.checker.fleet.undrained(self.name)
        self.leaving = False
        self.process = Process(self.world.loop, self.random)
        self.tell("starts (process {}), to be dialled{}", self.boots, "" if self.joins else ", a plain one")
        self._register(0)
        self.process.call_later(RESEND_S / 5, self._send_late)

    def die(self) -> None:
        """Its process ends at once."""
        if self.process.dead:
            return
        self.tell("dies")
        self.process.die()
        self._exchange.died(self.name, "recvmsg:Connection reset by peer")
        self._clear()

    def leave(self) -> None:
        """It is asked to end: gives back what runs, and deregisters."""
        if self.process.dead or self.leaving:
            return
        self.tell("leaves")
        self.leaving = True
        status, boot = {"availability": Availability.DRAINING}, self.boot
        self.world.unary.ask(lambda server: unary.beat(server, TENANT, self.name, boot, status))
        for run in list(self.running.values()):
            self.conclude(run, Outcome(run.key, run.attempt, ("released", "the agent leaves")))
            run.cancelled = True
        self.process.call_later(
            0.6, self.world.unary.ask, lambda server: unary.deregister(server, TENANT, self.name, boot)
        )
        self.process.call_later(1.0, self.die)

    @property
    def stream(self) -> DialledAgent | None:
        """What faults of its connection befall."""
        return self if self._exchange.to(self.name) else None

    def break_now(self) -> None:
        """Its connections break; if it stands still, for nobody answers pings."""
        paused = self.process.paused_until > self.world.loop.now
        self._exchange.died(self.name, "ping timeout" if paused else "Socket closed")

    def break_half(self, up: bool) -> None:
        """Its connections are dead in one direction."""
        for wire in self._exchange.to(self.name):
            wire.break_half(up)

    # -- its registration ---------------------------------------------------------------------------------------------

    def _register(self, tries: int) -> None:
        if self.leaving:
            return
        self._registration += 1
        number, boot, process = self._registration, self.boot, self.process
        self._asked_at = self.world.loop.now
        registration = agent_pb2.Registration(
            agent_id=self._type, agent_type=self._type, instance_id=self.name, boot_id=boot, version=self._version,
            max_concurrency=self._slots, allowed_tenants=["beta"],
            features=["rejoin", "effects", "keepalive", "handoff"] if self.joins else [],
        )  # fmt: skip
        registration.endpoints.add(url=f"grpc://{self.name}:{PORT}")
        registration.capabilities.add(name=f"can-{self._type}", version="1")
        agent_type, joining = read_registration(registration)

        def answered(fault: Fault | None) -> None:
            if number != self._registration:
                return
            self._registration += 1
            if fault is None:
                self.tell("is registered")
                self.process.call_later(5.0, self._look_whether_asked)
            elif fault.error_class in (ErrorClass.INVALID_REQUEST, ErrorClass.INTERNAL):
                self.tell("is refused: {}", fault.reason.name)
                self.die()
                self.world.loop.call_later(1.0, self._start_again)
            else:
                later()

        def later() -> None:
            if number in (self._registration, self._registration - 1):
                wait = 0.01 + min(5.0, 0.1 * 2 ** min(tries, 10)) * self.random.random()
                self.process.call_later(wait, self._register, tries + 1)

        def late() -> None:
            if number == self._registration:
                later()

        sent = self.world.unary.ask(lambda server: unary.register(server, TENANT, agent_type, joining, process, reply))
        reply = self.world.unary.back_to(self.process, answered)
        if sent:
            self.process.call_later(REGISTER_S, late)
        else:
            later()

    def _look_whether_asked(self) -> None:
        if self._asked_at + UNASKED_S < self.world.loop.now:
            self.tell("was asked nothing for long")
            self._register(0)
        else:
            self.process.call_later(5.0, self._look_whether_asked)

    # -- what the server calls ----------------------------------------------------------------------------------------

    def serve(self, call: Call) -> None:
        """A call came."""
        name = call.method.removeprefix(SERVICE)
        if call.method == EXECUTE:
            self._asked_at = self.world.loop.now
            self._execute(call, endpoint_pb2.ExecuteRequest.FromString(call.request).offer)
        elif name == "Cancel":
            self._cancel(endpoint_pb2.CancelRequest.FromString(call.request).key)
            self._reply(call, endpoint_pb2.CancelResponse())
        elif name == "Check":
            self._asked_at = self.world.loop.now
            self._reply(call, self._check(endpoint_pb2.CheckRequest.FromString(call.request)))
        elif name == "PrepareHandoff":
            self._prepare_handoff(call, endpoint_pb2.PrepareHandoffRequest.FromString(call.request))
        else:
            self._reply(call, SERVING)

    @staticmethod
    def _reply(call: Call, message: Any) -> None:
        call.wire.answer(call, message.SerializeToString())
        call.wire.finish(call)

    def hung_up(self, call: Call) -> None:
        """A call is over, by the server or by the network. A plain agent may give up what it did for it."""
        key = next((key for key, (one, _) in self._calls.items() if one is call), None)
        if key is None:
            return
        del self._calls[key]
        run = self.running.get(key)
        if run is not None and not self.joins and self.random.random() < 0.5:
            self._stop(run, silent=True)

    def _execute(self, call: Call, offer: attempt_pb2.Offer) -> None:
        key, number = (offer.tenant or TENANT, offer.task.task_id), offer.attempt
        running, outcome = self.running.get(key), self.by_key.get(key)
        newest = max(running.attempt if running is not None else 0, outcome.attempt if outcome is not None else 0)
        if newest > number:
            call.wire.finish(call, stale())
            return
        if newest < number and self.random.random() < self.manners.bad / 4:
            self.tell("refuses {} #{}", TaskName(key[1]), number)
            self.world.checker.attempts.handed_back(key, number)
            call.wire.finish(call, refusal(self.random))
            return
        former = self._calls.get(key)
        if former is not None:
            former[0].wire.finish(former[0])
        self._calls[key] = call, number
        if outcome is not None and outcome.attempt == number:
            outcome.make_whole()
        if running is not None and running.attempt == number:
            self._join(running, offer)
            return
        if offer.task.HasField("session"):
            self.sessions[key[0], session_name(offer.task.session)] = None
        irreversible = int(offer.task.effects) == EffectKind.IRREVERSIBLE
        self.on_offer(key, number, EffectKind.IRREVERSIBLE if irreversible else None, None)

    def _join(self, run: Run, offer: attempt_pb2.Offer) -> None:
        self.tell("joins {} #{}", TaskName(run.key[1]), run.attempt)
        self.put("accept", run.key, run.attempt)
        for given in offer.inputs:
            self.on_input(run.key, run.attempt, given.question)
        flow = run.flow
        if flow is not None:
            pieces = flow.replay(0)
            flow.whole = flow.mute = pieces is None
            for number, delta in pieces or ():
                self.put("delta", run.key, run.attempt, number, delta)
            flow.granted = flow.spent + CREDIT
            self._go_on(run)
        if run.question:
            self.put("result", run.key, run.attempt, "waiting", run.question)

    def _cancel(self, name: attempt_pb2.AttemptKey) -> None:
        key = (name.tenant or TENANT, name.task_id)
        run = self.running.get(key)
        if run is not None and run.attempt == name.attempt:
            self.on_stop(key, name.attempt)
        else:
            self._sent.pop(key, None)
            self.on_acknowledge(key, name.attempt)

    def _check(self, request: endpoint_pb2.CheckRequest) -> endpoint_pb2.CheckResponse:
        believed = {((key.tenant or TENANT, key.task_id), key.attempt) for key in request.running}
        for key, number in list(self._sent.items()):
            if (key, number) not in believed:
                del self._sent[key]
                self.on_acknowledge(key, number)
        named = {(key, run.attempt) for key, run in self.running.items()}
        named.update((key, outcome.attempt) for key, outcome in self.unacknowledged.items())
        named.update(one for one in believed if one[0] in self.by_key and self.by_key[one[0]].attempt == one[1])
        answer = endpoint_pb2.CheckResponse(boot_id=self.boot)
        if self.leaving:
            answer.status.availability = agent_pb2.AVAILABILITY_DRAINING
        for (tenant, task_id), attempt in sorted(named):
            answer.running.add(task_id=task_id, attempt=attempt, tenant=tenant)
        return answer

    def _prepare_handoff(self, call: Call, request: endpoint_pb2.PrepareHandoffRequest) -> None:
        name = request.tenant or TENANT, session_name(request.session)
        said = f"{name[0]}|{name[1]}|{self.boot}".encode() if name in self.sessions else b""
        answer = endpoint_pb2.PrepareHandoffResponse(snapshot=said)
        self.process.call_later(self.random.choice((0.001, 0.2, 0.9, 3.0)), self._reply, call, answer)

    # -- what it says -------------------------------------------------------------------------------------------------

    def put(self, *item: Any) -> None:
        """See Attempts. What has no call is left to be said again when the server joins the attempt."""
        kind, key, attempt, *rest = item
        if kind == "effect":
            self._ask_effect(key, attempt)
            return
        call, number = self._calls.get(key, (None, 0))
        if call is None or number != attempt:
            return
        call.wire.answer(call, response_of(kind, key, attempt, rest).SerializeToString())
        run = self.running.get(key)
        if kind == "delta" and run is not None and run.flow is not None:
            run.flow.granted = run.flow.spent + CREDIT
        elif kind == "result":
            call.wire.finish(call)
            del self._calls[key]
            if rest[0] != "waiting" and key in self.unacknowledged:
                self._sent[key] = attempt

    def send(self, outcome: Outcome) -> None:
        """See Attempts. A plain agent without a call reports by a call of its own."""
        outcome.sent_at = self.world.loop.now
        call, number = self._calls.get(outcome.key, (None, 0))
        if call is not None and number == outcome.attempt:
            self.put("result", outcome.key, outcome.attempt, *outcome.content)
        elif not self.joins:
            outcome.make_whole()
            self.world.unary.report(self, self.boot, outcome)

    def _send_late(self) -> None:
        for outcome in list(self.unacknowledged.values()):
            if not self.joins and outcome.sent_at <= self.world.loop.now - RESEND_S:
                self.send(outcome)
        self.process.call_later(RESEND_S / 5, self._send_late)

    def _ask_effect(self, key: TaskKey, attempt: int) -> None:
        run = self.running.get(key)
        if run is None or run.attempt != attempt or not run.asked:
            return
        if not self.joins:  # the offer was the permission
            self.process.call_soon(self.on_grant, key, attempt, None)
            return
        count, boot = run.questions_asked, self.boot
        run.questions_asked += 1

        def again() -> None:
            if run.questions_asked == count + 1:
                self._ask_effect(key, attempt)

        def answered(fault: Fault | None) -> None:
            if fault is not None and fault.error_class not in (ErrorClass.INVALID_REQUEST, ErrorClass.AGENT_ERROR):
                self.process.call_later(0.1 + 0.9 * self.random.random(), again)
            else:
                self.on_grant(key, attempt, fault)

        reply = self.world.unary.back_to(self.process, answered)
        self.world.unary.ask(lambda server: unary.begin_effect(server, TENANT, self.name, boot, key, attempt, reply))
        self.process.call_later(EFFECT_S, again)
