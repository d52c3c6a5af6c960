"""Tasks that wait for an agent that is not there yet move to its pool when it comes, and so do their rows (REG-5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, task_pb2
from reach.core.directory import UNRESOLVED
from reach.core.model import PoolKey, TaskState
from reach.core.rows import Writes
from reach.core.stream import Interest, Reader
from reach.runtime import resettling
from reach.store.base import TaskQuery
from reach.wire.agents import read_registration
from tests.runtime.hosts import READER, TENANT, Shell


class Link:
    """An agent to which tasks are offered."""

    tenant = TENANT

    def __init__(self) -> None:
        self.offers: list[str] = []

    def welcome(self, effect: Any) -> None: ...

    def offer(self, task: Any, instance: Any, traceparent: str) -> None:
        self.offers.append(task.task_id)

    def stop(self, *_: Any) -> None: ...

    def refuse(self, *_: Any) -> None:
        raise AssertionError("what it says of its work is right")


def comes(shell: Shell, agent_type: str = "singer", running: Any = ()) -> Link:
    """An agent that can sing."""
    registration = agent_pb2.Registration(agent_id=agent_type, instance_id=f"{agent_type}-1", boot_id="b", ready=True)
    registration.capabilities.add(name="sing")
    link = Link()
    shell.reach.hello(TENANT, *read_registration(registration), link, list(running), {})
    return link


def asks(shell: Shell, task_id: str, **more: Any) -> None:
    """A task for anybody who can sing."""
    spec = task_pb2.TaskSpec(task_id=task_id, **more)
    spec.selector.capability = "sing"
    shell.reach.submit(*READER.read(TENANT, spec), Reader(shell, 1, Interest.OUTCOME))


class Batches:
    """What is committed from now on, batch by batch."""

    def __init__(self, shell: Shell) -> None:
        self.all: list[Writes] = []
        commit = shell.journal.commit

        def committed(writes: Writes) -> list[int]:
            self.all.append(writes)
            return commit(writes)

        shell.journal.commit = committed  # type: ignore[method-assign]

    def counts(self) -> list[dict[str, int]]:
        """How many rows of each kind, but for those of agents."""
        kinds = [kind for kind in Writes.__slots__ if kind != "agents"]
        found = [{kind: len(getattr(batch, kind)) for kind in kinds if getattr(batch, kind)} for batch in self.all]
        return [counts for counts in found if counts]


def listed(shell: Shell, agent_type: str) -> list[str]:
    query = TaskQuery(TENANT, agent_type=agent_type)
    return sorted(stored.task.task_id for stored in shell.journal.list_tasks(query))


async def test_REG_5_its_row_moves_in_the_commit_of_its_first_attempt_and_it_is_found_where_it_went() -> None:
    shell = Shell()
    asks(shell, "t")
    await shell.settle()
    assert (listed(shell, UNRESOLVED), listed(shell, "singer")) == (["t"], [])
    batches = Batches(shell)
    comes(shell)
    await shell.settle()
    assert batches.counts() == [{"attempts": 1, "moves": 1}]
    assert (listed(shell, UNRESOLVED), listed(shell, "singer")) == ([], ["t"])
    shell.cancel("t", "enough")
    await shell.settle()
    assert listed(shell, "singer") == ["t"]
    await shell.stop()


async def test_REG_5_the_row_of_a_task_that_waits_on_in_the_pool_of_its_agent_says_so() -> None:
    shell = Shell()
    for name in ("first", "second"):
        asks(shell, name)
    await shell.settle()
    assert comes(shell).offers == []
    await shell.settle()
    assert listed(shell, "singer") == ["first", "second"], "the agent has one slot"
    await shell.stop()


async def test_PRF_1_a_task_whose_agent_is_there_costs_no_row_of_a_move_nor_one_that_is_not_kept() -> None:
    shell = Shell()
    comes(shell)
    await shell.settle()
    batches = Batches(shell)
    asks(shell, "t")
    await shell.settle()
    assert batches.counts() == [{"tasks": 1}]
    await shell.stop()
    shell = Shell()
    asks(shell, "t", durability=task_pb2.DURABILITY_VOLATILE)
    batches = Batches(shell)
    link = comes(shell)
    await shell.settle()
    assert link.offers == ["t"]
    assert batches.counts() == []
    await shell.stop()


async def test_DLV_2_after_a_restart_its_attempt_is_looked_for_where_it_began() -> None:
    """Whoever else could take it by now: else it would be given up, and run a second time."""
    before = Shell()
    asks(before, "t")
    await before.settle()
    link = comes(before)
    await before.settle()
    assert link.offers == ["t"]
    for number in range(9):
        comes(before, f"other-{number}")
    await before.settle()
    after = Shell(before.journal)
    await after.settle()
    again = comes(after, running=[(TENANT, "t", 1, 0)])
    await after.settle()
    task = after.host.tasks[TENANT, "t"]
    assert task.pool is after.host.pool(PoolKey(TENANT, "singer"))
    assert (task.attempt, task.history, again.offers) == (1, None, [])
    assert task.instance is not None
    for shell in (after, before):
        await shell.stop()


async def test_REG_5_who_was_not_moved_before_a_restart_is_moved_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resettling, "LOOK_AGAIN_S", 0.01)
    before = Shell()
    asks(before, "t")
    await before.settle()
    before.host.resettling.stop()  # as if it had died just then
    comes(before)
    await before.settle()
    assert listed(before, UNRESOLVED) == ["t"]
    after = Shell(before.journal)
    async with asyncio.timeout(5):
        while listed(after, "singer") != ["t"]:
            await after.settle()
            await asyncio.sleep(0.005)
    for shell in (after, before):
        await shell.stop()


@pytest.mark.parametrize("delay_ms", [0, 60])
async def test_a_task_whose_time_has_not_come_moves_too(delay_ms: int) -> None:
    """Found by the simulation."""
    shell = Shell()
    spec = task_pb2.TaskSpec(task_id="t")
    spec.selector.capability = "sing"
    spec.start_delay.FromMilliseconds(delay_ms)
    shell.reach.submit(*READER.read(TENANT, spec), Reader(shell, 1, Interest.OUTCOME))
    await shell.settle()
    link = comes(shell)
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
