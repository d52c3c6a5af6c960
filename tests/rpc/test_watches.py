"""One stream made of those of all nodes: who is watched, who is lost, and how it ends (REG-9, CLU-1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.placement import SHARDS
from reach.errors import InvalidRequest, Reason
from reach.rpc import watches
from reach.rpc.peer_messages import Unreachable
from reach.rpc.watches import HERE, FanIn, Lost
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer, Static
from tests.rpc.nodes import until

pytestmark = pytest.mark.asyncio
TWO, THREE = Peer("two", "two:1"), Peer("three", "three:1")
GONE, SILENT = Lost(True), Lost(False)


class Scene:
    """A watch at node `one`, and what the nodes say when a test has them say it."""

    def __init__(self) -> None:
        self.nodes = {"two": TWO}
        self.owners = Static("one", self.nodes)
        for shard in range(SHARDS):
            self.owners.give(shard, "one")
        self.words: dict[str, asyncio.Queue[Any]] = {name: asyncio.Queue() for name in (HERE, "two", "three")}
        self.open: list[str] = []
        self.asked: list[tuple[str, Any]] = []
        self.heard: list[tuple[str, Any]] = []
        merge: Any = SimpleNamespace(request=lambda node: f"of {node}", take=self._take)
        self.messages = FanIn(self.owners, self._here, self._there, merge).messages()
        self._reading = asyncio.create_task(self._read())

    def _take(self, node: str, came: Any) -> list[Any]:
        self.heard.append((node, came))
        return ["told"]

    async def _read(self) -> None:
        async for message in self.messages:
            assert message == "told"

    async def _says(self, name: str, request: Any) -> AsyncIterator[Any]:
        self.asked.append((name, request))
        self.open.append(name)
        try:
            while (word := await self.words[name].get()) is not None:
                if isinstance(word, Exception):
                    raise word
                yield word
        finally:
            self.open.remove(name)

    async def _here(self, request: Any) -> AsyncIterator[Any]:
        async for word in self._says(HERE, request):
            yield SimpleNamespace(SerializeToString=lambda word=word: word)

    async def _there(self, request: Any, where: Elsewhere) -> AsyncGenerator[bytes, None]:
        async for word in self._says(where.peer.node_id, request):
            yield word

    def says(self, name: str, *words: Any) -> None:
        for word in words:
            self.words[name].put_nowait(word)

    async def hears(self, node: str, came: Any, times: int = 1) -> None:
        await until(lambda: self.heard.count((node, came)) >= times)
        assert self.heard.count((node, came)) == times

    async def end(self) -> None:
        """The watcher leaves."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.messages.aclose()


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(watches, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watches, "FIRST_SECONDS", 0.01)
    made = Scene()
    yield made
    await made.end()
    assert made.open == [], "nothing goes on when nobody listens"


async def test_CLU_1_all_nodes_are_watched_and_so_is_one_that_comes(scene: Scene) -> None:
    await until(lambda: sorted(scene.open) == [HERE, "two"])
    scene.says(HERE, b"a")
    scene.says("two", b"b", b"c")
    await scene.hears(HERE, b"a")
    await scene.hears("two", b"c")
    assert [came for node, came in scene.heard if node == "two"] == [b"b", b"c"]
    scene.nodes["three"] = THREE
    scene.says("three", b"d")
    await scene.hears("three", b"d")
    assert sorted(scene.asked) == [(HERE, "of "), ("three", "of three"), ("two", "of two")], "each once"
    await scene.hears(HERE, None)


async def test_CLU_1_those_that_have_said_nothing_are_given_up_before_a_look_that_may_take_long(scene: Scene) -> None:
    await scene.hears(HERE, None)
    await asyncio.sleep(0.05)
    await scene.hears(HERE, None)


@pytest.mark.parametrize(
    "word", [Unreachable("it died"), Elsewhere(THREE), InvalidRequest("no", Reason.PERMISSION_DENIED), None]
)
async def test_CLU_1_a_node_that_cannot_be_heard_is_named_once_and_tried_anew(scene: Scene, word: Any) -> None:
    for number in (1, 2):
        scene.says("two", word, word, word)
        await until(lambda: len(scene.asked) >= 2 + 3 * number)  # noqa: B023 - it is watched again
        await scene.hears("two", SILENT, number)
        scene.says("two", b"here again")
        await scene.hears("two", b"here again", number)


async def test_CLU_1_a_node_that_has_left_is_gone_once_all_it_had_is_others(scene: Scene) -> None:
    scene.owners.give(7, "two")
    await until(lambda: "two" in scene.open)
    del scene.nodes["two"]
    scene.says("two", Unreachable("it died"))
    await scene.hears("two", SILENT)
    await asyncio.sleep(0.05)
    assert ("two", GONE) not in scene.heard, "nobody has yet what it had: it may be told of again"
    scene.owners.give(7, "one")
    await scene.hears("two", GONE)
    await asyncio.sleep(0.05)
    await scene.hears("two", GONE)
    assert scene.asked.count(("two", "of two")) == 1, "it is not asked any more"


async def test_CLU_1_a_node_that_is_lost_and_still_a_member_is_not_gone(scene: Scene) -> None:
    scene.says("two", Unreachable("it died"))
    await scene.hears("two", SILENT)
    await asyncio.sleep(0.05)
    assert ("two", GONE) not in scene.heard


async def test_CLU_1_a_watch_ends_with_the_part_of_this_node(scene: Scene) -> None:
    """It says what is wrong with the request, or with who asks."""
    await until(lambda: "two" in scene.open)
    scene.says(HERE, InvalidRequest("your key has ended", Reason.UNAUTHENTICATED))
    with pytest.raises(InvalidRequest, match="your key has ended"):
        await asyncio.wait_for(scene._reading, 5)
    assert scene.open == []


async def test_CLU_1_a_watcher_that_does_not_read_holds_up_the_nodes_and_not_its_own_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "HELD", 2)
    scene = Scene()
    scene._reading.cancel()
    await asyncio.gather(scene._reading, return_exceptions=True)
    merge: Any = SimpleNamespace(request=lambda node: node, take=lambda node, came: [came])
    messages = FanIn(scene.owners, scene._here, scene._there, merge).messages()
    first = asyncio.ensure_future(anext(messages))
    for _ in range(50):
        scene.says("two", b"word")
    assert await first == b"word"
    await asyncio.sleep(0.02)
    assert scene.words["two"].qsize() >= 50 - 4, "the rest waits where it is said"
    await messages.aclose()
    assert scene.open == []
