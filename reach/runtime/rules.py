"""What becomes of waiting tasks when somebody registers, or when vocabulary and routes change (REG-5, RTE-6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reach.core.directory import UNRESOLVED
from reach.core.events import Arrived, Refuted, Respecified, Reworded
from reach.core.intents import Routes
from reach.core.model import Fault, PoolKey, Profile, Task
from reach.core.pool import Pool
from reach.core.resolving import Selector
from reach.core.vocabulary import Vocabulary
from reach.errors import ReachError

if TYPE_CHECKING:
    from reach.runtime.host import Host

READ_AT_ONCE = 200
"""Instances or waiting tasks that are read anew in one turn of the loop, when the rules have changed."""


def resolve_waiting(host: Host, tenants: frozenset[str] | None) -> None:
    """Moves tasks that wait for an agent to the pools of those that have come; `tenants`: whose, None for all."""
    for pool in host.of_type(UNRESOLVED):
        if pool.queue and (tenants is None or pool.key.tenant in tenants):
            _resolve_all(host, pool)


def look_again(host: Host) -> None:
    """Finds tasks that wait where nobody could ever take them, while somebody could elsewhere, or under the rules of
    today: their agent has left its pool, is of another tenant, or is called otherwise now."""
    for pool in host.pools():
        if pool.queue:
            _resolve_all(host, pool)


def _resolve_all(host: Host, pool: Pool) -> None:
    """Tasks with equal requirements wait for the same, so one of each kind tells whether there is anything to do."""
    selector_of = host.codec.selector_of
    answered = {
        head.requirement
        for head in pool.queue.heads()
        if not pool.router.static_mask(head.requirement)
        and host.directory.resolve(head.tenant, selector_of(head.spec)).pools
    }
    for task in list(pool.queue) if answered else ():
        if task.requirement in answered:
            _resolve(host, pool, task, selector_of(task.spec))


def _resolve(host: Host, pool: Pool, task: Task, selector: Selector) -> None:
    """A task that waits for an agent: to the pool of one, if there is one now."""
    before = task.requirement
    try:
        key = host.level_1.place(task, selector)
    except ReachError as error:
        task.requirement = before  # by which the queue knows it
        fault = Fault(error.error_class, error.reason, error.message, dict(error.metadata) or None)
        host.post(pool, Refuted(task, fault))
        return
    after, task.requirement = task.requirement, before
    target = host.pool(key)
    if target is not pool and (pool.key.agent_type == UNRESOLVED or target.router.static_mask(after)):
        pool.hand_over(task, target)
        task.requirement, task.pending_reason = after, ""
        host.post(target, Arrived(task))
    elif target is pool and after != before:
        host.post(pool, Respecified(task, after))


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
        _resolve(host, pool, task, selector)
        return
    before = task.requirement
    host.level_1.restore(task, selector, pool.key)
    after, task.requirement = task.requirement, before
    if after != before:
        host.post(pool, Respecified(task, after))
