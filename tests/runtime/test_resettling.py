"""Very many tasks that wait for an agent, and the agent comes: the loop is not held up (REG-5, PRF-8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentreach.v1 import agent_pb2
from reach.core.directory import UNRESOLVED
from reach.core.events import Arrived
from reach.core.model import PoolKey
from reach.core.stream import Interest
from reach.runtime import resettling
from reach.wire.agents import read_registration
from tests.runtime.hosts import TENANT, Shell

MANY = 1_050


class Turns:
    """Who came to a pool, by turns of the loop."""

    def __init__(self, shell: Shell) -> None:
        self.turns: list[list[str]] = [[]]
        post = shell.host.post

        def posted(pool: Any, event: Any, **how: Any) -> None:
            if isinstance(event, Arrived):
                self.turns[-1].append(event.task.task_id)
            post(pool, event, **how)

        shell.host.post = posted  # type: ignore[method-assign]

    async def watch(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
            self.turns.append([])

    def all(self) -> list[str]:
        return [name for turn in self.turns for name in turn]


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    shell = Shell()
    for number in range(MANY):
        shell.submit(f"t{number}", Interest.ACCEPTANCE, capability="late" if number % 7 else "later")
    await shell.settle()
    yield shell
    await shell.stop()


class _Nobody:
    """Waits for an answer, and does nothing with it."""

    def done(self, _: Any) -> None: ...


def come(shell: Shell, capability: str) -> PoolKey:
    """An instance registers; it takes nothing."""
    said = agent_pb2.Registration(agent_id=f"of-{capability}", boot_id="b", instance_id=f"{capability}-1")
    said.capabilities.add(name=capability)
    shell.reach.register(TENANT, *read_registration(said), _Nobody())
    return PoolKey(TENANT, f"of-{capability}")


def names(*, later: bool) -> list[str]:
    return [f"t{number}" for number in range(MANY) if (number % 7 == 0) is later]


async def test_those_who_wait_move_some_at_a_time_in_order_and_once(shell):
    turns = Turns(shell)
    key = come(shell, "late")
    await turns.watch(40)
    assert turns.all() == names(later=False)
    assert max(map(len, turns.turns)) == resettling.MOST_TASKS
    assert len(shell.host.pool(key).queue) == len(names(later=False))
    assert len(shell.host.pool(PoolKey(TENANT, UNRESOLVED)).queue) == len(names(later=True))


async def test_who_comes_meanwhile_gets_theirs_too(shell):
    turns = Turns(shell)
    come(shell, "late")
    await turns.watch(4)
    assert 0 < len(turns.all()) < len(names(later=False)), "it is under way"
    come(shell, "later")
    await turns.watch(60)
    assert sorted(turns.all()) == sorted([*names(later=False), *names(later=True)])
    assert not shell.host.pool(PoolKey(TENANT, UNRESOLVED)).queue


async def test_what_is_cancelled_meanwhile_does_not_move_and_what_is_new_need_not(shell):
    turns = Turns(shell)
    key = come(shell, "late")
    await turns.watch(4)
    shell.cancel(f"t{MANY - 1}", "no longer")
    shell.submit("new", Interest.ACCEPTANCE, capability="late")
    await turns.watch(40)
    assert turns.all() == [name for name in names(later=False) if name != f"t{MANY - 1}"]
    assert len(shell.host.pool(key).queue) == len(names(later=False))


async def test_a_turn_is_over_after_so_many_bytes(shell, monkeypatch):
    monkeypatch.setattr(resettling, "MOST_BYTES", 1)
    turns = Turns(shell)
    come(shell, "late")
    await turns.watch(20)
    assert max(map(len, turns.turns)) == 1


async def test_a_task_that_cannot_be_looked_at_holds_up_no_others(shell, monkeypatch, caplog):
    turns = Turns(shell)
    resettle = resettling.resettle
    monkeypatch.setattr(resettling, "resettle", None)
    come(shell, "late")
    await turns.watch(10)
    assert "could not be looked at" in caplog.text
    monkeypatch.setattr(resettling, "resettle", resettle)
    come(shell, "later")
    await turns.watch(60)
    assert sorted(turns.all()) == sorted([*names(later=False), *names(later=True)])
