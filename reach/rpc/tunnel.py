"""A link to another node, and the channels on it: how items of callers and agents get to the owner of what they name.

One stream for all, so that what gathers in a turn of the loop shares a frame. What a channel brings down goes to the
caller or agent as it is. Nothing is kept for a link that breaks: its channels end, and those who had something there
begin anew, which is what they do when a node that they are connected to dies.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc

from agentreach.internal.v1 import peer_pb2
from reach.cancelling import cancellations
from reach.core.model import PoolKey
from reach.core.spread import Placing
from reach.errors import ReachError
from reach.rpc.homes import HomeCalls
from reach.rpc.peer_messages import Unreachable, identity_of, placing_from, pool_key, spill_of, unavailable
from reach.rpc.principal import Principal
from reach.wire.batcher import Batcher
from reach.wire.peer_frames import room_of, up_item
from reach.wire.status import error_from_proto

if TYPE_CHECKING:
    from reach.rpc.peers import Connection, Peers
    from reach.runtime.ownership import Peer

log = logging.getLogger(__name__)

LINK: Final = "/agentreach.internal.v1.PeerService/Link"
CHANNELS: Final = 100_000
"""Channels on one link."""
UNREAD_BYTES: Final = 32 << 20
"""When so much waits for a node that does not read, whoever has more to say to it is cut off from it."""
CONNECT_SECONDS: Final = 3.0
"""How long a node may take to answer on a new link."""

FINISH_SECONDS: Final = 0.5


class Holder(Protocol):
    """The stream that a channel belongs to. Its methods never suspend and never raise."""

    def arrived(self, channel: Channel, frame: bytes) -> None:
        """Something for the caller or agent."""

    def returned(self, channel: Channel, frame: bytes, placing: Placing | None) -> None:
        """An item that is not at home there; `placing`: where it belongs, if that is known there, or that it is to be
        brought to another pool."""

    def ended(self, channel: Channel, error: ReachError | None) -> None:
        """The channel is no more; None: because all is said."""


class Channel:
    """What one stream has to do with one other node."""

    __slots__ = ("_tunnel", "half", "holder", "number", "open")

    def __init__(self, tunnel: Tunnel, number: int, holder: Holder) -> None:
        self._tunnel = tunnel
        self.number = number
        self.holder = holder
        self.open = True
        self.half = False
        """It is half-closed."""

    @property
    def peer(self) -> Peer:
        """The other node."""
        return self._tunnel.peer

    def send(self, frame: bytes, pool: PoolKey | None = None, sent: int = 0, placing: Placing | None = None) -> None:
        """Says something; what is said on a channel that has ended is dropped."""
        if not self.open:
            return
        out = self._tunnel.out
        if out.queued_bytes > UNREAD_BYTES:
            self._tunnel.drop(self, Unreachable("it does not read"))
            return
        spill = spill_of(placing)
        out.put(up_item(self.number, frame, pool, sent, spill.SerializeToString() if spill is not None else None))

    def half_close(self) -> None:
        """Nothing more will be said."""
        if self.open and not self.half:
            self.half = True
            self._tunnel.say(closes=[{"channel": self.number, "half": True}])

    def close(self, *, ours: bool = False) -> None:
        """The stream has ended. `ours`: as our doing."""
        if self.open:
            self._tunnel.forget(self)
            self._tunnel.say(closes=[{"channel": self.number, "ours": ours}])


class Tunnel:
    """See the module. Lives until it breaks; the next one begins anew."""

    def __init__(self, peers: Peers, connection: Connection) -> None:
        self._peers = peers
        self._connection = connection
        self.peer = connection.peer
        self.out = Batcher()
        self.homes = HomeCalls(self.out)
        self._channels: dict[int, Channel] = {}
        self._last = 0
        self.answered = asyncio.Event()
        """The node has answered, or the link is broken."""
        self.broken = False
        self._writer: asyncio.Task[None] | None = None

    def open(self, kind: int, principal: Principal, traceparent: str, holder: Holder) -> Channel:
        """Begins a channel.

        Args:
            kind: A `ChannelKind`.
            principal: Whose it is.
            traceparent: Trace of its stream.
            holder: The stream.

        Raises:
            Unreachable: The link is broken, or has too many channels.
        """
        if self.broken or len(self._channels) >= CHANNELS:
            raise Unreachable("the link to it is broken" if self.broken else "the link to it is full")
        self._last += 1
        channel = self._channels[self._last] = Channel(self, self._last, holder)
        opening = {"channel": self._last, "kind": kind, "traceparent": traceparent}
        self.say(opens=[{**opening, "identity": identity_of(principal)}])
        return channel

    def say(self, **items: Any) -> None:
        """Something that is not said for each task."""
        self.out.put(peer_pb2.LinkRequest(**items).SerializeToString())

    def forget(self, channel: Channel) -> None:
        """A channel is no more."""
        channel.open = False
        self._channels.pop(channel.number, None)

    def drop(self, channel: Channel, why: Exception) -> None:
        """Ends one channel; the others go on."""
        log.warning("a stream is cut off from a node", extra={"node": self.peer.node_id, "why": str(why)})
        self.forget(channel)
        self.say(closes=[{"channel": channel.number, "ours": True}])
        channel.holder.ended(channel, unavailable(str(why)))

    async def run(self) -> None:
        """Carries items until the link breaks or this is cancelled."""
        why: Exception | None = None
        link: Any = self._connection.channel.stream_stream(LINK, None, peer_pb2.LinkResponse.FromString)
        call = link(metadata=self._peers.proof(self.peer))
        late = asyncio.get_running_loop().call_later(CONNECT_SECONDS, call.cancel)
        writer = self._writer = asyncio.create_task(self._write(call), name="link-writer")
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                if not self.answered.is_set():
                    late.cancel()
                    self.answered.set()
                self._received(frame)
        except grpc.aio.AioRpcError as failure:
            why = self._peers.failed(self._connection, failure)
        except asyncio.CancelledError:
            if not call.cancelled() or cancellations():
                raise
            why = Unreachable("it does not answer in time")
            self._peers.forget(self._connection)
        except Exception:
            log.exception("cannot handle what another node sent", extra={"node": self.peer.node_id})
        finally:
            late.cancel()
            call.cancel()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._break(why)

    async def _write(self, call: Any) -> None:
        while (frame := await self.out.take()) is not None:
            await call.write(frame)

    async def finish(self) -> None:
        """Says what is left to say, for a moment: this node stops."""
        self.out.close()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=FINISH_SECONDS)

    def _received(self, frame: peer_pb2.LinkResponse) -> None:
        channels = self._channels
        for data in frame.data:
            channel = channels.get(data.channel)
            if channel is not None:
                channel.holder.arrived(channel, data.frame)
        for data in frame.returned:
            channel = channels.get(data.channel)
            if channel is not None:
                channel.holder.returned(channel, data.frame, placing_from(data, brought=False))
        if frame.contexts or frame.turns:
            self.homes.received(frame)
        for summary in frame.summaries:
            self._peers.rooms.heard(pool_key(summary.pool), room_of(summary))
        for end in frame.ends:
            channel = channels.get(end.channel)
            if channel is not None:
                self.forget(channel)
                channel.holder.ended(channel, error_from_proto(end.error) if end.HasField("error") else None)

    def _break(self, why: Exception | None) -> None:
        self.broken = True
        self.out.close()
        self._peers.broken(self)
        channels, self._channels = self._channels, {}
        error = unavailable(str(why) if why is not None else "the link to it has ended")
        for channel in channels.values():
            channel.open = False
            channel.holder.ended(channel, error)
        self.homes.broken()
        self.answered.set()
