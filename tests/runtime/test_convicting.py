"""A dead process is taken out before its lease lapses; one that is only cut off is not (CLU-3)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from reach.cluster.base import ClusterUnavailable, NodeInfo
from reach.cluster.single import Memory, SingleCluster
from reach.runtime import convicting
from reach.runtime.convicting import LOOKS_MS, Convictions, refuses_connections
from reach.runtime.ownership import Peer

DEAD = Peer("b", "b:1")


class Scene:
    """Node `a` and its cluster; `b` is another member."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.here, self.other = SingleCluster(self.memory), SingleCluster(self.memory)
        self.answers: list[bool | None] = []
        self.asked: list[str] = []
        self.convictions = Convictions(self.here.membership, self._refuses)

    async def _refuses(self, address: str) -> bool | None:
        self.asked.append(address)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def start(self) -> None:
        for cluster, name in ((self.here, "a"), (self.other, "b")):
            await cluster.start()
            await cluster.membership.join(NodeInfo(name, f"boot-{name}", f"{name}:1"))

    async def look(self, peer: Peer = DEAD) -> bool:
        """Suspects a node; whether it is still there when that has been looked into."""
        self.convictions.suspect(peer)
        await asyncio.gather(*self.convictions._looking.values())
        return "b" in self.here.membership.nodes()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.start()
    yield made
    await made.convictions.stop()
    await made.here.stop()
    await made.other.stop()


async def test_CLU_3_who_refuses_is_convicted(scene, caplog):
    scene.answers = [False, True]  # what listens is closed a little later than the links
    assert not await scene.look()
    assert scene.asked == ["b:1", "b:1"]
    assert "a node is dead" in caplog.text


async def test_CLU_3_a_process_that_lived_when_it_was_suspected_can_die_later(scene):
    scene.answers = [False]
    assert await scene.look()
    scene.answers = [True]
    assert not await scene.look()


async def test_CLU_3_of_all_who_find_a_node_dead_one_says_so(scene, monkeypatch, caplog):
    async def was_taken_out_before(node_id: str, boot: str) -> bool:
        return False

    monkeypatch.setattr(scene.here.membership, "convict", was_taken_out_before)
    scene.answers = [True]
    await scene.look()
    assert "a node is dead" not in caplog.text


async def test_CLU_3_a_node_that_stops_convicts_nobody_any_more(scene):
    scene.answers = [False, True]
    scene.convictions.suspect(DEAD)
    await asyncio.sleep(0)  # it has looked once
    async with asyncio.timeout(5):
        await scene.convictions.stop()
    assert "b" in scene.here.membership.nodes()


@pytest.mark.parametrize(("answer", "looks"), [(None, 1), (False, len(LOOKS_MS))])
async def test_CLU_3_silence_and_a_broken_link_alone_prove_nothing(scene, answer, looks):
    """Who is silent once is not asked again: what a machine says that comes back is not of what broke."""
    scene.answers = [answer]
    assert await scene.look()
    assert len(scene.asked) == looks


async def test_CLU_3_a_dead_node_that_cannot_be_taken_out_is_left_to_its_lease(scene, monkeypatch, caplog):
    async def fails(node_id: str, boot: str) -> bool:
        raise ClusterUnavailable("no etcd", unknown=True)

    monkeypatch.setattr(scene.here.membership, "convict", fails)
    scene.answers = [True]
    assert await scene.look()
    assert "its lease will lapse" in caplog.text


async def test_CLU_3_who_is_looked_at_is_not_looked_at_twice(scene):
    scene.answers = [True]
    for _ in range(3):  # all links to a process break at once
        scene.convictions.suspect(DEAD)
    assert len(scene.convictions._looking) == 1
    await asyncio.gather(*scene.convictions._looking.values())
    assert scene.asked == ["b:1"]


async def test_CLU_3_another_process_of_that_name_is_not_meant(scene):
    scene.answers = [True]
    assert await scene.look(Peer("b", "elsewhere:1"))
    assert await scene.look(Peer("c", "b:1"))
    assert scene.asked == []


async def test_CLU_3_who_came_back_after_it_was_convicted_lives(scene):
    scene.answers = [True]
    assert not await scene.look()
    await scene.other.membership.join(NodeInfo("b", "boot-b", "b:1"))
    assert await scene.look()
    await scene.other.membership.join(NodeInfo("b", "boot-c", "b:1"))
    assert not await scene.look(), "a new process under the name can be dead as well"


async def test_CLU_3_who_may_be_cut_off_itself_convicts_nobody(scene):
    scene.answers = [True]
    scene.memory.expire("a", "boot-a")
    assert await scene.look()


async def test_CLU_3_what_a_machine_says_of_an_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert await refuses_connections(f"127.0.0.1:{port}") is False
    assert await refuses_connections(f"127.0.0.1:{port}") is True
    assert await refuses_connections("127.0.0.1") is None
    assert await refuses_connections("no.such.host.invalid:1") is None


async def test_CLU_3_a_machine_that_says_nothing_has_not_refused(monkeypatch):
    """It may be a cut line, seen from one side."""

    async def nothing(host: str, port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(convicting, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", nothing)
    assert await refuses_connections("10.0.0.1:1") is None


async def test_CLU_3_no_more_processes_are_remembered_than_so(scene, monkeypatch):
    monkeypatch.setattr(convicting, "PROCESSES", 2)
    scene.answers = [True]
    for boot in ("one", "two", "three"):
        await scene.other.membership.join(NodeInfo("b", boot, "b:1"))
        assert not await scene.look()
    assert list(scene.convictions._convicted) == [("b", "two"), ("b", "three")]
