"""What agents on a stream are asked, and what follows if they do not answer or do not hear (HLT-3, HLT-6, HLT-9)."""

import asyncio
import time

import pytest

from agentreach.v1 import agent_pb2 as pb
from agentreach.v1 import registry_pb2
from tests.rpc.peers import AgentByHand, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def look(stubs, agent):
    answer = await stubs.registry.GetAgent(registry_pb2.GetAgentRequest(instance_id=agent.instance_id))
    return answer.agent


async def until(stubs, agent, holds, seconds=15.0):
    """Looks until something holds of the agent; returns it."""
    end = time.monotonic() + seconds
    while not holds(seen := await look(stubs, agent)):
        assert time.monotonic() < end, seen
        await asyncio.sleep(0.05)
    return seen


async def joined(stubs, **fields):
    agent = AgentByHand(stubs)
    await agent.join(unique("pinged"), heartbeat_interval={"seconds": 1}, **fields)
    return agent


def conditions(agent):
    return [pb.ConditionType.Name(one.type).removeprefix("CONDITION_TYPE_") for one in agent.conditions]


async def test_HLT_3_an_agent_that_answers_pings_shows_its_round_trip(stubs):
    agent = await joined(stubs, features=["ping"])
    ping = await agent.next("pings")
    await agent.send(pongs=[{"link": 1, "nonce": ping.nonce}])
    seen = await until(stubs, agent, lambda one: one.probe_status == "ok")
    assert seen.probe_loss == 0
    assert seen.probe_rtt.ToMilliseconds() < 1_000
    assert seen.reach_score > 60
    await agent.close()


async def test_HLT_3_who_does_not_say_that_it_answers_is_not_asked(stubs):
    agent = await joined(stubs)
    await asyncio.sleep(0.3)
    assert not agent.seen["pings"]
    seen = await look(stubs, agent)
    assert (seen.probe_status, seen.reach_score) == ("none", 100)
    await agent.close()


async def test_HLT_6_unanswered_pings_alone_make_an_agent_that_beats_suspect_at_most(stubs):
    agent = await joined(stubs, features=["ping"])

    async def beat():
        while True:
            await agent.send(beats=[{"link": 1}])
            await asyncio.sleep(0.3)

    beating = asyncio.create_task(beat())
    seen = await until(stubs, agent, lambda one: one.probe_status == "unreachable")
    beating.cancel()
    assert "UNREACHABLE" in conditions(seen)
    assert (seen.health, seen.blocked_by) == (pb.HEALTH_SUSPECT, "")
    assert seen.last_probe_error == "no answer to a ping within 1000 ms"
    assert seen.probe_loss == 1
    assert "SUSPECT" in [one.state for one in seen.history]
    assert [ping.nonce for ping in agent.seen["pings"]] == [1, 2, 3]
    await agent.close()


async def test_HLT_2_a_status_over_2_kib_is_cut_and_counted_and_never_fatal(stubs, node):
    agent = await joined(stubs)
    before = node.metrics.cut_statuses
    methods = [{"name": f"{'m' * 100}{number}", "inflight": 1} for number in range(40)]
    await agent.send(beats=[{"link": 1, "status": {"max_concurrency": 7, "methods": methods}}])
    await until(stubs, agent, lambda one: one.max_concurrency == 7)
    assert node.metrics.cut_statuses == before + 1
    assert not agent.seen["refusals"]
    await agent.close()


async def test_HLT_9_an_agent_that_does_not_hear_is_asked_to_reopen_and_then_cut_off(stubs):
    agent = await joined(stubs)
    await agent.send(beats=[{"link": 1, "last_frame": 1}])
    await agent.send(accepts=[{"link": 1, "key": {"task_id": "nobody's", "attempt": 1}}])  # its refusal is a frame

    async def beat():
        while True:
            await agent.send(beats=[{"link": 1, "last_frame": 1}])
            await asyncio.sleep(0.3)

    beating = asyncio.create_task(beat())
    seen = await until(stubs, agent, lambda one: "DEAF" in conditions(one))
    assert seen.blocked_by == "deaf"
    assert {one.evidence.rsplit(" ", 1)[1] for one in seen.conditions if one.type == pb.CONDITION_TYPE_DEAF} == {"1"}
    seen = await until(stubs, agent, lambda one: one.blocked_by == "no_link")
    beating.cancel()
    assert any(frame.reopen for frame in agent.frames)
