"""The node that agents and callers are at is killed, and never comes back: they go on at another (CLU-1, CLU-3)."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import grpc
import pytest

from agentreach.v1 import cluster_pb2, ops_pb2_grpc
from reach import Client
from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of
from tests.e2e.agents.worker import text_of
from tests.e2e.kills import tell_times
from tests.e2e.nodes import Node, Nodes
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import AgentProcess, begins, eventually, tell
from tests.e2e.reading import Text

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = int(os.environ.get("ROUNDS", "2"))
"""How often the owner of a pool is killed; `ROUNDS=12` for figures."""
TTL = 2.0
"""Of the lease of a node, in seconds."""
DEAD = "a node is dead: its machine refuses connections, and others take over"


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
            await asyncio.sleep(1)  # they are in the middle
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


def note_time(times: list[float], since: float, done: object) -> None:
    """Something is done."""
    times.append(time.monotonic() - since)


def own_all(nodes: list[Node]) -> bool:
    """Whether these own all there is, as they say."""
    return sum(node.owned() for node in nodes) == SHARDS


def owner_of_workers(nodes: Nodes) -> str:
    """The node that served the pool last."""
    shard = shard_of(PoolKey("default", "worker"))
    return max((epoch, names[0]) for (one, epoch), names in nodes.claims().items() if one == shard)[1]


@pytest.mark.timeout(60 + 40 * ROUNDS)
async def test_CLU_3_a_pool_whose_owner_dies_is_served_elsewhere(nodes: Nodes, log):
    """Those who see its machine refuse connections do not wait for its lease."""
    owned: list[float] = []
    served: list[float] = []
    with AgentProcess(",".join(node.address for node in nodes.all.values()), log) as agent:
        await asyncio.to_thread(agent.instance)
        for number in range(ROUNDS):
            victim = await asyncio.to_thread(owner_of_workers, nodes)
            rest = [node for name, node in nodes.all.items() if name != victim]
            async with Client([node.address for node in rest]) as client:
                await client.send("echo", "before", agent_type="worker", timeout=DEADLINE)
                nodes.all[victim].kill()
                killed_at = time.monotonic()
                result = asyncio.create_task(
                    client.send("echo", "after", agent_type="worker", timeout=DEADLINE, task_id=f"after-{number}")
                )
                result.add_done_callback(partial(note_time, served, killed_at))
                await asyncio.to_thread(eventually, partial(own_all, rest), "all shards are owned")
                owned.append(time.monotonic() - killed_at)
                assert (await result).text == "after"
            assert any(node.records(DEAD) for node in rest), "nobody convicted it"
            await asyncio.to_thread(nodes.all[victim].start)
            await asyncio.to_thread(nodes.settle)
        assert agent.running
    tell_times("all shards are owned again", owned)
    tell_times("the pool is served again", served)
    assert max(served) <= TTL + 2


def leads(node: Node) -> bool:
    """Whether a node says that it leads, now."""
    with grpc.insecure_channel(node.address) as channel:
        answer = ops_pb2_grpc.OpsServiceStub(channel).GetNode(cluster_pb2.GetNodeRequest(), timeout=DEADLINE)
    return answer.node.term > 0


@pytest.mark.timeout(60 + 40 * ROUNDS)
def test_CLU_3_a_leader_that_is_killed_is_followed_by_another(nodes: Nodes):
    """Its lease is ended by those who see its machine refuse connections."""
    took: list[float] = []
    for _ in range(ROUNDS):
        victim = eventually(lambda: next(filter(leads, nodes.all.values()), None), "there is a leader")
        rest = [node for node in nodes.all.values() if node is not victim]
        killed_at = time.monotonic()
        victim.kill()
        eventually(lambda: any(map(leads, rest)), "another leads")  # noqa: B023 - called at once
        took.append(time.monotonic() - killed_at)
        victim.start()
        nodes.settle()
    tell_times("another leads", took)
    assert max(took) <= TTL + 1
