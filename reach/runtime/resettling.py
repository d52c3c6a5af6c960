"""Tasks that wait where nobody can take them move to the pools of those who have come (REG-5), some at a time.

After a restart a hundred thousand may wait for one agent: moving them all in one turn of the loop took two seconds, in
which nobody was answered, that agent included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from reach.core.directory import UNRESOLVED
from reach.core.events import Arrived, Refuted, Respecified
from reach.core.model import Fault, PoolKey, Profile, Requirement, Task
from reach.core.placement import shard_of
from reach.core.pool import Pool
from reach.core.resolving import Selector
from reach.core.sifting import ANYBODY
from reach.errors import ReachError
from reach.runtime.ownership import NOBODY

if TYPE_CHECKING:
    from reach.runtime.host import Host

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.25
"""How long tasks that wait in vain in a pool may have to wait for a look at the others, so that many that register are
one reason to look."""
MOST_TASKS = 100
"""Tasks that are looked at in one turn of the loop: two milliseconds."""
MOST_PASSED = 2_000
"""Tasks that are passed over in one turn."""
MOST_BYTES = 4 << 20
"""Bytes of requests that are read in one turn of the loop, more or less."""


class Resettling:
    """Looks through pools in which somebody may wait in vain. What comes to wait after it looked, and could be taken,
    is sent to who takes it by those who sent it here."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._due: dict[PoolKey, None] = {}
        """Pools to look at, in order. Bound: the pools there are."""
        self._work: Iterator[None] | None = None
        """The look that has begun."""
        self._next: asyncio.Handle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self.stopped = False

    def heard_of(self, key: PoolKey, profile: Profile) -> None:
        """There is an instance like this in a pool, here or elsewhere: some may have waited for it."""
        allowed = profile.allowed_tenants
        tenants = None if ANYBODY in allowed else frozenset((key.tenant, *allowed))
        homeless = self._host.of_type(UNRESOLVED)
        self.look(one for one in homeless if tenants is None or one.key.tenant in tenants)
        self.look_again_soon()

    def look_again_soon(self) -> None:
        """Somebody may have come, or gone, who could take what waits."""
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Some may wait where nobody could ever take them, while somebody could elsewhere, or under the rules of today:
        their agent has left its pool, is of another tenant, or is called otherwise now."""
        self._looking = None
        self.look(self._host.pools())

    def look(self, pools: Iterable[Pool]) -> None:
        """Has pools looked through soon; one that is being looked through, once more."""
        self._loop.call_soon(self._take, list(pools))  # what came in this turn of the loop does not wait yet

    def stop(self) -> None:
        """Looks no further."""
        self.stopped = True
        if self._looking is not None:
            self._looking.cancel()
        if self._next is not None:
            self._next.cancel()

    def _take(self, pools: list[Pool]) -> None:
        self._due.update([(pool.key, None) for pool in pools if pool.queue])
        if self._next is None:
            self._go_on()

    def _go_on(self) -> None:
        self._next = None
        if self.stopped:
            return
        if self._work is None and self._due:
            key = next(iter(self._due))
            del self._due[key]
            pool = self._host.pool_if_any(key)
            self._work = self._look_through(pool) if pool is not None else None
        if self._work is not None:
            try:
                next(self._work)
            except StopIteration:
                self._work = None
            except Exception:
                log.exception("tasks that wait in vain could not be looked at")
                self._work = None
        if self._work is not None or self._due:
            self._next = self._loop.call_soon(self._go_on)

    def _look_through(self, pool: Pool) -> Iterator[None]:
        """Moves whom somebody can take, in the order in which they came; a step is what one turn of the loop does.
        Tasks with equal requirements wait for the same, so one of each kind tells whether there is anything to do."""
        host = self._host
        selector_of = host.codec.selector_of
        answered: set[Requirement] = set()
        work = _Work()
        for first in pool.queue.firsts():
            if (
                first in pool.queue
                and not pool.router.static_mask(first.requirement)
                and host.directory.resolve(first.tenant, selector_of(first.spec)).pools
            ):
                answered.add(first.requirement)
            if work.enough(first.size):
                yield
        for number, task in enumerate(list(pool.queue) if answered else (), 1):
            if task.requirement in answered and task in pool.queue:
                resettle(host, pool, task, selector_of(task.spec))
                if work.enough(task.size):
                    yield
            elif number % MOST_PASSED == 0:
                yield


class _Work:
    """What was done in one turn."""

    __slots__ = ("size", "tasks")

    def __init__(self) -> None:
        self.tasks = self.size = 0

    def enough(self, size: int) -> bool:
        """A task of so many bytes more; whether the turn is over."""
        self.tasks += 1
        self.size += size
        if self.tasks < MOST_TASKS and self.size < MOST_BYTES:
            return False
        self.tasks = self.size = 0
        return True


def resettle(host: Host, pool: Pool, task: Task, selector: Selector) -> None:
    """A task that waits for an agent: to the pool of one, if there is one now. One whose shard is about to be given up,
    or is gone, is its next owner's to look at."""
    if pool.shard not in host.shards:
        return
    before = task.requirement
    try:
        key = host.level_1.place(task, selector)
    except ReachError as error:
        task.requirement = before  # by which the queue knows it
        fault = Fault(error.error_class, error.reason, error.message, dict(error.metadata) or None)
        host.post(pool, Refuted(task, fault))
        return
    after, task.requirement = task.requirement, before
    if host.departures.goes(pool, key):
        if host.directory.resolve(task.tenant, selector).pools and host.owners.node_of(shard_of(key)) != NOBODY:
            host.departures.depart(pool, task, key, after)
        return
    target = host.pool(key)
    if target is not pool and (pool.key.agent_type == UNRESOLVED or target.router.static_mask(after)):
        pool.hand_over(task, target)
        task.requirement, task.pending_reason = after, ""
        host.post(target, Arrived(task, pool.shard))
    elif target is pool and after != before:
        host.post(pool, Respecified(task, after))
