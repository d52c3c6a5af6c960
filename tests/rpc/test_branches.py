"""What one stream has on other nodes: what is brought there and comes back, and when it begins anew (CLU-1, CLU-3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.model import PoolKey
from reach.core.placement import shard_of
from reach.core.spread import Placing
from reach.rpc import branches as branches_module
from reach.rpc.access import SCOPES
from reach.rpc.branches import PAUSES_S, Branches
from reach.rpc.peer_messages import Unreachable, unavailable
from reach.rpc.principal import Principal
from reach.runtime.claims import HAND_OVER_MS
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import NOBODY, Peer
from reach.wire.batcher import Batcher
from tests.rpc.nodes import until

pytestmark = pytest.mark.asyncio
TWO, THREE = Peer("two", "two:1"), Peer("three", "three:1")
ECHO, SUM = PoolKey("acme", "echo"), PoolKey("acme", "sum")
assert shard_of(ECHO) != shard_of(SUM)
WHO = Principal("acme", "tests", SCOPES)


class Channel:
    """What is said to one node, and how it ended."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.said: list[Any] = []
        self.half = False
        self.closed: bool | None = None

    def send(self, frame: bytes, pool: PoolKey | None = None, sent: int = 0, placing: Placing | None = None) -> None:
        self.said.append((frame, pool, sent, placing))

    def half_close(self) -> None:
        self.half = True

    def close(self, *, ours: bool = False) -> None:
        assert self.closed is None
        self.closed = ours


class Scene:
    """A stream, and the other nodes."""

    def __init__(self) -> None:
        self.branches: set[Any] = set()
        self.opened: list[Channel] = []
        self.away: set[Peer] = set()
        self.silent: set[Peer] = {NOBODY}
        self.asked: list[Peer] = []
        self.owner: dict[int, Peer | None] = {}
        self.hand_over: set[str] = set()
        self.owners = SimpleNamespace(
            node_of=lambda shard: self.owner.get(shard, NOBODY), hands_over=lambda name: name in self.hand_over
        )
        self.came_back: list[tuple[bytes, Placing | None, bool]] = []
        self.begun_anew = 0
        self.out = Batcher()
        self.stream = Branches(self, 1, WHO, "trace", self.out, self._again, self._anew)  # type: ignore[arg-type]

    def tunnel(self, peer: Peer) -> Any:
        if peer in self.away:
            raise Unreachable("it is away")
        return SimpleNamespace(open=lambda *opening: self._open(peer, opening))

    def _open(self, peer: Peer, opening: Any) -> Channel:
        assert opening == (1, WHO, "trace", self.stream)
        self.opened.append(Channel(peer))
        return self.opened[-1]

    async def answers(self, peer: Peer) -> bool:
        self.asked.append(peer)
        return peer not in self.silent

    def _again(self, frame: bytes, placing: Placing | None, refuse: bool) -> None:
        self.came_back.append((frame, placing, refuse))

    def _anew(self) -> None:
        self.begun_anew += 1

    def brings(self, peer: Peer, pool: PoolKey | None = ECHO, frame: bytes = b"item", sent: int = 0) -> None:
        self.stream.send(Elsewhere(peer, pool), frame, sent)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(branches_module, "LOOK_S", 0.004)
    monkeypatch.setattr(branches_module, "LAST_WORDS_S", 0.02)
    monkeypatch.setattr(branches_module, "PAUSES_S", (0.01, 0.02, 0.03, 0.04) * 2)
    return Scene()


async def test_CLU_1_what_goes_to_one_node_shares_a_channel_and_says_what_it_is_about(scene: Scene) -> None:
    placing = Placing(ECHO)
    scene.stream.send(Elsewhere(TWO, ECHO, placing), b"a", 7)
    scene.brings(TWO, None, b"b")
    scene.brings(THREE, SUM, b"c")
    two, three = scene.opened
    assert two.said == [(b"a", ECHO, 7, placing), (b"b", None, 0, None)]
    assert three.said == [(b"c", SUM, 0, None)]
    scene.stream.to(TWO, b"d", 9)
    scene.stream.to(Peer("none", "none:1"), b"lost")
    scene.stream.tell_all(b"e")
    assert [said[:3:2] for said in two.said[2:]] == [(b"d", 9), (b"e", 0)]
    assert [said[0] for said in three.said[1:]] == [b"e"]
    scene.stream.arrived(two, b"down")  # type: ignore[arg-type]
    assert await scene.out.take() == b"down"


@pytest.mark.parametrize("ours", [False, True])
async def test_CLU_1_a_stream_that_ends_ends_what_it_has_elsewhere_and_nothing_more_is_done(
    scene: Scene, ours: bool
) -> None:
    scene.brings(TWO)
    scene.stream.half_close()
    scene.brings(TWO)
    scene.brings(THREE, SUM)
    scene.stream.returned(scene.opened[0], b"item", None)  # type: ignore[arg-type]
    scene.stream.close(ours=ours)
    assert [one.closed for one in scene.opened] == [ours] * 3
    assert scene.branches == set()
    assert not scene.stream.busy
    scene.brings(TWO)
    scene.stream.ended(scene.opened[0], unavailable("late"))  # type: ignore[arg-type]
    scene.stream.moved(shard_of(ECHO))
    await asyncio.sleep(0.05)
    assert len(scene.opened) == 3
    assert (scene.came_back, scene.begun_anew) == ([], 0)


async def test_CLU_3_a_stream_that_ends_while_it_waits_for_an_owner_does_not_begin_anew(scene: Scene) -> None:
    scene.brings(TWO)
    scene.stream.ended(scene.opened[0], unavailable("it died"))  # type: ignore[arg-type]
    assert scene.stream.busy
    scene.stream.close()
    scene.owner[shard_of(ECHO)] = None
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0


async def test_CLU_1_an_item_that_comes_back_is_tried_after_longer_and_longer_pauses_and_refused(
    scene: Scene,
) -> None:
    for number in range(len(PAUSES_S)):
        scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
        assert len(scene.came_back) == number
        assert scene.stream.busy
        scene.stream.half_close()
        await until(lambda: len(scene.came_back) > number)  # noqa: B023
        assert not scene.stream.busy
    tries = len(PAUSES_S)
    assert scene.came_back == [(b"item", None, False)] * tries
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    assert scene.came_back[tries:] == [(b"item", None, True)]
    await asyncio.sleep(0.05)
    assert len(scene.came_back) == tries + 1
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    assert len(scene.came_back) == tries + 1, "one that is said again later is tried again"
    scene.stream.close()


async def test_CLU_1_an_item_whose_place_is_known_goes_there_at_once_and_the_second_time_after_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches_module, "PAUSES_S", (60.0, 60.0, 60.0))
    placing = Placing(ECHO)
    scene.stream.returned(None, b"item", placing)  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert scene.came_back == [(b"item", placing, False)]
    scene.stream.returned(None, b"item", placing)  # type: ignore[arg-type]
    scene.stream.returned(None, b"other", None)  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert len(scene.came_back) == 1
    assert len(scene.stream._timers) == 2
    scene.stream.close()


async def test_CLU_1_an_item_that_came_back_long_ago_comes_back_for_the_first_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches_module, "PAUSES_S", (0.0,))
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    monkeypatch.setattr(branches_module, "PATIENCE_S", 0.0)
    scene.stream.returned(None, b"item", None)  # type: ignore[arg-type]
    await until(lambda: len(scene.came_back) == 4)
    assert [refused for _, _, refused in scene.came_back] == [True, False, False, False]


async def test_CLU_1_no_more_items_are_known_to_have_come_back_than_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches_module, "RETURNED", 2)
    for item in (b"a", b"b", b"a", b"c"):
        scene.stream.returned(None, item, None)  # type: ignore[arg-type]
    assert list(scene.stream._returned) == [hash(b"a"), hash(b"c")], "what came back last"
    scene.stream.close()


async def test_CLU_1_what_waits_to_be_brought_again_is_brought_though_its_caller_says_no_more(scene: Scene) -> None:
    scene.brings(TWO)
    scene.stream.returned(scene.opened[0], b"item", None)  # type: ignore[arg-type]
    scene.stream.half_close()
    assert not scene.opened[0].half
    await until(lambda: bool(scene.came_back))
    scene.stream.half_close()
    assert scene.opened[0].half
    scene.brings(TWO)
    first, second = scene.opened
    assert second.said, "the first one may end before it is there"
    scene.stream.tell_all(b"credit")
    assert [one.said[-1][0] for one in (first, second)] == [b"credit"] * 2, "either may have what it is about"
    scene.stream.half_close()
    scene.stream.ended(second, None)
    assert scene.stream.busy, "the first one may still say something"
    scene.stream.ended(first, None)
    assert not scene.stream.busy
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0


@pytest.mark.parametrize(
    "how", ["it breaks", "it ends though more may be asked", "it cannot be reached", "a shard moves"]
)
async def test_CLU_3_a_stream_whose_node_is_lost_begins_anew_once_somebody_answers_for_what_it_had(
    scene: Scene, how: str
) -> None:
    scene.owner = {shard_of(ECHO): TWO, shard_of(SUM): THREE}
    if how == "it cannot be reached":
        scene.away.add(TWO)
    scene.brings(TWO)
    scene.brings(THREE, SUM)
    if how == "it breaks":
        scene.stream.half_close()
        scene.stream.ended(scene.opened[0], unavailable("it died"))  # type: ignore[arg-type]
    elif how == "it ends though more may be asked":
        scene.stream.ended(scene.opened[0], None)  # type: ignore[arg-type]
    elif how == "a shard moves":
        scene.stream.moved(shard_of(ECHO))
        assert scene.opened[0].closed is None, "it is still its owner"
        scene.owner[shard_of(ECHO)] = NOBODY
        scene.stream.moved(shard_of(PoolKey("acme", "unheard of")))
        assert scene.opened[0].closed is None, "the stream has nothing there"
        scene.stream.moved(shard_of(ECHO))
        scene.stream.moved(shard_of(ECHO))
        assert scene.opened[0].closed is None, "it may have left in peace: its last words are heard"
        await until(lambda: scene.opened[0].closed is True)  # as our doing: nobody has left
    scene.silent |= {TWO, THREE}
    scene.owner[shard_of(ECHO)] = NOBODY
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0
    assert set(scene.asked) == {NOBODY}, "of what is lost, and nobody else"
    channels = len(scene.opened)
    scene.brings(TWO)
    assert len(scene.opened) == channels, "nothing more is brought there"
    scene.brings(THREE, SUM, b"more")
    assert scene.opened[-1].said[-1][0] == b"more", "what others own goes on"
    scene.owner[shard_of(ECHO)] = THREE
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0
    scene.silent.clear()
    await until(lambda: scene.begun_anew == 1)
    await asyncio.sleep(0.02)
    assert scene.begun_anew == 1


async def test_DLV_13_what_a_node_still_tells_of_a_shard_that_it_hands_over_gets_there(scene: Scene) -> None:
    """It says itself, behind all that, that the shard has moved."""
    scene.hand_over = {TWO.node_id}
    scene.owner = {shard_of(ECHO): TWO}
    scene.brings(TWO)
    scene.owner[shard_of(ECHO)] = THREE
    scene.stream.moved(shard_of(ECHO))
    (two,) = scene.opened
    assert two.closed is None
    scene.stream.arrived(two, b"the last piece, and that it has moved")  # type: ignore[arg-type]
    assert await scene.out.take() == b"the last piece, and that it has moved"
    scene.brings(THREE)
    assert scene.opened[-1].peer == THREE
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0
    scene.stream.ended(two, unavailable("it died before it could say so"))  # type: ignore[arg-type]
    await until(lambda: scene.begun_anew == 1)


async def test_CLU_3_of_several_that_are_lost_all_are_waited_for(scene: Scene) -> None:
    scene.brings(TWO)
    scene.brings(THREE, SUM)
    for channel in scene.opened:
        scene.stream.ended(channel, unavailable("it died"))  # type: ignore[arg-type]
    scene.owner = {shard_of(ECHO): None, shard_of(SUM): NOBODY}
    await asyncio.sleep(0.05)
    assert scene.begun_anew == 0
    scene.owner[shard_of(SUM)] = None
    await until(lambda: scene.begun_anew == 1)


async def test_CLU_3_a_channel_that_was_closing_and_breaks_is_lost_like_any(scene: Scene) -> None:
    scene.owner[shard_of(ECHO)] = None
    scene.brings(TWO)
    scene.stream.half_close()
    scene.brings(TWO)
    scene.stream.ended(scene.opened[0], unavailable("it died"))  # type: ignore[arg-type]
    await until(lambda: scene.begun_anew == 1)


async def test_CLU_3_a_stream_waits_for_nobody_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches_module, "PATIENCE_S", 0.05)
    scene.brings(TWO)
    scene.stream.ended(scene.opened[0], unavailable("it died"))  # type: ignore[arg-type]
    await until(lambda: scene.begun_anew == 1)


async def test_CLU_3_what_goes_to_an_heir_waits_longer_than_that_one_does() -> None:
    assert sum(PAUSES_S) > HAND_OVER_MS / 1_000 + 1
