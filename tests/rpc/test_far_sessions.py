"""Sessions whose home is another node than the one where their tasks run (SES-3, CLU-1)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from reach.core.placement import shard_of_session
from reach.core.session import TURN
from reach.store.base import StoredFact
from tests.rpc.nodes import agent_of, owned, until
from tests.rpc.peers import TIMEOUT, pb, refusal, unique
from tests.rpc.shared_nodes import SharedCluster, SharedMember, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: Any) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


def key_of_session(name: tuple[str, str]) -> dict[str, str]:
    return dict(zip(("app_id", "user_id", "session_id"), name[1].split(":"), strict=True))


async def home_at(nodes: SharedCluster, node: str) -> tuple[str, str]:
    name = nodes.session_of(node)
    await until(lambda: shard_of_session(name) in nodes[node].claims.owned)
    return name


async def ask(nodes: SharedCluster, at: str, agent: Any, name: tuple[str, str], text: str, answer: str, **more: Any):
    """One task of a session from its submission to its result; the offer."""
    task = {
        "selector": {"agent_id": agent.agent_id},
        "payload": {"text": text},
        "session": key_of_session(name),
        **more,
    }
    asked = pb.DispatchRequest(task=task, wait={"seconds": 15})
    call = asyncio.ensure_future(nodes.stubs(at).dispatch.Dispatch(asked, timeout=TIMEOUT))
    offer = await agent.next("offers")
    await agent.finish(offer, answer)
    await call
    return offer


def texts(offer: Any) -> list[str]:
    return [turn.request.text for turn in offer.session_context.turns]


def facts(nodes: SharedCluster) -> list[StoredFact]:
    node: SharedMember = next(iter(nodes.nodes.values()))
    return node.store.every_fact(TURN, 0, 1_000)


def context_at(nodes: SharedCluster, node: str, name: tuple[str, str]) -> Any:
    host = nodes[node].host
    return host.sessions.home(name).look(name, host.clock.now_ms())


async def test_SES_3_turns_of_pools_on_two_nodes_are_one_conversation_at_a_third(nodes):
    name = await home_at(nodes, "three")
    agents = [await agent_of(nodes, await owned_by(nodes, node, owned), node) for node in ("one", "two")]
    for number in range(6):
        offer = await ask(nodes, "three" if number % 3 else "one", agents[number % 2], name, f"q{number}", f"a{number}")
        assert texts(offer) == [f"q{before}" for before in range(max(0, number - 5), number)], number
        assert offer.session_context.turn_count == number
    context = context_at(nodes, "three", name)
    assert context.count == 6
    assert context_at(nodes, "one", name) is None
    assert context_at(nodes, "two", name) is None
    await until(lambda: facts(nodes) == [])
    await until(lambda: all(not nodes[one].host.outbox.held(TURN) for one in ("one", "two")))
    assert all(not nodes[one].host.homeward._underway for one in ("one", "two"))
    for agent in agents:
        await agent.close()


async def test_SES_3_a_volatile_task_adds_its_turn_far_away_too(nodes):
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    await ask(nodes, "one", agent, name, "q0", "a0", durability="DURABILITY_VOLATILE")
    assert texts(await ask(nodes, "one", agent, name, "q1", "a1")) == ["q0"]
    await until(lambda: nodes["one"].peers.tunnel(nodes.addresses["two"]).homes._open == {})
    await agent.close()


async def test_SES_3_what_was_said_and_inferred_and_cut_comes_through(nodes):
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    task = {
        "selector": {"agent_id": agent.agent_id},
        "payload": {"text": "x" * 100_000},
        "session": key_of_session(name),
        "entities": {"city": "Paris"},
    }
    asked = pb.DispatchRequest(task=task, wait={"seconds": 15})
    call = asyncio.ensure_future(nodes.stubs("one").dispatch.Dispatch(asked, timeout=TIMEOUT))
    await agent.finish(await agent.next("offers"), output={"text": "ok"}, inferred={"mood": "happy"})
    await call
    offer = await ask(nodes, "one", agent, name, "q1", "a1")
    context = offer.session_context
    assert (dict(context.entities), dict(context.inferred)) == ({"city": "Paris"}, {"mood": "happy"})
    (turn,) = context.turns
    assert turn.cut
    assert len(turn.request.text) == 16 << 10
    await agent.close()


async def test_SES_3_a_home_that_moves_takes_its_conversation_along(nodes):
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    await ask(nodes, "one", agent, name, "q0", "a0")
    for number, node in enumerate(("three", "one", "two"), 1):
        await nodes.move(shard_of_session(name), node)
        offer = await ask(nodes, "three", agent, name, f"q{number}", f"a{number}")
        assert texts(offer) == [f"q{before}" for before in range(number)], node
        assert context_at(nodes, node, name).count == number + 1
    await until(lambda: facts(nodes) == [])
    await agent.close()


async def test_SES_3_nothing_is_lost_or_doubled_when_the_home_dies(tmp_path: Path, monkeypatch):
    async with shared_cluster(tmp_path, "one", "two", "three") as nodes:
        name = await home_at(nodes, "two")
        agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
        monkeypatch.setattr(nodes["two"].host.sessions, "flush", lambda: None)  # what it knows is in its memory alone
        for number in range(3):
            await ask(nodes, "one", agent, name, f"q{number}", f"a{number}")
        assert context_at(nodes, "two", name).count == 3
        assert len(facts(nodes)) == 3
        await nodes.lose("two", "three")
        offer = await ask(nodes, "one", agent, name, "q3", "a3")
        assert texts(offer) == ["q0", "q1", "q2"]
        assert context_at(nodes, "three", name).count == 4
        await until(lambda: facts(nodes) == [])
        assert context_at(nodes, "three", name).count == 4
        await agent.close()


async def test_SES_3_nothing_is_lost_or_doubled_when_the_node_of_the_task_dies(tmp_path: Path, monkeypatch):
    async with shared_cluster(tmp_path, "one", "two", "three") as nodes:
        name = await home_at(nodes, "two")
        agent_type = await owned_by(nodes, "one", owned)
        agent = await agent_of(nodes, agent_type, "one")
        monkeypatch.setattr("reach.runtime.homeward.TELL_SECONDS", 0.1)
        monkeypatch.setattr(nodes["one"].host.homeward.far, "turn", lambda *_: None)  # its turns never leave it
        for number in range(2):
            await ask(nodes, "one", agent, name, f"q{number}", f"a{number}")
        assert len(facts(nodes)) == 2
        await nodes.lose("one", "three")
        await until(lambda: context_at(nodes, "two", name) is not None and context_at(nodes, "two", name).count == 2)
        await until(lambda: facts(nodes) == [])
        again = await agent_of(nodes, agent_type, "three")
        offer = await ask(nodes, "three", again, name, "q2", "a2")
        assert texts(offer) == ["q0", "q1"]
        await again.close()


async def test_SES_3_who_hears_of_an_end_finds_its_turn_however_far_its_home_is(nodes, monkeypatch):
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    far = nodes["one"].host.homeward.far
    honest, loop = far.turn, asyncio.get_running_loop()
    monkeypatch.setattr(far, "turn", lambda *given: loop.call_later(0.3, honest, *given))
    for number in range(3):
        offer = await ask(nodes, "one", agent, name, f"q{number}", f"a{number}")
        assert texts(offer) == [f"q{before}" for before in range(number)]
    await agent.close()


async def test_SES_3_what_a_home_that_was_overtaken_knows_alone_is_not_forgotten(nodes, monkeypatch):
    """The pool is its, the session is another's by now: neither the context nor the end of the fact is kept."""
    name = await home_at(nodes, "one")
    shard = shard_of_session(name)
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    monkeypatch.setattr(nodes["one"].claims, "may_claim", lambda: False)
    monkeypatch.setattr(nodes["one"].store, "confirm", lambda: nodes["one"].claims.owned)  # only a commit tells it
    nodes["two"].store.claim([shard])
    await ask(nodes, "one", agent, name, "q0", "a0")
    await until(lambda: shard not in nodes["one"].claims.owned)
    assert [fact.fact.lane for fact in facts(nodes)] == [name[1]]
    await nodes.move(shard, "two")
    await until(lambda: context_at(nodes, "two", name) is not None)
    assert texts(await ask(nodes, "one", agent, name, "q1", "a1")) == ["q0"]
    await until(lambda: facts(nodes) == [])
    await agent.close()


async def test_SES_3_an_end_is_told_though_the_home_does_not_answer(nodes, monkeypatch):
    monkeypatch.setattr("reach.runtime.homeward.TELL_SECONDS", 0.2)
    monkeypatch.setattr("reach.runtime.homeward.CONTEXT_SECONDS", 0.2)
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    honest = nodes["two"].host.committer.doubt
    nodes["two"].host.committer.doubt = lambda: True
    await ask(nodes, "one", agent, name, "q0", "a0")
    nodes["two"].host.committer.doubt = honest
    nodes["two"].host.committer.sure()
    await until(lambda: context_at(nodes, "two", name) is not None and context_at(nodes, "two", name).count == 1)
    await until(lambda: facts(nodes) == [])
    await agent.close()


async def test_CLU_1_any_node_tells_where_a_session_is_pinned_and_forgets_it_everywhere(nodes):
    name = await home_at(nodes, "three")
    types = [await owned_by(nodes, node, owned) for node in ("one", "two")]
    agents = [await agent_of(nodes, agent_type, "one") for agent_type in types]
    for agent in agents:
        await ask(nodes, "two", agent, name, "q", "a")
    get = pb.GetSessionRequest(key=key_of_session(name))
    for node in nodes.nodes:
        found = (await nodes.stubs(node).session.GetSession(get, timeout=TIMEOUT)).session
        pins = [(pin.pool, pin.instance_id, pin.owner) for pin in found.pins]
        assert pins == sorted((kind, agent.instance_id, "") for kind, agent in zip(types, agents, strict=True))
        assert found.turn_count == 2
    # Accepted before it is deleted, and ends after that.
    task = {"selector": {"agent_id": agents[0].agent_id}, "payload": {"text": "old"}, "session": key_of_session(name)}
    asked = pb.DispatchRequest(task=task, wait={"seconds": 15})
    call = asyncio.ensure_future(nodes.stubs("one").dispatch.Dispatch(asked, timeout=TIMEOUT))
    offer = await agents[0].next("offers")
    delete = pb.DeleteSessionRequest(key=key_of_session(name))
    await nodes.stubs("two").session.DeleteSession(delete, timeout=TIMEOUT)
    for node in nodes.nodes:
        assert (await refusal(nodes.stubs(node).session.GetSession(get, timeout=TIMEOUT)))[1] == "SESSION_NOT_FOUND"
    await agents[0].finish(offer, "too late")
    await call
    offer = await ask(nodes, "two", agents[1], name, "new", "a")
    assert texts(offer) == []
    assert context_at(nodes, "three", name).count == 1
    for agent in agents:
        await agent.close()


async def test_CLU_1_sessions_of_all_nodes_are_listed_in_pages(nodes):
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    for number in range(64):
        nodes.wish({number: ("one", "two", "three")[number % 3]} if number not in nodes.used else {})
    names = [("default", f"listed:{unique('u')}:s") for _ in range(7)]
    for name in names:
        await ask(nodes, "two", agent, name, "q", "a")
        await asyncio.sleep(0.003)  # no two were used in the same millisecond
    for node in nodes.nodes:
        for size in (1, 3, 7, 100):
            token, seen, rounds = "", [], 0
            while rounds < 20:
                rounds += 1
                request = pb.ListSessionsRequest(app_id="listed", page_size=size, page_token=token)
                page = await nodes.stubs(node).session.ListSessions(request, timeout=TIMEOUT)
                assert len(page.sessions) <= size
                seen += [("default", f"listed:{one.key.user_id}:s") for one in page.sessions]
                assert all([pin.instance_id for pin in one.pins] == [agent.instance_id] for one in page.sessions)
                token = page.next_page_token
                if not token:
                    break
            assert seen == names[::-1], (node, size)
    await agent.close()


async def test_SES_2_a_session_with_an_open_task_elsewhere_lives_on(nodes, monkeypatch):
    busy, idle = await home_at(nodes, "two"), await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    for name in (busy, idle):
        await ask(nodes, "one", agent, name, "q0", "a0")
    task = {"selector": {"agent_id": agent.agent_id}, "payload": {"text": "q1"}, "session": key_of_session(busy)}
    asked = pb.DispatchRequest(task=task, wait={"seconds": 15})
    call = asyncio.ensure_future(nodes.stubs("one").dispatch.Dispatch(asked, timeout=TIMEOUT))
    offer = await agent.next("offers")
    sessions = nodes["two"].host.sessions
    for name in (busy, idle):
        sessions.home(name)._contexts[name].expires_ms = 1
    await until(lambda: idle not in sessions.home(idle)._contexts)
    await until(lambda: sessions.home(busy)._contexts[busy].expires_ms > 1)
    await agent.finish(offer, "a1")
    await call
    assert texts(await ask(nodes, "one", agent, busy, "q2", "a2")) == ["q0", "q1"]
    await agent.close()


async def test_SES_2_a_session_lives_on_while_a_node_does_not_know_all_its_tasks(nodes, monkeypatch):
    """What is open in a shard that is still loaded, nobody knows (CLU-3)."""
    name = await home_at(nodes, "two")
    agent = await agent_of(nodes, await owned_by(nodes, "one", owned), "one")
    await ask(nodes, "one", agent, name, "q0", "a0")
    one, home = nodes["one"].host, nodes["two"].host.sessions.home(name)
    monkeypatch.setattr(one, "is_whole", lambda: False)
    home._contexts[name].expires_ms = 1
    await until(lambda: home._contexts[name].expires_ms > 1)
    monkeypatch.setattr(one, "is_whole", lambda: True)
    home._contexts[name].expires_ms = 1
    await until(lambda: name not in home._contexts)
    await agent.close()


async def test_CLU_1_a_list_waits_for_shards_that_are_on_their_way_to_a_node(nodes, monkeypatch):
    monkeypatch.setattr("reach.rpc.proxy.PATIENCE_S", 0.3)
    monkeypatch.setattr(nodes["two"].host, "is_whole", lambda: False)
    for call in (nodes.stubs("one").session.ListSessions(pb.ListSessionsRequest(), timeout=TIMEOUT),
                 nodes.stubs("one").registry.ListAgents(pb.ListAgentsRequest(), timeout=TIMEOUT)):  # fmt: skip
        code, reason, words = await refusal(call)
        assert (code, reason) == ("UNAVAILABLE", "OWNER_UNAVAILABLE")
        assert "on their way" in words
    monkeypatch.setattr(nodes["two"].host, "is_whole", lambda: True)
    await nodes.stubs("one").registry.ListAgents(pb.ListAgentsRequest(), timeout=TIMEOUT)


async def test_CLU_1_a_list_says_which_node_does_not_answer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("reach.rpc.proxy.PATIENCE_S", 0.3)
    async with shared_cluster(tmp_path, "one", "two") as nodes:
        await nodes["two"].down()
        call = nodes.stubs("one").session.ListSessions(pb.ListSessionsRequest(), timeout=TIMEOUT)
        code, reason, words = await refusal(call)
        assert (code, reason) == ("UNAVAILABLE", "OWNER_UNAVAILABLE")
        assert "'two'" in words
