"""`ExplainTask` over real gRPC: why a task went where it went, also when it has left the memory (RTE-13)."""

import asyncio

import pytest

from tests.rpc.peers import TIMEOUT, AgentByHand, golden, pb, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """Tasks whose events were read leave the memory at once, not after ten seconds."""
    monkeypatch.setattr("reach.core.finished.KEEP_MS", 0)


async def read(stubs, agent, task_id):
    """A task whose events are read to the end; it fails once, then succeeds."""
    spec = {"task_id": task_id, "selector": {"agent_id": agent.agent_id}, "retry": {"delays": [{"nanos": 1_000_000}]}}
    call = stubs.dispatch.Run(pb.RunRequest(task=spec), timeout=TIMEOUT)
    reading = asyncio.ensure_future(_all(call))
    error = {"error_class": "ERROR_CLASS_UNAVAILABLE", "reason": "ERROR_REASON_AGENT_UNAVAILABLE", "message": "not now"}
    await agent.finish(await agent.next("offers"), error=error)
    await agent.finish(await agent.next("offers"), "done")
    await reading


async def _all(call):
    return [event async for frame in call for event in frame.events]


async def explained(stubs, task_id):
    return await stubs.ops.ExplainTask(pb.ExplainTaskRequest(task_id=task_id), timeout=TIMEOUT)


async def test_RTE_13_the_reasons_outlive_the_memory_of_the_task(stubs, node):
    agent = AgentByHand(stubs)
    await agent.join(unique("explained"))
    task_id = unique("why")
    await read(stubs, agent, task_id)
    await golden(stubs, agent)  # the next step of the pool
    assert ("default", task_id) not in node.host.tasks
    told = await explained(stubs, task_id)
    assert [one.decision.chosen_instance_id for one in told.task.attempts] == [agent.instance_id] * 2
    assert [one.decision.policy for one in told.task.attempts] == ["balanced"] * 2
    assert sum("the best by score" in line for line in told.story) == 2
    await agent.close()


async def test_RTE_13_the_journal_tells_as_much_as_the_memory(stubs, node):
    """What is kept of a decision is what was told of it while it was in memory."""
    agent = AgentByHand(stubs)
    await agent.join(unique("explained"))
    task_id = unique("why")
    spec = pb.TaskSpec(task_id=task_id, selector={"agent_id": agent.agent_id})
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), timeout=TIMEOUT)
    offer = await agent.next("offers")
    before = await explained(stubs, task_id)
    task = node.host.tasks["default", task_id]
    task.decision = None  # as after a restart
    after = await explained(stubs, task_id)
    assert after == before
    assert after.task.attempts[0].decision.candidates[0].instance_id == agent.instance_id
    await agent.finish(offer, "done")
    await agent.close()
