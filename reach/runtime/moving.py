"""Shards come to a node and leave it while it runs.

What comes is loaded under a new epoch (`takeover.py`) and goes on like after a restart. What leaves is forgotten:
memory, timers and mail; whoever waits for an answer is told to ask again, and agents are asked to come back, so that
they find the new owner. Work that agents do goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from reach.core.handed import StreamRow, handed
from reach.core.model import FIRST_TERMINAL, Task
from reach.core.pool import Pool
from reach.core.restore import served_late
from reach.runtime.agents import let_go, moved
from reach.runtime.departures import readers_of
from reach.runtime.loading import bring
from reach.runtime.shard import Shard
from reach.store.base import StoredTask, some

if TYPE_CHECKING:
    from reach.runtime.host import Host
    from reach.runtime.takeover import Coming


def take(host: Host, coming: Coming) -> None:
    """Serves shards that were claimed, now that all they hold is here."""
    turns, late_ms = coming.tick(), coming.late_ms
    _clear(host, coming.shards)  # what was asked of them in vain
    host.revision = max(host.revision, coming.next_revision)  # behind those of the changes that are here now
    host.tasks.update(coming.tasks)
    for pool in coming.pools.values():
        host.add(pool)
        served_late(pool, late_ms, turns.of(pool))
    turns.submit(host)
    host.arm_all()
    host.trees.came(coming.asked_for)
    host.sessions.came()
    host.outbox.look_again()
    host.resettling.look_again_soon()
    host.on_taken()


def pause(host: Host, shards: Collection[int]) -> list[Shard]:
    """From now on nothing more happens to these shards: what is said to them is for their next owner. What happened
    before is still kept and told, and then they are left (`leave`)."""
    paused = [host.shards.pop(number) for number in shards if number in host.shards]
    for shard in paused:
        _answer(shard)
    return paused


def streams_of(host: Host, paused: Sequence[Shard]) -> list[StreamRow]:
    """How far the tasks of shards that are paused were told, once all of it was."""
    pools = {pool for shard in paused for pool in shard.pools.values()}
    return handed(task for task in host.tasks.values() if task.pool in pools)


def abandon(host: Host, coming: Coming) -> None:
    """What came of these shards is forgotten: they are another node's, or read anew."""
    for task in coming.asked_for:
        host.trees.left(task)
    leave(host, coming.shards)


def add(host: Host, tasks: list[StoredTask]) -> None:
    """Brings in tasks that came to shards that are here."""
    if tasks:
        bring(host, some(tasks=tasks), ())
        host.arm_all()


def leave(host: Host, shards: Collection[int], paused: Sequence[Shard] = ()) -> None:
    """Forgets shards that are another node's, or are about to be; those that are paused, too."""
    _clear(host, shards, paused)
    host.sessions.leave(shards)
    host.outbox.leave(shards)
    host.departures.leave(shards)
    host.homeward.leave(shards)


def _clear(host: Host, shards: Collection[int], paused: Sequence[Shard] = ()) -> None:
    gone = [*paused, *(host.shards.pop(number) for number in shards if number in host.shards)]
    for shard in gone:
        shard.gone = True
        _answer(shard)
    left = dict.fromkeys(
        pool for shard in gone for pool in shard.pools.values()
    )  # in the order in which they were made
    for task in [task for task in host.tasks.values() if task.pool in left] if left else ():
        _leave_task(host, task)
    for pool in left:
        _leave_pool(host, pool)


def _answer(shard: Shard) -> None:
    """Tells those whose mail was not read that the shard has moved."""
    mail, shard.mail = shard.mail, {}
    for events in mail.values():
        for event in events:
            moved(event)


def _leave_task(host: Host, task: Task) -> None:
    del host.tasks[task.key]
    for reader in readers_of(task):
        let_go(reader)
    if task.root_task_id and task.state < FIRST_TERMINAL:
        host.trees.left(task)


def _leave_pool(host: Host, pool: Pool) -> None:
    for instance in pool.instances.values():
        if instance.link is not None and instance.endpoint is None:  # who is dialled is dialled by the new owner
            instance.link.reopen()
    pool.instances.clear()
    host.forget(pool)
