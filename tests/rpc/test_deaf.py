"""An agent whose stream is dead towards it, without keepalive of its own: found by what its beats echo (HLT-9)."""

import asyncio
import contextlib

import grpc
import pytest

from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, key_of, pb, unique
from tests.rpc.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEAT = {"seconds": 1}


async def beat(agent, seconds=1.0):
    """Beats on until the stream is over, and says how many frames have come."""
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        while True:
            await agent.send(beats=[{"link": 1, "status": {}, "last_frame": len(agent.frames)}])
            await asyncio.sleep(seconds)


async def until(stubs, instance_id, blocked_by):
    """The instance, once that is what keeps it out."""
    async with asyncio.timeout(10):
        while True:
            request = pb.GetAgentRequest(instance_id=instance_id)
            found = (await stubs.registry.GetAgent(request, timeout=TIMEOUT)).agent
            if found.blocked_by == blocked_by:
                return found
            await asyncio.sleep(0.05)


async def test_HLT_9_who_hears_nothing_is_out_by_its_echo_then_loses_its_stream_and_its_work(stubs, node):
    name = unique("deaf")
    async with Proxy(node.port) as proxy, Stubs(proxy.port) as through:
        agent, other = AgentByHand(through), AgentByHand(stubs)
        await agent.join(name, heartbeat_interval=BEAT)
        beating = asyncio.create_task(beat(agent))
        await asyncio.sleep(2.5)
        proxy.stall(up=False)
        task_id = unique("task")
        task = pb.TaskSpec(task_id=task_id, selector={"agent_id": name})
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        seen = await until(stubs, agent.instance_id, "deaf")
        assert "was sent two beats ago" in next(one.evidence for one in seen.conditions if "two beats" in one.evidence)
        assert seen.health == pb.HEALTH_HEALTHY, "its beats go on"
        await other.join(name)
        await until(stubs, agent.instance_id, "no_link")
        offer = await other.next("offers")
        assert (offer.task.task_id, key_of(offer)["attempt"]) == (task_id, 2)
        await other.finish(offer, "done")
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
        await other.close()
        with contextlib.suppress(Exception):
            await agent.close()
