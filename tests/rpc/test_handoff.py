"""Sessions that move, over real gRPC: agents by hand, agents of the SDK, agents that are dialled (SES-4)."""

import asyncio

import pytest

from reach import Agent, Answer, Client, Handoff, SessionKey, Task
from reach.wire.sessions import SNAPSHOT_BYTES
from tests.rpc.outside import addresses, heard
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, pb, unique
from tests.rpc.test_sessions import ask, key
from tests.transports.endpoint_agent import EndpointAgent, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def a_patient_server(monkeypatch):
    """The machine may be busy: answers are waited for."""
    monkeypatch.setattr("reach.core.handoff.ASK_MS", 15_000)


async def pair(stubs, **fields):
    """Two agents of one pool that hand over."""
    name = unique("mover")
    agents = []
    for number in (1, 2):
        agent = AgentByHand(stubs)
        await agent.join(name, instance_id=f"{name}-{number}", features=["handoff"], max_concurrency=4, **fields)
        agents.append(agent)
    return agents


async def who_has(agents, stubs, session):
    """(who got the first task of a session, who did not)."""
    one, other = agents
    task = {"selector": {"agent_id": one.agent_id}, "payload": {"text": "first"}, "session": key(session)}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    got = [asyncio.ensure_future(agent.next("offers")) for agent in (one, other)]
    (done,), (pending,) = await asyncio.wait(got, return_when=asyncio.FIRST_COMPLETED)
    pending.cancel()
    old, new = (one, other) if done is got[0] else (other, one)
    await old.finish(done.result(), "ok")
    return old, new


async def test_SES_4_a_session_moves_with_what_its_instance_knew(stubs):
    agents, session = await pair(stubs), unique("s")
    old, new = await who_has(agents, stubs, session)
    await old.send(beats=[{"link": 1, "status": {"ready": False}}])
    await heard()
    caller = CallerByHand(stubs)
    await caller.open()
    selector = {"agent_id": old.agent_id}
    await caller.submit(1, "INTEREST_EVENTS", task_id=session, selector=selector, session=key(session))
    request = await old.next("handoffs")
    assert request.session == pb.SessionKey(**key(session))
    assert request.timeout.seconds == (1 if addresses() else 15)  # as the server has it, or as we patched it
    await old.send(handoffs=[{"link": 1, "session": request.session, "snapshot": b"my notes"}])
    offer = await new.next("offers")
    assert (offer.session_context.handoff, offer.session_context.handoff_number) == (b"my notes", 1)
    assert [turn.request.text for turn in offer.session_context.turns] == ["first"]
    await new.serve(offer, "done")
    await caller.complete(session)
    (told,) = [event.handoff for event in caller.events_of(session) if event.HasField("handoff")]
    assert (told.from_instance_id, told.to_instance_id) == (old.instance_id, new.instance_id)
    after = await ask(stubs, new, session, "on", "ok")
    assert (after.session_context.handoff, after.session_context.handoff_number) == (b"", 0)
    for agent in agents:
        await agent.close()
    await caller.close()


async def test_a_snapshot_that_is_too_large_is_none_and_the_agent_is_told(stubs):
    agents, session = await pair(stubs), unique("s")
    old, new = await who_has(agents, stubs, session)
    await old.send(beats=[{"link": 1, "status": {"ready": False}}])
    task = {"selector": {"agent_id": old.agent_id}, "session": key(session)}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    request = await old.next("handoffs")
    await old.send(handoffs=[{"link": 1, "session": request.session, "snapshot": b"x" * (SNAPSHOT_BYTES + 1)}])
    refusal = await old.next("refusals")
    assert refusal.error.reason == pb.ERROR_REASON_PAYLOAD_TOO_LARGE
    offer = await new.next("offers")
    assert (offer.session_context.handoff, offer.session_context.handoff_number) == (b"", 1)
    for agent in agents:
        await agent.close()


@pytest.mark.parametrize("session", [{}, {"app_id": "a", "user_id": "u"}])
async def test_a_snapshot_of_no_session_is_refused(stubs, session):
    (agent, other) = await pair(stubs)
    await agent.send(handoffs=[{"link": 1, "session": session, "snapshot": b"x"}])
    assert (await agent.next("refusals")).error.reason == pb.ERROR_REASON_INVALID_FIELD
    await agent.close()
    await other.close()


async def test_SES_4_a_dialled_agent_is_asked_and_given_too(stubs, node):
    session = unique("s")
    old = EndpointAgent()
    async with serving(old):
        await old.register(stubs, features=["handoff"])
        task = {"selector": {"agent_type": old.agent_type}, "payload": {"text": "hello"}, "session": key(session)}
        call = pb.DispatchRequest(task=task, wait={"seconds": 20})
        await stubs.dispatch.Dispatch(call, timeout=TIMEOUT)
        old.snapshot = b"dialled notes"
        new = AgentByHand(stubs)
        await new.join(old.agent_id, agent_type=old.agent_type)
        await stubs.registry.Drain(pb.DrainRequest(instance_id=old.instance_id, deadline={"seconds": 0}))
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        offer = await new.next("offers")
        assert offer.session_context.handoff == b"dialled notes"
        assert [one.session for one in old.asked] == [pb.SessionKey(**key(session))]
        await new.finish(offer, "ok")
        await new.close()


# -- the SDK -----------------------------------------------------------------------------------------------------------


def counter(name, instance, address, *, listen=None, hooks=True):
    """An agent that counts the turns of each conversation in memory."""
    agent = Agent(name, instance_id=instance, addr=address, max_concurrency=4, listen=listen)
    counts: dict[SessionKey, int] = {}
    taken: list[Handoff] = []

    @agent.route()
    async def turn(task: Task) -> Answer:
        assert task.session is not None
        counts[task.session] = counts.get(task.session, 0) + 1
        return Answer(f"{instance}: {counts[task.session]}", inferred={"at": instance})

    if hooks:

        @agent.snapshot
        def snapshot(session: SessionKey) -> dict[str, int]:
            return {"count": counts[session]}

        @agent.handoff
        async def take(handoff: Handoff) -> None:
            await asyncio.sleep(0.01)
            taken.append(handoff)
            if handoff.snapshot:
                counts[handoff.session] = int(handoff.text.split(":")[1].rstrip("}"))

    return agent, taken


@pytest.mark.parametrize("listen", [None, "127.0.0.1:0"])
async def test_SES_4_an_agent_of_the_sdk_hands_over_when_it_leaves_or_is_drained(stubs, node, listen):
    name, session = unique("counter"), ("app", "ada", unique("s"))
    address = f"127.0.0.1:{node.port}"
    first, _ = counter(name, f"{name}-1", address, listen=listen)
    async with Client(address) as client, first:
        assert await client.call("", "hi", agent_id=name, session=session) == f"{name}-1: 1"
        assert await client.call("", "hi", agent_id=name, session=session) == f"{name}-1: 2"
        second, taken = counter(name, f"{name}-2", address)
        async with second:
            if listen:
                await stubs.registry.Drain(pb.DrainRequest(instance_id=f"{name}-1", deadline={"seconds": 0}))
            else:
                first.stop()
                await first.__aexit__()
            both = [client.call("", "hi", agent_id=name, session=session) for _ in range(2)]
            assert sorted(await asyncio.gather(*both)) == [f"{name}-2: 3", f"{name}-2: 4"]
            assert [one.session for one in taken] == [SessionKey(*session)]
            assert taken[0].context.turn_count == 2
            assert taken[0].context.inferred == {"at": f"{name}-1"}


async def test_a_hook_that_fails_keeps_nobody_waiting(stubs, node, caplog):
    name, session = unique("broken"), ("app", "ada", unique("s"))
    address = f"127.0.0.1:{node.port}"
    first, _ = counter(name, f"{name}-1", address)
    second, _ = counter(name, f"{name}-2", address)
    first.snapshot(lambda session: 1 / 0)
    second.handoff(lambda handoff: 1 / 0)
    async with Client(address) as client, first:
        await client.call("", "hi", agent_id=name, session=session)
        async with second:
            await stubs.registry.Drain(pb.DrainRequest(instance_id=f"{name}-1", deadline={"seconds": 0}))
            assert await client.call("", "hi", agent_id=name, session=session, timeout=5) == f"{name}-2: 1"
    assert "hook failed" in caplog.text
