"""One long stream to the server that comes back by itself, and the frames on it.

An *item* (a task, a result, a beat) is put into the outbox as the bytes of a frame that holds only it. Protobuf defines
that the concatenation of messages is their merger, so a frame is made by joining items: nothing is built or copied
twice, the size of each is known before it is sent, and what must be sent again after a reconnect is kept as bytes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import grpc

from reach.cancelling import cancellations, heed_cancellation
from reach.errors import Internal, ReachError, Reason, Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

log = logging.getLogger("reach.sdk")

FRAME_LIMIT: Final = 512 << 10
"""Bytes of a frame with several items; a single item may be larger."""
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
"""Running work is kept for 30 s for an agent that comes back; so the wait between tries is never longer than this."""
WAIT_PER_AWAY: Final = 0.5
"""Longest wait as a share of the time that the server has been away. A server that was restarted in a second is found
again within the next half, whatever the tries met before; and all who lost it come back spread over as long."""
OPENING_TIMEOUT_S: Final = 10.0
"""How long a server may take from the connection to its first frame."""
CONNECT_TIMEOUT_S: Final = 2.0
"""How long a connection may take where there are others to ask: a machine that is gone does not even refuse."""

FATAL: Final = frozenset(
    {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED, Reason.VERSION_NOT_SUPPORTED, Reason.NOT_IMPLEMENTED}
)
"""Refusals of a stream that trying again does not change."""

Call = Any  # grpc.aio.StreamStreamCall, whose generic parameters the library does not have at run time


class Outbox:
    """Items that wait for the next frame."""

    __slots__ = ("_items", "_look", "_wakes", "size")

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()
        self._look = False
        self._wakes: asyncio.Future[None] | None = None
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: bytes) -> None:
        """Adds an item. It leaves with everything else that is put in this turn of the loop."""
        self._items.append(item)
        self.size += len(item)
        if self._wakes is not None:
            self.wake()

    def wake(self) -> None:
        """Lets the writer look, although nothing may be here yet."""
        self._look = True
        wakes, self._wakes = self._wakes, None
        if wakes is not None and not wakes.done():
            wakes.set_result(None)

    async def wait(self) -> None:
        """Returns when there is something, or after `wake`: in the next turn of the loop, with all of this one."""
        if not self._items and not self._look:
            self._wakes = asyncio.get_running_loop().create_future()
            try:
                await self._wakes
            finally:
                self._wakes = None
        self._look = False

    def take(self) -> bytes:
        """The next frame, at most `FRAME_LIMIT` bytes or one item; empty if there is nothing."""
        items = self._items
        if self.size <= FRAME_LIMIT:
            frame = b"".join(items)
            items.clear()
            self.size = 0
            return frame
        taken: list[bytes] = []
        size = 0
        while items and (not taken or size + len(items[0]) <= FRAME_LIMIT):
            item = items.popleft()
            taken.append(item)
            size += len(item)
        self.size -= size
        return b"".join(taken)

    def clear(self) -> None:
        """Forgets all items."""
        self._items.clear()
        self.size = 0


class Box(Protocol):
    """Where items are put that are to be sent."""

    def __bool__(self) -> bool:
        """Something waits."""

    def put(self, item: bytes) -> None:
        """Adds an item."""

    def wake(self) -> None:
        """Something may come."""


class Sender(Protocol):
    """What attempts need of the way to the server: a `Connection`, or the calls of an agent that is dialled."""

    up: bool
    welcomed: bool
    """The last hello was answered: what is said of attempts before that may be lost, and is kept until then."""

    @property
    def outbox(self) -> Box:
        """Where items are put."""


class Broken(Exception):
    """Raised by a peer in `received`: this stream is of no use, try another after a while."""

    def __init__(self, error: ReachError) -> None:
        super().__init__(error.message)
        self.error = error


class Peer(Protocol):
    """What speaks over a connection. All methods run on the loop and do not block."""

    def opening(self) -> Iterable[bytes]:
        """A new stream begins: the frames to start with. The outbox is empty."""

    def gather(self) -> None:
        """A frame is about to be made: last chance to put items."""

    def prefix(self) -> bytes:
        """What each frame begins with."""

    def received(self, frame: Any) -> None:
        """A frame came. May raise ReachError to end the connection for good."""

    def lost(self, error: ReachError) -> None:
        """The stream broke, or could not be opened. It will be tried again."""


class Connection:
    """Keeps one stream open, for ever, with full jitter from 100 ms to 5 s between tries: the longer the server has
    been away, the longer they are. Where there are several servers, the next one is asked at once."""

    def __init__(self, target: Target, method: str, parse: Callable[[bytes], Any], peer: Peer) -> None:
        self.outbox = Outbox()
        self.up = False
        """The peer said that the current stream works (`established`)."""
        self.welcomed = False
        """See Sender."""
        self._target = target
        self._rotation = target.rotation()
        self._method = method
        self._parse = parse
        self._peer = peer
        self._lost_at: float | None = None
        """When (loop time) the server was lost; None while all is well."""
        self._reopen = False
        self._ending: asyncio.Future[None] | None = None
        self._before: Call = None
        self._told: bool | None = None
        self._has_worked = False

    async def run(self) -> None:
        """Runs until cancelled or `end`. Raises the ReachError of a refusal that trying again does not change."""
        rotation = self._rotation
        address = rotation.current
        channel = self._target.aio_channel(address)
        try:
            while True:
                error = await self._once(channel)
                heed_cancellation()
                if self._ending is not None:
                    return
                if error is None:  # the server asked for a new stream
                    continue
                self._close_before()
                if error.reason in FATAL and not self._may_be_renewed(error):
                    raise error
                self._tell_lost(error)
                self._peer.lost(error)
                await asyncio.sleep(self._pause_s(error))
                if rotation.current != address or channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    # One that failed sits out a wait of its own, and fails meanwhile: our next try would not be one.
                    await channel.close()
                    address = rotation.current
                    channel = self._target.aio_channel(address)
        finally:
            self.up = self.welcomed = False
            self._close_before()
            await channel.close()

    def _may_be_renewed(self, error: ReachError) -> bool:
        """Tokens expire, and the next one is there already, or in a moment: who was let in before tries again."""
        return error.reason is Reason.UNAUTHENTICATED and self._target.renews and self._has_worked

    def established(self) -> None:
        """The peer has what it needs from the new stream: the wait starts small again, the old stream may go."""
        self._lost_at = None
        self.up = self.welcomed = self._has_worked = True
        self._close_before()
        self._rotation.worked()
        if self._told is False:
            log.info("connected to Agent-Reach at %s", self._rotation.current)
        self._told = True

    def hear_of(self, addresses: Sequence[str]) -> None:
        """The server says where the other nodes of its cluster are."""
        self._target.told.hear(addresses)

    def reopen(self) -> None:
        """Opens a new stream now. The old one is closed when the new one works, so that the server never sees us gone,
        or when that fails."""
        self._reopen = True

    async def end(self, timeout_s: float) -> None:
        """Sends what is left, says that nothing more will come, and lets the server end the stream."""
        self._ending = asyncio.get_running_loop().create_future()
        self.outbox.wake()
        await asyncio.wait({self._ending}, timeout=timeout_s)

    async def _once(self, channel: grpc.aio.Channel) -> ReachError | None:
        """One stream from opening to end. The error that ended it, or None if another is wanted at once."""
        stub: Any = channel.stream_stream(self._method, None, self._parse)
        self.up = self.welcomed = self._reopen = False
        self.outbox.clear()
        loop = asyncio.get_running_loop()
        call = stub(metadata=self._target.metadata)
        late = loop.call_later(OPENING_TIMEOUT_S, call.cancel)
        unconnected = loop.call_later(CONNECT_TIMEOUT_S, self._give_up, channel, call)
        writer = loop.create_task(self._write(call), name="reach-sdk-writer")
        keep = False
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                late.cancel()
                self._peer.received(frame)
                if self._reopen:
                    keep = True
                    return None
            return await _end_of(call)
        except grpc.aio.AioRpcError as failure:
            return error_from_rpc(failure)
        except Broken as broken:
            return broken.error
        except ReachError:
            raise
        except asyncio.CancelledError:
            if call.cancelled() and not cancellations():
                return Unavailable("the server did not answer in time", Reason.OWNER_UNAVAILABLE)
            raise
        except Exception as fault:
            log.exception("cannot handle what Agent-Reach sent")
            return Internal(f"cannot handle a frame: {type(fault).__name__}")
        finally:
            late.cancel()
            unconnected.cancel()
            self.up = self.welcomed = False
            if keep:  # cancelling a write would end the call, so the writer is asked to go
                self.outbox.wake()
                await asyncio.wait({writer}, timeout=1.0)
                self._close_before()
                self._before = call
            else:
                call.cancel()
            writer.cancel()
            await asyncio.wait({writer})
            if self._ending is not None and not self._ending.done():
                self._ending.set_result(None)

    async def _write(self, call: Call) -> None:
        """Writes frames until the stream ends; how it ended is for the reader to say."""
        outbox, peer = self.outbox, self._peer
        try:
            for frame in peer.opening():
                await call.write(frame)
            while True:
                await outbox.wait()
                if self._reopen:
                    return
                peer.gather()
                if frame := outbox.take():
                    await call.write(peer.prefix() + frame)
                if self._ending is not None and not outbox:
                    await call.done_writing()
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return
        except Exception:
            # Without a writer the stream would be mute for ever: end it, so that it begins anew.
            log.exception("cannot write to Agent-Reach")
            call.cancel()

    def _give_up(self, channel: grpc.aio.Channel, call: Call) -> None:
        """A connection takes long: another server may be nearer than its end."""
        if not self._rotation.is_alone and channel.get_state() is not grpc.ChannelConnectivity.READY:
            call.cancel()

    def _pause_s(self, error: ReachError) -> float:
        now = asyncio.get_running_loop().time()
        first = self._lost_at is None
        if self._lost_at is None:
            self._lost_at = now
        if self._rotation.failed():  # the first time not at once: all who lost a server come to the others (case C9)
            return random.uniform(0, FIRST_WAIT_S) if first else 0.0
        most = min(LONGEST_WAIT_S, FIRST_WAIT_S + WAIT_PER_AWAY * (now - self._lost_at))
        asked = min((error.retry_after_ms or 0) / 1000, LONGEST_WAIT_S)
        return max(random.uniform(0, most), asked * random.uniform(0.8, 1.0))

    def _tell_lost(self, error: ReachError) -> None:
        if self._told is not False:  # once per change, not once per try (case A4)
            what = "lost" if self._told else "cannot reach"
            log.warning("%s Agent-Reach at %s: %s; trying on for ever", what, self._rotation.current, error.message)
            self._told = False

    def _close_before(self) -> None:
        if self._before is not None:
            self._before.cancel()
            self._before = None


async def _end_of(call: Call) -> ReachError:
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return Unavailable("the server ended the stream", Reason.OWNER_UNAVAILABLE)
    failure = grpc.aio.AioRpcError(
        code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )
    return error_from_rpc(failure)
