"""Hellos that come back from a node that does not own their pool (CLU-3). Found by the simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import attach_pb2
from reach.core.model import PoolKey
from reach.core.pool import PEERS_PATIENCE_MS, STALLED_MS
from reach.rpc.access import SCOPES
from reach.rpc.agent import AttachStream
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.principal import Principal
from reach.rpc.remote_links import RemoteLinks
from reach.wire.batcher import Batcher
from tests.runtime.hosts import Shell

POOL = PoolKey("acme", "echo")


class Stream:
    """An agent's stream, and what becomes of it."""

    def __init__(self) -> None:
        self.out = Batcher()
        self.links: dict[int, Any] = {}
        self.down = 0
        self.did: list[str] = []

    def hello(self, hello: attach_pb2.Hello) -> None:
        self.did.append(f"hello {hello.link}")

    def say(self, **fields: Any) -> None:
        self.did += fields

    def refuse(self, number: int, item: Any, fault: Any, *, closed: bool = False) -> None:
        self.did.append(f"refuse {number}")


def links_of(stream: Stream) -> RemoteLinks:
    peers: Any = SimpleNamespace(branches=set())
    return RemoteLinks(stream, peers, Principal("acme", "tests", SCOPES))  # type: ignore[arg-type]


def hello(link: int) -> bytes:
    return attach_pb2.AttachRequest(hellos=[attach_pb2.Hello(link=link)]).SerializeToString()


async def test_CLU_3_a_hello_that_has_waited_is_asked_for_anew() -> None:
    """What it says of running work is old, and the agent may be here by another stream."""
    stream = Stream()
    links = links_of(stream)
    links._again(hello(1), None, False)
    assert stream.did == ["resync"]
    links._again(hello(1), POOL, False)
    assert stream.did == ["resync", "resync"]


async def test_CLU_3_a_hello_whose_place_is_known_goes_there_at_once() -> None:
    stream = Stream()
    links = links_of(stream)
    links._again(hello(1), POOL, False)
    links._again(hello(2), POOL, False)
    assert stream.did == ["hello 1", "hello 2"]
    links._again(hello(1), POOL, False)
    assert stream.did[2:] == ["resync"]
    links.leaves(1)
    links._again(hello(1), POOL, False)
    assert stream.did[3:] == ["hello 1"]


async def test_CLU_3_a_hello_that_has_no_place_is_refused_in_the_end() -> None:
    stream = Stream()
    links_of(stream)._again(hello(1), None, True)
    assert stream.did == ["refuse 1"]


@pytest.mark.parametrize("still", [False, True])
async def test_CLU_3_who_gave_up_a_node_that_stood_still_is_not_told_to_be_gone(still: bool) -> None:
    """Its work goes on: the owner of its pool waits for it. Found by the simulation."""
    closed: list[bool] = []
    services: Any = SimpleNamespace(
        reach=None, nodes=KnownNodes(), host=SimpleNamespace(stood_still=lambda: still),
    )  # fmt: skip
    stream = AttachStream(services, Principal("acme", "tests", SCOPES), None)  # type: ignore[arg-type]
    remote: Any = SimpleNamespace(close=lambda *, ours: closed.append(ours))
    stream._remote = remote
    stream.close()
    assert closed == [still]


async def test_HLT_a_process_knows_that_it_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    late_ms = 0
    now_ms = shell.host.clock.now_ms
    monkeypatch.setattr(shell.host.clock, "now_ms", lambda: now_ms() + late_ms)
    assert not shell.host.stood_still()
    late_ms += PEERS_PATIENCE_MS - 500
    assert not shell.host.stood_still()
    late_ms += PEERS_PATIENCE_MS + 500
    assert shell.host.stood_still()
    for _ in range(20):
        late_ms += STALLED_MS // 10
        shell.host.stood_still()
    assert not shell.host.stood_still()
    await shell.stop()
