"""Sessions over real gRPC: context with each offer, turns once, SessionService (SES-1 … SES-3)."""

import time

import grpc
import pytest

from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, pb, reason_in, running, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


def key(session, user="u1", app="shop"):
    return {"app_id": app, "user_id": user, "session_id": session}


async def ask(stubs, agent, session, text, answer, parts=None, **spec):
    """One task of a session from its submission to its result; the offer."""
    task = {
        "selector": {"agent_id": agent.agent_id},
        "payload": {"text": text},
        "session": key(session, **(parts or {})),
    }
    task |= spec
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 20}), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await agent.finish(offer, answer) if isinstance(answer, str) else await agent.finish(offer, **answer)
    await call
    return offer


async def joined(stubs, name="talker", **fields):
    agent = AgentByHand(stubs)
    await agent.join(unique(name), **fields)
    return agent


async def got(stubs, session, **more):
    answer = await stubs.session.GetSession(pb.GetSessionRequest(key=key(session, **more)), timeout=TIMEOUT)
    return answer.session


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), reason_in(error.value.trailing_metadata())


async def test_SES_3_the_next_task_of_a_session_brings_what_was_said_to_agents_of_all_types(stubs):
    one, other = await joined(stubs), await joined(stubs)
    session = unique("s")
    first = await ask(stubs, one, session, "I am Ada", "Hello Ada", entities={"name": "Ada"})
    assert first.session_context.revision == 0
    assert not first.session_context.turns
    second = await ask(stubs, other, session, "Who am I?", "Ada")
    context = second.session_context
    (turn,) = context.turns
    assert (turn.request.text, turn.response.text, turn.agent_id) == ("I am Ada", "Hello Ada", one.agent_id)
    assert turn.task_id == first.task.task_id
    assert turn.state == pb.TASK_STATE_SUCCEEDED
    assert dict(context.entities) == {"name": "Ada"}
    assert context.revision > first.session_context.revision
    third = await ask(stubs, one, session, "And?", "Nothing")
    assert [turn.agent_id for turn in third.session_context.turns] == [one.agent_id, other.agent_id]
    await one.close()
    await other.close()


async def test_SES_3_agents_say_what_was_said_and_what_they_infer(stubs):
    agent, session = await joined(stubs), unique("s")
    outcome = {"output": {"text": "ok"}, "entities": {"city": "Paris"}, "inferred": {"mood": "happy"}}
    await ask(stubs, agent, session, "hi", outcome)
    context = (await ask(stubs, agent, session, "again", "ok")).session_context
    assert (dict(context.entities), dict(context.inferred)) == ({"city": "Paris"}, {"mood": "happy"})
    await agent.close()


async def test_a_task_that_failed_is_a_turn_with_an_error(stubs):
    agent, session = await joined(stubs), unique("s")
    failed = {
        "error": {"error_class": "ERROR_CLASS_AGENT_ERROR", "reason": "ERROR_REASON_AGENT_FAILED", "message": "no"}
    }
    await ask(stubs, agent, session, "do", failed)
    (turn,) = (await ask(stubs, agent, session, "again", "ok")).session_context.turns
    assert (turn.state, turn.response.text) == (pb.TASK_STATE_FAILED, "")
    assert "AGENT_FAILED" in turn.error
    await agent.close()


async def test_what_agents_ask_each_other_is_not_what_the_user_said(stubs):
    agent, session = await joined(stubs, max_concurrency=4), unique("s")
    parent = await ask(stubs, agent, session, "plan my trip", "planned")
    task_id = parent.task.task_id
    await ask(stubs, agent, session, "flights to Rome?", "two", parent_task_id=task_id, source="planner")
    turns = (await ask(stubs, agent, session, "and?", "ok")).session_context.turns
    assert [turn.asked_by for turn in turns] == ["", "planner"]
    await agent.close()


async def test_volatile_tasks_add_turns_too(stubs):
    agent, session = await joined(stubs), unique("s")
    await ask(stubs, agent, session, "one", "1", durability="DURABILITY_VOLATILE")
    offer = await ask(stubs, agent, session, "two", "2", durability="DURABILITY_VOLATILE")
    assert [turn.request.text for turn in offer.session_context.turns] == ["one"]
    await agent.close()


async def test_a_task_without_a_session_brings_no_context(stubs):
    agent = await joined(stubs)
    task = {"selector": {"agent_id": agent.agent_id}, "payload": {"text": "x"}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    offer = await agent.next("offers")
    assert not offer.HasField("session_context")
    await agent.finish(offer, "ok")
    await agent.close()


async def test_SES_1_two_applications_with_the_same_user_and_session_never_meet(stubs):
    agent, session = await joined(stubs), unique("s")
    await ask(stubs, agent, session, "secret", "ok")
    offer = await ask(stubs, agent, session, "hi", "ok", {"app": "other"})
    assert not offer.session_context.turns
    await ask(stubs, agent, "b:c", "secret too", "ok", {"user": "a"})
    offer = await ask(stubs, agent, "c", "hi", "ok", {"user": "a:b"})  # the same letters, in other parts
    assert not offer.session_context.turns
    await agent.close()


@pytest.mark.parametrize("missing", ["app_id", "user_id", "session_id"])
async def test_SES_1_a_missing_part_is_an_error(stubs, missing):
    half = {**key("s"), missing: ""}
    task = pb.TaskSpec(selector={"agent_id": "any"}, session=half)
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert await refused(stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)) == invalid
    for name in ("GetSession", "DeleteSession"):
        request = getattr(pb, f"{name}Request")(key=half)
        assert await refused(getattr(stubs.session, name)(request, timeout=TIMEOUT)) == invalid


async def test_entities_need_a_session_and_have_bounds(stubs):
    for spec in (
        {"entities": {"a": "b"}},
        {"session": key("s"), "entities": {"": "b"}},
        {"session": key("s"), "entities": {"a": "b" * 1_025}},
        {"session": key("s"), "entities": {str(number): "b" for number in range(65)}},
    ):
        request = pb.DispatchRequest(task=pb.TaskSpec(selector={"agent_id": "any"}, **spec))
        assert (await refused(stubs.dispatch.Dispatch(request, timeout=TIMEOUT)))[1] == "INVALID_FIELD"


async def test_a_session_can_be_looked_at_and_listed(stubs):
    agent, app = await joined(stubs), unique("app")
    names = [unique("s") for _ in range(3)]
    for name in names:
        await ask(stubs, agent, name, f"hi {name}", "ok", {"app": app})
    session = await got(stubs, names[0], app=app)
    assert session.key == pb.SessionKey(**key(names[0], app=app))
    assert [turn.request.text for turn in session.context.turns] == [f"hi {names[0]}"]
    assert [(pin.pool, pin.instance_id) for pin in session.pins] == [(agent.agent_id, agent.instance_id)]
    assert 0 < session.expires_in.seconds <= 720
    found, token = [], ""
    while True:
        request = pb.ListSessionsRequest(app_id=app, page_size=2, page_token=token)
        page = await stubs.session.ListSessions(request, timeout=TIMEOUT)
        found += page.sessions
        if not (token := page.next_page_token):
            break
    assert sorted(one.key.session_id for one in found) == sorted(names)
    assert not any(one.HasField("context") for one in found)
    assert all(one.turn_count == 1 and one.pins for one in found)
    none = await stubs.session.ListSessions(pb.ListSessionsRequest(app_id=app, user_id="u"), timeout=TIMEOUT)
    assert not none.sessions  # "u" is not "u1"
    await agent.close()


@pytest.mark.parametrize(
    "request_fields", [{"page_size": 1_001}, {"page_token": "x"}, {"page_token": "9" * 30 + " s"}, {"user_id": "u"}]
)
async def test_a_list_that_makes_no_sense_is_refused(stubs, request_fields):
    request = pb.ListSessionsRequest(**request_fields)
    assert (await refused(stubs.session.ListSessions(request, timeout=TIMEOUT)))[1] == "INVALID_FIELD"


async def test_a_deleted_session_is_forgotten_and_its_running_task_goes_on(stubs):
    agent, session = await joined(stubs, max_concurrency=4), unique("s")
    await ask(stubs, agent, session, "before", "ok")
    task = {"selector": {"agent_id": agent.agent_id}, "payload": {"text": "runs"}, "session": key(session)}
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 20}), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await stubs.session.DeleteSession(pb.DeleteSessionRequest(key=key(session)), timeout=TIMEOUT)
    not_found = (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    assert await refused(got(stubs, session)) == not_found
    await agent.finish(offer, "done")
    assert (await call).result.output.text == "done"
    assert await refused(got(stubs, session)) == not_found
    delete = stubs.session.DeleteSession(pb.DeleteSessionRequest(key=key(session)), timeout=TIMEOUT)
    assert await refused(delete) == not_found
    after = await ask(stubs, agent, session, "after", "ok")
    assert not after.session_context.turns
    assert [turn.request.text for turn in (await got(stubs, session)).context.turns] == ["after"]
    await agent.close()


async def test_a_session_of_which_nothing_is_known_yet_is_deleted_too(stubs, node):
    """After a restart a session whose first task still runs has a pin and no context."""
    agent, session = await joined(stubs, max_concurrency=4), unique("s")
    task = {"selector": {"agent_id": agent.agent_id}, "payload": {"text": "runs"}, "session": key(session)}
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 20}), timeout=TIMEOUT)
    offer = await agent.next("offers")
    name = ("default", f"shop:u1:{session}")
    home = node.host.sessions.home(name)
    home.evict(name)
    assert (await got(stubs, session)).pins
    await stubs.session.DeleteSession(pb.DeleteSessionRequest(key=key(session)), timeout=TIMEOUT)
    await agent.finish(offer, "done")
    await call
    assert (await refused(got(stubs, session)))[1] == "SESSION_NOT_FOUND"
    await agent.close()


async def test_F9_a_deleted_session_goes_on_though_the_clock_leapt_back(stubs, node, monkeypatch):
    agent, session = await joined(stubs, max_concurrency=4), unique("s")
    await ask(stubs, agent, session, "before", "ok")
    await stubs.session.DeleteSession(pb.DeleteSessionRequest(key=key(session)), timeout=TIMEOUT)
    monkeypatch.setattr(type(node.host.clock), "wall_ms", lambda _: time.time_ns() // 1_000_000 - 3_600_000)
    await ask(stubs, agent, session, "after", "ok")
    assert [turn.request.text for turn in (await got(stubs, session)).context.turns] == ["after"]
    await agent.close()


async def test_sessions_from_before_the_machine_started_are_listed_by_pages(stubs, node):
    """What a restart brings back may have been used before the clock of this machine began."""
    agent, app = await joined(stubs), unique("app")
    names = [unique("s") for _ in range(5)]
    for number, name in enumerate(names):
        await ask(stubs, agent, name, "hi", "ok", {"app": app})
        known = ("default", f"{app}:u1:{name}")
        node.host.sessions.home(known).look(known, 0).used_ms = 1_000 - number * 1_000
    found, token = [], ""
    while True:
        request = pb.ListSessionsRequest(app_id=app, page_size=1, page_token=token)
        page = await stubs.session.ListSessions(request, timeout=TIMEOUT)
        found += page.sessions
        if not (token := page.next_page_token):
            break
    assert [one.key.session_id for one in found] == names
    await agent.close()


async def test_a_session_without_a_task_is_not_there(stubs):
    assert (await refused(got(stubs, unique("never"))))[1] == "SESSION_NOT_FOUND"


async def test_SES_3_what_was_said_survives_a_restart(tmp_path):
    session = "kept"
    for number, expected in enumerate(([], ["turn 0"], ["turn 0", "turn 1"])):
        async with running(tmp_path, storage__type="sqlite") as node, Stubs(node.port) as stubs:
            agent = AgentByHand(stubs)
            await agent.join("keeper", instance_id="keeper-1")
            offer = await ask(stubs, agent, session, f"turn {number}", "ok")
            assert [turn.request.text for turn in offer.session_context.turns] == expected
            await agent.close()


async def test_SES_5_skew_is_visible(stubs, node):
    name = unique("skew")
    one, other = AgentByHand(stubs), AgentByHand(stubs)
    await one.join(name, max_concurrency=100)
    for number in range(30):
        await ask(stubs, one, f"{name}-{number}", "hi", "ok")
    await other.join(name, max_concurrency=100)
    figures = node.metrics.sources.sessions()
    assert figures["skew"] == pytest.approx(2.0)
    assert figures["known"] >= 30
    assert figures["bytes"] > 0
    agents = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": name}), timeout=TIMEOUT)
    assert sorted(agent.sessions for agent in agents.agents) == [0, 30]
    await one.close()
    await other.close()
