"""`ExplainTask` over real gRPC: why a task went where it went, also when it has left the memory (RTE-13)."""

import asyncio

import pytest

from tests.rpc.peers import TIMEOUT, AgentByHand, golden, pb, refusal, unique

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


async def listed(stubs, **fields):
    request = pb.ListDecisionsRequest(**fields)
    return await stubs.ops.ListDecisions(request, timeout=TIMEOUT)


async def test_RTE_13_decisions_are_a_list_of_one_task_or_of_many(stubs, node):
    agent = AgentByHand(stubs)
    agent_type = unique("type")
    await agent.join(unique("explained"), agent_type=agent_type)
    task_ids = [unique("why") for _ in range(3)]
    for task_id in task_ids:
        await read(stubs, agent, task_id)
    await golden(stubs, agent)  # the next step of the pool
    for task_id in task_ids:
        told = await explained(stubs, task_id)
        one = await listed(stubs, task_id=task_id)
        assert [(row.task_id, row.attempt) for row in one.decisions] == [(task_id, 1), (task_id, 2)]
        assert [row.decision for row in one.decisions] == [attempt.decision for attempt in told.task.attempts]
        assert [row.decision.cause for row in one.decisions] == ["new", "retry"]
    seen, token = [], ""
    while True:
        some = await listed(stubs, agent_type=agent_type, page_size=2, page_token=token)
        seen += [(row.task_id, row.attempt) for row in some.decisions]
        token = some.next_page_token
        if not token:
            break
    known = [(task_id, number) for task_id in reversed(task_ids) for number in (1, 2)]
    assert [row for row in seen if row[0] in task_ids] == known, "latest task first"
    assert not (await listed(stubs, agent_type=unique("nobody"))).decisions
    await agent.close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task_id": "none"}, "TASK_NOT_FOUND"),
        ({"task_id": "x" * 300}, "INVALID_FIELD"),
        ({"task_id": "a", "agent_type": "b"}, "INVALID_FIELD"),
        ({"page_size": 1_001}, "INVALID_FIELD"),
        ({"page_token": "x"}, "INVALID_FIELD"),
        ({"session": {"app_id": "a"}}, "INVALID_FIELD"),
    ],
)
async def test_RTE_13_a_list_of_decisions_that_cannot_be_is_refused(stubs, fields, reason):
    assert (await refusal(stubs.ops.ListDecisions(pb.ListDecisionsRequest(**fields))))[1] == reason
