"""Agents that ask other agents: what a task passes on, and how far a cancel reaches (DLV-6, DLV-11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reach import Agent, Budget, Client, InvalidRequest, Reason, SyncClient, Task, TaskState, Timeout
from tests.rpc.peers import running
from tests.transports.endpoint_agent import eventually

pytestmark = pytest.mark.asyncio


class Chain:
    """An agent that asks itself again, and what its handlers saw."""

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.seen: list[Task] = []
        self.deadlines: list[float | None] = []
        self.stopped: list[str] = []
        self.over = asyncio.Event()
        self.agent = Agent("chain", addr=addr, max_concurrency=20)
        self.client = Client(addr)
        for name in ("down", "hang", "alone", "spend"):
            self.agent.route(name)(getattr(self, name))
        self.agent.route("thread")(self.thread)

    async def down(self, task: Task) -> str:
        self._saw(task)
        depth = int(task.text)
        if not depth:
            return "bottom"
        asked = asyncio.create_task(
            self.client.call("down", str(depth - 1), agent_id="chain")
        )  # also in a task of its own
        return f"{depth} {await asked}"

    async def hang(self, task: Task) -> str:
        self._saw(task)
        try:
            if int(task.text):
                await self.client.send("hang", str(int(task.text) - 1), agent_id="chain")
            await self.over.wait()
        finally:
            self.stopped.append(task.task_id)
        return ""

    async def alone(self, task: Task) -> str:
        await self.client.submit("hang", "0", agent_id="chain", parent_task_id="", task_id="left alone")
        await self.over.wait()
        return ""

    def thread(self, task: Task) -> str:
        with SyncClient(self.addr) as client:
            return str(client.call("down", "1", agent_id="chain"))

    async def spend(self, task: Task) -> str:
        left = task.spend(tokens=30)
        assert left is not None
        self._saw(task)
        if left.tokens:
            await self.client.call("spend", "", agent_id="chain", budget=Budget(money_micros=5))
        return ""

    def _saw(self, task: Task) -> None:
        self.seen.append(task)
        self.deadlines.append(task.deadline)

    def names(self) -> list[tuple[str, str]]:
        return [(task._offer.task.parent_task_id, task.root_task_id) for task in self.seen]


@asynccontextmanager
async def chained(tmp_path: Path) -> AsyncIterator[tuple[Any, Chain, Client]]:
    async with running(tmp_path) as node:
        chain = Chain(f"127.0.0.1:{node.port}")
        async with chain.agent, chain.client, Client(chain.addr) as client:
            await chain.agent.register(10)
            yield node, chain, client
            chain.over.set()


async def test_DLV_11_a_task_of_a_handler_names_its_parent_and_root(tmp_path):
    async with chained(tmp_path) as (_, chain, client):
        assert await client.call("down", "2", agent_id="chain", task_id="top") == "2 1 bottom"
        ids = [task.task_id for task in chain.seen]
        assert ids[0] == "top"
        assert chain.names() == [("", "top"), ("top", "top"), (ids[1], "top")]
        chain.seen.clear()
        assert await client.call("thread", "", agent_id="chain", task_id="threads") == "1 bottom"
        assert chain.names()[0] == ("threads", "threads")
        chain.seen.clear()
        assert await client.call("down", "0", agent_id="chain") == "bottom"
        assert chain.names() == [("", chain.seen[0].task_id)], "a client outside of handlers inherits nothing"


async def test_DLV_11_a_cancel_reaches_all_that_was_asked_for(tmp_path):
    async with chained(tmp_path) as (node, chain, client):
        await client.submit("hang", "3", agent_id="chain", task_id="top")
        await client.submit("hang", "0", agent_id="chain", task_id="other")
        await eventually(lambda: len(chain.seen) == 5)
        ids = [task.task_id for task in chain.seen if task.root_task_id == "top"]
        assert await client.cancel("top") is TaskState.CANCELLED
        await eventually(lambda: sorted(chain.stopped) == sorted(ids))
        for task_id in ids:
            info = await client.get_task(task_id)
            assert info.state is TaskState.CANCELLED
        assert (await client.get_task("other")).state is TaskState.RUNNING
        with pytest.raises(InvalidRequest) as error:
            await client.submit("down", "0", agent_id="chain", parent_task_id=ids[-1])
        assert error.value.reason is Reason.PARENT_CANCELLED
        await eventually(lambda: node.reach.instance("default", chain.agent.instance_id)[1].inflight == 1)


async def test_DLV_11_what_asks_to_be_left_alone_is(tmp_path):
    async with chained(tmp_path) as (_, chain, client):
        handle = await client.submit("alone", "", agent_id="chain")
        await eventually(lambda: bool(chain.seen))
        await handle.cancel()
        assert (await client.get_task("left alone")).state is TaskState.RUNNING


async def test_DLV_6_what_is_left_of_the_time_is_passed_on_with_a_reserve(tmp_path):
    async with chained(tmp_path) as (_, chain, client):
        await client.call("down", "3", agent_id="chain", start_to_close=10)
        left = [deadline for deadline in chain.deadlines if deadline is not None]
        assert len(left) == 4
        for before, after in pairwise(left):
            assert 0.75 * before < after < 0.96 * before
        chain.deadlines.clear()
        result = await client.send("down", "3", agent_id="chain", schedule_to_close=0.04, start_to_close=5)
        assert result.error is not None
        assert isinstance(result.error, Timeout)


async def test_DLV_6_the_budget_is_passed_on_and_hops_are_counted(tmp_path):
    async with chained(tmp_path) as (_, chain, client):
        assert await client.call("down", "2", agent_id="chain", budget=Budget(max_hops=2)) == "2 1 bottom"
        assert [task.budget for task in chain.seen] == [Budget(max_hops=hops) for hops in (2, 1, 0)]
        result = await client.send("down", "3", agent_id="chain", budget=Budget(max_hops=2))
        assert result.error is not None
        assert "allows no further agent" in result.error.message
        chain.seen.clear()
        await client.call("spend", "", agent_id="chain", budget=Budget(tokens=70, money_micros=9))
        assert [task.budget for task in chain.seen] == [Budget(40, 9), Budget(10, 5), Budget(0, 5)]


async def test_DLV_6_the_server_bounds_the_budget_of_agents_that_pass_nothing_on(tmp_path):
    async with chained(tmp_path) as (_, chain, client):
        await client.submit("hang", "0", agent_id="chain", task_id="top", budget=Budget(tokens=50, max_hops=1))
        await client.submit("hang", "0", agent_id="chain", task_id="below", parent_task_id="top",
                            budget=Budget(tokens=80))  # fmt: skip
        await eventually(lambda: len(chain.seen) == 2)
        assert chain.seen[1].budget == Budget(tokens=50, max_hops=0)
        with pytest.raises(InvalidRequest) as error:
            await client.submit("hang", "0", agent_id="chain", parent_task_id="below")
        assert error.value.reason is Reason.BUDGET_SPENT
        with pytest.raises(InvalidRequest) as error:
            await client.submit("hang", "0", agent_id="chain", budget=Budget(tokens=0))
        assert error.value.reason is Reason.BUDGET_SPENT
