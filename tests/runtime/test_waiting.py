"""Tasks that wait for an agent that is not there yet move to its pool when it comes. Found by the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentreach.v1 import task_pb2
from reach.core.joining import Joining
from reach.core.model import PoolKey, Profile, TaskState
from reach.core.stream import Interest, Reader
from tests.runtime.hosts import READER, TENANT, Shell


class Link:
    """An agent to which tasks are offered."""

    tenant = TENANT

    def __init__(self) -> None:
        self.offers: list[str] = []

    def welcome(self, effect: Any) -> None: ...

    def offer(self, task: Any, instance: Any, traceparent: str) -> None:
        self.offers.append(task.task_id)


@pytest.mark.parametrize("delay_ms", [0, 60])
async def test_a_task_whose_time_has_not_come_moves_too(delay_ms: int) -> None:
    shell = Shell()
    spec = task_pb2.TaskSpec(task_id="t")
    spec.selector.capability = "sing"
    spec.start_delay.FromMilliseconds(delay_ms)
    shell.reach.submit(*READER.read(TENANT, spec), Reader(shell, 1, Interest.OUTCOME))
    await shell.settle()
    link = Link()
    profile = Profile("singer", "", (("sing", "1"),), (), (), (), (), (), "", ())
    joining = Joining("one", "boot", profile, b"")
    joining.ready = True
    shell.reach.hello(TENANT, "singer", joining, link, [], {})
    await shell.settle()
    task = shell.host.tasks[TENANT, "t"]
    assert (task.state is TaskState.PENDING, link.offers) == (bool(delay_ms), [] if delay_ms else ["t"])
    async with asyncio.timeout(5):
        while not link.offers:
            await shell.settle()
            await asyncio.sleep(0.005)
    assert link.offers == ["t"]
    assert task.pool is shell.host.pool(PoolKey(TENANT, "singer"))
    await shell.stop()
