"""The owner's end of a link: the streams of callers and agents of another node, as if they had come in here.

Each channel has the very stream that a direct call has, so nothing is decided twice. What a stream says waits in its
own queue until the link takes it; a node that does not read costs `LINK_BYTES` and what its streams may hold, and the
stream that holds most is cut off first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from google.protobuf.message import DecodeError

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import attach_pb2, dispatch_pb2
from reach.errors import InvalidRequest, ReachError, Reason, ResourceExhausted, Unavailable
from reach.rpc.agent import AttachStream
from reach.rpc.callers import CallerStream
from reach.rpc.homes import HomeDesk
from reach.rpc.peer_messages import placing_from, principal_from, spill_of
from reach.rpc.peers import Peers
from reach.rpc.pings import Pings
from reach.rpc.services import Services, context_frames
from reach.runtime.elsewhere import Elsewhere
from reach.wire.batcher import Batcher
from reach.wire.peer_frames import back_item, down_item
from reach.wire.status import error_to_proto

log = logging.getLogger(__name__)

CHANNELS: Final = 100_000
"""Streams of one other node."""
LINK_BYTES: Final = 8 << 20
"""What waits on a link before its streams wait in their own queues."""
NODE_BYTES: Final = 128 << 20
"""What all streams of a node may hold together, when it does not read."""
LOOK_SECONDS: Final = 0.25
STALLED_SECONDS: Final = 0.02
STOP_SECONDS: Final = 0.2
"""How long the streams of another node have to say that this one stops."""


class _Channel:
    """One stream of the other node."""

    def __init__(self, end: LinkEnd, number: int, opening: peer_pb2.ChannelOpen, pings: Pings) -> None:
        self._end = end
        self.number = number
        services, principal = end.services, principal_from(opening.identity)
        self._caller: CallerStream | None = None
        self._agent: AttachStream | None = None
        if opening.kind == peer_pb2.CHANNEL_KIND_AGENT:
            agent = self._agent = AttachStream(services, principal, pings, self)
            self.out, self._close, say_closing = agent.out, agent.close, agent.closing
        else:
            caller = self._caller = CallerStream(services, principal, opening.traceparent, self)
            self.out, self._close, say_closing = caller.out, caller.close, caller.closing
        self._let_go = services.hold(self.out, say_closing)
        self.stalled = False
        """A frame is on its way to the link, which does not take it now."""
        self._backs: list[bytes] = []

    def back(self, frame: bytes, where: Elsewhere) -> None:
        """See Hop."""
        spill = spill_of(where.placing)
        said = spill.SerializeToString() if spill is not None else None
        self._backs.append(back_item(self.number, frame, where.pool, said))
        if not self.stalled:
            self.say_all()

    def say_all(self) -> None:
        """What goes back leaves behind all that was said before: who asks elsewhere at once must have heard it."""
        if self._backs:
            out = self._end.out
            while frame := self.out.take_now():
                out.put(down_item(self.number, frame))
            for item in self._backs:
                out.put(item)
            self._backs.clear()

    def handle(self, data: peer_pb2.ChannelData) -> None:
        """Something came. Raises ReachError to end the stream."""
        try:
            if self._agent is not None:
                self._agent.down = data.sent
                self._agent.handle(attach_pb2.AttachRequest.FromString(data.frame))
            elif self._caller is not None:
                self._caller.placing = placing_from(data, brought=True)
                self._caller.handle(dispatch_pb2.DispatchStreamRequest.FromString(data.frame))
        except DecodeError:
            raise InvalidRequest("the message could not be decoded", Reason.MALFORMED_MESSAGE) from None

    async def settle(self) -> None:
        """The caller says no more: returns when it has heard of all that it asked for."""
        if self._caller is not None:
            await self._caller.settle()

    def close(self, *, gone: bool = False, ours: bool = False, unheard: bool = False) -> None:
        """The stream has ended. `gone`: the caller or agent is, as far as its node knows; `ours`: by what nodes do,
        which an agent does not know if it is `unheard`."""
        self._let_go()
        if self._agent is not None:
            self._agent.ours, self._agent.unheard = self._agent.ours or ours, unheard
        elif self._caller is not None and not gone:
            self._caller.keep()
        self._close()


class LinkEnd:
    """See the module."""

    def __init__(self, services: Services, peers: Peers, pings: Pings, node_id: str) -> None:
        self.services = services
        self._peers = peers
        self.out = Batcher()
        self._pings = pings
        self._node_id = node_id
        self._channels: dict[int, _Channel] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = Batcher()
        self._desk = HomeDesk(services, self.out)

    async def serve(self, context: Any) -> None:
        """Carries items until the other node leaves, or this one stops."""
        self.out.put(peer_pb2.LinkResponse(node_id=self.services.node_id).SerializeToString())
        let_go = self.services.hold(self._stopping, self._stop)
        self._peers.begins(self)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                writer = tasks.create_task(self._write(context), name="link-end-writer")
                watch = tasks.create_task(self._watch(), name="link-end-watch")
                async for frame in context_frames(context):
                    self._received(frame)
                watch.cancel()
                writer.cancel()
                self.out.close()
                self._close_all()
        finally:
            let_go()
            self._peers.ends(self)
            self.out.close()
            self._close_all()

    async def _write(self, context: Any) -> None:
        while (frame := await self.out.take()) is not None:
            await context.write(frame)
        if self._stopping.closed:
            raise Unavailable("the server is shutting down", Reason.SHUTTING_DOWN)
        raise Unavailable("the other node left too much unread", Reason.OWNER_UNAVAILABLE)

    def _stop(self, _: Batcher) -> None:
        """This node stops: its streams say so, then the link ends."""
        asyncio.get_running_loop().call_later(STOP_SECONDS, self.out.close)

    def _received(self, frame: peer_pb2.LinkRequest) -> None:
        for opening in frame.opens:
            self._open(opening)
        if frame.contexts or frame.turns:
            self._desk.received(frame)
        for tree in frame.trees:
            self.services.host.trees.cancelled_elsewhere((tree.tenant, tree.task_id), mark=tree.mark)
        channels = self._channels
        for data in frame.data:
            channel = channels.get(data.channel)
            if channel is None:
                continue  # it has ended, and the other node does not know yet
            try:
                channel.handle(data)
            except ReachError as error:
                self._end(channel, error)
            except Exception:
                log.exception("a stream of another node failed", extra={"node": self._node_id})
                self._end(channel, Unavailable("the stream failed", Reason.OWNER_UNAVAILABLE))
        for close in frame.closes:
            channel = channels.get(close.channel)
            if channel is None:
                continue
            if close.half:
                self._start(self._settle(channel), "channel-settle")
            else:
                del channels[close.channel]
                channel.close(gone=not close.ours, ours=close.ours)

    def _open(self, opening: peer_pb2.ChannelOpen) -> None:
        if opening.channel in self._channels:
            return
        if len(self._channels) >= CHANNELS:
            error = ResourceExhausted(f"node {self._node_id!r} has {CHANNELS} streams here", Reason.TOO_MANY_STREAMS)
            self._say_end(opening.channel, error)
            return
        channel = self._channels[opening.channel] = _Channel(self, opening.channel, opening, self._pings)
        self._start(self._pump(channel), "channel")

    def _start(self, work: Any, name: str) -> None:
        assert self._tasks is not None
        self._tasks.create_task(work, name=name)

    async def _pump(self, channel: _Channel) -> None:
        """Takes what a stream says to the link, as long as that is read."""
        out = self.out
        while (frame := await channel.out.take()) is not None:
            channel.stalled = True
            while out.queued_bytes > LINK_BYTES and not out.closed:  # noqa: ASYNC110 - only while nobody reads
                await asyncio.sleep(STALLED_SECONDS)
            channel.stalled = False
            if self._channels.get(channel.number) is not channel:
                return
            out.put(down_item(channel.number, frame))
            channel.say_all()
        if self._channels.get(channel.number) is channel:
            error = ResourceExhausted("the peer left too much unread", Reason.RATE_LIMITED, retry_after_ms=1_000)
            self._end(channel, error if channel.out.overrun else None)

    async def _settle(self, channel: _Channel) -> None:
        await channel.settle()
        channel.out.close()  # the pump takes what is left, and ends the channel

    async def _watch(self) -> None:
        """Looks how much is held for a node that does not read."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.out.queued_bytes <= LINK_BYTES:
                continue
            held = {channel: channel.out.queued_bytes for channel in self._channels.values()}
            while sum(held.values()) > NODE_BYTES:
                largest = max(held, key=held.__getitem__)
                del held[largest]
                self._end(largest, ResourceExhausted("the other node does not read", Reason.RATE_LIMITED))

    def _end(self, channel: _Channel, error: ReachError | None) -> None:
        """A stream ends from here."""
        self._channels.pop(channel.number, None)
        channel.close()
        self._say_end(channel.number, error)

    def _say_end(self, number: int, error: ReachError | None) -> None:
        end = peer_pb2.ChannelEnd(channel=number)
        if error is not None:
            end.error.CopyFrom(error_to_proto(error))
        self.out.put(peer_pb2.LinkResponse(ends=[end]).SerializeToString())

    def _close_all(self) -> None:
        """The other node has gone, and nothing is known of its agents: they are expected to come back, at any node."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(ours=True, unheard=True)
