"""Channels on a link to another node: who hears of what, and what becomes of them when the link breaks (CLU-1)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.internal.v1 import peer_pb2
from reach.core.model import PoolKey
from reach.core.rooms import PoolRoom
from reach.errors import ReachError, Reason
from reach.rpc import tunnel as tunnel_module
from reach.rpc.access import SCOPES
from reach.rpc.homes import _Open
from reach.rpc.peer_messages import Unreachable, pool_name, unavailable
from reach.rpc.principal import Principal
from reach.rpc.tunnel import Channel, Tunnel
from reach.runtime.ownership import Peer
from reach.wire.status import error_to_proto

pytestmark = pytest.mark.asyncio
POOL = PoolKey("acme", "echo")
WHO = Principal("acme", "tests", SCOPES)


class Holder:
    """A stream that has a channel."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def arrived(self, channel: Channel, frame: bytes) -> None:
        self.heard.append(frame)

    def returned(self, channel: Channel, frame: bytes, placing: Any) -> None:
        self.heard.append((frame, placing.pool if placing is not None else None))

    def ended(self, channel: Channel, error: ReachError | None) -> None:
        assert not channel.open
        self.heard.append(error.reason if error is not None else "over")


class Scene:
    """A link, and what is said on it."""

    def __init__(self) -> None:
        self.broken: list[Tunnel] = []
        self.rooms: list[tuple[PoolKey, PoolRoom]] = []
        peers: Any = SimpleNamespace(
            broken=self.broken.append, rooms=SimpleNamespace(heard=lambda key, room: self.rooms.append((key, room)))
        )
        self.tunnel = Tunnel(peers, SimpleNamespace(peer=Peer("far", "far:1")))  # type: ignore[arg-type]

    def open(self) -> tuple[Channel, Holder]:
        holder = Holder()
        return self.tunnel.open(1, WHO, "trace", holder), holder

    async def said(self) -> peer_pb2.LinkRequest:
        """All that is said on the link since the last time."""
        whole = peer_pb2.LinkRequest()
        while self.tunnel.out.queued_bytes:
            whole.MergeFromString(await self.tunnel.out.take() or b"")
        return whole

    def comes(self, **items: Any) -> None:
        self.tunnel._received(peer_pb2.LinkResponse(**items))


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_CLU_1_each_channel_says_whose_it_is_and_hears_what_is_its_own(scene: Scene) -> None:
    (one, first), (two, second) = scene.open(), scene.open()
    opens = (await scene.said()).opens
    assert [(op.channel, op.kind, op.traceparent, op.identity.tenant) for op in opens] == [
        (1, 1, "trace", "acme"),
        (2, 1, "trace", "acme"),
    ]
    one.send(b"up", POOL, 7)
    two.send(b"up too")
    data = (await scene.said()).data
    assert [(item.channel, item.frame, item.pool.agent_type, item.sent) for item in data] == [
        (1, b"up", "echo", 7),
        (2, b"up too", "", 0),
    ]
    scene.comes(data=[{"channel": 2, "frame": b"down"}, {"channel": 9, "frame": b"of nobody"}])
    scene.comes(
        returned=[
            {"channel": 1, "frame": b"back", "pool": pool_name(POOL)},
            {"channel": 1, "frame": b"back"},
            {"channel": 9, "frame": b"of nobody"},
        ]
    )
    assert (first.heard, second.heard) == ([(b"back", POOL), (b"back", None)], [b"down"])


async def test_CLU_1_a_channel_that_ends_there_is_no_more_here_and_what_is_said_on_it_is_dropped(scene: Scene) -> None:
    (one, first), (_, second) = scene.open(), scene.open()
    error = error_to_proto(unavailable("it is changing hands"))
    scene.comes(ends=[{"channel": 1, "error": error}, {"channel": 9}])
    scene.comes(ends=[{"channel": 1}, {"channel": 2}], data=[{"channel": 1, "frame": b"late"}])
    assert (first.heard, second.heard) == ([Reason.OWNER_UNAVAILABLE], ["over"])
    await scene.said()
    one.send(b"late")
    one.half_close()
    one.close()
    assert scene.tunnel.out.queued_bytes == 0
    assert scene.tunnel._channels == {}


@pytest.mark.parametrize("ours", [True, False])
async def test_CLU_1_a_channel_says_once_that_nothing_more_comes_and_once_how_it_ended(
    scene: Scene, ours: bool
) -> None:
    one, first = scene.open()
    await scene.said()
    one.half_close()
    one.half_close()
    one.close(ours=ours)
    one.close(ours=not ours)
    closes = (await scene.said()).closes
    assert [(close.channel, close.half, close.ours) for close in closes] == [(1, True, False), (1, False, ours)]
    assert first.heard == []
    assert scene.tunnel._channels == {}


async def test_CLU_1_who_has_more_to_say_to_a_node_that_does_not_read_is_cut_off_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, first), (two, second) = scene.open(), scene.open()
    await scene.said()
    with monkeypatch.context() as patched:
        patched.setattr(tunnel_module, "UNREAD_BYTES", -1)
        one.send(b"too much")
    assert (first.heard, second.heard) == ([Reason.OWNER_UNAVAILABLE], [])
    two.send(b"goes on")
    said = await scene.said()
    assert [(close.channel, close.ours) for close in said.closes] == [(1, True)], "it is our doing"
    assert [item.frame for item in said.data] == [b"goes on"]


async def test_CLU_1_no_more_channels_are_opened_than_so_and_none_on_a_broken_link(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel_module, "CHANNELS", 1)
    one, _ = scene.open()
    with pytest.raises(Unreachable, match="full"):
        scene.open()
    one.close()
    scene.open()
    scene.tunnel._break(None)
    with pytest.raises(Unreachable, match="broken"):
        scene.open()


@pytest.mark.parametrize("why", [None, Unreachable("it died")])
async def test_CLU_3_a_link_that_breaks_ends_all_that_was_on_it_and_lets_nobody_wait(
    scene: Scene, why: Exception | None
) -> None:
    (one, first), (_, second) = scene.open(), scene.open()
    lost: list[Any] = []
    scene.tunnel.homes.ask("contexts", {}, _Open(3, lost.append, "lost"))
    waiting = asyncio.ensure_future(scene.tunnel.answered.wait())
    scene.tunnel._break(why)
    assert first.heard == second.heard == [Reason.OWNER_UNAVAILABLE]
    assert lost == ["lost"]
    assert scene.broken == [scene.tunnel]
    assert scene.tunnel.out.closed
    async with asyncio.timeout(5):
        await waiting
    one.send(b"late")
    one.close()
    assert scene.tunnel._channels == {}


async def test_CLU_5_what_a_node_tells_of_its_room_is_heard(scene: Scene) -> None:
    scene.comes(summaries=[{"pool": pool_name(POOL), "queued": 3, "full": True}])
    assert scene.rooms == [(POOL, PoolRoom(3, True, {}))]


async def test_CLU_6_a_node_that_stops_says_what_is_left_to_say(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    async def write(frame: bytes) -> None:
        await asyncio.sleep(0)
        written.append(frame)

    one, _ = scene.open()
    one.send(b"last")
    tunnel = scene.tunnel
    tunnel._writer = asyncio.create_task(tunnel._write(SimpleNamespace(write=write)))
    await tunnel.finish()
    assert b"last" in b"".join(written)
    assert tunnel._writer.done()
    monkeypatch.setattr(tunnel_module, "FINISH_SECONDS", 0.01)
    tunnel._writer = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        await tunnel.finish()
    tunnel._writer.cancel()
