"""The server's end of an agent's stream. It stands where `rpc` stands, and does as it does; what leaves the
server here, the checker hears first."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from reach.core import events as ev
from reach.core.dialogue import Ask, Input
from reach.core.effects import Welcome
from reach.core.joining import Joining
from reach.core.model import Fault, Instance, Task, TaskKey
from reach.core.pieces import Delta
from reach.core.pool import Pool
from reach.errors import ErrorClass, ReachError, Reason
from reach.runtime.faults import fault_of
from reach.testing.sim.link import Frame, ServerEnd, Stream
from reach.testing.sim.story import TaskName

if TYPE_CHECKING:
    from reach.testing.sim.server import Server


class AgentDoor(ServerEnd):
    """One instance on one stream (`runtime.agents.AgentLink`)."""

    hands_over = True

    def __init__(self, server: Server, tenant: str) -> None:
        self.server = server
        self.tenant = tenant
        self.stream: Stream | None = None
        self._pool: Pool | None = None
        self._instance: Instance | None = None
        self._early: list[Any] = []
        self._sent = 0
        """What went down; what arrived, beats say (each item counts as a frame)."""
        self._ended = False
        self._ours = False
        self._answers: dict[tuple[TaskKey, int], bool] = {}

    def _say(self, *item: Any) -> None:
        self._sent += 1
        if self.stream is not None:
            self.stream.down.put(item)

    # -- down ---------------------------------------------------------------------------------------------------------

    def offer(self, task: Task, instance: Instance, traceparent: str, context: bytes = b"") -> None:
        """See AgentLink."""
        self.server.checker.attempts.offered(task.key, task.attempt, instance.instance_id, task.checkpoint)
        self.server.tell("offers {} #{} to {}", TaskName(task.task_id), task.attempt, instance.instance_id)
        if task.session:
            self.server.checker.sessions.offered(task.key, context)
            self._say("session", task.tenant, task.session)
        self._say("offer", task.key, task.attempt, task.effects, task.start_to_close_ms)

    def stop(self, tenant: str, task_id: str, attempt: int, reason: Reason) -> None:
        """See AgentLink."""
        self.server.tell("stops {} #{}: {}", TaskName(task_id), attempt, reason.name)
        self._say("stop", (tenant, task_id), attempt)

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """See AgentLink."""
        key = (tenant, task_id)
        self.server.tell("acknowledges {} #{}", TaskName(task_id), attempt)
        if (key, attempt) in self.server.asked:
            self.server.checker.questions.acknowledged(key, attempt)
        else:
            self.server.checker.attempts.acknowledged(key, attempt, self._answers.get((key, attempt), False))
        self._say("acknowledge", key, attempt)

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """See AgentLink."""
        self.server.tell("refuses {} #{}: {}", TaskName(task_id), attempt, fault.reason.name)
        self._say("refuse", (tenant, task_id), attempt, fault)

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """See AgentLink."""
        key = (tenant, task_id)
        self.server.tell("grants {} #{}: {}", TaskName(task_id), attempt, "yes" if fault is None else fault.reason.name)
        if fault is None and self._instance is not None:
            self.server.checker.attempts.granted(key, attempt, self._instance.instance_id)
        self._say("grant", key, attempt, fault)

    def give_input(self, task: Task, given: Input, context: bytes = b"") -> None:
        """See AgentLink."""
        self.server.tell("gives {} #{} its answer {}", TaskName(task.task_id), task.attempt, given.input_id)
        self.server.checker.questions.given(task.key, task.attempt, given.question, given.content)
        self._say("input", task.key, task.attempt, given.question)

    def credit(self, tenant: str, task_id: str, attempt: int, count: int) -> None:
        """See AgentLink."""
        self._say("credit", (tenant, task_id), attempt, count)

    def welcome(self, effect: Welcome) -> None:
        """See AgentLink."""
        self._instance = effect.instance
        self._say("welcome", effect.generation, list(effect.unknown), list(effect.replay), effect.instance.heartbeat_ms)
        early, self._early = self._early, []
        for item in early:
            self._act(item)
        if self._ended:
            self._post(ev.LinkEnded(effect.instance, self, self._ours))

    def close(self, fault: Fault) -> None:
        """See AgentLink."""
        self.server.tell("closes a link: {}", fault.reason.name)
        self._say("closed", fault)
        self._pool = self._instance = None

    def drain(self, deadline_ms: int) -> None:
        """See AgentLink."""
        self._say("drain")

    def prepare_handoff(self, tenant: str, session: str, timeout_ms: int) -> None:
        """See AgentLink."""
        self.server.tell("asks what is known of {}", session)
        self._say("handoff", tenant, session)

    def reopen(self) -> None:
        """See AgentLink."""
        self._say("reopen")

    def drop(self) -> None:
        """See AgentLink."""
        self._ours = True
        if self.stream is not None:
            self.stream.break_now()

    # -- up -----------------------------------------------------------------------------------------------------------

    def heard(self, items: Frame) -> None:
        for item in items:
            if item[0] == "hello":
                self._hello(*item[1:])
            elif self._instance is None:
                self._early.append(item)
            else:
                self._act(item)

    def _hello(self, agent_type: str, said: Joining, running: list[tuple[str, str, int, int]], number: int,
               status: dict[str, Any]) -> None:  # fmt: skip
        joining = copy(said)
        joining.hello = number
        try:
            self._pool = self.server.reach.hello(self.tenant, agent_type, joining, self, running, status)
        except ReachError as error:
            self.close(fault_of(error))

    def _act(self, item: Any) -> None:
        instance = self._instance
        if instance is None:
            return
        kind, *rest = item
        if kind == "beat":
            self._post(ev.Beat(instance, rest[0], self._sent, rest[1]))
            if instance.link is not self:
                self._say("resync")
        elif kind == "snapshot":
            self._post(ev.SnapshotCame(instance, (rest[0], rest[1]), rest[2]))
        elif kind == "goodbye":
            self._post(ev.Left(instance))
            self._pool = self._instance = None
        else:
            (tenant, task_id), attempt, *rest = rest
            event = event_of(instance, kind, tenant, task_id, attempt, rest)
            if isinstance(event, ev.Reported) and event.waiting is not None:
                self.server.asked.add(((tenant, task_id), attempt))
            elif isinstance(event, ev.Reported):
                self._answers[(tenant, task_id), attempt] = event.fault is None and event.released is None
            elif kind != "accept":
                event.reply = Still(self)
            self._post(event)

    def _post(self, event: Any) -> None:
        if self._pool is not None:
            self.server.reach.post(self._pool, event)

    def lost(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.server.doors.pop(self, None)
        if self._instance is not None:
            self._post(ev.LinkEnded(self._instance, self, self._ours))

    def end(self) -> None:
        """The server ends the stream and asks the agent to come back."""
        self._ours = True
        self._say("reopen")
        self.lost()


class Still:
    """Answers what an agent says of an attempt while it works on it: if the task has ended, the agent is to stop."""

    __slots__ = ("_door", "tenant")

    def __init__(self, door: AgentDoor) -> None:
        self._door = door
        self.tenant = door.tenant

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """Permission, or not."""
        self._door.grant(tenant, task_id, attempt, effect, fault)

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """What was said of the attempt is refused."""
        self._door.refuse(tenant, task_id, attempt, fault)

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The task has ended."""
        over = Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, "the attempt is over")
        self._door.refuse(tenant, task_id, attempt, over)


class Report:
    """One unary report of an outcome, on its way back (a link as far as it answers, see `rpc.waiting.Answer`)."""

    __slots__ = ("_answered", "_key", "_reply", "_server", "attempt", "tenant")

    def __init__(self, server: Server, tenant: str, key: TaskKey, attempt: int, answered: bool, reply: Any) -> None:
        self._server = server
        self._key = key
        self._answered = answered
        self._reply = reply
        self.tenant = tenant
        self.attempt = attempt

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The outcome is committed."""
        self._server.tell("acknowledges the report of {} #{}", TaskName(task_id), attempt)
        self._server.checker.attempts.acknowledged(self._key, attempt, self._answered)
        self._reply(("acknowledge", self._key, attempt))

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """It is refused."""
        self._reply(("refuse", self._key, attempt, fault))

    def refused(self, fault: Fault) -> None:
        """See `refuse`."""
        self._reply(("refuse", self._key, self.attempt, fault))


def event_of(instance: Instance, kind: str, tenant: str, task_id: str, attempt: int, rest: list[Any]) -> Any:
    """What an agent says of an attempt, as an event of the core."""
    if kind == "accept":
        return ev.TakenUp(instance, tenant, task_id, attempt)
    if kind == "delta":
        return ev.DeltaCame(instance, tenant, task_id, attempt, rest[0], Delta(*rest[1]))
    if kind == "progress":
        return ev.Progressed(instance, tenant, task_id, attempt, *rest)
    if kind == "effect":
        return ev.EffectAsked(instance, tenant, task_id, attempt, "pay")
    event = ev.Reported(instance, tenant, task_id, attempt)
    how, what = rest
    if how == "output":
        event.media_type, event.content = "text/plain", what
    elif how == "folded":
        event.folded = what
    elif how == "released":
        event.released = what
    elif how == "waiting":
        event.waiting = Ask(1, "text/plain", "May I?", what)
    else:
        event.fault = what
    return event
