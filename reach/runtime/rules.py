"""What becomes of instances and waiting tasks when vocabulary and routes change (RTE-6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reach.core.directory import UNRESOLVED
from reach.core.events import Respecified, Reworded
from reach.core.intents import Routes
from reach.core.model import PoolKey, Profile, Task
from reach.core.pool import Pool
from reach.core.vocabulary import Vocabulary
from reach.runtime.resettling import resettle

if TYPE_CHECKING:
    from reach.runtime.host import Host

READ_AT_ONCE = 200
"""Instances or waiting tasks that are read anew in one turn of the loop, when the rules have changed."""


async def take_rules(host: Host, vocabulary: Vocabulary, routes: Routes) -> None:
    """Takes new rules: what is registered and what waits is read anew, a little at a time; the rules hold from one
    moment to the next. Not to be called again before it has ended."""
    directory = host.directory
    if vocabulary is directory.vocabulary:
        directory.routes = routes
        directory.forget()
    else:
        other, before = directory.successor(vocabulary, routes), directory.instances()
        for count, row in enumerate(before, 1):
            other.add(*row)
            if count % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
        directory.succeed(other)
        await _reword(host, before)
    await asyncio.sleep(0)  # tasks that came in this turn of the loop do not wait yet
    for pool in host.pools():
        for count, task in enumerate(list(pool.queue), 1):
            if task in pool.queue:
                _read_anew(host, pool, task)
            if count % READ_AT_ONCE == 0:
                await asyncio.sleep(0)


async def _reword(host: Host, before: list[tuple[PoolKey, str, Profile]]) -> None:
    """Tells pools of the instances whose capabilities have other names now."""
    told = 0
    for key, instance_id, profile in before:
        after = host.directory.profile_of(key, instance_id)
        pool = host.pool_if_any(key)
        instance = pool.instances.get(instance_id) if pool is not None else None
        if pool is not None and instance is not None and after is not None and after != profile:
            host.post(pool, Reworded(instance, after))
            told += 1
            if told % READ_AT_ONCE == 0:
                await asyncio.sleep(0)


def _read_anew(host: Host, pool: Pool, task: Task) -> None:
    selector = host.codec.selector_of(task.spec)
    if pool.key.agent_type == UNRESOLVED:
        resettle(host, pool, task, selector)
        return
    before = task.requirement
    host.level_1.restore(task, selector, pool.key)
    after, task.requirement = task.requirement, before
    if after != before:
        host.post(pool, Respecified(task, after))
