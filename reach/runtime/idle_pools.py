"""Pools that nobody needs any more are dropped (REG-11): types that were tried once must not fill the memory.

A pool goes when it has had no instances, no open tasks, no readers, no live pins and no mail, twice in a row. Its
finished tasks leave the memory with it; the journal has them. For those that it does not have, the volatile ones, their
pool waits until their time is over. A pool that is needed again is made again.
"""

from __future__ import annotations

import asyncio

from reach.core.model import PoolKey
from reach.core.pool import Pool
from reach.runtime.host import Host

EVERY_SECONDS = 60.0


class IdlePools:
    """Looks for them from time to time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before: set[PoolKey] = set()

    async def run(self) -> None:
        """Looks for as long as the node lives."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self.drop()

    def drop(self) -> int:
        """Drops those that were idle the last time too; returns how many."""
        host = self._host
        if host.committer.held is not None:
            return 0  # what is not written may be in memory only
        now_ms = host.clock.now_ms()
        idle = {pool.key: pool for pool in host.pools() if self._is_empty(pool, now_ms)}
        ended: dict[PoolKey, list[tuple[str, str]]] = {}
        for key, task in host.tasks.items() if idle else ():
            if task.pool is None or task.pool.key not in idle:
                continue
            reads = task.waiters or (task.log is not None and task.log.readers)
            if task.outcome is None or task.volatile or reads:
                del idle[task.pool.key]
            else:
                ended.setdefault(task.pool.key, []).append(key)
        gone = idle.keys() & self._before
        for name in gone:
            host.drop(idle[name])
            for task_key in ended.get(name, ()):
                del host.tasks[task_key]
        self._before = idle.keys() - gone
        return len(gone)

    def _is_empty(self, pool: Pool, now_ms: int) -> bool:
        shard = self._host.shards.get(pool.shard)
        return shard is not None and not (  # None: it is about to be given up, with all it has
            pool.instances or pool.queue or pool.held or pool in shard.mail or pool.pins.live(now_ms)
        )
