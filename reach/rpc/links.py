"""One instance on an Attach stream, as the core sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentreach.v1 import attach_pb2, attempt_pb2
from reach.core.dialogue import Input
from reach.core.effects import Welcome
from reach.core.model import Fault, Instance, Task
from reach.core.pool import Pool
from reach.errors import Reason
from reach.rpc.pings import Pinger
from reach.rpc.waiting import over
from reach.wire.answers import duration, fill_error, fill_payload
from reach.wire.attempts import offer_rest
from reach.wire.encoding import acknowledgement_item, offer_item
from reach.wire.sessions import session_key
from reach.wire.webhooks import shown_to_agents

if TYPE_CHECKING:
    from reach.rpc.agent import AttachStream

AWAITED_CREDIT = 32 << 10
"""Room of this many bytes is told at once: whoever sends such pieces soon waits for it."""


class AttachLink:
    """One instance on an Attach stream (`runtime.agents.AgentLink`)."""

    __slots__ = ("_out", "_stream", "early", "early_bytes", "hands_over", "instance", "instance_id", "number", "pinger",
                 "pool", "still", "tenant")  # fmt: skip

    def __init__(self, stream: AttachStream, number: int, tenant: str) -> None:
        self._stream = stream
        self._out = stream.out
        self.number = number
        self.tenant = tenant
        self.pool: Pool | None = None
        self.instance_id = ""
        """Who said hello."""
        self.instance: Instance | None = None
        """The same, once the hello is committed."""
        self.early: list[Callable[[], None]] = []
        """What the agent said before the hello was committed."""
        self.early_bytes = 0
        self.hands_over = False
        """It says what it knows of a session which is about to move."""
        self.pinger: Pinger | None = None
        """Its pings; None if it does not answer any."""
        self.still = _Still(self)

    def _key(self, tenant: str, task_id: str, attempt: int) -> attempt_pb2.AttemptKey:
        return attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant="" if tenant == self.tenant else tenant)

    def offer(self, task: Task, instance: Instance, traceparent: str, context: bytes = b"") -> None:
        """See AgentLink."""
        spec = shown_to_agents(task) if task.announce else task.spec
        rest = offer_rest(task, self.tenant, traceparent, context)
        self._out.put(offer_item(self.number, task.attempt, spec, rest))

    def stop(self, tenant: str, task_id: str, attempt: int, reason: Reason) -> None:
        """See AgentLink."""
        cancel = attach_pb2.CancelAttempt(link=self.number, key=self._key(tenant, task_id, attempt))
        cancel.reason = int(reason)  # type: ignore[assignment]
        cancel.grace.seconds = 5
        self._stream.say(cancels=[cancel])

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """See AgentLink."""
        self._out.later(acknowledgement_item(tenant if tenant != self.tenant else "", task_id, attempt))

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """See AgentLink."""
        refusal = attach_pb2.LinkRefusal(link=self.number, key=self._key(tenant, task_id, attempt))
        fill_error(refusal.error, fault)
        self._stream.say(refusals=[refusal])

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """See AgentLink."""
        key = self._key(tenant, task_id, attempt)
        grant = attach_pb2.EffectGrant(link=self.number, key=key, effect=effect)
        if fault is not None:
            fill_error(grant.refusal, fault)
        self._stream.say(grants=[grant])

    def give_input(self, task: Task, given: Input, context: bytes = b"") -> None:
        """See AgentLink."""
        said = attach_pb2.AttemptInput(link=self.number, key=self._key(*task.key, task.attempt))
        said.input_id, said.question = given.input_id, given.question
        fill_payload(said.payload, given.media_type, given.content)
        self._stream.say(inputs=[said])

    def credit(self, tenant: str, task_id: str, attempt: int, count: int) -> None:
        """See AgentLink."""
        said = attach_pb2.AttemptCredit(link=self.number, key=self._key(tenant, task_id, attempt), bytes=count)
        put = self._out.put if count >= AWAITED_CREDIT else self._out.later
        put(attach_pb2.AttachResponse(credits=[said]).SerializeToString())

    def welcome(self, effect: Welcome) -> None:
        """See AgentLink."""
        self.instance = effect.instance
        message = attach_pb2.LinkWelcome(link=self.number, instance_id=effect.instance.instance_id)
        message.generation = effect.generation
        message.warnings.extend(effect.warnings)
        message.heartbeat_interval.CopyFrom(duration(effect.instance.heartbeat_ms))
        message.unknown.extend(self._key(*one) for one in effect.unknown)
        message.replay.extend(self._key(*one) for one in effect.replay)
        self._stream.say(links=[message])
        early, self.early, self.early_bytes = self.early, [], 0
        for act in early:
            act()

    def close(self, fault: Fault) -> None:
        """See AgentLink."""
        refusal = attach_pb2.LinkRefusal(link=self.number, closed=True)
        fill_error(refusal.error, fault)
        self._stream.say(refusals=[refusal])
        self._stream.unlink(self)
        self._stream.part(self.number, fault.error_class)

    def ping(self, nonce: int) -> None:
        """Asks for a sign of the agent's handler loop."""
        self._stream.say(pings=[attach_pb2.Ping(link=self.number, nonce=nonce)])

    def reopen(self) -> None:
        """See AgentLink."""
        self._stream.say(reopen=True)

    def drop(self) -> None:
        """See AgentLink."""
        self._stream.ours = True
        self._out.close()

    def drain(self, deadline_ms: int) -> None:
        """See AgentLink."""
        self._stream.say(drains=[attach_pb2.LinkDrain(link=self.number, deadline=duration(deadline_ms))])

    def prepare_handoff(self, tenant: str, session: str, timeout_ms: int) -> None:
        """See AgentLink."""
        request = attach_pb2.HandoffRequest(link=self.number, session=session_key(session))
        request.tenant = tenant if tenant != self.tenant else ""
        request.timeout.CopyFrom(duration(timeout_ms))
        self._stream.say(handoffs=[request])


class _Still:
    """Answers what an agent says of an attempt while it works on it: if the task has ended, the agent is to stop."""

    __slots__ = ("_link", "grant", "refuse", "tenant")

    def __init__(self, link: AttachLink) -> None:
        self._link = link
        self.tenant = link.tenant
        self.grant = link.grant
        self.refuse = link.refuse

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The outcome is committed."""
        self._link.refuse(tenant, task_id, attempt, over(task_id, attempt))
