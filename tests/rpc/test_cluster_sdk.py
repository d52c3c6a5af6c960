"""The SDK at nodes that do not own what it asks for, while owners die and shards move (CLU-1, CLU-3)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from reach import Agent, Client
from tests.rpc.nodes import Cluster, cluster
from tests.rpc.peers import unique


@pytest.fixture
async def nodes(tmp_path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, "one", "two", "three") as made:
        yield made


def address(nodes: Cluster, name: str) -> str:
    return nodes.addresses[name].address


class Worker:
    """An agent that counts what it did."""

    def __init__(self, nodes: Cluster, at: str, agent_type: str) -> None:
        self.done: Counter[str] = Counter()
        self.agent = Agent(unique("worker"), agent_type=agent_type, addr=address(nodes, at), max_concurrency=20)

        @self.agent.route()
        async def work(task):
            await asyncio.sleep(0.01)
            self.done[task.task_id] += 1
            return f"did {task.text}"


async def many(client: Client, agent_type: str, count: int, then: Callable[[int], Awaitable[None]]) -> list[str]:
    """Asks for many tasks, some at a time; `then` is told how many are done."""
    done = 0
    room = asyncio.Semaphore(20)

    async def one(number: int) -> str:
        nonlocal done
        async with room:
            result = await client.call("", str(number), agent_type=agent_type, timeout=30)
            done += 1
            await then(done)
            return str(result)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def nothing(done: int) -> None:
    """Nothing happens."""


async def test_CLU_1_callers_and_agents_at_nodes_that_own_nothing(nodes):
    nodes.give("work", "two")
    worker = Worker(nodes, "three", "work")
    async with worker.agent, Client(address(nodes, "one")) as client:
        results = await many(client, "work", 200, nothing)
    assert results == [f"did {number}" for number in range(200)]
    assert set(worker.done.values()) == {1}
    assert not nodes["one"].tasks()
    assert not nodes["three"].tasks()


async def test_CLU_3_the_owner_dies_and_nothing_is_lost(nodes):
    nodes.give("work", "two")
    worker = Worker(nodes, "one", "work")
    moving: list[asyncio.Task[None]] = []

    async def move() -> None:
        await nodes["two"].down()
        await asyncio.sleep(0.5)  # nobody knows yet
        nodes.give("work", "three")

    async def then(done: int) -> None:
        if done == 60:
            moving.append(asyncio.create_task(move()))

    async with worker.agent, Client(address(nodes, "one"), reconnect_timeout=None) as client:
        results = await many(client, "work", 200, then)
    assert results == [f"did {number}" for number in range(200)]
    await asyncio.gather(*moving)


async def test_CLU_3_a_shard_that_moves_back_and_forth_costs_nobody_anything(nodes):
    nodes.give("work", "two")
    worker = Worker(nodes, "three", "work")

    async def then(done: int) -> None:
        if done % 50 == 0:
            nodes.give("work", ("three", "one", "two")[done // 50 % 3])

    async with worker.agent, Client(address(nodes, "one"), reconnect_timeout=None) as client:
        results = await many(client, "work", 200, then)
    assert results == [f"did {number}" for number in range(200)]


async def test_CLU_1_pieces_come_through_two_hops(nodes):
    nodes.give("talk", "two")
    agent = Agent(unique("talker"), agent_type="talk", addr=address(nodes, "three"))

    @agent.route()
    async def talk(task):
        for number in range(300):
            yield f"{number} "

    async with agent, Client(address(nodes, "one")) as client:
        said = [piece async for piece in client.stream_text("", "go", agent_type="talk")]
    assert "".join(said) == "".join(f"{number} " for number in range(300))
