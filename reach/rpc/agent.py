"""Attach: the agent's stream. Several instances may share it, each on a link of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agentreach.v1 import attach_pb2, attach_pb2_grpc, attempt_pb2
from reach.core import events as ev
from reach.core.effects import Welcome
from reach.core.model import Fault, Instance, Task
from reach.core.pool import Pool
from reach.core.questions import Input
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.pings import FEATURE, Pinger, Pings
from reach.rpc.principal import Principal, credentials_ended, principal_of
from reach.rpc.services import Services
from reach.rpc.waiting import over
from reach.runtime.reach_api import fault_of
from reach.wire.agents import is_cut, read_key, read_registration, read_result, read_status
from reach.wire.answers import duration, fill_error, fill_payload
from reach.wire.attempts import delta_came, offer_rest, progressed, taken_up
from reach.wire.batcher import Batcher
from reach.wire.encoding import acknowledgement_item, offer_item, sequence_field
from reach.wire.requests import ID_BYTES, check_id, check_version, invalid
from reach.wire.webhooks import shown_to_agents

LINKS = 1_000
"""Instances on one stream."""
RUNNING = 100_000
"""Attempts that one hello may name."""
AWAITED_CREDIT = 32 << 10
"""Room of this many bytes is told at once: whoever sends such pieces soon waits for it."""
EARLY = 10_000
"""Items that may come before the link is open."""
EARLY_BYTES = 16 << 20
"""What they may take in all."""


class AttachLink:
    """One instance on an Attach stream (`runtime.agents.AgentLink`)."""

    __slots__ = ("_out", "_stream", "early", "early_bytes", "instance", "instance_id", "number", "pinger", "pool",
                 "still", "tenant")  # fmt: skip

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

    def give_input(self, task: Task, given: Input) -> None:
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


class AttachStream:
    """One Attach call."""

    def __init__(self, services: Services, principal: Principal, pings: Pings) -> None:
        self.services = services
        self._reach = services.reach
        self._principal = principal
        self._pings = pings
        self.out = Batcher()
        self.links: dict[int, AttachLink] = {}
        self._opened = False
        self._down = 0
        self.ours = False
        """The end of this stream is our doing: work waits for the agents to come back."""

    # -- up -----------------------------------------------------------------------------------------------------------

    def handle(self, frame: attach_pb2.AttachRequest) -> None:
        """One frame of the agent.

        Raises:
            InvalidRequest: VERSION_NOT_SUPPORTED, UNEXPECTED_FRAME, or the key has ended: the stream ends.
        """
        if not self._principal.still_valid():
            raise credentials_ended()
        if frame.HasField("opening"):
            if self._opened:
                raise InvalidRequest("the stream is open already", Reason.UNEXPECTED_FRAME)
            if frame.opening.protocol_version:
                check_version(frame.opening.protocol_version)
        if not self._opened:
            self._opened = True
            self.say(welcome=self.services.welcome())
        for hello in frame.hellos:
            self._hello(hello)
        for items, act in (
            (frame.beats, self._beat),
            (frame.accepts, self._accept),
            (frame.deltas, self._delta),
            (frame.progress, self._progress),
            (frame.results, self._result),
            (frame.effects, self._effect),
            (frame.pongs, self._pong),
            (frame.goodbyes, self._goodbye),
        ):
            if items:
                self._items(items, act)

    def _hello(self, hello: attach_pb2.Hello) -> None:
        number, tenant = hello.link, self._principal.tenant
        known = self.links.get(number)
        try:
            if not number:
                raise invalid("hello.link", "must be 1 or more")
            if known is None and len(self.links) >= LINKS:
                raise self.services.too_many(LINKS)
            if known is not None and not hello.registration.instance_id:
                hello.registration.instance_id = known.instance_id  # ours, if we made it: said again, it is the same
            agent_type, joining = read_registration(hello.registration)
            if known is not None and known.instance_id != joining.instance_id:
                raise InvalidRequest(f"link {number} belongs to another instance", Reason.UNEXPECTED_FRAME)
            if len(hello.running) > RUNNING:
                raise invalid("hello.running", f"has {len(hello.running)} entries, at most {RUNNING} are allowed")
            running = [(*read_key("running.key", one.key, tenant), one.last_attempt_sequence) for one in hello.running]
            link = known if known is not None else AttachLink(self, number, tenant)
            link.pool = self._reach.hello(tenant, agent_type, joining, link, running, read_status(hello.status))
            link.instance_id = joining.instance_id
            self.links[number] = link
            if link.pinger is None and FEATURE in hello.registration.features:
                link.pinger = self._pings.watch(link)
        except ReachError as error:
            self._refuse(number, None, fault_of(error), closed=known is None)

    def _items(self, items: Iterable[Any], act: Callable[[AttachLink, Any, Any], None]) -> None:
        links = self.links
        for item in items:
            link = links.get(item.link)
            if link is None or link.instance is None:
                self._too_early(link, act, item)
                continue
            try:
                act(link, link.instance, item)
            except ReachError as error:
                self._refuse(link.number, item, fault_of(error))

    def _too_early(self, link: AttachLink | None, act: Callable[[AttachLink, Any, Any], None], item: Any) -> None:
        """There is no hello, or it is not committed yet."""
        if link is None:
            error = InvalidRequest(f"there is no link {item.link}: say hello first", Reason.UNEXPECTED_FRAME)
            self._refuse(item.link, item, fault_of(error))
        else:
            size = item.ByteSize()
            if len(link.early) >= EARLY or link.early_bytes + size > EARLY_BYTES:
                self._refuse(link.number, item, fault_of(self.services.too_many(EARLY)))
                return
            link.early_bytes += size
            link.early.append(lambda: self._items((item,), act))

    def _refuse(self, number: int, item: Any, fault: Fault, *, closed: bool = False) -> None:
        """Answers an item that has no meaning. Its key comes back, unless that is what is wrong with it."""
        self.services.metrics.refused(fault.reason)
        key = getattr(item, "key", None)
        refusal = attach_pb2.LinkRefusal(link=number, closed=closed)
        if key is not None and len(key.task_id) <= ID_BYTES and len(key.tenant) <= ID_BYTES:
            refusal.key.CopyFrom(key)
        fill_error(refusal.error, fault)
        self.say(refusals=[refusal])

    def _post(self, link: AttachLink, event: Any) -> None:
        pool = link.pool
        assert pool is not None
        self._reach.post(pool, event)

    def _beat(self, link: AttachLink, instance: Instance, beat: attach_pb2.LinkBeat) -> None:
        self.services.metrics.beat("stream")
        status = beat.status
        said = read_status(status)
        if is_cut(status, said):
            self.services.metrics.status_cut()
        self._post(link, ev.Beat(instance, said, self._down, beat.last_frame))
        if instance.link is not link:
            # A hello of an earlier stream came later than the one of this: the instance is taken to be there.
            self.say(resync=True)

    def _accept(self, link: AttachLink, instance: Instance, accept: attempt_pb2.AttemptAccept) -> None:
        self._post(link, taken_up(instance, link.tenant, accept))

    def _delta(self, link: AttachLink, instance: Instance, message: attempt_pb2.AttemptDelta) -> None:
        self._post(link, delta_came(instance, link.tenant, message, link.still))

    def _progress(self, link: AttachLink, instance: Instance, message: attempt_pb2.AttemptProgress) -> None:
        self._post(link, progressed(instance, link.tenant, message, link.still))
        if message.HasField("status"):
            self._warm(link, instance, message.status)

    def _result(self, link: AttachLink, instance: Instance, message: attempt_pb2.AttemptResult) -> None:
        tenant = read_key("result.key", message.key, link.tenant)[0]
        self._post(link, read_result(instance, tenant, message, self.services.tasks.limits.payload))
        if message.HasField("status"):
            self._warm(link, instance, message.status)

    def _warm(self, link: AttachLink, instance: Instance, status: Any) -> None:
        self.services.metrics.beat("warm")
        said = read_status(status)
        if is_cut(status, said):
            self.services.metrics.status_cut()
        self._post(link, ev.Beat(instance, said))

    def _effect(self, link: AttachLink, instance: Instance, message: attach_pb2.EffectRequest) -> None:
        key = read_key("effect.key", message.key, link.tenant)
        self._post(link, ev.EffectAsked(instance, *key, check_id("effect.effect", message.effect), link.still))

    def _pong(self, link: AttachLink, instance: Instance, message: attach_pb2.Pong) -> None:
        if link.pinger is not None:
            self._pings.answered(link.pinger, message.nonce)

    def unlink(self, link: AttachLink) -> None:
        """The link is closed; the stream goes on."""
        self.links.pop(link.number, None)
        if link.pinger is not None:
            self._pings.forget(link.pinger)

    def _goodbye(self, link: AttachLink, instance: Instance, message: attach_pb2.Goodbye) -> None:
        self._post(link, ev.Left(instance))
        self.unlink(link)

    def close(self) -> None:
        """The stream is over: each link says so."""
        self.out.close()
        links, self.links = self.links, {}
        for link in links.values():
            if link.pinger is not None:
                self._pings.forget(link.pinger)
            if link.pool is not None and link.instance is not None:
                self._reach.post(link.pool, ev.LinkEnded(link.instance, link, self.ours))
            elif link.pool is not None:
                link.early = [lambda link=link: self._ended_early(link)]  # type: ignore[misc]

    def _ended_early(self, link: AttachLink) -> None:
        if link.pool is not None and link.instance is not None:
            self._reach.post(link.pool, ev.LinkEnded(link.instance, link, self.ours))

    # -- down ---------------------------------------------------------------------------------------------------------

    def say(self, **fields: Any) -> None:
        """Something for the agent that is not said for each task."""
        self.out.put(attach_pb2.AttachResponse(**fields).SerializeToString())

    def number(self) -> bytes:
        """Counts the frames that go down."""
        self._down += 1
        return sequence_field(self._down)

    def closing(self, out: Batcher) -> None:
        """Tells the agent that we end the stream: it should come back."""
        self.ours = True
        self.say(reopen=True)


class AgentServicer(attach_pb2_grpc.AgentServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pings = Pings(services.reach, services.clock)

    async def Attach(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        """See the contract."""
        stream = AttachStream(self._services, principal_of(context), self._pings)
        await self._services.pump(context, stream.out, stream.handle, stream.close, stream.closing, stream.number)
