"""More of the main job with nothing but the generated stubs: unary reports, effects, the registry, lists."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.outside import addresses
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, key_of, kind_of, pb, reason_name, refusal, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED = pb.TASK_STATE_SUCCEEDED


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs):
    made = AgentByHand(stubs)
    await made.join(unique("reporter"), max_concurrency=4)
    yield made
    await made.close()


def who(agent: AgentByHand) -> dict[str, str]:
    return {"instance_id": agent.instance_id, "boot_id": agent.boot_id}


async def offered(agent: AgentByHand, caller: CallerByHand, **spec):
    """A task of this agent, read by this caller: its offer."""
    spec = {"task_id": unique("report"), "selector": {"instance_id": agent.instance_id}, **spec}
    await caller.submit(1, "INTEREST_EVENTS", **spec)
    return await agent.next("offers")


# -- reports that do not come over the stream -------------------------------------------------------------------------


async def test_events_and_the_outcome_can_be_reported_by_unary_calls(stubs, agent, caller):
    offer = await offered(agent, caller)
    key = key_of(offer)
    lease = await stubs.result.ExtendLease(pb.ExtendLeaseRequest(reporter=who(agent), key=key))
    assert lease.lease.seconds > 10
    reported = await stubs.result.ReportEvents(
        pb.ReportEventsRequest(
            reporter=who(agent),
            accepts=[{"key": key}],
            deltas=[
                {"key": key, "attempt_sequence": 1, "delta": {"payload": {"text": "half "}}},
                {"key": key, "attempt_sequence": 2, "delta": {"payload": {"text": "whole"}}},
            ],
            progress=[{"key": key, "progress": {"fraction": 1.0, "note": "nearly"}}],
        )
    )
    assert not reported.refusals
    request = pb.ReportResultRequest(reporter=who(agent), result={"key": key, "folded": {"last_attempt_sequence": 2}})
    await stubs.result.ReportResult(request)
    await stubs.result.ReportResult(request)  # safe to repeat
    assert (await caller.complete(offer.task.task_id)).output.text == "half whole"
    kinds = [kind_of(event) for event in caller.events_of(offer.task.task_id)]
    assert kinds == ["accepted", "started", "delta", "delta", "progress", "complete"]


async def test_deltas_and_the_outcome_can_be_reported_on_a_stream_of_their_own(stubs, agent, caller):
    offer = await offered(agent, caller)
    key = key_of(offer)

    async def frames():
        yield pb.ReportResultStreamRequest(
            reporter=who(agent), deltas=[{"key": key, "attempt_sequence": 1, "delta": {"payload": {"text": "a"}}}]
        )
        yield pb.ReportResultStreamRequest(progress=[{"key": key, "progress": {"note": "on"}}])
        yield pb.ReportResultStreamRequest(result={"key": key, "output": {"text": "b"}})

    await stubs.result.ReportResultStream(frames(), timeout=TIMEOUT)
    assert (await caller.complete(offer.task.task_id)).output.text == "b"


async def test_reports_of_what_is_not_theirs_are_refused_item_by_item(stubs, agent, caller):
    offer = await offered(agent, caller)
    stale, unknown = {"task_id": offer.task.task_id, "attempt": 9}, {"task_id": unique("never"), "attempt": 1}
    deltas = [
        {"key": key, "attempt_sequence": 1, "delta": {"payload": {"text": "x"}}}
        for key in (key_of(offer), stale, unknown, {"task_id": "", "attempt": 1})
    ]
    answer = await stubs.result.ReportEvents(pb.ReportEventsRequest(reporter=who(agent), deltas=deltas))
    reasons = {(one.key.task_id, one.key.attempt): reason_name(one.error) for one in answer.refusals}
    assert reasons == {
        (stale["task_id"], 9): "STALE_ATTEMPT",
        (unknown["task_id"], 1): "UNKNOWN_ATTEMPT",
        ("", 1): "INVALID_FIELD",
    }
    for key, code, reason in (
        (stale, "FAILED_PRECONDITION", "STALE_ATTEMPT"),
        (unknown, "NOT_FOUND", "UNKNOWN_ATTEMPT"),
    ):
        result = {"key": key, "output": {"text": "x"}}
        for call in (
            stubs.result.ReportResult(pb.ReportResultRequest(reporter=who(agent), result=result)),
            stubs.result.ExtendLease(pb.ExtendLeaseRequest(reporter=who(agent), key=key)),
            stubs.result.BeginEffect(pb.BeginEffectRequest(reporter=who(agent), key=key)),
        ):
            assert (await refusal(call))[:2] == (code, reason)
    await agent.finish(offer, "fine")


async def test_an_effect_is_granted_once_and_never_for_a_task_that_ended(stubs, agent, caller):
    offer = await offered(agent, caller, effects="EFFECTS_IRREVERSIBLE")
    await agent.send(effects=[{"link": 1, "key": key_of(offer), "effect": "pay"}])
    grant = await agent.next("grants")
    assert (grant.key.task_id, grant.effect, grant.HasField("refusal")) == (offer.task.task_id, "pay", False)
    request = pb.BeginEffectRequest(reporter=who(agent), key=key_of(offer), effect="pay")
    await stubs.result.BeginEffect(request)  # the same attempt: granted again
    await agent.finish(offer, "paid")
    assert await refusal(stubs.result.BeginEffect(request)) == (
        "FAILED_PRECONDITION",
        "STALE_ATTEMPT",
        f"attempt 1 of task '{offer.task.task_id}' is over",
    )


async def test_long_after_its_end_nothing_of_a_task_is_granted_or_extended(stubs, node, agent, caller):
    """The task is no longer in memory, so the journal is asked: an end is acknowledged, but it permits nothing."""
    offer = await offered(agent, caller)
    await agent.finish(offer, "done")
    pool = next(pool for pool in node.host.pools() if agent.instance_id in pool.instances)
    del pool.tasks["default", offer.task.task_id]
    key, reporter = key_of(offer), who(agent)
    result = {"key": key, "output": {"text": "done"}}
    await stubs.result.ReportResult(pb.ReportResultRequest(reporter=reporter, result=result))
    for call in (
        stubs.result.BeginEffect(pb.BeginEffectRequest(reporter=reporter, key=key, effect="pay")),
        stubs.result.ExtendLease(pb.ExtendLeaseRequest(reporter=reporter, key=key)),
    ):
        assert (await refusal(call))[:2] == ("FAILED_PRECONDITION", "STALE_ATTEMPT")
    delta = {"key": key, "attempt_sequence": 1, "delta": {"payload": {"text": "x"}}}
    answer = await stubs.result.ReportEvents(pb.ReportEventsRequest(reporter=reporter, deltas=[delta]))
    assert [reason_name(one.error) for one in answer.refusals] == ["STALE_ATTEMPT"]
    await agent.send(effects=[{"link": 1, "key": key, "effect": "pay"}], deltas=[{"link": 1, **delta}])
    for _ in range(2):
        assert reason_name((await agent.next("refusals")).error) == "STALE_ATTEMPT"
    assert not agent.seen["grants"]


async def test_an_agent_that_comes_back_keeps_what_it_runs_and_sends_results_again(stubs, agent, caller):
    kept, lost = await offered(agent, caller), await offered(agent, caller)
    again = AgentByHand(stubs)
    welcome = await again.join(
        agent.agent_id,
        instance_id=agent.instance_id,
        boot_id=agent.boot_id,
        running=[
            {"key": key_of(kept), "last_attempt_sequence": 0},
            {"key": {"task_id": "never-heard-of", "attempt": 3}},
        ],
    )
    assert welcome.generation == 1
    assert [(key.task_id, key.attempt) for key in welcome.unknown] == [("never-heard-of", 3)]
    await again.finish(kept, "kept")
    assert (await caller.complete(kept.task.task_id)).attempts == 1
    offer = await again.next("offers")  # what the hello did not name is not running, so it is offered anew
    assert (offer.task.task_id, offer.attempt) == (lost.task.task_id, 2)
    await again.finish(offer, "again")
    await again.close()


async def test_a_new_process_replaces_the_old_one_at_once(stubs, agent, caller):
    offer = await offered(agent, caller)
    fresh = AgentByHand(stubs)
    welcome = await fresh.join(agent.agent_id, instance_id=agent.instance_id)
    assert welcome.generation == 2
    closed = await agent.next("refusals")
    assert (reason_name(closed.error), closed.closed) == ("STALE_GENERATION", True)
    offer = await fresh.next("offers")
    assert offer.attempt == 2
    await fresh.finish(offer, "by the new one")
    stale = AgentByHand(stubs)
    await stale.send(
        hellos=[{"link": 1, "registration": {"agent_id": agent.agent_id, **who(agent)}}],
    )
    assert reason_name((await stale.next("refusals")).error) == "STALE_GENERATION"
    for beat in (who(agent), {**who(agent), "boot_id": "another"}):
        call = stubs.heartbeat.Heartbeat(pb.HeartbeatRequest(beat=beat))
        assert (await refusal(call))[:2] == ("FAILED_PRECONDITION", "STALE_GENERATION")
    await fresh.close()
    await stale.close()


async def test_several_instances_share_one_stream(stubs, caller):
    stream = AgentByHand(stubs)
    names = [unique("side") for _ in range(3)]
    for link, name in enumerate(names, 1):
        await stream.join(name, link=link, instance_id=name)
    for name in names:
        await caller.submit(1, "INTEREST_OUTCOME", task_id=f"t-{name}", selector={"agent_id": name})
    for _ in names:
        offer = await stream.next("offers")
        assert names[offer.link - 1] == offer.task.selector.agent_id
        await stream.finish(offer, f"link {offer.link}")
    for link, name in enumerate(names, 1):
        assert (await caller.complete(f"t-{name}")).output.text == f"link {link}"
    await stream.send(goodbyes=[{"link": 2}])
    await gone(stubs, names[1])
    assert (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=names[2]))).agent.blocked_by == ""
    await stream.close()


async def gone(stubs, instance_id: str) -> None:
    """Waits until an instance is no longer registered."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            call = stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance_id))
            if (await refusal(call))[0] == "NOT_FOUND":
                return
            await asyncio.sleep(0.01)


# -- the registry -----------------------------------------------------------------------------------------------------


async def test_registered_without_a_stream_an_agent_is_known_and_beats_but_gets_no_work(stubs):
    name, boot = unique("lonely"), unique("boot")
    registration = {
        "agent_id": name,
        "boot_id": boot,
        "host": "box",
        "tags": ["a"],
        "labels": {"team": "x"},
        "ready": True,
    }
    answer = await stubs.registry.Register(pb.RegisterRequest(registration=registration))
    assert answer.instance_id.startswith(f"{name}@box#")
    assert (answer.generation, answer.blocked_by) == (1, "no_link")
    beat = {"instance_id": answer.instance_id, "boot_id": boot, "status": {"inflight": 1, "max_concurrency": 7}}
    assert (await stubs.heartbeat.Heartbeat(pb.HeartbeatRequest(beat=beat))).next_in.seconds == 5
    found = (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=answer.instance_id))).agent
    assert (found.health, found.max_concurrency, found.tenant) == (pb.HEALTH_HEALTHY, 7, "default")
    listed = await stubs.registry.ListAgents(pb.ListAgentsRequest(filter={"agent_id": name, "tags": ["a"]}))
    assert [one.registration.instance_id for one in listed.agents] == [answer.instance_id]
    assert listed.agents[0].registration.labels == {"team": "x"}

    async def beats():
        yield pb.StreamHeartbeatsRequest(beats=[beat, {"instance_id": "nobody", "boot_id": "b"}])

    stream = stubs.heartbeat.StreamHeartbeats(beats(), timeout=TIMEOUT)
    refusals = [one async for frame in stream for one in frame.refusals]
    assert [(one.instance_id, reason_name(one.error)) for one in refusals] == [("nobody", "AGENT_NOT_FOUND")]
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=answer.instance_id))
    call = stubs.registry.Deregister(pb.DeregisterRequest(instance_id=answer.instance_id))
    assert (await refusal(call))[:2] == ("NOT_FOUND", "AGENT_NOT_FOUND")


async def test_pages_of_agents_are_whole_and_end(stubs):
    name = unique("crowd")
    for number in range(7):
        registration = {"agent_id": name, "boot_id": "b", "instance_id": f"{name}-{number}"}
        await stubs.registry.Register(pb.RegisterRequest(registration=registration))
    seen, token = [], ""
    while True:
        request = pb.ListAgentsRequest(filter={"agent_id": name}, page_size=3, page_token=token)
        page = await stubs.registry.ListAgents(request)
        seen.append([agent.registration.instance_id for agent in page.agents])
        token = page.next_page_token
        if not token:
            break
    assert [len(page) for page in seen] == [3, 3, 1]
    assert [one for page in seen for one in page] == [f"{name}-{number}" for number in range(7)]


async def test_a_watch_tells_all_then_each_change(stubs):
    name = unique("watched")
    agent = AgentByHand(stubs)
    await agent.join(name)
    call = stubs.registry.WatchAgents(pb.WatchAgentsRequest(filter={"agent_id": name}))
    first = await call.read()
    assert first.reset
    known = list(first.agents)
    while not first.in_sync:  # of several nodes each tells its part
        first = await call.read()
        known += first.agents
    assert len(known) == 1
    second = AgentByHand(stubs)
    await second.join(name)
    change = await call.read()
    assert [one.registration.instance_id for one in change.agents] == [second.instance_id]
    assert not change.reset
    await stubs.registry.Drain(pb.DrainRequest(instance_id=agent.instance_id))
    change = await call.read()
    assert [(one.registration.instance_id, one.blocked_by) for one in change.agents] == [
        (agent.instance_id, "draining")
    ]
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=second.instance_id))
    while not (change := await call.read()).removed:
        pass
    assert list(change.removed) == [second.instance_id]
    call.cancel()
    for one in (agent, second):
        await one.close()


async def test_a_draining_instance_is_told_gets_nothing_new_and_can_come_back(stubs, agent, caller):
    running = await offered(agent, caller)
    drained = await stubs.registry.Drain(pb.DrainRequest(instance_id=agent.instance_id, deadline={"seconds": 7}))
    assert list(drained.instance_ids) == [agent.instance_id]
    drain = await agent.next("drains")
    assert (drain.link, drain.deadline.seconds) == (1, 7)
    await caller.submit(2, "INTEREST_OUTCOME", task_id=unique("waits"), selector={"instance_id": agent.instance_id})
    await agent.finish(running, "finished in peace")
    preview = await stubs.dispatch.PreviewRoute(
        pb.PreviewRouteRequest(task={"selector": {"instance_id": agent.instance_id}})
    )
    assert [candidate.drop_reason for candidate in preview.decision.candidates] == ["draining"]
    assert len(agent.seen["offers"]) == 1
    await stubs.registry.Drain(pb.DrainRequest(instance_id=agent.instance_id, undo=True))
    await agent.finish(await agent.next("offers"), "waited")


async def test_who_is_deregistered_while_attached_is_told(stubs):
    agent = AgentByHand(stubs)
    await agent.join(unique("removed"))
    await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=agent.instance_id))
    closed = await agent.next("refusals")
    assert (closed.link, closed.closed, reason_name(closed.error)) == (1, True, "AGENT_NOT_FOUND")
    await agent.join("removed-and-back", instance_id=agent.instance_id)  # the stream lives: it can say hello again
    await agent.close()


async def test_who_is_deregistered_is_told_though_who_did_it_hung_up(stubs, node, monkeypatch):
    agent = AgentByHand(stubs)
    await agent.join(unique("removed"))
    post = node.reach.post
    calls: list[Any] = []

    def late(pool: Any, event: Any) -> None:
        calls[0].cancel()
        asyncio.get_running_loop().call_later(0.2, post, pool, event)  # the handler is told meanwhile

    with monkeypatch.context() as patched:
        patched.setattr(node.reach, "post", late)
        calls.append(stubs.registry.Deregister(pb.DeregisterRequest(instance_id=agent.instance_id)))
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
    closed = await agent.next("refusals")
    assert (closed.link, closed.closed, reason_name(closed.error)) == (1, True, "AGENT_NOT_FOUND")
    await agent.close()


# -- previews and lists -----------------------------------------------------------------------------------------------


async def test_a_preview_says_where_a_task_would_go_and_why_not(stubs, node, agent):
    asked = pb.PreviewRouteRequest(task={"selector": {"instance_id": agent.instance_id}})
    preview = await stubs.dispatch.PreviewRoute(asked)
    assert preview.decision.chosen_instance_id == agent.instance_id
    assert not preview.HasField("refusal")
    assert [delay.ToMilliseconds() for delay in preview.retry_delays] == [300, 1_500, 5_000]
    assert set(preview.decision.candidates[0].signals) >= {"availability"}
    excluded = {"instance_id": agent.instance_id, "excluded_instances": [agent.instance_id]}
    preview = await stubs.dispatch.PreviewRoute(pb.PreviewRouteRequest(task={"selector": excluded}))
    assert preview.decision.candidates[0].instance_id == agent.instance_id
    pools = len(node.host.pools())
    preview = await stubs.dispatch.PreviewRoute(
        pb.PreviewRouteRequest(task={"selector": {"agent_type": "nobody-has-it"}})
    )
    assert (preview.decision.chosen_instance_id, reason_name(preview.refusal)) == ("", "NO_MATCHING_AGENT")
    assert len(node.host.pools()) == pools  # who only asks leaves nothing behind


async def test_tasks_are_listed_by_page_and_filter(stubs, agent, caller):
    session = {"app_id": "app", "user_id": unique("user"), "session_id": "s"}
    names = []
    for number in range(5):
        offer = await offered(agent, caller, session=session, labels={"odd": str(number % 2)}, payload={"text": "p"})
        names.append(offer.task.task_id)
        if number:
            await agent.finish(offer, "r")
    filters = {"session": session}

    async def pages(size: int, **wanted) -> list[list[Any]]:
        found, token = [], ""
        while True:
            request = pb.ListTasksRequest(
                filter={**filters, **wanted}, page_size=size, page_token=token, view="TASK_VIEW_FULL"
            )
            page = await stubs.dispatch.ListTasks(request)
            found.append(list(page.tasks))
            token = page.next_page_token
            if not token:
                return found

    def ids(found: list[list[Any]]) -> list[str]:
        return [task.spec.task_id for page in found for task in page]

    assert ids(await pages(2)) == names[::-1]
    assert [len(page) for page in await pages(2)] == [2, 2, 1]
    assert ids(await pages(50, states=["TASK_STATE_SUCCEEDED"])) == names[:0:-1]
    if not addresses():  # of open tasks that other nodes have, a list knows no more than the journal
        assert ids(await pages(50, states=["TASK_STATE_DELIVERED", "TASK_STATE_RUNNING"])) == names[:1]
    assert ids(await pages(50, labels={"odd": "1"})) == [names[3], names[1]]
    assert ids(await pages(50, session={**session, "session_id": "other"})) == []
    assert ids(await pages(50, accepted_before={"seconds": 1})) == []
    assert ids(await pages(50, accepted_after={"seconds": 1})) == names[::-1]
    full = (await pages(50))[0][0]
    assert (full.spec.payload.text, full.result.output.text, full.pool) == ("p", "r", full.pool)
    basic = (await stubs.dispatch.ListTasks(pb.ListTasksRequest(filter=filters))).tasks[0]
    assert not basic.spec.HasField("payload")
    assert not basic.result.HasField("output")


async def test_the_server_says_what_it_is(stubs, node):
    info = await stubs.ops.GetServerInfo(pb.GetServerInfoRequest())
    assert (info.node_id, list(info.protocol_versions), info.store) == (node.node_id, ["1"], "memory")
    assert (info.principal.tenant, info.principal.app_id) == ("default", "local")


async def test_HAZARD_4_a_hello_that_comes_late_takes_no_instance_away(stubs, caller):
    """Sent on a stream that the agent gave up, and delivered after the hello on its next one."""
    former, agent = AgentByHand(stubs), AgentByHand(stubs)
    agent.boot_id = former.boot_id
    agent_id = unique("late")
    await agent.join(agent_id, instance_id=agent_id, ready=True)
    await former.join(agent_id, instance_id=agent_id, ready=True)
    await former.close()
    beat = {"link": 1, "status": {}, "last_frame": len(agent.frames)}
    async with asyncio.timeout(20):
        while not any(frame.resync for frame in agent.frames):
            await agent.send(beats=[beat])
            await asyncio.sleep(0.02)
    await agent.join(agent_id, instance_id=agent_id, ready=True)
    task_id = unique("task")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"instance_id": agent_id})
    await agent.serve(await agent.next("offers"), "done")
    assert (await caller.complete(task_id)).output.text == "done"
    await agent.close()


async def test_HAZARD_4_a_hello_that_comes_late_gives_up_no_work(stubs, caller):
    """Agents count their hellos: what one does not name that was said before is at work all the same."""
    former, agent = AgentByHand(stubs), AgentByHand(stubs)
    agent_id = unique("late")
    await agent.join(agent_id, instance_id=agent_id, number=2)
    task_id = unique("task")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"instance_id": agent_id})
    offer = await agent.next("offers")
    await agent.accept(offer)
    said = {"agent_id": agent_id, "instance_id": agent_id, "boot_id": agent.boot_id}
    await former.send(opening={"protocol_version": "1"}, hellos=[{"link": 1, "number": 1, "registration": said}])
    refusal = await former.next("refusals")
    assert (refusal.closed, refusal.error.retryable) == (True, True)
    await former.close()
    await agent.finish(offer, "done")
    answer = await caller.complete(task_id)
    assert (answer.output.text, answer.attempts) == ("done", 1)
    await agent.close()
