"""An agent over HTTP has accepted a task (202) when the node that gave it is killed: the next owner asks where the
agent said, and the task is not run again (HAZARDS 4h, REG-6, CLU-3)."""

from __future__ import annotations

import asyncio

import pytest

from agentreach.v1 import task_pb2
from tests.e2e.nodes import Nodes
from tests.rpc.peers import Stubs, pb
from tests.transports.endpoint_agent import eventually
from tests.transports.http_agent import HttpAgent, answer, serving
from tests.transports.test_http_agents import accepted, given, result_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.timeout(120)
async def test_CLU_3_the_next_owner_asks_where_the_agent_said(nodes: Nodes):
    agent = HttpAgent(slow=accepted)
    agent.agent_type = agent.agent_id = nodes.type_at("b")
    other = nodes.all["a"]
    async with serving(agent), Stubs(other.port) as stubs:
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        asked = await eventually(lambda: agent.others)

        async def runs() -> bool:
            task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5)).task
            return bool(task.state == task_pb2.TASK_STATE_RUNNING)

        await eventually(runs)
        await asyncio.to_thread(nodes.all["b"].kill)
        count = len(agent.others)
        await eventually(lambda: len(agent.others) > count, 30)
        agent.jobs[asked[0].path] = answer({"result": "once"})
        done = await result_of(stubs, task_id)
        assert (done.output.text, done.attempts) == ("once", 1)
        assert len(agent.asked) == 1, "nobody asked it to begin again"
