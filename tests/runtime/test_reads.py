"""What a read tells has happened for good (DLV-1): memory may be ahead of the journal. Found by the simulation."""

from __future__ import annotations

import asyncio

from reach.core import events as ev
from reach.core.effects import Welcome
from reach.core.joining import Joining
from reach.core.model import Instance, PoolKey, Profile, TaskState
from reach.core.stream import Interest
from reach.store.base import TaskQuery
from tests.runtime.hosts import TENANT, Shell


async def test_DLV_1_a_read_does_not_tell_an_end_that_is_not_written():
    shell = Shell()
    shell.submit("t", Interest.OUTCOME)
    await shell.settle()
    shell.reads.held = True
    look = asyncio.create_task(shell.reach.tasks.get(TENANT, "t"))
    explain = asyncio.create_task(shell.reach.tasks.explained(TENANT, "t"))
    list_all = asyncio.create_task(shell.reach.tasks.page(TaskQuery(TENANT)))
    for _ in range(5):
        await asyncio.sleep(0)
    shell.cancel("t", "now")
    for _ in range(5):
        await asyncio.sleep(0)
    assert shell.host.tasks[TENANT, "t"].state is TaskState.CANCELLED
    shell.reads.go()
    one, explained, ((of_list,), _, _) = await look, await explain, await list_all
    assert one is not None
    assert explained is not None
    assert {one.state, explained[0].state, of_list.state} == {TaskState.PENDING}
    shell.reads.held = False
    await shell.settle()
    after = await shell.reach.tasks.get(TENANT, "t")
    assert after is not None
    assert after.state is TaskState.CANCELLED
    await shell.stop()


class Link:
    """An agent that asks for its effect as soon as it has something to do."""

    tenant = TENANT

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.grants: list[bool] = []
        self.instance: Instance | None = None

    def welcome(self, effect: Welcome) -> None:
        self.instance = effect.instance

    def offer(self, task, instance, traceparent) -> None:
        self.shell.reach.post(task.pool, ev.EffectAsked(instance, task.tenant, task.task_id, task.attempt, "pay"))

    def grant(self, tenant, task_id, attempt, effect, fault) -> None:
        self.grants.append(fault is None)

    def stop(self, *_) -> None: ...


async def test_HAZARD_10_a_grant_is_not_told_of_an_attempt_that_is_over_by_then():
    """It waits for its commit, and so does what ends the attempt."""
    for ends in (False, True):
        shell = Shell()
        link = Link(shell)
        profile = Profile("nobody", "", (), (), (), (), (), (), "", ())
        joining = Joining("one", "boot", profile, b"")
        joining.ready = True
        shell.reach.hello(TENANT, "nobody", joining, link, [], {})
        await shell.settle()
        shell.submit("t", Interest.OUTCOME)
        for _ in range(3):
            await asyncio.sleep(0)
        shell.writer.go()
        for _ in range(3):  # the offer leaves, and the effect is asked for
            await asyncio.sleep(0)
        assert shell.writer.work, "the grant waits for its commit"
        if ends:
            shell.cancel("t", "now")
            await asyncio.sleep(0)
        await shell.settle()
        assert link.grants == [not ends]
        assert shell.host.pool(PoolKey(TENANT, "nobody")).tasks
        await shell.stop()
