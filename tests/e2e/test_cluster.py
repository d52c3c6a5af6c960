"""Three real nodes on etcd and PostgreSQL: any takes any call (CLU-1)."""

from __future__ import annotations

import asyncio

import pytest

from reach import Client, TaskState
from tests.e2e.plain import DEADLINE

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.timeout(120)
async def test_CLU_1_any_node_takes_any_call(nodes, agents):
    await asyncio.to_thread(agents, "a")
    for name, node in nodes.all.items():
        async with Client(node.address) as client:
            result = await client.send("echo", f"by {name}", agent_type="worker", task_id=f"t-{name}")
            assert (result.state, result.text) == (TaskState.SUCCEEDED, f"by {name}")
    for node in nodes.all.values():
        async with Client(node.address) as client:
            for name in nodes.all:
                assert (await client.wait_for_result(f"t-{name}", timeout=DEADLINE)).text == f"by {name}"
