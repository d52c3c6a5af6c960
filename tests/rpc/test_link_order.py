"""The owner's end of a link says things in the order in which they happened (STR-2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentreach.internal.v1 import peer_pb2
from reach.core.model import PoolKey
from reach.rpc.link_end import _Channel
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.wire.batcher import Batcher

WHERE = Elsewhere(Peer("two", "two:1"), PoolKey("acme", "echo"))


def channel() -> Any:
    made: Any = object.__new__(_Channel)
    made._end, made.number, made.out = SimpleNamespace(out=Batcher()), 7, Batcher()
    made.stalled, made._backs = False, []
    return made


async def frames(of: Any) -> list[tuple[str, bytes]]:
    """What came, in order. (Of one message, data is read before what was returned.)"""
    of._end.out.close()
    said: list[tuple[str, bytes]] = []
    while (frame := await of._end.out.take()) is not None:
        message = peer_pb2.LinkResponse.FromString(frame)
        said += [("data", one.frame) for one in message.data] + [("back", one.frame) for one in message.returned]
    return said


async def test_STR_2_what_goes_back_leaves_behind_all_that_was_said_before() -> None:
    """Else who asks at the next owner may hear that one first, and what comes late is dropped."""
    one = channel()
    one.out.put(b"a")
    one.out.put(b"b")
    one.back(b"subscribe", WHERE)
    one.out.put(b"c")
    assert await frames(one) == [("data", b"ab"), ("back", b"subscribe")]


async def test_STR_2_also_when_a_frame_waits_for_a_link_that_is_full() -> None:
    one = channel()
    one.stalled = True
    one.out.put(b"b")
    one.back(b"subscribe", WHERE)
    one._end.out.put(peer_pb2.LinkResponse(data=[peer_pb2.ChannelData(channel=7, frame=b"a")]).SerializeToString())
    one.say_all()
    assert await frames(one) == [("data", b"a"), ("data", b"b"), ("back", b"subscribe")]
