"""The shards of a node: mail in, steps, one group commit, sends out.

Everything here runs on the event loop and never suspends; only reads of the journal do, in their own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

from reach.core import effects as fx
from reach.core.directory import Directory
from reach.core.events import Joined
from reach.core.model import PoolKey
from reach.core.pool import PEERS_PATIENCE_MS, STALLED_MS, Pool
from reach.core.row_numbers import RowNumbers
from reach.core.session import TURN
from reach.runtime.agents import moved
from reach.runtime.clock import Clock
from reach.runtime.committer import Committer
from reach.runtime.departures import Departures
from reach.runtime.homeward import BOUNDS, Homeward
from reach.runtime.level_1 import LevelOne
from reach.runtime.notes import Notes
from reach.runtime.outbox import Outbox
from reach.runtime.ownership import AllOurs, Owners
from reach.runtime.past import Past
from reach.runtime.pools import Codec, Pools
from reach.runtime.resettling import Resettling
from reach.runtime.sends import Sends
from reach.runtime.sessions import Sessions
from reach.runtime.settings import Settings
from reach.runtime.shard import Shard
from reach.runtime.task_watch import TaskWatchers
from reach.runtime.trees import Trees
from reach.runtime.wake import WakeHooks
from reach.runtime.writer import Writer
from reach.store.base import Journal, StoreError

log = logging.getLogger(__name__)

TICK_MS = 250
"""How often we look whether time went by without us."""


class Host(Pools):
    """See the module."""

    def __init__(self, journal: Journal, codec: Codec, notes: Notes, clock: Clock, settings: Settings,
                 on_broken: Callable[[StoreError], None],
                 writer: Writer | None = None, reads: Executor | None = None) -> None:  # fmt: skip
        super().__init__(codec, clock, settings)
        self.notes = notes
        self.owners: Owners = AllOurs()
        """Which shards are this node's."""
        self.is_whole: Callable[[], bool] = lambda: True
        """Whether all that this node is to own is here: else what it tells of its part would lack some."""
        self.on_taken: Callable[[], object] = lambda: None
        """Called when shards have come while the node runs."""
        self.on_joined: Callable[[], object] = lambda: None
        """Called when an instance registers or says hello."""
        self.directory = Directory()
        self.level_1 = LevelOne(self, self.directory, clock.seed())
        self._loop = asyncio.get_running_loop()
        self._ready: dict[int, Shard] = {}
        self._scheduled = False
        self.by_shard = False
        """Each shard has turns of its own, so that one can be given up without the others (`moving.py`)."""
        self.resettling = Resettling(self)
        self.departures = Departures(self)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ticked_ms = clock.now_ms()
        self._excused_until_ms = 0
        self._held = False
        """The store took nothing when the last turn was made."""
        self._ticker = self._loop.call_later(TICK_MS / 1_000, self._tick)
        self.revision = 1
        self._journal = journal
        self._reads = reads if reads is not None else ThreadPoolExecutor(1, thread_name_prefix="journal-reads")
        self.wakes = WakeHooks(settings.wake, lambda key, event: self.post(self.pool(key), event))
        self.past = Past(self, journal, self._reads)
        self.sends = Sends(self)
        self.committer = Committer(journal, self.sends.perform, on_broken, notes.committed, writer)
        self.trees = Trees(self)
        self.sessions = Sessions(self, settings)
        self.task_watchers = TaskWatchers()
        self.outbox = Outbox(journal, self._reads, self.committer.submit)
        self.homeward = Homeward(self)
        self.outbox.register(TURN, self.homeward, BOUNDS)

    # -- mail ---------------------------------------------------------------------------------------------------------

    def post(self, pool: Pool, event: Any, *, first: bool = False) -> None:
        """Something happened to a pool. It is stepped at the end of this turn of the loop.

        Args:
            pool: Where.
            event: What.
            first: What else has happened in this turn comes after it.
        """
        shard = self.shards.get(pool.shard)
        if shard is None:
            moved(event)
            return
        mail = shard.mail.get(pool)
        if mail is None:
            shard.mail[pool] = [event]
            self._ready[shard.number] = shard
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._step)
        elif first:
            mail.insert(0, event)
        else:
            mail.append(event)

    def _step(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        self._run(ready.values(), Shard.step)
        for shard in ready.values():
            self._arm(shard.next_wake_ms())

    def _run(self, shards: Iterable[Shard], act: Callable[[Shard, fx.Turn], None]) -> None:
        turn = self._turn()
        for shard in shards:
            act(shard, turn)
            if self.by_shard:
                turn.shard = shard
                self.committer.submit(turn)
                turn = fx.Turn(turn.now_ms, turn.wall_ms)
        self.committer.submit(turn)

    def _turn(self) -> fx.Turn:
        """A turn; its pools know if the process stood still before it."""
        turn = fx.Turn(self.clock.now_ms(), self.clock.wall_ms())
        before, self._ticked_ms = self._ticked_ms, turn.now_ms
        if self._held or self.committer.held is not None:  # what ended is kept from when its callers can be told
            self._held = self.committer.held is not None
            for pool in self._pools.values():
                pool.finished.postpone(turn.now_ms - before)
        if (stalled_ms := turn.now_ms - before - TICK_MS) > STALLED_MS:
            if any(one.link is not None for pool in self.pools() for one in pool.instances.values()):
                log.warning("this process stood still: agents are not judged by it", extra={"stalled_ms": stalled_ms})
            for pool in self._pools.values():
                pool.stood_still(stalled_ms, turn)
            if stalled_ms >= PEERS_PATIENCE_MS:
                self._excused_until_ms = turn.now_ms + STALLED_MS
        return turn

    def stood_still(self) -> bool:
        """Whether this process stood still until just now, for so long that peers may have given it up."""
        return self._turn().now_ms < self._excused_until_ms

    def _tick(self) -> None:
        self._turn()
        self._ticker = self._loop.call_later(TICK_MS / 1_000, self._tick)

    def _arm(self, due_ms: int | None) -> None:
        """Keeps the one timer of the node at the earliest deadline of its shards."""
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0, due_ms - self.clock.now_ms()) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        # Timers stand still while the store cannot keep what they decide, and while another node may decide it.
        if self.committer.held is not None or self.committer.doubt():
            self._timer_ms = self.clock.now_ms() + 500
            self._timer = self._loop.call_later(0.5, self._wake)
            return
        self._run(self.shards.values(), Shard.wake)
        self.arm_all()

    # -- agents -------------------------------------------------------------------------------------------------------

    def next_revision(self) -> int:
        """Numbers the changes of the registry."""
        self.revision += 1
        return self.revision

    def join(self, key: PoolKey, event: Joined) -> Pool:
        """An instance registers or says hello; tasks that waited for one like it move to its pool."""
        pool = self.pool(key)
        event.joining.profile = self.directory.add(key, event.joining.instance_id, event.joining.profile)
        self.post(pool, event)
        self.resettling.heard_of(key, event.joining.profile)
        self.on_joined()
        return pool

    def forget(self, pool: Pool) -> None:
        """See Pools; also where it was seen as one of several."""
        super().forget(pool)
        self.level_1.forget(pool.key)

    # -- loading and reading ------------------------------------------------------------------------------------------

    def begin(self, next_row: int, next_revision: int) -> None:
        """Numbers go on behind all that were ever used. To be called before the first pool is made."""
        self._rows = RowNumbers(next_row)
        self.revision = next_revision

    @property
    def last_row(self) -> int:
        """Of the task that was accepted last."""
        return self._rows.last

    def arm_all(self) -> None:
        """Looks at the timers of all shards anew."""
        for shard in self.shards.values():
            self._arm(shard.next_wake_ms())

    async def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a read of the journal in its thread, after all that memory says now is durable; while the store takes
        nothing, of what it has."""
        await self._durable()
        return await self._loop.run_in_executor(self._reads, function, *arguments)

    async def _durable(self) -> bool:
        committer = self.committer
        if committer.held is not None:
            return False
        barrier: asyncio.Future[bool] = self._loop.create_future()

        def reached(durable: bool) -> None:
            if not barrier.done():
                barrier.set_result(durable)

        committer.submit(fx.then(partial(reached, True)))
        held = partial(reached, False)
        committer.on_held[held] = None
        try:
            return await barrier
        finally:
            committer.on_held.pop(held, None)

    async def settled(self) -> bool:
        """Returns when all that was posted before is stepped and durable, and its answers are out; False: it is not,
        for the store takes nothing."""
        while self._scheduled:  # noqa: ASYNC110 - one turn of the loop at most
            await asyncio.sleep(0)
        return await self._durable()

    async def stop(self) -> None:
        """Ends the writer and the timers. Links and callers must be gone by now."""
        self._ticker.cancel()
        self.trees.stop()
        self.resettling.stop()
        self.sessions.stop()
        self.outbox.stop()
        await self.wakes.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self.committer.held is None:
            await self.committer.drain()
        self.committer.stop()
        self._reads.shutdown(wait=True)
