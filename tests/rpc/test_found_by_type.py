"""Tasks that were given before there was an agent are found by the type of the agents that took them (REG-5, DLV-12):
while they wait there, while they run, after their end, after a restart, and at every node."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from reach.core.directory import UNRESOLVED
from reach.core.model import PoolKey
from reach.core.placement import shard_of
from reach.node import Node
from reach.runtime import resettling
from tests.rpc.nodes import owned, until
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, pb, running, unique
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

HOMELESS = shard_of(PoolKey("default", UNRESOLVED))
SELECTORS = {
    "by-capability": {"capability": "sing"},
    "by-intent": {"intent": "music.song"},
    "by-type": {"agent_type": "singer"},
    "by-both": {"agent_type": "singer", "capability": "sing"},
}
WAIT_NOWHERE = ["by-capability", "by-intent"]


async def give(stubs: Stubs, task_id: str, selector: dict[str, str]) -> None:
    task = {"task_id": task_id, "selector": selector, "payload": {"text": "la"}, "retry": {"never": True}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)


async def comes(stubs: Stubs, agent_type: str = "singer", **fields: Any) -> AgentByHand:
    agent = AgentByHand(stubs)
    await agent.join("bird", agent_type=agent_type, capabilities=[{"name": "sing"}], max_concurrency=3, **fields)
    return agent


async def ends(agent: AgentByHand, offer: Any) -> None:
    if offer.task.task_id in WAIT_NOWHERE:
        await agent.finish(offer, error={"error_class": "ERROR_CLASS_UNAVAILABLE", "message": "hoarse"})
    else:
        await agent.finish(offer, "la la")


async def listed(stubs: Stubs, agent_type: str) -> list[str]:
    """Tasks of a type, as all calls with that filter tell them, which say of each that it is of that type."""
    found = await stubs.dispatch.ListTasks(pb.ListTasksRequest(filter={"agent_type": agent_type}), timeout=TIMEOUT)
    assert {task.pool for task in found.tasks} <= {agent_type}
    decided = await stubs.ops.ListDecisions(pb.ListDecisionsRequest(agent_type=agent_type), timeout=TIMEOUT)
    ids = sorted(task.spec.task_id for task in found.tasks)
    begun = sorted(task.spec.task_id for task in found.tasks if task.attempts)
    assert sorted(one.task_id for one in decided.decisions) == begun
    return ids


async def over_http(node: Node, agent_type: str) -> list[str]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.admin_port}", timeout=TIMEOUT) as web:
        answer = (await web.get("/v1/tasks", params={"agent_type": agent_type})).json()
    return sorted(task["spec"]["taskId"] for task in answer.get("tasks", []))


async def buried(stubs: Stubs, agent_type: str) -> list[str]:
    found = await stubs.ops.ListDeadLetters(pb.ListDeadLettersRequest(agent_type=agent_type), timeout=TIMEOUT)
    return [task.spec.task_id for task in found.tasks]


async def told(watch: Any, most: int) -> list[tuple[str, str]]:
    news: list[tuple[str, str]] = []
    async with asyncio.timeout(TIMEOUT):
        while len(news) < most:
            news += [(event.task_id, event.WhichOneof("kind")) for event in (await watch.read()).events]
    return news


async def test_REG_5_what_waited_for_anybody_is_found_by_the_type_of_who_took_it(tmp_path):
    routes = tmp_path / "routes.yaml"
    routes.write_text("routes: [{intent_prefix: music, require_capability: sing}]\n")
    settings = {"storage__type": "sqlite", "router__routes_file": str(routes)}
    every = sorted(SELECTORS)
    async with running(tmp_path / "data", **settings) as node, Stubs(node.port) as stubs:
        watch = stubs.ops.WatchTasks(pb.WatchTasksRequest(agent_type="singer"))
        await watch.read()
        for task_id, selector in SELECTORS.items():
            await give(stubs, task_id, selector)
        assert await listed(stubs, "singer") == ["by-both", "by-type"], "they say whom they wait for"
        assert await listed(stubs, UNRESOLVED) == WAIT_NOWHERE
        agent = await comes(stubs)
        offers = [await agent.next("offers") for _ in range(3)]
        assert await listed(stubs, "singer") == every, "three run, and one waits for a slot"
        assert await over_http(node, "singer") == every
        assert await listed(stubs, UNRESOLVED) == []
        await ends(agent, offers.pop())
        for offer in [*offers, await agent.next("offers")]:
            await ends(agent, offer)
        assert await listed(stubs, "singer") == every
        assert sorted(await buried(stubs, "singer")) == WAIT_NOWHERE
        news = await told(watch, 10)
        assert {task_id for task_id, kind in news if kind == "complete"} == set(every)
        await agent.close()
    async with running(tmp_path / "data", **settings) as node, Stubs(node.port) as stubs:
        assert await listed(stubs, "singer") == every
        assert await over_http(node, "singer") == every
        assert sorted(await buried(stubs, "singer")) == WAIT_NOWHERE
        story = await stubs.ops.ExplainTask(pb.ExplainTaskRequest(task_id="by-capability"))
        assert story.story[0].startswith("accepted by pool singer")
        purged = await stubs.ops.PurgeDeadLetters(pb.PurgeDeadLettersRequest(agent_type="singer"))
        assert purged.purged == 2


def of_shard(shard: int) -> str:
    """A type whose pool is in a shard."""
    while shard_of(PoolKey("default", agent_type := unique("type"))) != shard:
        pass
    return agent_type


async def type_at(nodes: SharedCluster, where: str) -> str:
    """A type of agents whose pool is in the shard of those who wait for anybody, in another one of the same node, or at
    another node."""
    if where == "same shard":
        return of_shard(HOMELESS)
    return await owned_by(nodes, "one" if where == "same node" else "two", owned)


@pytest.mark.parametrize("where", ["same shard", "same node", "other node"])
async def test_REG_5_in_a_cluster_too_and_its_attempt_goes_on_when_its_shard_moves(tmp_path, monkeypatch, where):
    monkeypatch.setattr(resettling, "LOOK_AGAIN_S", 0.01)
    async with shared_cluster(tmp_path, "one", "two", "three") as nodes:
        nodes.used.add(HOMELESS)
        await give(nodes.stubs("three"), "t", {"capability": "sing"})
        await until(lambda: "t" in nodes["one"].tasks())
        agent_type = await type_at(nodes, where)
        at = "two" if where == "other node" else "one"
        agent = await comes(nodes.stubs(at), agent_type)
        for node in nodes.nodes.values():  # as `Member` does when the registry tells of it
            node.host.resettling.look_again_soon()
        offer = await agent.next("offers")
        for name in nodes.nodes:
            assert await listed(nodes.stubs(name), agent_type) == ["t"], name
            assert await listed(nodes.stubs(name), UNRESOLVED) == [], name
        await nodes.move(shard_of(PoolKey("default", agent_type)), "three")
        back = AgentByHand(nodes.stubs("three"))
        back.boot_id = agent.boot_id
        key = {"tenant": "default", "task_id": "t", "attempt": 1}
        await back.join(
            "bird",
            instance_id=agent.instance_id,
            agent_type=agent_type,
            capabilities=[{"name": "sing"}],
            running=[{"key": key, "last_attempt_sequence": 0}],
        )
        await back.finish(offer, "la la")
        for name in nodes.nodes:
            found = await nodes.stubs(name).dispatch.GetTask(pb.GetTaskRequest(task_id="t"), timeout=TIMEOUT)
            assert (found.task.result.attempts, found.task.pool) == (1, agent_type)
            assert await listed(nodes.stubs(name), agent_type) == ["t"], name
        await agent.close()
        await back.close()
