"""Attach: the agent's stream. Several instances may share it, each on a link of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from agentreach.v1 import attach_pb2, attach_pb2_grpc, attempt_pb2
from reach.core import events as ev
from reach.core.model import Fault, Instance
from reach.errors import ErrorClass, InvalidRequest, ReachError, Reason
from reach.rpc.callers import Hop
from reach.rpc.links import AttachLink
from reach.rpc.peer_messages import unavailable
from reach.rpc.pings import FEATURE, Pings
from reach.rpc.principal import Principal, credentials_ended, principal_of
from reach.rpc.remote_links import RemoteLinks
from reach.rpc.services import Services
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.faults import fault_of
from reach.wire.agents import read_key, read_registration, read_result
from reach.wire.answers import fill_error
from reach.wire.attempts import delta_came, progressed, taken_up
from reach.wire.batcher import Batcher
from reach.wire.encoding import sequence_field
from reach.wire.requests import ID_BYTES, check_id, check_version, invalid
from reach.wire.sessions import HANDOFF, SNAPSHOT_BYTES, read_snapshot
from reach.wire.statuses import is_cut, read_status

LINKS = 1_000
"""Instances on one stream."""
RUNNING = 100_000
"""Attempts that one hello may name."""
CHANGING: Final = fault_of(unavailable("the link is changing hands: say it again after its welcome"))
LEFT: Final = Fault(
    ErrorClass.INVALID_REQUEST, Reason.UNKNOWN_ATTEMPT, "the link has ended with its goodbye, and its attempts with it"
)
EARLY = 10_000
"""Items that may come before the link is open."""
EARLY_BYTES = 16 << 20
"""What they may take in all."""


class AttachStream:
    """One Attach call."""

    def __init__(self, services: Services, principal: Principal, pings: Pings, hop: Hop | None = None) -> None:
        self.services = services
        self._reach = services.reach
        self._principal = principal
        self._pings = pings
        self.out = Batcher()
        self.links: dict[int, AttachLink] = {}
        self._hop = hop
        """It came in at another node, which says welcome and brings what is not at home here elsewhere."""
        self._opened = hop is not None
        self.down = 0
        """Frames that the agent was sent."""
        self._remote: RemoteLinks | None = None
        """Links that are other nodes'; made when there is one."""
        self.parted: dict[int, Fault] = {}
        """Links that were closed from here, handed back, or left, until there is another hello: what the agent says of
        one before it knows, or of what it was offered as it left, is not wrong, but answered with this. The oldest are
        forgotten beyond `LINKS`."""
        self.ours = False
        """The end of this stream is our doing: work waits for the agents to come back."""
        self.unheard = False
        """They cannot have heard that: the node that they came by is gone."""

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
            self.services.nodes.follow(self.say)
        for hello in frame.hellos:
            self.hello(hello)
        if self._remote is not None:
            frame = self._remote.take(frame)
        for items, act in (
            (frame.beats, self._beat),
            (frame.accepts, self._accept),
            (frame.deltas, self._delta),
            (frame.progress, self._progress),
            (frame.results, self._result),
            (frame.effects, self._effect),
            (frame.pongs, self._pong),
            (frame.handoffs, self._handoff),
            (frame.goodbyes, self._goodbye),
        ):
            if items:
                self._items(items, act)

    def hello(self, hello: attach_pb2.Hello) -> None:
        """An instance joins, or says again what it runs."""
        number, tenant = hello.link, self._principal.tenant
        known = self.links.get(number)
        try:
            if not number:
                raise invalid("hello.link", "must be 1 or more")
            if known is None and len(self.links) + len(self._remote or ()) >= LINKS:
                raise self.services.too_many(LINKS)
            if not hello.registration.instance_id:  # ours, if we made it: said again, it is the same
                hello.registration.instance_id = self._instance_of(number)
            agent_type, joining = read_registration(hello.registration)
            self._principal.check_type(agent_type)
            hello.registration.instance_id = joining.instance_id
            if known is not None and known.instance_id != joining.instance_id:
                raise InvalidRequest(f"link {number} belongs to another instance", Reason.UNEXPECTED_FRAME)
            if len(hello.running) > RUNNING:
                raise invalid("hello.running", f"has {len(hello.running)} entries, at most {RUNNING} are allowed")
            joining.hello = hello.number
            running = [(*read_key("running.key", one.key, tenant), one.last_attempt_sequence) for one in hello.running]
            link = known if known is not None else AttachLink(self, number, tenant)
            link.pool = self._reach.hello(tenant, agent_type, joining, link, running, read_status(hello.status))
            link.instance_id = joining.instance_id
            self.links[number] = link
            self.parted.pop(number, None)
            if self._remote is not None:
                self._remote.leaves(number)
            link.hands_over = HANDOFF in hello.registration.features
            if link.pinger is None and FEATURE in hello.registration.features:
                link.pinger = self._pings.watch(link)
        except ReachError as error:
            self.refuse(number, None, fault_of(error), closed=known is None)
        except Elsewhere as where:
            self._bring(hello, where, known)

    def _instance_of(self, number: int) -> str:
        """The instance of a link, here or on another node; empty if there is no such link."""
        if (link := self.links.get(number)) is not None:
            return link.instance_id
        return self._remote.instance_of(number) if self._remote is not None else ""

    def _bring(self, hello: attach_pb2.Hello, where: Elsewhere, known: AttachLink | None) -> None:
        """Brings a hello to the owner of its pool, or back to where it came in."""
        if known is not None:
            self.unlink(known)
        if self._hop is not None:
            self.part(hello.link)
            self._hop.back(attach_pb2.AttachRequest(hellos=[hello]).SerializeToString(), where)
            return
        self.parted.pop(hello.link, None)
        if self._remote is None:
            peers = self.services.peers
            assert peers is not None
            self._remote = RemoteLinks(self, peers, self._principal)
        self._remote.hello(hello, where)

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
                self.refuse(link.number, item, fault_of(error))

    def _too_early(self, link: AttachLink | None, act: Callable[[AttachLink, Any, Any], None], item: Any) -> None:
        """There is no hello, or it is not committed yet, or the link has gone elsewhere meanwhile: to be said again."""
        if link is None and item.link in self.parted:
            if hasattr(item, "key"):
                self.refuse(item.link, item, self.parted[item.link])
        elif link is None:
            error = InvalidRequest(f"there is no link {item.link}: say hello first", Reason.UNEXPECTED_FRAME)
            self.refuse(item.link, item, fault_of(error))
        else:
            size = item.ByteSize()
            if len(link.early) >= EARLY or link.early_bytes + size > EARLY_BYTES:
                self.refuse(link.number, item, fault_of(self.services.too_many(EARLY)))
                return
            link.early_bytes += size
            link.early.append(lambda: self._items((item,), act))

    def refuse(self, number: int, item: Any, fault: Fault, *, closed: bool = False) -> None:
        """Answers an item that has no meaning. Its key comes back, unless that is what is wrong with it."""
        self.services.metrics.refused(fault.reason)
        if closed:
            self.part(number, fault.error_class)
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
        self._post(link, ev.Beat(instance, said, self.down, beat.last_frame))
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
        key = read_key("result.key", message.key, link.tenant)
        self._post(link, read_result(instance, key, message, self.services.tasks.limits.payload))
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

    def _handoff(self, link: AttachLink, instance: Instance, message: attach_pb2.HandoffSnapshot) -> None:
        event = read_snapshot(instance, link.tenant, message)
        self._post(link, event)
        if len(message.snapshot) > SNAPSHOT_BYTES:
            text = f"the snapshot has {len(message.snapshot)} bytes, at most {SNAPSHOT_BYTES} are allowed"
            raise InvalidRequest(text, Reason.PAYLOAD_TOO_LARGE)

    def part(self, number: int, why: ErrorClass = ErrorClass.UNAVAILABLE, answer: Fault = CHANGING) -> None:
        """A link is not open here any more, and the agent may not know yet. Who may not come back is not waited for."""
        if why is not ErrorClass.UNAVAILABLE:
            return
        self.parted[number] = answer
        if len(self.parted) > LINKS:
            del self.parted[next(iter(self.parted))]

    def unlink(self, link: AttachLink) -> None:
        """The link is closed; the stream goes on."""
        self.links.pop(link.number, None)
        if link.pinger is not None:
            self._pings.forget(link.pinger)

    def _goodbye(self, link: AttachLink, instance: Instance, message: attach_pb2.Goodbye) -> None:
        self._post(link, ev.Left(instance))
        self.unlink(link)
        self.left(link.number)

    def left(self, number: int) -> None:
        """A link has ended with its goodbye."""
        self.part(number, answer=LEFT)

    def close(self) -> None:
        """The stream is over: each link says so."""
        self.services.nodes.leave(self.say)
        self.out.close()
        if self._remote is not None:
            # An agent that gave this node up because it stood still is not gone, and its work goes on.
            self._remote.close(ours=self.ours or self.services.host.stood_still())
        links, self.links = self.links, {}
        for link in links.values():
            if link.pinger is not None:
                self._pings.forget(link.pinger)
            if link.pool is not None and link.instance is not None:
                self._reach.post(link.pool, ev.LinkEnded(link.instance, link, self.ours, unheard=self.unheard))
            elif link.pool is not None:
                link.early = [lambda link=link: self._ended_early(link)]  # type: ignore[misc]

    def _ended_early(self, link: AttachLink) -> None:
        if link.pool is not None and link.instance is not None:
            self._reach.post(link.pool, ev.LinkEnded(link.instance, link, self.ours, unheard=self.unheard))

    # -- down ---------------------------------------------------------------------------------------------------------

    def say(self, **fields: Any) -> None:
        """Something for the agent that is not said for each task."""
        self.out.put(attach_pb2.AttachResponse(**fields).SerializeToString())

    def number(self) -> bytes:
        """Counts the frames that go down."""
        self.down += 1
        return sequence_field(self.down)

    def closing(self, out: Batcher) -> None:
        """Tells the agent that we end the stream: it should come back."""
        self.ours = True
        self.say(reopen=True)


class AgentServicer(attach_pb2_grpc.AgentServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.pings = Pings(services.reach, services.clock)

    async def Attach(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        """See the contract."""
        stream = AttachStream(self._services, principal_of(context), self.pings)
        await self._services.pump(context, stream.out, stream.handle, stream.close, stream.closing, stream.number)
