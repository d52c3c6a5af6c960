"""What the door asks of other nodes, how often, and what it makes of their answers (CLU-1, STR-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import dispatch_pb2, event_pb2, ops_pb2, registry_pb2, result_pb2, session_pb2
from reach.core.model import PoolKey
from reach.core.spread import Placing
from reach.errors import InvalidRequest, ReachError, Reason, Unavailable
from reach.rpc import proxy as proxy_module
from reach.rpc.peer_messages import Unreachable, unavailable
from reach.rpc.principal import Principal
from reach.rpc.proxy import INFO, STREAM_RESULT, Proxy, placed
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.telemetry.tracing import TraceContext, set_current_trace
from tests.rpc.acting import acting_as

pytestmark = pytest.mark.asyncio
TWO, THREE = Peer("two", "two:1"), Peer("three", "three:1")
GET = "/agentreach.v1.RegistryService/GetAgent"
RUN = "/agentreach.v1.DispatchService/Run"
LIST_AGENTS = "/agentreach.v1.RegistryService/ListAgents"
LIST_SESSIONS = "/agentreach.v1.SessionService/ListSessions"
UNKNOWN = InvalidRequest("there is no such agent", Reason.AGENT_NOT_FOUND)
Said = bytes | Exception


class Others:
    """The other nodes: what each says to a call, in turn; its last word for ever."""

    services = SimpleNamespace(node_id="one")

    def __init__(self, **said: list[Said]) -> None:
        self.said = {name: list(words) for name, words in said.items()}
        self.asked: list[str] = []
        self.requests: list[tuple[str, bytes]] = []
        self.brought: list[tuple[str, str, float | None]] = []
        self.owners = SimpleNamespace(others=lambda: [TWO, THREE])
        self.lacks: ReachError | None = None

    async def call(self, peer: Peer, call: Any, left_s: float | None, who: Any) -> AsyncGenerator[bytes, None]:
        self.asked.append(peer.node_id)
        self.requests.append((call.method, call.request))
        self.brought.append((call.traceparent, call.identity.tenant, left_s))
        for word in self.said[peer.node_id]:
            if isinstance(word, Exception):
                raise word
            yield word

    def check_whole(self) -> None:
        if self.lacks is not None:
            raise self.lacks


class Context:
    def __init__(self, left_s: float | None = None) -> None:
        self._left_s = left_s

    def time_remaining(self) -> float | None:
        return self._left_s


@pytest.fixture(autouse=True)
async def caller(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(proxy_module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(proxy_module, "FIRST_PAUSE_S", 0.01)
    with acting_as(Principal("acme", "tests", frozenset({"caller"}))):
        yield


def raises(error: Exception) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        raise error

    return behaviour


def answers(message: Any) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        return message

    return behaviour


async def make(others: Others, method: str, behaviour: Any, request: Any, left_s: float | None = None) -> Any:
    proxy = Proxy(others, None)  # type: ignore[arg-type]
    return await proxy.unary(method, behaviour)(request, Context(left_s))


async def get(others: Others) -> Any:
    return await make(others, GET, raises(UNKNOWN), registry_pb2.GetAgentRequest(instance_id="x"))


async def test_CLU_1_of_an_agent_that_is_not_known_here_the_others_are_asked_once() -> None:
    """They hear of each other's a moment late; but what nobody knows is not asked for again and again."""
    others = Others(two=[UNKNOWN], three=[b"found"])
    assert await get(others) == b"found"
    assert others.asked == ["two", "three"]
    others = Others(two=[b"found"], three=[UNKNOWN])
    assert await get(others) == b"found"
    assert others.asked == ["two"]
    others = Others(two=[UNKNOWN], three=[Elsewhere(TWO)])
    with pytest.raises(InvalidRequest) as told:
        await get(others)
    assert told.value.reason is Reason.AGENT_NOT_FOUND
    assert others.asked == ["two", "three"]


async def test_CLU_1_an_agent_that_a_silent_node_may_know_is_not_said_to_be_nowhere() -> None:
    others = Others(two=[Unreachable("it is silent")], three=[UNKNOWN])
    with pytest.raises(Unavailable) as told:
        await get(others)
    assert told.value.reason is Reason.OWNER_UNAVAILABLE
    assert others.asked == ["two", "three"], "the last one might have known it"
    refused = InvalidRequest("not yours", Reason.PERMISSION_DENIED)
    with pytest.raises(InvalidRequest, match="not yours"):
        await get(Others(two=[refused], three=[b"found"]))


@pytest.mark.parametrize(
    ("method", "request_", "own"),
    [
        (LIST_AGENTS, registry_pb2.ListAgentsRequest(), registry_pb2.ListAgentsResponse()),
        (LIST_SESSIONS, session_pb2.ListSessionsRequest(), session_pb2.ListSessionsResponse()),
    ],
)
@pytest.mark.parametrize("silent", [Unreachable("'three' is silent"), Elsewhere(TWO), None])
async def test_CLU_1_a_list_that_would_lack_the_part_of_a_node_is_none(
    method: str, request_: Any, own: Any, silent: Exception | None
) -> None:
    others = Others(two=[b""], three=[silent if silent is not None else b""])
    if silent is None:
        others.lacks = unavailable("nobody owns shard 'three' just now")
    with pytest.raises(Unavailable) as told:
        await make(others, method, answers(own), request_)
    assert told.value.reason is Reason.OWNER_UNAVAILABLE
    assert "three" in told.value.message
    others = Others(two=[b""], three=[b""])
    assert await make(others, method, answers(own), request_) == own
    assert sorted(others.asked) == ["three", "two"]


@pytest.mark.parametrize("silent", [Unreachable("it is silent"), UNKNOWN, None])
async def test_CLU_1_figures_name_each_node_that_they_lack(
    monkeypatch: pytest.MonkeyPatch, silent: Exception | None
) -> None:
    """They do not wait for it: it is also how one asks whether a node is there."""
    monkeypatch.setattr(proxy_module, "INFO_SECONDS", 0.01)
    others = Others(two=[ops_pb2.GetServerInfoResponse(agents=2).SerializeToString()], three=[])
    if silent is not None:
        others.said["three"] = [silent]
    else:
        honest = others.call

        async def hangs(peer: Peer, call: Any, left_s: float | None, who: Any) -> AsyncGenerator[bytes, None]:
            if peer is THREE:
                await asyncio.Event().wait()
            async for answer in honest(peer, call, left_s, who):
                yield answer

        others.call = hangs  # type: ignore[method-assign]
    own = ops_pb2.GetServerInfoResponse(agents=1)
    async with asyncio.timeout(5):
        told = await make(others, INFO, answers(own), ops_pb2.GetServerInfoRequest())
    assert (told.agents, list(told.lost_nodes)) == (3, ["three"])


DISPATCH = "/agentreach.v1.DispatchService/Dispatch"
DRAIN = "/agentreach.v1.RegistryService/Drain"
POOL = PoolKey("acme", "echo")
AWAY = Unavailable("the store cannot be reached", Reason.STORE_UNAVAILABLE)


class Changing:
    """A behaviour that says one thing after the other, its last word for ever; and the places it was brought to."""

    def __init__(self, *words: Any) -> None:
        self.words = list(words)
        self.placed: list[PoolKey | None] = []

    async def __call__(self, request: Any, context: Any) -> Any:
        placing = placed()
        self.placed.append(placing.pool if placing is not None else None)
        word = self.words.pop(0) if len(self.words) > 1 else self.words[0]
        if isinstance(word, Exception):
            raise word
        return word


async def dispatch(others: Others, behaviour: Any) -> Any:
    return await make(others, DISPATCH, behaviour, dispatch_pb2.DispatchRequest())


async def test_CLU_1_a_call_goes_at_once_where_it_is_said_to_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "FIRST_PAUSE_S", 60.0)  # there is no other try
    others = Others(two=[Elsewhere(TWO, POOL, Placing(POOL))], three=[])
    behaviour = Changing(Elsewhere(TWO), b"done")
    assert await dispatch(others, behaviour) == b"done"
    assert behaviour.placed == [None, POOL]
    assert placed() is None, "nor does the next call of this one go there"


async def test_CLU_1_a_call_goes_on_as_whose_it_is_in_its_trace_and_in_the_time_that_is_left() -> None:
    others = Others(two=[b"done"], three=[])
    trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    set_current_trace(TraceContext(trace, sampled=True))  # of this test alone: it has a context of its own
    assert await make(others, DISPATCH, Changing(Elsewhere(TWO)), dispatch_pb2.DispatchRequest(), 3.0) == b"done"
    assert others.brought == [(trace, "acme", 3.0)]


async def test_CLU_1_a_call_that_has_no_time_left_is_not_tried_again() -> None:
    others = Others(two=[Unreachable("it is silent")], three=[])
    with pytest.raises(Unavailable):
        await make(others, DISPATCH, Changing(Elsewhere(TWO)), dispatch_pb2.DispatchRequest(), 0.05)
    assert others.asked == ["two"]


async def test_CLU_1_nodes_that_send_a_call_to_each_other_are_asked_a_few_times_and_not_for_ever() -> None:
    others = Others(two=[Elsewhere(TWO, POOL, Placing(POOL))], three=[])
    behaviour = Changing(Elsewhere(TWO, POOL))
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable, match="it is changing hands") as told:
            await dispatch(others, behaviour)
    assert told.value.reason is Reason.OWNER_UNAVAILABLE
    assert 2 <= len(others.asked) <= 6, "the pauses grow"


async def test_CLU_3_a_call_whose_place_is_lost_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was placed nobody is any more; somebody else may take it."""
    monkeypatch.setattr(proxy_module, "PATIENCE_S", 10.0)  # on a busy machine too
    others = Others(two=[Elsewhere(TWO, POOL, Placing(POOL))], three=[Unreachable("it is silent")])
    behaviour = Changing(Elsewhere(TWO), unavailable("nobody owns it"), Elsewhere(THREE), b"done")
    assert await dispatch(others, behaviour) == b"done"
    assert behaviour.placed == [None, POOL, None, None]
    assert others.asked == ["two", "three"]


async def test_CLU_1_what_an_owner_says_is_the_answer_and_not_asked_for_again() -> None:
    others = Others(two=[AWAY], three=[])
    behaviour = Changing(AWAY)
    for words, asked in (([AWAY], []), ([Elsewhere(TWO)], ["two"])):
        behaviour = Changing(*words)
        with pytest.raises(Unavailable, match="the store cannot be reached"):
            await dispatch(others, behaviour)
        assert others.asked == asked
        assert len(behaviour.placed) == 1
    with pytest.raises(Unavailable, match="there was no answer"):
        await dispatch(Others(two=[], three=[]), Changing(Elsewhere(TWO)))
    others = Others(two=[], three=[])
    refused = InvalidRequest("not yours", Reason.PERMISSION_DENIED)
    with pytest.raises(InvalidRequest, match="not yours"):
        await make(others, GET, raises(refused), registry_pb2.GetAgentRequest(instance_id="x"))
    assert others.asked == [], "only of what is not known here others are asked"


async def test_CLU_1_a_list_that_no_node_can_make_is_not_tried_again() -> None:
    others = Others(two=[b""], three=[b""])
    with pytest.raises(Unavailable, match="the store cannot be reached"):
        await make(others, LIST_AGENTS, raises(AWAY), registry_pb2.ListAgentsRequest())
    assert sorted(others.asked) == ["three", "two"]


async def test_CLU_1_a_drain_names_what_all_nodes_drained_and_one_instance_is_asked_of_its_owner() -> None:
    drained = registry_pb2.DrainResponse(instance_ids=["z", "b"])
    request, own = registry_pb2.DrainRequest(agent_id="a"), registry_pb2.DrainResponse(instance_ids=["c"])
    others = Others(two=[UNKNOWN], three=[drained.SerializeToString()])
    assert (await make(others, DRAIN, answers(own), request)).instance_ids == ["b", "c", "z"]
    assert (await make(others, DRAIN, raises(UNKNOWN), request)).instance_ids == ["b", "z"]
    others = Others(two=[UNKNOWN], three=[UNKNOWN])
    with pytest.raises(InvalidRequest) as told:
        await make(others, DRAIN, raises(UNKNOWN), request)
    assert told.value.reason is Reason.AGENT_NOT_FOUND
    others = Others(two=[b"x"], three=[b"x"])
    own = registry_pb2.DrainResponse(instance_ids=["one"])
    assert await make(others, DRAIN, answers(own), registry_pb2.DrainRequest(instance_id="one")) == own
    assert others.asked == []


def frame(*sequences: int) -> dispatch_pb2.RunResponse:
    return dispatch_pb2.RunResponse(events=[event_pb2.TaskEvent(task_id="t", sequence=one) for one in sequences])


async def stream(others: Others, method: str, own: Any, rest: Any = None, request: Any = None) -> list[int]:
    """The sequences that a caller hears."""
    heard = []
    behaviour = Proxy(others, rest).streaming(method, own)  # type: ignore[arg-type]
    async with aclosing(behaviour(request or dispatch_pb2.RunRequest(), Context())) as frames:
        async for one in frames:
            message = dispatch_pb2.RunResponse.FromString(one) if isinstance(one, bytes) else one
            heard += [event.sequence for event in message.events]
    return heard


def says(*words: Any) -> Any:
    async def behaviour(request: Any, context: Any) -> AsyncIterator[Any]:
        for word in words:
            if isinstance(word, Exception):
                raise word
            yield word

    return behaviour


async def test_STR_2_a_stream_of_events_goes_on_behind_the_last_thing_that_it_said() -> None:
    """Wherever it was said: here, or at a node that lost the task as well."""
    others = Others(two=[frame(4, 5).SerializeToString(), Unreachable("it died")], three=[])
    asked: list[result_pb2.StreamResultRequest] = []

    async def rest(request: Any, context: Any) -> AsyncIterator[Any]:
        asked.append(request)
        assert placed() is None
        yield frame(*range(request.after_sequence + 1, 8))

    assert await stream(others, RUN, says(frame(1, 2), frame(3), Elsewhere(TWO)), rest) == [1, 2, 3, 4, 5, 6, 7]
    (method, request), *more = others.requests
    assert (method, more) == (STREAM_RESULT, [])
    behind = result_pb2.StreamResultRequest.FromString(request)
    assert (behind.task_id, behind.after_sequence) == ("t", 3)
    assert [(one.task_id, one.after_sequence) for one in asked] == [("t", 5)]


async def test_STR_2_a_stream_that_has_said_nothing_begins_where_its_place_is() -> None:
    pool = PoolKey("acme", "echo")
    seen: list[Placing | None] = []

    async def own(request: Any, context: Any) -> AsyncIterator[Any]:
        seen.append(placed())
        if len(seen) == 1:
            raise Elsewhere(TWO, pool)
        yield frame(1, 2)

    others = Others(two=[Elsewhere(TWO, pool, Placing(pool))], three=[])
    assert await stream(others, RUN, own) == [1, 2]
    assert seen == [None, Placing(pool)]
    assert [method for method, _ in others.requests] == [RUN]


async def test_STR_2_a_stream_that_goes_on_here_speaks_the_language_of_the_call() -> None:
    """What StreamResult says is not what Run says, but for its bytes."""
    own, rest = frame(1), result_pb2.StreamResultResponse(events=frame(2).events)
    others = Others(two=[Unreachable("it died")], three=[])
    behaviour = Proxy(others, says(rest)).streaming(RUN, says(own, Elsewhere(TWO)))  # type: ignore[arg-type]
    frames = [one async for one in behaviour(dispatch_pb2.RunRequest(), Context())]
    assert frames == [own, rest.SerializeToString()]


async def test_STR_2_a_stream_that_its_owner_ends_is_not_taken_up_again() -> None:
    others = Others(two=[], three=[])
    asked: list[Any] = []

    async def rest(request: Any, context: Any) -> AsyncIterator[Any]:
        asked.append(request)
        yield frame(2)

    with pytest.raises(Unavailable, match="the store cannot be reached"):
        await stream(others, RUN, says(frame(1), AWAY), rest)
    assert (asked, others.asked) == ([], [])


async def test_STR_2_a_stream_is_tried_for_as_long_anew_whenever_it_has_said_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task may change hands many times, and each may take a while."""
    monkeypatch.setattr(proxy_module, "FIRST_PAUSE_S", 0.06)  # one pause, and no second one
    moved = unavailable("it is changing hands")

    async def rest(request: Any, context: Any) -> AsyncIterator[Any]:
        yield frame(request.after_sequence + 1)
        if request.after_sequence < 4:
            raise moved

    async with asyncio.timeout(5):
        assert await stream(Others(two=[], three=[]), RUN, says(frame(1), moved), rest) == [1, 2, 3, 4, 5]
        for own in (says(moved), says(frame(1), moved)):
            with pytest.raises(Unavailable):
                await stream(Others(two=[], three=[]), RUN, own, says(moved))


async def test_STR_2_a_stream_of_something_else_breaks_rather_than_begin_in_its_middle() -> None:
    others = Others(two=[], three=[])
    with pytest.raises(Unavailable):
        await stream(others, "/agentreach.v1.OpsService/Other", says(frame(1), Elsewhere(TWO)), says(frame(2)))
    assert others.asked == []
