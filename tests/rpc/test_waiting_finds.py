"""Tasks that wait find whoever comes, wherever they wait and whenever it comes (REG-5, REG-11, GOV-1, RTE-15)."""

import asyncio
from typing import Any

import pytest

from reach.core.pool import Pool
from reach.runtime.idle_pools import IdlePools
from reach.store import keys as key_store
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, pb, running, unique


async def submit(stubs, metadata=(), fields=None, **selector):
    spec = {"task_id": unique("task"), "selector": selector, **(fields or {})}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT, metadata=metadata)
    return spec["task_id"]


async def offered(agent, count=1):
    async with asyncio.timeout(8):
        return {(await agent.next("offers")).task.task_id for _ in range(count)}


async def test_REG_11_a_pool_that_was_dropped_and_made_again_is_seen_by_callers_of_before(tmp_path):
    """Of two pools with one capability, one was dropped as idle: it must not look full for ever."""
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        one, two = AgentByHand(stubs), AgentByHand(stubs)
        for agent, name in ((one, "one"), (two, "two")):
            await agent.join(name, capabilities=[{"name": "c"}])
        for _ in range(2):
            await submit(stubs, capability="c")
        for agent in (one, two):
            await agent.finish(await agent.next("offers"), "done")
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=two.instance_id))
        idle = IdlePools(node.host)
        idle.drop()
        assert idle.drop() == 1
        again = AgentByHand(stubs)
        await again.join("two", capabilities=[{"name": "c"}])
        given = {await submit(stubs, capability="c") for _ in range(2)}
        assert await offered(one) | await offered(again) == given
        for agent in (one, two, again):
            await agent.close()


@pytest.mark.parametrize("allowed", ["rival", "*"])
@pytest.mark.parametrize("selector", [{"agent_id": "shared"}, {"agent_type": "shared"}])
async def test_GOV_1_a_task_that_waits_finds_the_agent_of_another_tenant(tmp_path, monkeypatch, allowed, selector):
    monkeypatch.setattr(key_store, "_LOOK_EVERY_S", 0)
    keys = key_store.SqliteKeyStore(tmp_path)
    acme, rival = (
        (("authorization", f"Bearer {keys.create(tenant, 'app', ('agent', 'caller'))[1]}"),)
        for tenant in ("acme", "rival")
    )
    async with running(tmp_path, server__auth="keys") as node, Stubs(node.port) as stubs:
        task_id = await submit(stubs, rival, **selector)
        agent = AgentByHand(stubs, acme)
        await agent.join("shared", allowed_tenants=[allowed])
        assert await offered(agent) == {task_id}
        await agent.close()
    keys.close()


async def test_DLV_0_a_task_with_a_delay_finds_the_agent_that_came_meanwhile(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        task_id = await submit(stubs, fields={"start_delay": {"seconds": 1}}, agent_id="late")
        agent = AgentByHand(stubs)
        await agent.join("late", agent_type="some")
        assert await offered(agent) == {task_id}
        await agent.close()


async def test_REG_7_what_an_agent_left_behind_follows_it_into_another_type(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        before, after = AgentByHand(stubs), AgentByHand(stubs)
        await before.join("x", agent_type="one")
        given = {await submit(stubs, agent_id="x") for _ in range(3)}
        await before.next("offers")
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=before.instance_id))
        await after.join("x", agent_type="two", max_concurrency=3)
        assert await offered(after, 3) == given
        for agent in (before, after):
            await agent.close()


async def test_REG_7_what_ran_on_the_last_instance_of_a_type_moves_to_another_type(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        one, two = AgentByHand(stubs), AgentByHand(stubs)
        await one.join("one", capabilities=[{"name": "c"}])
        task_id = await submit(stubs, capability="c")
        assert await offered(one) == {task_id}
        await two.join("two", capabilities=[{"name": "c"}])
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=one.instance_id))
        assert await offered(two) == {task_id}
        for agent in (one, two):
            await agent.close()


async def test_RTE_15_a_task_that_may_go_to_nobody_does_not_wander(tmp_path, monkeypatch):
    """Two pools could take it, but for the instances that its caller banned."""
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        agents = [AgentByHand(stubs) for _ in range(2)]
        for agent, name in zip(agents, ("one", "two"), strict=True):
            await agent.join(name, capabilities=[{"name": "c"}])
        banned = [agent.instance_id for agent in agents]
        selector = {"capability": "c", "excluded_instances": banned}
        await submit(stubs, fields={"start_delay": {"nanos": 50_000_000}}, **selector)
        moves: list[Any] = []
        hand_over = Pool.hand_over

        def counted(*args: Any) -> None:
            moves.append(args)
            hand_over(*args)

        monkeypatch.setattr(Pool, "hand_over", counted)
        await asyncio.sleep(1.5)
        assert not moves
        for agent in agents:
            await agent.close()
