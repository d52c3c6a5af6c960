"""Shards come to a node and leave it while it runs.

What comes is loaded under a new epoch and goes on like after a restart. What leaves is forgotten: memory, timers and
mail; whoever waits for an answer is told to ask again, and agents are asked to come back, so that they find the new
owner. Work that agents do goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from reach.core.effects import Turn
from reach.core.model import FIRST_TERMINAL, PoolKey, Task
from reach.core.placement import shard_of
from reach.core.pool import Pool
from reach.runtime.agents import let_go, moved
from reach.runtime.departures import readers_of
from reach.runtime.loading import bring
from reach.runtime.sessions import Ended
from reach.store.base import Loaded, StoredTask

if TYPE_CHECKING:
    from reach.runtime.host import Host


def take(host: Host, shards: Collection[int], loaded: Loaded, turns: Sequence[Ended]) -> int:
    """Brings shards to life that were claimed; returns how many tasks go on.

    Args:
        host: Where.
        shards: Which.
        loaded: What the journal holds of them, loaded after the claim. Its tasks are taken out.
        turns: Of their sessions, what the contexts lack.
    """
    ours = [row for row in loaded.agents if shard_of(PoolKey(row.tenant, row.agent_type)) in shards]
    turn = Turn(host.clock.now_ms(), host.clock.wall_ms())
    host.revision = max(host.revision, loaded.next_revision)  # behind those of the changes that are here now
    count = bring(host, loaded._replace(agents=ours), turns, turn)
    host.committer.submit(turn)
    host.arm_all()
    host.outbox.look_again()
    host.resettling.look_again_soon()
    host.on_taken()
    return count


def add(host: Host, tasks: list[StoredTask]) -> None:
    """Brings in tasks that came to shards that are here."""
    if tasks:
        turn = Turn(host.clock.now_ms(), host.clock.wall_ms())
        bring(host, Loaded(tasks, [], [], 0, 0, []), (), turn)
        host.committer.submit(turn)
        host.arm_all()


def leave(host: Host, shards: Collection[int]) -> None:
    """Forgets shards that are another node's, or are about to be."""
    gone = [host.shards.pop(number) for number in shards if number in host.shards]
    for shard in gone:
        shard.gone = True
        mail, shard.mail = shard.mail, {}
        for events in mail.values():
            for event in events:
                moved(event)
    left = dict.fromkeys(
        pool for shard in gone for pool in shard.pools.values()
    )  # in the order in which they were made
    for task in [task for task in host.tasks.values() if task.pool in left]:
        _leave_task(host, task)
    for pool in left:
        _leave_pool(host, pool)
    host.sessions.leave(shards)
    host.outbox.leave(shards)
    host.departures.leave(shards)
    host.homeward.leave(shards)


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
