"""Tasks that wait for an agent, and agents that come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentreach.v1 import agent_pb2, task_pb2
from reach.config import Config
from reach.config.sections import Server, Storage
from reach.core.model import Task
from reach.core.stream import Interest, Reader
from reach.node import Node
from reach.wire.agents import read_registration
from reach.wire.requests import TaskReader


class Link:
    """A link that tells what it is offered."""

    tenant = "default"

    def __init__(self) -> None:
        self.offered: asyncio.Future[Task] = asyncio.get_running_loop().create_future()

    def offer(self, task: Task, *_: Any) -> None:
        self.offered.set_result(task)

    def welcome(self, _: Any) -> None:
        """Nothing to say."""

    drop = reopen = close = stop = acknowledge = refuse = grant = credit = drain = welcome


class Sink:
    """Hears, and says nothing."""

    def accepted(self, *_: Any) -> None:
        """Nothing to do."""

    refused = events = ended = accepted


async def test_REG_5_an_agent_that_comes_in_the_same_turn_as_the_task_gets_it(tmp_path: Path) -> None:
    """The task is on its way to those that wait, and does not wait yet, when the agent says hello."""
    node = Node(Config(server=Server(port=0, admin_port=0), storage=Storage(type="memory", path=str(tmp_path))))
    await node.start()
    try:
        spec = task_pb2.TaskSpec(task_id="t", selector=task_pb2.Selector(agent_id="late"))
        task, selector = TaskReader().read("default", spec)
        registration = agent_pb2.Registration(agent_id="late", boot_id="b", instance_id="late-1", ready=True)
        link = Link()
        node.reach.submit(task, selector, Reader(Sink(), 0, Interest.OUTCOME))
        node.reach.hello("default", *read_registration(registration), link, [], {})
        async with asyncio.timeout(5):
            assert await link.offered is task
    finally:
        node.reach.cancel("default", "t", "", None)
        await node.stop()
