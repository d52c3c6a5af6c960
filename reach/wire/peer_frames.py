"""What travels between nodes for each task, written as bytes (see `encoding`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import dispatch_pb2
from reach.core.model import PoolKey
from reach.core.rooms import PoolRoom, ProfileRoom
from reach.wire.encoding import VARINT, plain_tag

_CHANNEL: Final = plain_tag(peer_pb2.ChannelData, "channel", 0)
_FRAME: Final = plain_tag(peer_pb2.ChannelData, "frame")
_POOL: Final = plain_tag(peer_pb2.ChannelData, "pool")
_SPILL: Final = plain_tag(peer_pb2.ChannelData, "spill")
_SENT: Final = plain_tag(peer_pb2.ChannelData, "sent", 0)
_UP: Final = plain_tag(peer_pb2.LinkRequest, "data")
_DOWN: Final = plain_tag(peer_pb2.LinkResponse, "data")
_BACK: Final = plain_tag(peer_pb2.LinkResponse, "returned")
_REFERENCE: Final = plain_tag(dispatch_pb2.Submit, "reference", 0)
_TASK: Final = plain_tag(dispatch_pb2.Submit, "task")
_INTEREST: Final = plain_tag(dispatch_pb2.Submit, "interest", 0)
_SUBMITS: Final = plain_tag(dispatch_pb2.DispatchStreamRequest, "submits")


def up_item(
    channel: int, frame: bytes, pool: PoolKey | None = None, sent: int = 0, spill: bytes | None = None
) -> bytes:
    """What a caller or an agent said, on its way to the owner.

    Args:
        channel: Which channel.
        frame: A frame of its stream.
        pool: Where its submits go.
        sent: Frames that the agent was sent so far.
        spill: The `Spill` of a submit that could go to another pool.
    """
    data = [_CHANNEL, VARINT[channel], _FRAME, VARINT[len(frame)], frame]
    if pool is not None:
        name = pool_bytes(pool)
        data += (_POOL, VARINT[len(name)], name)
    if sent:
        data += (_SENT, VARINT[sent])
    if spill is not None:
        data += (_SPILL, VARINT[len(spill)], spill)
    return _item(_UP, b"".join(data))


def down_item(channel: int, frame: bytes) -> bytes:
    """What a caller or an agent is told."""
    return _item(_DOWN, b"".join((_CHANNEL, VARINT[channel], _FRAME, VARINT[len(frame)], frame)))


def back_item(channel: int, frame: bytes, pool: PoolKey | None, spill: bytes | None = None) -> bytes:
    """An item that belongs elsewhere, on its way back to where it came in; `spill`: as in `up_item`."""
    data = [_CHANNEL, VARINT[channel], _FRAME, VARINT[len(frame)], frame]
    if pool is not None:
        name = pool_bytes(pool)
        data += (_POOL, VARINT[len(name)], name)
    if spill is not None:
        data += (_SPILL, VARINT[len(spill)], spill)
    return _item(_BACK, b"".join(data))


def submit_frame(reference: int, spec: bytes, interest: int) -> bytes:
    """One task of a caller as a frame of its stream. `spec`: the TaskSpec as bytes."""
    submit = b"".join((_REFERENCE, VARINT[reference], _TASK, VARINT[len(spec)], spec, _INTEREST, VARINT[interest]))
    return _item(_SUBMITS, submit)


_pools: dict[PoolKey, bytes] = {}


def pool_bytes(pool: PoolKey) -> bytes:
    """The name of a pool."""
    made = _pools.get(pool)
    if made is None:
        name = peer_pb2.PoolName(tenant=pool.tenant, agent_type=pool.agent_type, partition=pool.partition)
        if len(_pools) >= 10_000:
            _pools.clear()
        made = _pools[pool] = name.SerializeToString()
    return made


def summary_item(rooms: Sequence[tuple[PoolKey, PoolRoom]]) -> bytes:
    """The room of pools, for another node; empty if there is nothing to say."""
    frame = peer_pb2.LinkResponse()
    for key, room in rooms:
        summary = frame.summaries.add(queued=room.queued, full=room.full)
        summary.pool.tenant, summary.pool.agent_type, summary.pool.partition = key
        for digest, one in room.profiles.items():
            row = summary.profiles.add(profile=digest, slots=max(0, one.slots))
            row.priority, row.best, row.instances = one.priority, one.best, one.instances
    return frame.SerializeToString()


def room_of(summary: peer_pb2.PoolSummary) -> PoolRoom:
    """What another node tells of a pool."""
    profiles = {row.profile: ProfileRoom(row.slots, row.priority, row.best, row.instances) for row in summary.profiles}
    return PoolRoom(summary.queued, summary.full, profiles)


def _item(tag: bytes, data: bytes) -> bytes:
    return b"".join((tag, VARINT[len(data)], data))
