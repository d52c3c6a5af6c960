"""Tasks that wait at one node for an agent that comes to another (CLU-1, HAZARDS 1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from reach.core.directory import UNRESOLVED
from reach.core.model import PoolKey
from reach.core.placement import shard_of
from tests.rpc.nodes import owned, until
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, kind_of, pb, unique
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOMELESS = shard_of(PoolKey("default", UNRESOLVED))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: Any) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        made.used.add(HOMELESS)
        yield made


def waits_at(nodes: SharedCluster, name: str, task_id: str) -> bool:
    task = nodes[name].host.tasks.get(("default", task_id))
    return task is not None and task.pool.key.agent_type == UNRESOLVED


async def comes(nodes: SharedCluster, capability: str) -> AgentByHand:
    """An agent of a pool of node two, which all nodes hear of."""
    agent_type = await owned_by(nodes, "two", owned)
    agent = AgentByHand(nodes.stubs("two"))
    await agent.join(unique("agent"), agent_type=agent_type, capabilities=[{"name": capability}], max_concurrency=10)
    for node in nodes.nodes.values():  # as `Member` does when the registry tells of it
        node.host.resettling.look_again_soon()
    return agent


async def ends(nodes: SharedCluster, agent: AgentByHand, task_id: str) -> None:
    """The task runs once, on node two, which alone has it."""
    offer = await agent.next("offers")
    assert (offer.task.task_id, offer.attempt) == (task_id, 1)
    await agent.delta(offer, 1, "so it is")
    await agent.finish(offer, "so it is", folded={"last_attempt_sequence": 1})
    have = [name for name, node in nodes.nodes.items() if ("default", task_id) in node.host.tasks]
    assert have == ["two"]


def asked(capability: str, task_id: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task_id, "selector": {"capability": capability}, "payload": {"text": "?"}, **more}


@pytest.mark.parametrize("durability", ["DURABILITY_DURABLE", "DURABILITY_VOLATILE"])
async def test_CLU_1_a_call_that_waits_is_answered_from_where_its_task_went(nodes, durability):
    capability, task_id = unique("late"), unique("late")
    request = pb.DispatchRequest(task=asked(capability, task_id, durability=durability), wait={"seconds": 15})
    call = asyncio.ensure_future(nodes.stubs("three").dispatch.Dispatch(request, timeout=TIMEOUT))
    await until(lambda: waits_at(nodes, "one", task_id))
    await ends(nodes, await comes(nodes, capability), task_id)
    assert (await call).result.output.text == "so it is"


async def test_STR_2_a_stream_of_events_goes_on_behind_what_it_said(nodes):
    capability, task_id = unique("late"), unique("late")

    async def run() -> list[Any]:
        request = pb.RunRequest(task=asked(capability, task_id))
        frames = nodes.stubs("three").dispatch.Run(request, timeout=TIMEOUT)
        return [event async for frame in frames for event in frame.events]

    running = asyncio.ensure_future(run())
    await until(lambda: waits_at(nodes, "one", task_id))
    await ends(nodes, await comes(nodes, capability), task_id)
    events = await running
    assert [kind_of(event) for event in events] == ["accepted", "started", "delta", "complete"]
    assert [event.sequence for event in events] == [1, 2, 3, 4]


async def test_CLU_1_a_caller_with_a_stream_hears_the_end(nodes):
    capability, task_id = unique("late"), unique("late")
    caller = CallerByHand(nodes.stubs("three"))
    await caller.open()
    await caller.submit(1, "INTEREST_OUTCOME", **asked(capability, task_id))
    await until(lambda: waits_at(nodes, "one", task_id))
    await ends(nodes, await comes(nodes, capability), task_id)
    assert (await caller.complete(task_id)).output.text == "so it is"
    await caller.close()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("durability", ["DURABILITY_DURABLE", "DURABILITY_VOLATILE"])
async def test_HAZARDS_1_what_nobody_waits_for_goes_too(nodes, told, durability, monkeypatch):
    if not told and durability == "DURABILITY_VOLATILE":
        pytest.skip("what has no row goes by the hand of its owner, or not at all")
    capability, task_id = unique("late"), unique("late")
    if not told:
        monkeypatch.setattr(nodes["one"].host.departures, "tell", lambda where: None)
    request = pb.DispatchRequest(task=asked(capability, task_id, durability=durability))
    await nodes.stubs("three").dispatch.Dispatch(request, timeout=TIMEOUT)
    await until(lambda: waits_at(nodes, "one", task_id))
    await ends(nodes, await comes(nodes, capability), task_id)
    read = pb.StreamResultRequest(task_id=task_id)
    frames = [frame async for frame in nodes.stubs("one").result.StreamResult(read, timeout=TIMEOUT)]
    assert kind_of(frames[-1].events[-1]) == "complete"


async def test_CLU_1_a_volatile_task_that_is_only_read_goes_too(nodes):
    """Its readers have no request that they could bring along."""
    capability, task_id = unique("late"), unique("late")
    request = pb.DispatchRequest(task=asked(capability, task_id, durability="DURABILITY_VOLATILE"))
    await nodes.stubs("three").dispatch.Dispatch(request, timeout=TIMEOUT)
    await until(lambda: waits_at(nodes, "one", task_id))

    async def read() -> list[str]:
        frames = nodes.stubs("one").result.StreamResult(pb.StreamResultRequest(task_id=task_id), timeout=TIMEOUT)
        return [kind_of(event) async for frame in frames for event in frame.events]

    reading = asyncio.ensure_future(read())
    await until(lambda: nodes["one"].host.tasks["default", task_id].log is not None)
    await ends(nodes, await comes(nodes, capability), task_id)
    assert (await reading)[-1] == "complete"


async def test_CLU_3_one_that_waits_is_not_lost_with_its_node(nodes):
    """It goes to the next owner of those who wait, and from there to who can take it."""
    capability, task_id = unique("late"), unique("late")
    await nodes.move(HOMELESS, "three")
    try:
        await nodes.stubs("two").dispatch.Dispatch(pb.DispatchRequest(task=asked(capability, task_id)))
        await until(lambda: waits_at(nodes, "three", task_id))
        await nodes.move(HOMELESS, "one")
        await until(lambda: waits_at(nodes, "one", task_id))
        await ends(nodes, await comes(nodes, capability), task_id)
    finally:
        await nodes.move(HOMELESS, "one")


async def test_STR_2_a_reader_goes_on_when_the_pool_of_its_task_moves_twice(nodes):
    """At the node where it came in, or at another one: it hears the end. That one call is told to ask elsewhere leaves
    the others alone that share its connection."""
    agent_type = await owned_by(nodes, "two", owned)
    shard = shard_of(PoolKey("default", agent_type))
    agent = AgentByHand(nodes.stubs("one"))
    await agent.join(unique("agent"), agent_type=agent_type, max_concurrency=10)
    task_id = unique("read")
    task = {"task_id": task_id, "selector": {"agent_type": agent_type}, "payload": {"text": "?"}}
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    offer = await agent.next("offers")
    await agent.accept(offer)

    async def read(at: str) -> list[str]:
        frames = nodes.stubs(at).result.StreamResult(pb.StreamResultRequest(task_id=task_id), timeout=TIMEOUT)
        return [kind_of(event) async for frame in frames for event in frame.events]

    reading = [asyncio.ensure_future(read(at)) for at in ("one", "one", "one", "two", "three")]
    await asyncio.sleep(0.3)  # all read
    await nodes.move(shard, "three")
    await asyncio.sleep(0.5)  # all read on
    await nodes.move(shard, "two")
    await asyncio.sleep(0.5)  # all read on
    ends = {"tenant": "default", "task_id": task_id, "attempt": 1}
    back = AgentByHand(nodes.stubs("two"))
    back.boot_id = agent.boot_id
    running = [{"key": ends, "last_attempt_sequence": 0}]
    await back.join(
        agent.agent_id, instance_id=agent.instance_id, agent_type=agent_type, max_concurrency=10, running=running
    )
    await back.finish(offer, "so it is")
    for kinds in await asyncio.gather(*reading):
        assert kinds[-1] == "complete"
