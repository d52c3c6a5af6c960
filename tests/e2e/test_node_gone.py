"""The node that agents and callers are at is killed, and never comes back: they go on at another (CLU-1, CLU-3)."""

from __future__ import annotations

import asyncio
import time

import pytest

from reach import Client
from tests.e2e.agents.worker import text_of
from tests.e2e.nodes import Nodes
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import AgentProcess, begins, eventually, tell
from tests.e2e.reading import Text

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def read(client: Client, count: int) -> Text:
    """A stream of pieces, 50 ms apart."""
    text = Text()
    payload = {"count": count, "pause": 0.05}
    async for event in client.stream("stream", payload, agent_type="worker", task_id="stream", start_to_close=60):
        text.add(event.message)
    return text


@pytest.mark.timeout(120)
async def test_CLU_3_all_go_on_elsewhere_when_their_node_is_gone_for_good(nodes: Nodes, log):
    """They were given one address, and learn the others; the task that runs goes on, and is not run again."""
    with AgentProcess(nodes.all["a"].address, log) as agent:
        await asyncio.to_thread(agent.instance)
        async with Client(nodes.all["a"].address) as client:
            assert (await client.send("echo", "hi", agent_type="worker", timeout=DEADLINE)).text == "hi"
            sleeps = asyncio.create_task(
                client.send("sleep", {"seconds": 4}, agent_type="worker", task_id="sleep", start_to_close=60)
            )
            streams = asyncio.create_task(read(client, 100))
            await asyncio.to_thread(eventually, lambda: {"sleep", "stream"} <= begins(log).keys(), "both run")
            waits = asyncio.create_task(client.wait_for_result("sleep"))
            await asyncio.sleep(1)
            nodes.all["a"].kill()
            killed_at = time.monotonic()
            assert (await client.get_task("sleep", timeout=10)).task_id == "sleep"
            tell(f"a single call is answered {time.monotonic() - killed_at:.2f} s after the kill")
            async with asyncio.timeout(45):
                assert (await client.send("echo", "again", agent_type="worker")).text == "again"
                tell(f"a new task is done {time.monotonic() - killed_at:.2f} s after the kill")
                assert (await sleeps).text == "slept 4"
                assert (await waits).text == "slept 4"
                text = await streams
        assert text.value == text.result == text_of("stream", 100)
        begun = begins(log)
        assert {task: len(lines) for task, lines in begun.items() if task in ("sleep", "stream")} == {
            "sleep": 1,
            "stream": 1,
        }
        assert agent.running
