"""Pools of random types do not grow without bound (REG-11, REG-5)."""

import pytest

from reach.runtime import pools as hosts
from reach.runtime.idle_pools import IdlePools
from tests.rpc.peers import AgentByHand, pb, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_REG_11_random_types_leave_nothing_behind(node, stubs):
    """Registered and gone, asked for and cancelled, done: after two looks only those that are needed are left."""
    idle = IdlePools(node.host)
    before = {pool.key.agent_type for pool in node.host.pools()}
    name = ""
    for _ in range(20):
        name = unique("random")
        registration = {"agent_id": name, "boot_id": "b", "instance_id": name}
        await stubs.registry.Register(pb.RegisterRequest(registration=registration))
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=name))
        task = {"task_id": name, "selector": {"agent_type": f"{name}-asked"}}
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task))
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=name))
    agent = AgentByHand(stubs)
    await agent.join("needed")
    waits = {"task_id": unique("waits"), "selector": {"agent_type": "waited-for"}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=waits))
    assert len(node.host.pools()) >= 42
    assert idle.drop() == 0, "what was idle once may be needed in a moment"
    assert idle.drop() == 40
    assert {pool.key.agent_type for pool in node.host.pools()} - before == {"needed", "waited-for"}
    for shard in node.host.shards.values():
        assert all(key in {pool.key for pool in node.host.pools()} for key in shard.pools)
    found = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=name))
    assert found.task.state == pb.TASK_STATE_CANCELLED, "the journal has it"
    again = AgentByHand(stubs)
    await again.join(name)
    task = {"task_id": unique("again"), "selector": {"agent_type": name}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task))
    await again.serve(await again.next("offers"), "done")
    for one in (agent, again):
        await one.close()


async def test_REG_5_beyond_the_bound_tasks_for_unknown_types_share_a_pool_and_still_find_their_agent(
    node, stubs, monkeypatch
):
    monkeypatch.setattr(hosts, "MAX_POOLS", len(node.host.pools()))
    name = unique("crowded")
    task_id = unique("homeless")
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task={"task_id": task_id, "selector": {"agent_type": name}}))
    assert ("default", name) not in {pool.key[:2] for pool in node.host.pools()}
    agent = AgentByHand(stubs)
    await agent.join(name)
    offer = await agent.next("offers")
    assert offer.task.task_id == task_id
    await agent.serve(offer, "done")
    await agent.close()


async def test_DLV_0_a_volatile_task_that_ended_is_remembered_though_nobody_needs_its_pool(node, stubs):
    """Found by seed 6030562: a pool that was idle, had a volatile task for a moment, and was idle again."""
    idle = IdlePools(node.host)
    name = unique("short")
    task = {"task_id": name, "selector": {"agent_type": name}, "durability": pb.DURABILITY_VOLATILE}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task))
    await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=name))
    for _ in range(3):
        idle.drop()
    again = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task))
    assert (again.state, again.deduplicated) == (pb.TASK_STATE_CANCELLED, True)
