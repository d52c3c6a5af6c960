"""What one stream of a caller or agent has on other nodes: a channel to each owner of something that it speaks of.

References and numbers of links are the peer's own, so what comes back needs no translation. When a node is lost, or a
shard moves, the stream begins anew, as soon as somebody is there who answers for what it had.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from reach.core.placement import shard_of
from reach.core.spread import Placing
from reach.errors import ReachError
from reach.rpc.peer_messages import Unreachable
from reach.rpc.peers import Peers
from reach.rpc.principal import Principal
from reach.rpc.tunnel import Channel
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.wire.batcher import Batcher

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 1.5, 1.5)
"""How long an item waits that was brought to a node which has no place for it, each time; then it is refused. Together
longer than a node waits for a shard that another one does not give up (`claims.HAND_OVER_MS`), and loads it."""
RETURNED: Final = 10_000
"""Items of one stream that are known to have come back."""
PATIENCE_S: Final = 5.0
"""How long a stream waits for somebody who answers for what it had, before it begins anew all the same."""
LAST_WORDS_S: Final = 0.5
"""How long a node that has gone, or hangs, and had something may still be heard. One that left in peace has told all
there was, and whatever it said before may come behind the news that it has left."""
LOOK_S: Final = 0.1
"""How often it looks; the first time a little sooner, by chance, so that not all streams begin anew in one moment."""

Again = Callable[[bytes, Placing | None, bool], None]


class Branches:
    """See the module.

    Args:
        peers: The other nodes.
        kind: What the stream is, a `ChannelKind`.
        principal: Whose it is.
        traceparent: Its trace.
        out: What is said to the caller or agent.
        again: Handles an item that came back: the frame, where it is to go if that is known, and whether to refuse it
            now.
        anew: Has the caller or agent open its stream anew.
        name_of: What an item is known by, however often and in whatever words it is said again.
    """

    def __init__(
        self,
        peers: Peers,
        kind: int,
        principal: Principal,
        traceparent: str,
        out: Batcher,
        again: Again,
        anew: Callable[[], None],
        name_of: Callable[[bytes], Hashable] = hash,
    ) -> None:
        self._peers = peers
        self._opening = (kind, principal, traceparent)
        self._out = out
        self._again = again
        self._anew = anew
        self._name_of = name_of
        self._channels: dict[Peer, Channel] = {}
        self._ending: set[Channel] = set()
        """Channels that were half-closed before something came back that goes to the same node."""
        self._shards: dict[Peer, set[int]] = {}
        self._returned: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()
        """How often each item came back within `PATIENCE_S`, and when it did last."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._gone: set[Peer] = set()
        """Nodes on which something was lost: nothing more is brought to them before the stream begins anew."""
        self._awaited: set[int] = set()
        """Shards of what was lost."""
        self._leaving: set[Peer] = set()
        """Nodes whose last words are waited for."""
        self._recovery: asyncio.Task[None] | None = None
        self._closed = False
        peers.branches.add(self)

    # -- up -----------------------------------------------------------------------------------------------------------

    def send(self, where: Elsewhere, frame: bytes, sent: int = 0) -> None:
        """Brings a frame to its owner. If that cannot be reached, the stream begins anew after a while, and the frame
        is dropped: the peer says it again."""
        peer = where.peer
        if self._closed or peer in self._gone:
            return
        if where.pool is not None:
            self._shards.setdefault(peer, set()).add(shard_of(where.pool))
        channel = self._channels.get(peer)
        if channel is not None and channel.half:  # it may end before this is there
            self._ending.add(self._channels.pop(peer))
            channel = None
        if channel is None:
            try:
                channel = self._peers.tunnel(peer).open(*self._opening, self)
            except Unreachable:
                self._lost(peer)
                return
            self._channels[peer] = channel
        channel.send(frame, where.pool, sent, where.placing)

    def to(self, peer: Peer, frame: bytes, sent: int = 0) -> None:
        """Says something to a node that the stream has something on."""
        channel = self._channels.get(peer)
        if channel is not None:
            channel.send(frame, None, sent)

    def tell_all(self, frame: bytes) -> None:
        """Says something to all of them: who does not know what it is about does nothing."""
        for channel in (*self._channels.values(), *self._ending):
            channel.send(frame)

    @property
    def busy(self) -> bool:
        """Whether something may still come."""
        return bool(self._channels or self._ending or self._timers or self._recovery is not None)

    def half_close(self) -> None:
        """Nothing more comes from the caller. What has come back and waits is still brought somewhere."""
        if not self._timers:
            for channel in self._channels.values():
                channel.half_close()

    def close(self, *, ours: bool = False) -> None:
        """The stream has ended. `ours`: as our doing."""
        self._closed = True
        self._peers.branches.discard(self)
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._recovery is not None:
            self._recovery.cancel()
        channels = [*self._channels.values(), *self._ending]
        self._channels.clear()
        self._ending.clear()
        for channel in channels:
            channel.close(ours=ours)

    # -- down (Holder) ------------------------------------------------------------------------------------------------

    def arrived(self, channel: Channel, frame: bytes) -> None:
        """See Holder."""
        self._out.put(frame)

    def returned(self, channel: Channel, frame: bytes, placing: Placing | None) -> None:
        """See Holder. An item may come back some times: what it belongs to is changing hands."""
        pause_s = 0.0
        if placing is None or placing.pool is not None:  # else its pool is full, and which others were, it says itself
            name, now_s = self._name_of(frame), asyncio.get_running_loop().time()
            tries, before_s = self._returned.pop(name, (0, now_s))
            tries = tries if now_s - before_s < PATIENCE_S else 0
            if tries >= len(PAUSES_S):
                self._again(frame, placing, True)
                return
            self._returned[name] = tries + 1, now_s
            if len(self._returned) > RETURNED:
                self._returned.popitem(last=False)
            pause_s = 0.0 if placing is not None and not tries else PAUSES_S[tries]

        def act() -> None:
            self._timers.discard(timer)
            if not self._closed:
                self._again(frame, placing, False)

        timer = asyncio.get_running_loop().call_later(pause_s, act)
        self._timers.add(timer)

    def ended(self, channel: Channel, error: ReachError | None) -> None:
        """See Holder."""
        if channel in self._ending:
            self._ending.discard(channel)
            if error is not None:
                self._lost(channel.peer)
        for peer, one in list(self._channels.items()):
            if one is channel:
                del self._channels[peer]
                if error is not None or not channel.half:
                    self._lost(peer)

    # -- moves --------------------------------------------------------------------------------------------------------

    def moved(self, shard: int) -> None:
        """A shard has another owner. What a stream has on the former one comes to its end by itself, if that one hands
        over: it still tells what it has not told yet, and then that the shard has moved."""
        for peer, shards in self._shards.items():
            if shard in shards and peer not in self._leaving and self._has_left(peer):
                self._leaving.add(peer)
                asyncio.get_running_loop().call_later(LAST_WORDS_S, self._cut, peer)

    def _has_left(self, peer: Peer) -> bool:
        """Whether others own what the stream has there, and it does not hand over."""
        owners, shards = self._peers.owners, self._shards.get(peer, ())
        return not owners.hands_over(peer.node_id) and any(owners.node_of(shard) != peer for shard in shards)

    def _cut(self, peer: Peer) -> None:
        self._leaving.discard(peer)
        if not self._closed and self._has_left(peer):
            channel = self._channels.pop(peer, None)
            if channel is not None:
                channel.close(ours=True)
            self._lost(peer)

    def _lost(self, peer: Peer) -> None:
        """What the stream had on a node is lost."""
        self._gone.add(peer)
        self._awaited |= self._shards.pop(peer, set())
        if not self._closed and self._recovery is None:
            self._recovery = asyncio.create_task(self._recover(), name="begin-anew")

    async def _recover(self) -> None:
        """Waits until those can be reached who answer now for what is lost. Streams that begin anew too soon would only
        come again and again. What others own goes on meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        await asyncio.sleep(random.uniform(LOOK_S / 2, LOOK_S))
        while loop.time() < until:
            owners = dict.fromkeys(self._peers.owners.node_of(shard) for shard in sorted(self._awaited))
            answers = [await self._peers.answers(owner) for owner in owners if owner is not None]
            if all(answers):
                break
            await asyncio.sleep(LOOK_S)
        self._anew()
