"""Questions about sessions on the link of two nodes: what is asked, what is answered, and what is lost (SES-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.internal.v1 import peer_pb2
from reach.core.homes import Accepted
from reach.core.placement import shard_of_session
from reach.core.rows import OutboxDone
from reach.core.session import TURN
from reach.rpc import homes as homes_module
from reach.rpc.homes import FarHomes, HomeCalls, HomeDesk
from reach.rpc.peer_messages import Unreachable
from reach.runtime.homeward import Brought, Told
from reach.runtime.ownership import Peer

pytestmark = pytest.mark.asyncio
FAR = Peer("far", "far:1")
NAME = ("acme", "shop:u:s")
HOME = shard_of_session(NAME)
FACT = OutboxDone(3, TURN, NAME[1], "7", HOME)
NOW_MS = 10_000
RECENT = Accepted(7, 9_000)


class Out:
    """What is said on a link."""

    def __init__(self, kind: Any) -> None:
        self.frames: list[Any] = []
        self._kind = kind

    def put(self, frame: bytes) -> None:
        self.frames.append(self._kind.FromString(frame))


class Asking:
    """This node, and the link on which it asks."""

    def __init__(self) -> None:
        self.out = Out(peer_pb2.LinkRequest)
        self.calls = HomeCalls(self.out)  # type: ignore[arg-type]
        self.away = False
        host: Any = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: NOW_MS))
        self.far = FarHomes(self, host)  # type: ignore[arg-type]
        self.heard: list[Any] = []

    def tunnel(self, peer: Peer) -> Any:
        assert peer == FAR
        if self.away:
            raise Unreachable("it is away")
        return SimpleNamespace(homes=self.calls)

    def context(self, accepted: Accepted = RECENT, ttl_ms: int | None = None) -> None:
        self.far.context(FAR, NAME, accepted, ttl_ms, self.heard.append)

    def turn(self, fact: OutboxDone | None = FACT) -> None:
        self.far.turn(FAR, Brought(NAME, "t", Accepted(7, 9_000), 500, b"content", fact), self.heard.append)

    def is_told(self, number: int, *states: int) -> None:
        for state in states:
            self.calls.received(peer_pb2.LinkResponse(turns=[{"number": number, "state": state}]))  # type: ignore[list-item]


@pytest.fixture
async def asking() -> Asking:
    return Asking()


async def test_SES_3_what_is_asked_of_a_session_says_all_that_its_home_must_know(asking: Asking) -> None:
    asking.context()
    asking.context(Accepted(-1, 0), 500)
    (first,), (second,) = (frame.contexts for frame in asking.out.frames)
    assert (first.number, first.tenant, first.session, first.row, first.accepted_ago_ms) == (1, *NAME, 7, 1_000)
    assert not first.HasField("ttl_ms")
    assert (second.number, second.row, second.ttl_ms) == (2, 0, 500)
    assert not second.HasField("accepted_ago_ms"), "long ago"
    asking.turn()
    asking.turn(None)
    (first,), (second,) = (frame.turns for frame in asking.out.frames[2:])
    assert (first.number, first.tenant, first.session, first.task_id, first.content) == (3, *NAME, "t", b"content")
    assert (first.row, first.accepted_ago_ms, first.ttl_ms, first.shard, first.key) == (7, 1_000, 500, 3, "7")
    assert (second.number, second.key, second.shard) == (4, "", 0), "a volatile task has no fact"


async def test_SES_3_each_question_is_answered_once_and_an_empty_context_is_one(asking: Asking) -> None:
    for _ in range(3):
        asking.context()
    told: Any = [{"number": 2, "context": b"said"}, {"number": 1, "context": b""}, {"number": 3}, {"number": 9}]
    for _ in range(2):
        asking.calls.received(peer_pb2.LinkResponse(contexts=told))
    assert asking.heard == [b"said", b"", None]
    assert asking.calls._open == {}


@pytest.mark.parametrize(
    ("fact", "words", "heard"),
    [
        (FACT, (Told.HEARD, Told.KEPT, Told.KEPT), [Told.HEARD, Told.KEPT]),
        (FACT, (Told.HEARD, Told.LOST, Told.LOST), [Told.HEARD, Told.LOST]),
        (FACT, (Told.LOST, Told.HEARD), [Told.LOST]),
        (None, (Told.HEARD, Told.LOST), [Told.HEARD]),
        (FACT, (99, Told.HEARD), [Told.LOST]),  # a word of a later version (CLU-6)
    ],
)
async def test_SES_3_a_turn_is_heard_and_then_kept_if_it_has_a_fact(
    asking: Asking, fact: OutboxDone | None, words: tuple[int, ...], heard: list[Told]
) -> None:
    asking.turn(fact)
    asking.is_told(1, *words)
    assert asking.heard == heard
    assert asking.calls._open == {}


@pytest.mark.parametrize("how", ["the link breaks", "its shard moves"])
async def test_SES_3_what_is_open_on_a_link_that_breaks_is_lost_once_whatever_one_of_them_does(
    asking: Asking, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("broken")

    asking.far.context(FAR, NAME, Accepted(7, 0), None, fails)
    asking.context()
    asking.turn()
    asking.turn()
    asking.is_told(4, Told.HEARD)
    other = next(f"shop:u:{n}" for n in range(99) if shard_of_session(("acme", f"shop:u:{n}")) != HOME)
    asking.far.context(FAR, ("acme", other), Accepted(7, 0), None, lambda context: asking.heard.append(other))
    for _ in range(2):
        if how == "the link breaks":
            asking.calls.broken()
        else:
            asking.calls.moved(HOME)
    expected = [Told.HEARD, None, Told.LOST, Told.LOST]
    assert asking.heard == expected + [other] * (how == "the link breaks")
    assert "a question about a session was lost" in caplog.text


async def test_SES_3_a_node_that_cannot_be_asked_is_a_lost_answer_a_moment_later(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks is not told before it has asked."""
    asking.away = True
    asking.context()
    asking.turn()
    assert asking.heard == []
    await asyncio.sleep(0)
    assert asking.heard == [None, Told.LOST]
    asking.away = False
    monkeypatch.setattr(homes_module, "ASKED", 1)
    asking.context()
    asking.context()
    await asyncio.sleep(0)
    assert asking.heard[2:] == [None], "too much is asked already"
    assert len(asking.out.frames) == 1


class Home:
    """A node that is asked."""

    def __init__(self) -> None:
        self.out = Out(peer_pb2.LinkResponse)
        self.owner: Peer | None = None
        self.in_doubt = False
        self.opened: list[Any] = []
        self.taken_in: list[Brought] = []
        self.keeps: list[tuple[OutboxDone, Callable[[bool], None]]] = []
        self.context: bytes | Exception = b"said"
        sessions = SimpleNamespace(
            opened=self._opened, take_in=self.taken_in.append, keep=lambda fact, told: self.keeps.append((fact, told))
        )
        host = SimpleNamespace(
            owners=SimpleNamespace(node_of=lambda shard: self.owner if shard == HOME else FAR),
            committer=SimpleNamespace(doubt=lambda: self.in_doubt),
            clock=SimpleNamespace(now_ms=lambda: NOW_MS),
            sessions=sessions,
        )
        services: Any = SimpleNamespace(host=host)
        self.desk = HomeDesk(services, self.out)  # type: ignore[arg-type]

    def _opened(self, *asked: Any) -> bytes:
        self.opened.append(asked)
        if isinstance(self.context, Exception):
            raise self.context
        return self.context

    def asks(self, **ask: Any) -> bytes | None:
        """What it says to a question about a context."""
        said = {"number": 5, "tenant": NAME[0], "session": NAME[1], "row": 7, **ask}
        self.desk.received(peer_pb2.LinkRequest(contexts=[said]))  # type: ignore[list-item]
        (told,) = self.out.frames.pop().contexts
        assert told.number == 5
        return told.context if told.HasField("context") else None

    def brings(self, **turn: Any) -> Told:
        said = {"number": 6, "tenant": NAME[0], "session": NAME[1], "task_id": "t", "row": 7, "content": b"c", **turn}
        self.desk.received(peer_pb2.LinkRequest(turns=[said]))  # type: ignore[list-item]
        return self.told()

    def told(self) -> Told:
        (told,) = self.out.frames.pop().turns
        assert told.number == 6
        return Told(told.state)


@pytest.fixture
def home() -> Home:
    return Home()


async def test_SES_3_a_home_tells_what_it_knows_and_by_when_the_session_was_used(home: Home) -> None:
    assert home.asks() == b"said"
    home.context = b""
    assert home.asks(accepted_ago_ms=1_000, ttl_ms=500) == b"", "nothing is known yet"
    assert home.opened == [(NAME, Accepted(7, 0), None), (NAME, Accepted(7, 9_000), 500)]


@pytest.mark.parametrize("how", ["it is another node's", "nobody knows"])
async def test_CLU_2_a_node_that_may_not_be_the_home_says_nothing_and_takes_nothing(home: Home, how: str) -> None:
    home.owner, home.in_doubt = (FAR, False) if how == "it is another node's" else (None, True)
    assert home.asks() is None
    assert home.brings(key="7") is Told.LOST
    assert (home.opened, home.taken_in, home.keeps) == ([], [], [])


async def test_SES_3_what_is_known_of_a_session_and_cannot_be_told_holds_up_no_task(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.context = RuntimeError("broken")
    assert home.asks() == b""
    assert "cannot be told" in caplog.text


@pytest.mark.parametrize("kept", [True, False])
async def test_SES_3_a_home_hears_a_turn_and_says_whether_it_is_kept_with_the_end_of_its_fact(
    home: Home, kept: bool
) -> None:
    assert home.brings(key="7", shard=3, accepted_ago_ms=1_000, ttl_ms=500) is Told.HEARD
    assert home.taken_in == [Brought(NAME, "t", Accepted(7, 9_000), 500, b"c", FACT)]
    ((fact, told),) = home.keeps
    assert fact == FACT, "it is written under the shard of the session"
    told(kept)
    assert home.told() is (Told.KEPT if kept else Told.LOST)


async def test_SES_3_a_turn_without_a_fact_is_heard_and_no_more(home: Home) -> None:
    assert home.brings() is Told.HEARD
    assert home.taken_in == [Brought(NAME, "t", Accepted(7, 0), None, b"c", None)]
    assert home.keeps == []
