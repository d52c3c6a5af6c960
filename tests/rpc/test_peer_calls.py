"""Calls at another node on one connection: what ends one of them, and what becomes of the others (CLU-1, F4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from agentreach.internal.v1 import peer_pb2, peer_pb2_grpc
from agentreach.v1 import dispatch_pb2, task_pb2
from reach.core.model import PoolKey, Requirement, Task
from reach.core.placement import SHARDS
from reach.core.rooms import PoolRoom
from reach.errors import InvalidRequest, ReachError, Reason, ResourceExhausted, Unavailable
from reach.rpc import peers as peers_module
from reach.rpc import services as services_module
from reach.rpc import tunnel as tunnel_module
from reach.rpc.homes import HomeCalls, _Open
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.peer_messages import Unreachable, pool_name, unavailable
from reach.rpc.peer_secret import PeerSecret
from reach.rpc.peers import DISPATCH, Peers
from reach.rpc.principal import Principal
from reach.rpc.tunnel import Tunnel
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import NOBODY, Peer, Static
from reach.wire.status import status_of
from tests.rpc.nodes import SECRET, until
from tests.rpc.peers import TIMEOUT

pytestmark = pytest.mark.asyncio
POOL = PoolKey("acme", "echo")


class Far(peer_pb2_grpc.PeerServiceServicer):
    """Another node, whose calls end as their methods say."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0
        self.link = ""
        self.server = grpc.aio.server()
        peer_pb2_grpc.add_PeerServiceServicer_to_server(self, self.server)
        self.peer = Peer("far", f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}")

    async def Call(self, request: peer_pb2.CallRequest, context: Any) -> AsyncIterator[peer_pb2.CallResponse]:
        match request.method:
            case "waits":
                yield peer_pb2.CallResponse(message=b"first")
                await self._wait()
                yield peer_pb2.CallResponse(message=b"second")
            case "has no owner":
                await context.abort_with_status(status_of(unavailable("it is changing hands")))
            case "is stopping":
                await context.abort_with_status(status_of(Unavailable("it is stopping", Reason.SHUTTING_DOWN)))
            case "is cut":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            case "is elsewhere":
                yield peer_pb2.CallResponse(misplaced=True, pool=pool_name(POOL))

    async def Locate(self, request: peer_pb2.LocateRequest, context: Any) -> peer_pb2.LocateResponse:
        await self._wait()
        return peer_pb2.LocateResponse(here=True)

    async def Link(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        match self.link:
            case "is silent":
                await self._wait()
            case "answers":
                await context.write(peer_pb2.LinkResponse(node_id="far"))
                await self._wait()
            case "talks nonsense":
                await context.write(peer_pb2.LinkResponse(turns=[peer_pb2.TurnTold(number=1)]))
                await self._wait()
            case _:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there are no links")

    async def TellSessions(self, request: Any, context: Any) -> peer_pb2.TellSessionsResponse:
        return peer_pb2.TellSessionsResponse()

    async def TellTasks(self, request: Any, context: Any) -> peer_pb2.TellTasksResponse:
        return peer_pb2.TellTasksResponse()

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def peers_of(far: Far) -> Peers:
    services: Any = SimpleNamespace(host=Mock(), nodes=KnownNodes())
    owners = Static("here", {"far": far.peer})
    return Peers(services, owners, PeerSecret(SECRET, "here", lambda: 0))


@pytest.fixture
async def far() -> AsyncIterator[Far]:
    made = Far()
    await made.server.start()
    yield made
    made.go_on.set()
    await made.server.stop(0)


@pytest.fixture
async def peers(far: Far) -> AsyncIterator[Peers]:
    made = peers_of(far)
    yield made
    await made.stop()


async def all_of(peers: Peers, far: Far, method: str) -> list[bytes]:
    async with asyncio.timeout(TIMEOUT):
        return [answer async for answer in peers.call(far.peer, peer_pb2.CallRequest(method=method), None, WHO)]


async def waits(peers: Peers, far: Far) -> asyncio.Task[list[bytes]]:
    """A call that is open at the other node."""
    before = far.waiting
    call = asyncio.create_task(all_of(peers, far, "waits"))
    await until(lambda: far.waiting > before)
    return call


async def test_CLU_1_a_node_that_says_that_an_owner_is_missing_is_there_for_all_other_calls(far, peers):
    """It is its own word, not one of the way there: the connection is as good as it was."""
    other = await waits(peers, far)
    connection = peers.connection(far.peer)
    for method in ("has no owner", "is stopping"):  # others may have it in a moment: it is asked for again
        with pytest.raises(Unreachable):
            await all_of(peers, far, method)
    with pytest.raises(Elsewhere) as told:
        await all_of(peers, far, "is elsewhere")
    assert told.value.pool == POOL
    assert peers.connection(far.peer) is connection
    far.go_on.set()
    assert await other == [b"first", b"second"]
    assert connection.calls == 0


async def test_F4_a_connection_that_fails_is_given_up_and_the_calls_on_it_end_and_do_not_hang(far, peers):
    """Who waits on it is told that there is no answer, and asks again: not that somebody has cancelled it."""
    other, located = await waits(peers, far), asyncio.create_task(peers.has(far.peer, "acme", "t"))
    await until(lambda: far.waiting == 2)
    connection = peers.connection(far.peer)
    with pytest.raises(Unreachable):
        await all_of(peers, far, "is cut")
    assert peers.connection(far.peer) is not connection
    with pytest.raises(Unreachable, match="given up"):
        await asyncio.wait_for(other, TIMEOUT)
    with pytest.raises(OSError, match="given up"):
        await asyncio.wait_for(located, TIMEOUT)
    assert connection.calls == 0
    far.go_on.set()
    assert await all_of(peers, far, "waits") == [b"first", b"second"], "the next connection serves"


async def test_F4_a_call_whose_time_is_over_says_nothing_about_the_others_on_its_connection(far, peers):
    """It is ended here, by a clock of this node: the other one may be as well as ever."""
    other = await waits(peers, far)
    connection = peers.connection(far.peer)
    with pytest.raises(ReachError) as told:
        async for _ in peers.call(far.peer, peer_pb2.CallRequest(method="waits"), 0.05, WHO):
            pass
    assert told.value.reason is Reason.WAIT_EXPIRED
    assert peers.connection(far.peer) is connection
    far.go_on.set()
    assert await other == [b"first", b"second"]


async def test_GOV_2_a_call_at_another_node_ends_with_the_credentials_that_opened_it(far, peers, monkeypatch):
    """That node does not know them. Nobody is asked again in the name of who may no more."""
    monkeypatch.setattr(services_module, "RECHECK_SECONDS", 0.02)
    keys: Any = SimpleNamespace(good=True, asked=0)

    def is_valid(_key_id: str) -> bool:
        keys.asked += 1
        return bool(keys.good)

    keys.is_valid = is_valid
    other = await waits(peers, far)

    async def reads() -> None:
        who = Principal("acme", "a", frozenset(), "k", keys)
        async for _ in peers.call(far.peer, peer_pb2.CallRequest(method="waits"), None, who):
            pass

    reading = asyncio.create_task(reads())
    await until(lambda: keys.asked > 2)
    keys.good = False
    with pytest.raises(InvalidRequest) as ended:
        await asyncio.wait_for(reading, TIMEOUT)
    assert ended.value.reason is Reason.UNAUTHENTICATED
    asked = keys.asked
    far.go_on.set()
    assert await other == [b"first", b"second"], "those of others go on"
    await asyncio.sleep(0.05)
    assert keys.asked == asked


async def test_F4_a_connection_that_was_given_up_takes_no_other_one_with_it(far, peers):
    """All calls on it end, one after the other, and the next one may have been made by then."""
    old = peers.connection(far.peer)
    peers.forget(old)
    new = peers.connection(far.peer)
    assert new is not old
    peers.forget(old)
    assert peers.connection(far.peer) is new
    assert await all_of(peers, far, "says nothing") == []


async def test_CLU_1_no_more_connections_are_kept_than_so_and_none_to_nobody(far, peers, monkeypatch):
    """A node that starts again may have another address each time."""
    monkeypatch.setattr(peers_module, "PEERS", 2)
    made = [peers.connection(Peer("far", f"127.0.0.1:{port}")) for port in (1, 2, 3)]
    assert list(peers._connections.values()) == made[1:]
    for nobody in (NOBODY, Peer("not there yet", "")):
        with pytest.raises(Unreachable):
            peers.connection(nobody)


async def test_CLU_1_a_link_that_broke_is_made_anew(far, peers):
    first = peers.tunnel(far.peer)
    assert peers.tunnel(far.peer) is first
    assert not await peers.answers(far.peer), "this node has no links"
    await until(lambda: not peers._running)
    assert first.broken
    assert peers.tunnel(far.peer) is not first


@pytest.mark.parametrize("how", ["is silent", "answers", "talks nonsense"])
async def test_CLU_3_a_node_that_says_nothing_on_a_new_link_is_not_waited_for(far, peers, monkeypatch, how):
    """One that has answered may be silent for as long as there is nothing to say."""
    seconds = 0.1 if how == "is silent" else 0.5
    monkeypatch.setattr(tunnel_module, "CONNECT_SECONDS", seconds)
    if how == "talks nonsense":
        monkeypatch.setattr(HomeCalls, "received", Mock(side_effect=ValueError("there is no such turn")))
    far.link = how
    connection, tunnel = peers.connection(far.peer), peers.tunnel(far.peer)
    async with asyncio.timeout(TIMEOUT):
        assert await peers.answers(far.peer) is (how != "is silent")
    if how == "answers":
        await asyncio.sleep(seconds + 0.1)
        assert not tunnel.broken
        assert peers.tunnel(far.peer) is tunnel
    else:
        await until(lambda: not peers._running)
        assert tunnel.broken
        assert far.peer not in peers._tunnels
    given_up = how == "is silent"
    assert (peers.connection(far.peer) is connection) is not given_up, "a connection that hangs is made anew"
    await until(lambda: far.cancelled == (how != "answers"))


async def test_CLU_1_a_node_that_reads_nothing_does_not_answer_for_anybody(far, peers, monkeypatch):
    """Who was cut off from it for that would only come again, and be cut off again."""
    tunnel = peers.tunnel(far.peer)
    tunnel.answered.set()
    assert await peers.answers(far.peer)
    monkeypatch.setattr(peers_module, "UNREAD_BYTES", -1)
    assert not await peers.answers(far.peer)
    assert not await peers.answers(NOBODY)


async def test_CLU_1_what_is_told_of_all_lacks_no_shard(far, peers):
    for shard in range(SHARDS):
        with pytest.raises(Unavailable, match=f"shard {shard} "):
            peers.check_whole()
        peers.owners.give(shard, ("here", "far")[shard % 2])
    peers.check_whole()


async def test_SES_3_what_is_asked_of_a_home_that_moves_is_lost_and_nothing_else(far, peers):
    answers: list[tuple[int, Any]] = []
    homes = peers.tunnel(far.peer).homes
    for shard in (3, 4):
        homes.ask("contexts", {}, _Open(shard, lambda answer, shard=shard: answers.append((shard, answer)), None))  # type: ignore[misc]
    peers.owners.give(3, "far")
    assert answers == [(3, None)]
    homes.broken()
    assert answers == [(3, None), (4, None)]
    homes.broken()
    assert len(answers) == 2, "each is answered once"


async def test_CLU_5_a_node_that_comes_is_told_of_all_room_and_then_of_what_changes(far, peers, monkeypatch):
    """What does not change would never be told to it."""
    frames: list[list[str]] = []

    def told(frame: bytes) -> None:
        frames.append([one.pool.agent_type for one in peer_pb2.LinkResponse.FromString(frame).summaries])

    end = Mock(out=SimpleNamespace(put=told, later=told))
    monkeypatch.setattr(peers.rooms, "changes", lambda: [(PoolKey("acme", "new"), PoolRoom(1, False, {}))])
    peers.begins(end)
    assert frames == [], "nobody has anything here"
    peers.ends(end)
    peers.rooms.told[POOL] = PoolRoom(0, False, {})
    peers.begins(end)
    assert frames == [["echo"]]
    peers._inform()
    assert frames == [["echo"], ["new"]]
    peers.ends(end)
    peers._inform()
    assert len(frames) == 2, "its link is no more"


async def test_CLU_3_clients_are_told_of_nodes_that_can_be_reached(far, peers, monkeypatch):
    heard: list[list[str]] = []
    peers.services.nodes = SimpleNamespace(hear=lambda addresses: heard.append(list(addresses)))
    monkeypatch.setattr(peers.owners, "others", lambda: [Peer("not there yet", ""), far.peer])
    peers._inform()
    assert heard == [[far.peer.address]]
    assert list(peers._tunnels) == [far.peer]


async def test_CLU_1_who_has_heard_enough_ends_the_call_at_the_other_node_too(far, peers):
    async with aclosing(peers.call(far.peer, peer_pb2.CallRequest(method="waits"), None, WHO)) as answers:
        async for answer in answers:
            assert answer == b"first"
            await until(lambda: far.waiting == 1)
            break
    await until(lambda: far.cancelled == 1)


async def test_F4_who_is_asked_to_stop_as_it_waits_for_another_node_stops(far, peers):
    """And so does what it asked for there."""
    call, located = await waits(peers, far), asyncio.create_task(peers.has(far.peer, "acme", "t"))
    await until(lambda: far.waiting == 2)
    for one in (call, located):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    await until(lambda: far.cancelled == 2)


async def test_F4_a_node_that_is_gone_is_unreachable_and_its_connection_made_anew(far, peers):
    await far.server.stop(0)
    connection = peers.connection(far.peer)
    with pytest.raises(Unreachable):
        await all_of(peers, far, "waits")
    assert peers.connection(far.peer) is not connection


async def test_CLU_1_no_more_calls_are_open_at_one_node_than_a_connection_holds(far, peers, monkeypatch):
    monkeypatch.setattr(peers_module, "CALLS", 2)
    open_ = [await waits(peers, far), await waits(peers, far)]
    with pytest.raises(ResourceExhausted):
        await all_of(peers, far, "is elsewhere")
    far.go_on.set()
    assert await asyncio.gather(*open_) == [[b"first", b"second"]] * 2
    with pytest.raises(Elsewhere):
        await all_of(peers, far, "is elsewhere")


async def test_CLU_1_a_part_of_a_call_that_nobody_answers_is_unavailable(far, peers):
    for method in ("has no owner", "is elsewhere", "is cut", "says nothing"):
        with pytest.raises(Unavailable):
            await peers.bring(Elsewhere(far.peer), method, peer_pb2.LocateRequest(), WHO)


async def test_HAZARDS_1_a_node_is_told_once_of_all_that_came_to_it_in_a_moment(far, peers, monkeypatch):
    """And again of what comes later. That it does not answer is no matter: it looks by itself."""
    told: list[tuple[str, bool]] = []

    async def has(peer: Peer, tenant: str, task_id: str, *, came: bool = False) -> bool:
        told.append((peer.node_id, came))
        raise OSError("it does not answer")

    monkeypatch.setattr(peers, "has", has)
    for moments in (1, 2):
        for _ in range(3):
            peers.came(Elsewhere(far.peer, POOL))
        await until(lambda: not peers._running)
        assert told == [("far", True)] * moments


@pytest.mark.parametrize("how", ["is taken", "is refused", "nobody is there"])
async def test_CLU_1_who_brings_a_volatile_task_hears_whether_it_is_there(far, peers, monkeypatch, how):
    brought: list[tuple[str, dispatch_pb2.DispatchRequest, str]] = []

    async def bring(where: Elsewhere, method: str, request: Any, principal: Any) -> bytes:
        brought.append((method, request, principal.tenant))
        if how == "is refused":
            raise unavailable("it is changing hands")
        if how == "nobody is there":
            raise RuntimeError("something of ours is broken")
        return b""

    monkeypatch.setattr(peers, "bring", bring)
    spec = task_pb2.TaskSpec(task_id="t")
    heard: list[bool] = []
    peers.bring_task(
        Elsewhere(far.peer, POOL), Task("acme", "t", spec.SerializeToString(), Requirement()), heard.append
    )
    (working,) = peers._running
    await asyncio.wait({working})
    assert heard == [how == "is taken"]
    if how == "nobody is there":
        assert isinstance(working.exception(), RuntimeError), "and those who wait for it have been sent on"
    assert [(method, request.task.task_id, tenant) for method, request, tenant in brought] == [(DISPATCH, "t", "acme")]


WHO = Principal("acme", "", frozenset())


@pytest.mark.parametrize("answered", [True, False])
async def test_CLU_3_only_a_node_that_had_answered_is_looked_after_when_its_link_breaks(far, peers, answered):
    """Who never was there may not be there yet."""
    broken: list[Peer] = []
    peers.on_broken = broken.append
    tunnel = Tunnel(peers, peers.connection(far.peer))
    if answered:
        tunnel.answered.set()
    tunnel._break(None)
    assert broken == [far.peer] * answered
