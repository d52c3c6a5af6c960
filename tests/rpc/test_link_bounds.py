"""Nodes that do not read, links that break, and bytes that mean nothing (CLU-1): bounded, and nobody else notices."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import dispatch_pb2
from reach.rpc import link_end, tunnel
from reach.rpc.peer_secret import KEY
from tests.rpc.nodes import Cluster, cluster, owned, spec, until
from tests.rpc.peers import CallerByHand, refusal

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLER = peer_pb2.CHANNEL_KIND_CALLER


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("nodes"), "one", "two") as made:
        yield made


class LinkByHand:
    """A link of a node that does as a test says."""

    def __init__(self, nodes: Cluster) -> None:
        self.channel = grpc.aio.insecure_channel(
            nodes.addresses["two"].address, options=[("grpc.max_receive_message_length", -1)]
        )
        metadata = ((KEY, nodes["one"].peers.secret.proof("two")),)
        self.call: Any = self.channel.stream_stream(tunnel.LINK, None, peer_pb2.LinkResponse.FromString)(
            metadata=metadata
        )

    async def say(self, **items: object) -> None:
        await self.call.write(peer_pb2.LinkRequest(**items).SerializeToString())  # type: ignore[arg-type]

    async def open(self, number: int) -> None:
        identity = {"tenant": "default", "scopes": ["caller"]}
        await self.say(opens=[{"channel": number, "kind": CALLER, "identity": identity}])

    async def submit(self, number: int, **fields: object) -> None:
        frame = dispatch_pb2.DispatchStreamRequest(**fields).SerializeToString()  # type: ignore[arg-type]
        await self.say(data=[{"channel": number, "frame": frame}])

    async def until_end(self, number: int) -> peer_pb2.ChannelEnd:
        while True:
            frame: peer_pb2.LinkResponse = await self.call.read()
            for end in frame.ends:
                if end.channel == number:
                    return end


async def test_CLU_1_what_means_nothing_ends_its_channel_and_no_other(nodes):
    link = LinkByHand(nodes)
    for number in (1, 2):
        await link.open(number)
    await link.say(data=[{"channel": 1, "frame": b"\xff\xff\xff"}])
    assert "decoded" in (await link.until_end(1)).error.message
    await link.submit(2, subscribes=[{"reference": 5, "task_id": "nowhere"}])
    while not (data := (await link.call.read()).data):
        pass
    answer = dispatch_pb2.DispatchStreamResponse.FromString(data[0].frame)
    assert [one.reference for one in answer.refusals] == [5]
    await link.say(data=[{"channel": 99, "frame": b""}], closes=[{"channel": 98}])
    link.call.cancel()
    await link.channel.close()


async def test_CLU_1_a_node_that_does_not_read_costs_bounded_memory_and_its_largest_stream(nodes, monkeypatch):
    monkeypatch.setattr(link_end, "LINK_BYTES", 1 << 20)
    monkeypatch.setattr(link_end, "NODE_BYTES", 8 << 20)
    ends = nodes["two"].peers._ends
    link = LinkByHand(nodes)
    await link.open(1)
    await link.open(2)
    await until(lambda: any(len(end._channels) == 2 for end in ends))
    end = next(end for end in ends if len(end._channels) == 2)
    large, small = end._channels[1], end._channels[2]
    piece = b"x" * 100_000
    for _ in range(400):  # 40 MB for the one, 4 MB for the other
        large.out.put(dispatch_pb2.DispatchStreamResponse(closing=True).SerializeToString() + _unknown(piece))
    for _ in range(40):
        small.out.put(_unknown(piece))
    await until(lambda: 1 not in end._channels)
    await until(lambda: end.out.queued_bytes < 3 << 20)
    assert end._channels[2] is small
    assert not small.out.closed
    assert (await link.until_end(1)).error.message == "the other node does not read"
    link.call.cancel()
    await link.channel.close()


def _unknown(data: bytes) -> bytes:
    """A field that nobody knows, with this content."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return b"\xfa\x7f" + length + bytes([size]) + data


async def test_CLU_1_who_has_too_much_for_a_node_that_does_not_read_is_cut_off_alone(nodes, monkeypatch):
    agent_type = owned(nodes, "two")
    caller, other = CallerByHand(nodes.stubs("one")), CallerByHand(nodes.stubs("one"))
    for at, stream in enumerate((caller, other)):
        await stream.open()
        await stream.submit(at, "INTEREST_ACCEPTANCE", **spec(agent_type))
        await stream.next("acknowledgements")
    monkeypatch.setattr(tunnel, "UNREAD_BYTES", -1)
    await caller.submit(7, "INTEREST_ACCEPTANCE", **spec(agent_type))
    await asyncio.sleep(0.1)
    monkeypatch.undo()
    assert (await caller.ended())[0].name == "OK"
    assert any(frame.closing for frame in caller.frames)
    await other.submit(8, "INTEREST_ACCEPTANCE", **spec(agent_type))
    await other.next("acknowledgements")
    await other.close()


async def test_CLU_1_a_link_without_the_secret_is_refused(nodes):
    async with grpc.aio.insecure_channel(nodes.addresses["two"].address) as channel:
        link: Any = channel.stream_stream(tunnel.LINK, None, peer_pb2.LinkResponse.FromString)
        call = link()
        assert (await refusal(call))[:2] == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_CLU_3_callers_begin_anew_only_when_somebody_answers(nodes):
    """The owner is dead, and nobody has its shard yet: nobody is sent away to come again at once."""
    agent_type = owned(nodes, "two")
    caller = CallerByHand(nodes.stubs("one"))
    await caller.open()
    await caller.submit(1, "INTEREST_ACCEPTANCE", **spec(agent_type))
    await caller.next("acknowledgements")
    nodes.give(agent_type, "nobody")
    await asyncio.sleep(0.5)
    assert not any(frame.closing for frame in caller.frames)
    nodes.give(agent_type, "one")
    assert (await caller.ended())[0].name == "OK"
    assert any(frame.closing for frame in caller.frames)
