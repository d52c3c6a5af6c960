"""Links of agents whose pools other nodes own: what goes there, what comes back, and how they end (CLU-1, CLU-3)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import attach_pb2, dispatch_pb2
from reach.core.model import Fault, PoolKey
from reach.core.pool import PEERS_PATIENCE_MS, STALLED_MS
from reach.core.spread import Placing
from reach.errors import ErrorClass, Reason, ResourceExhausted
from reach.rpc import branches as branches_module
from reach.rpc import remote_links as remote_links_module
from reach.rpc.access import SCOPES
from reach.rpc.agent import AttachStream
from reach.rpc.known_nodes import KnownNodes
from reach.rpc.principal import Principal
from reach.rpc.remote_links import KINDS, RemoteLinks
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.wire.batcher import Batcher
from tests.rpc.nodes import until
from tests.runtime.hosts import Shell

THERE = Placing(PoolKey("acme", "echo"))


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
        assert closed, "or the agent would take it for open"
        self.did.append(f"refuse {number}")

    def closing(self, out: Batcher) -> None:
        assert out is self.out
        self.did.append("closing")


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
    links._again(hello(1), THERE, False)
    assert stream.did == ["resync", "resync"]


async def test_CLU_3_a_hello_that_comes_back_again_and_again_is_asked_for_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has other words: agents count their hellos, and say what runs by now. Found by the simulation: while a shard
    was awaited, each of its agents said hello some forty times a second."""
    monkeypatch.setattr(branches_module, "PAUSES_S", (0.0, 60.0))
    stream = Stream()
    links = links_of(stream)
    for number in range(3):
        said = attach_pb2.AttachRequest(hellos=[attach_pb2.Hello(link=1, number=number)]).SerializeToString()
        links._branches.returned(None, said, None)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
    assert stream.did == ["resync", "refuse 1"]
    links.close(ours=True)


async def test_CLU_3_a_hello_whose_place_is_known_goes_there_at_once() -> None:
    stream = Stream()
    links = links_of(stream)
    links._again(hello(1), THERE, False)
    links._again(hello(2), THERE, False)
    assert stream.did == ["hello 1", "hello 2"]
    links._again(hello(1), THERE, False)
    assert stream.did[2:] == ["resync"]
    links.leaves(1)
    links._again(hello(1), THERE, False)
    assert stream.did[3:] == ["hello 1"]


async def test_CLU_3_a_hello_that_has_no_place_is_refused_in_the_end() -> None:
    """Nothing is left of it: another one with its number is a new one."""
    stream = Stream()
    links = links_of(stream)
    links._again(hello(1), None, False)
    links._again(hello(1), None, True)
    assert stream.did == ["resync", "refuse 1"]
    links._again(hello(1), THERE, False)
    assert stream.did[2:] == ["hello 1"]


class Far:
    """The other nodes: what is said to each of them."""

    def __init__(self) -> None:
        self.branches: set[Any] = set()
        self.said: list[tuple[str, attach_pb2.AttachRequest]] = []
        self.sent: list[int] = []

    def tunnel(self, peer: Peer) -> Any:
        def send(frame: bytes, pool: PoolKey | None = None, sent: int = 0, placing: Placing | None = None) -> None:
            self.sent.append(sent)
            self.said.append((peer.node_id, attach_pb2.AttachRequest.FromString(frame)))

        return SimpleNamespace(open=lambda *_: SimpleNamespace(send=send, half=False))


TWO, THREE = Elsewhere(Peer("two", "two:1"), THERE.pool), Elsewhere(Peer("three", "three:1"), THERE.pool)


def attached(far: Far, where: dict[str, Elsewhere]) -> AttachStream:
    """A stream of an agent all of whose pools are elsewhere."""

    def elsewhere(tenant: str, agent_type: str, *_: Any) -> None:
        raise where[agent_type]

    services: Any = SimpleNamespace(reach=SimpleNamespace(hello=elsewhere), nodes=KnownNodes(), peers=far,
                                    welcome=dispatch_pb2.StreamWelcome)  # fmt: skip
    return AttachStream(services, Principal("acme", "tests", SCOPES), None)  # type: ignore[arg-type]


def joins(stream: AttachStream, link: int, agent_type: str, instance_id: str = "") -> None:
    registration = {"agent_id": "a", "agent_type": agent_type, "boot_id": "b", "instance_id": instance_id}
    stream.handle(attach_pb2.AttachRequest(hellos=[{"link": link, "registration": registration}]))  # type: ignore[list-item]


async def test_REG_2_a_hello_said_again_without_an_id_is_of_the_same_instance_on_another_node_too() -> None:
    """It was given one as it came; a second one would have the work of the first run twice."""
    far = Far()
    stream = attached(far, {"echo": TWO})
    for link in (1, 2, 1):
        joins(stream, link, "echo")
    names = [hello.registration.instance_id for _, frame in far.said for hello in frame.hellos]
    assert names[0] == names[2] != names[1]
    assert all(names)


@pytest.mark.parametrize("others", [{"echo": TWO}, {"echo": TWO, "other": THREE}])
async def test_REG_2_a_link_that_ended_in_peace_is_no_link_any_more_wherever_it_was(
    others: dict[str, Elsewhere],
) -> None:
    """Its number may be of another instance then; and who comes and goes on one stream is not refused in the end."""
    far = Far()
    stream = attached(far, others)
    for number, agent_type in enumerate(others, 1):
        joins(stream, number, agent_type)
    remote = stream._remote
    assert remote is not None
    before = remote.instance_of(1)
    stream.handle(attach_pb2.AttachRequest(goodbyes=[attach_pb2.Goodbye(link=1)]))
    assert [goodbye.link for node, frame in far.said if node == "two" for goodbye in frame.goodbyes] == [1]
    assert (len(remote), remote.instance_of(1)) == (len(others) - 1, "")
    joins(stream, 1, "echo")
    assert remote.instance_of(1) not in ("", before)


def said_of(*links: int) -> attach_pb2.AttachRequest:
    """One item of each kind for each of these links."""
    frame = attach_pb2.AttachRequest(sequence=9)
    for kind in KINDS:
        if kind != "goodbyes":
            for link in links:
                getattr(frame, kind).add(link=link)
    return frame


def links_in(frame: attach_pb2.AttachRequest) -> dict[str, list[int]]:
    return {field.name: [item.link for item in items] for field, items in frame.ListFields()}


def test_CLU_1_each_thing_that_an_agent_can_say_of_a_link_is_brought_to_its_owner() -> None:
    """What is added to the contract and forgotten there would be lost for agents of other nodes."""
    fields = attach_pb2.AttachRequest.DESCRIPTOR.fields
    of_links = [one.name for one in fields if one.message_type and "link" in one.message_type.fields_by_name]
    assert sorted(of_links) == sorted(["hellos", *KINDS])


@pytest.mark.parametrize("others", [("echo",), ("echo", "other")])
async def test_CLU_1_what_is_said_of_links_goes_to_their_owners_and_nothing_else_does(others: tuple[str, ...]) -> None:
    """With the count of what the agent was told, by which its owner judges what was lost on the way."""
    far = Far()
    stream = attached(far, {"echo": TWO, "other": THREE})
    for number, agent_type in enumerate(others, 1):
        joins(stream, number, agent_type)
    assert far.sent == [0] * len(others)
    far.said.clear()
    far.sent.clear()
    stream.down = 5
    links = range(1, len(others) + 1)
    stream.handle(said_of(*links))
    expected = {kind: links for kind in KINDS if kind != "goodbyes"}
    assert [(node, links_in(frame)) for node, frame in far.said] == [
        (node, {kind: [link] for kind in expected}) for node, link in zip(("two", "three"), links, strict=False)
    ]
    assert far.sent == [5] * len(others)


async def test_CLU_1_what_is_said_of_a_link_that_is_here_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far()
    stream = attached(far, {"echo": TWO})
    joins(stream, 1, "echo")
    far.said.clear()
    stream.links[2] = object()  # type: ignore[assignment]
    assert stream._remote is not None
    here = stream._remote.take(said_of(1, 2))
    kinds = [kind for kind in KINDS if kind != "goodbyes"]
    assert links_in(here) == {kind: [2] for kind in kinds}
    assert [links_in(frame) for _, frame in far.said] == [{kind: [1] for kind in kinds}]


async def test_CLU_3_a_link_that_says_hello_again_and_belongs_elsewhere_by_now_goes_there() -> None:
    far = Far()
    where = {"echo": TWO}
    stream = attached(far, where)
    joins(stream, 1, "echo")
    where["echo"] = THREE
    joins(stream, 1, "echo")
    stream.handle(attach_pb2.AttachRequest(beats=[attach_pb2.LinkBeat(link=1)]))
    assert [node for node, _ in far.said] == ["two", "three", "three"]


async def test_CLU_3_a_stream_whose_work_elsewhere_is_lost_asks_its_agent_to_open_another_and_ends_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_links_module, "REOPEN_SECONDS", 0.02)
    stream = Stream()
    links = links_of(stream)
    links._anew()
    assert stream.did == ["closing"]
    assert not stream.out.closed, "it says what is left to say"
    await until(lambda: stream.out.closed)
    stream = Stream()
    links = links_of(stream)
    links._anew()
    links.close(ours=True)
    await asyncio.sleep(0.05)
    assert not stream.out.closed, "it was over before"


async def test_REG_2_a_stream_has_no_more_links_than_so_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.rpc.agent.LINKS", 2)
    far = Far()
    stream = attached(far, {"echo": TWO})
    refused: list[int] = []
    monkeypatch.setattr(stream, "refuse", lambda number, *_, **__: refused.append(number))
    monkeypatch.setattr(
        stream.services, "too_many", lambda most: ResourceExhausted("!", Reason.TOO_MANY_STREAMS), raising=False
    )
    for number in (1, 2, 3):
        joins(stream, number, "echo")
    assert refused == [3]
    assert len(far.said) == 2


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


def refusals_of(stream: AttachStream) -> list[tuple[str, bool]]:
    """What a stream has refused: reason, and whether it is to be said again."""
    said = attach_pb2.AttachResponse()
    for item in stream.out._items:
        said.MergeFrom(attach_pb2.AttachResponse.FromString(item))
    stream.out._items.clear()
    return [(Reason(one.error.reason).name, one.error.retryable) for one in said.refusals]


def result_of(link: int) -> attach_pb2.AttachRequest:
    item = attach_pb2.AttachRequest()
    item.results.add(link=link).key.task_id = "t"
    return item


@pytest.mark.parametrize("end", ["handed back", "changing hands", "replaced"])
async def test_F4_what_is_said_of_a_link_that_was_taken_from_the_agent_is_to_be_said_again(end: str) -> None:
    """Refused for good it became a failure, and the task was done twice: a take-over that takes long asks for more than
    one hello, and outcomes follow them."""
    far = Far()
    stream = attached(far, {"echo": TWO})
    stream.services.metrics = SimpleNamespace(refused=lambda _: None)  # type: ignore[assignment]
    back: list[bytes] = []
    if end == "handed back":
        stream._hop = SimpleNamespace(back=lambda frame, where: back.append(frame))
    joins(stream, 1, "echo")
    remote = stream._remote
    if end == "handed back":
        assert len(back) == 1
    elif end == "changing hands":
        assert remote is not None
        remote._again(hello(1), None, True)
    else:
        assert remote is not None
        remote.leaves(1)
        stream.refuse(1, None, Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_GENERATION, "!"), closed=True)
    refusals_of(stream)
    stream.handle(result_of(1))
    stream.handle(attach_pb2.AttachRequest(beats=[attach_pb2.LinkBeat(link=1)]))
    expected = [("OWNER_UNAVAILABLE", True)] if end != "replaced" else [("UNEXPECTED_FRAME", False)] * 2
    assert refusals_of(stream) == expected
    stream.handle(result_of(2))
    assert refusals_of(stream) == [("UNEXPECTED_FRAME", False)], "of that one there was no hello"


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
