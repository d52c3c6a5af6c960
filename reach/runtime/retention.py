"""What is kept of tasks that ended, and for how long (DLV-10, DLV-12): by age, number and size, the oldest go first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from reach.runtime.believed import BelievedClock
from reach.runtime.committer import Committer
from reach.store.base import Journal, StoreError, StoreUnavailable, TaskQuery

log = logging.getLogger(__name__)

T = TypeVar("T")

EVERY_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.02
"""Between two batches, so that commits come in between."""
LEAST_ROWS: Final = 16
MOST_ROWS: Final = 1_000
SHRINK_ROWS: Final = 64
"""A batch of what goes for want of space, which is no more than has to."""
LONG_SECONDS: Final = 0.03
"""A batch that takes longer is followed by smaller ones: commits wait for it meanwhile."""
END_OF_TIME: Final = 1 << 62
LEAST_MS: Final = 120_000
"""How long a result is kept however little space there is. A caller that lost its connection comes back and gives the
same id again: if its result were gone by then, the task would run a second time."""


class Keep(NamedTuple):
    """How much is kept, from the configuration."""

    results_ms: int = 24 * 3_600_000
    """Age of results."""
    total_bytes: int = 20 << 30
    """Space of the store in use. Beyond it results go, then dead letters; what is open stays, and what ended less than
    two minutes ago."""
    dead_letters_ms: int = 7 * 24 * 3_600_000
    """Age of dead letters, and of webhooks that were given up."""
    dead_letters: int = 100_000
    """How many there may be."""


class Tending:
    """Has the writer of the journal do something between commits, and waits for what it says."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._loop = asyncio.get_running_loop()

    async def do(self, work: Callable[[], T]) -> T:
        """Runs `work` in the writer; raises what it raises."""
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_answer, done, result)

        self._committer.tend(run)
        return await done

    async def remove(self, work: Callable[[], T]) -> T:
        """As `do`, for what removes rows. While nobody knows whether the last batch was kept, that is refused with
        StoreUnavailable: the batch comes again, and would bring back what is gone."""

        def once_sure() -> T:
            if self._committer.is_unsure:
                raise StoreUnavailable("it is not known whether the last commit was kept: nothing is removed meanwhile")
            return work()

        return await self.do(once_sure)


def _answer(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


class Retention:
    """Removes what has been kept long enough, a little at a time.

    Args:
        journal: Where it is removed.
        tending: How.
        wall_ms: The store's clock.
        keep: How much is kept.
        failed: The kind of facts that tell of failed deliveries: kept as long as dead letters.
        now_ms: The monotonic clock.
    """

    def __init__(
        self,
        journal: Journal,
        tending: Tending,
        wall_ms: Callable[[], int],
        keep: Keep,
        failed: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._tending = tending
        self._wall_ms = BelievedClock(wall_ms, now_ms)
        self._keep = keep
        self._failed = failed
        self._rows = MOST_ROWS
        self.dead_letters = 0
        """How many there were when we looked last."""
        self.store_bytes = 0
        """Space in use when we looked last."""

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        begun = False
        while True:
            try:
                if not begun:
                    await self.begin()
                    begun = True
                await self.once()
            except StoreError as error:
                log.warning("what has been kept long enough cannot be removed now: %s", error)
            await asyncio.sleep(EVERY_SECONDS)

    async def begin(self) -> None:
        """Learns from the latest task when the journal was in use last: a machine may start with a clock that is wrong,
        and all that is kept must not be old by that."""
        latest = await self._tending.do(lambda: self._journal.list_tasks(TaskQuery("", limit=1)))
        if latest:
            self._wall_ms.was(latest[0].task.accepted_wall_ms)

    async def once(self) -> None:
        """Removes all that is due now."""
        keep, journal = self._keep, self._journal
        now = self._wall_ms()
        before = now - keep.dead_letters_ms
        await self._until_none(lambda: self._purge(now - max(keep.results_ms, LEAST_MS), dead_letters=False))
        await self._until_none(lambda: self._purge(before, dead_letters=True))
        drop = partial(journal.drop_facts, self._failed, before, MOST_ROWS)
        await self._until_none(lambda: self._tending.remove(drop))
        await self._purge_too_many()
        await self._shrink()

    async def _purge_too_many(self) -> None:
        """Counted anew after each batch, for operators remove dead letters too."""
        before = 0
        while True:
            self.dead_letters = await self._tending.do(self._journal.dead_letters)
            too_many = self.dead_letters - self._keep.dead_letters
            if too_many <= 0 or too_many == before:
                return
            before = too_many
            await self._purge(END_OF_TIME, dead_letters=True, most=too_many)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _until_none(self, remove: Callable[[], Awaitable[int]]) -> None:
        while await remove():  # noqa: ASYNC110 - there is more
            await asyncio.sleep(PAUSE_SECONDS)

    async def _shrink(self) -> None:
        before = self._wall_ms() - LEAST_MS
        while True:
            self.store_bytes = await self._tending.do(self._journal.size_bytes)
            if self.store_bytes <= self._keep.total_bytes:
                return
            if not await self._purge(before, dead_letters=False, most=SHRINK_ROWS):
                removed = await self._purge(before, dead_letters=True, most=SHRINK_ROWS)
                self.dead_letters = max(0, self.dead_letters - removed)
                if not removed and not await self._tending.remove(self._drop_failed):
                    return  # what is left is open, or has only just ended
            await asyncio.sleep(PAUSE_SECONDS)

    def _drop_failed(self) -> int:
        return self._journal.drop_facts(self._failed, END_OF_TIME, MOST_ROWS)

    async def _purge(self, before_ms: int, *, dead_letters: bool, most: int = MOST_ROWS) -> int:
        """One batch; how large depends on how long the last one took: results may have 4 MiB each."""
        rows = min(self._rows, most)

        def purge() -> tuple[int, float]:
            began = time.perf_counter()
            return self._journal.purge(before_ms, rows, dead_letters=dead_letters), time.perf_counter() - began

        removed, took = await self._tending.remove(purge)
        if took > LONG_SECONDS:
            self._rows = max(LEAST_ROWS, rows // 2)
        elif removed == self._rows:
            self._rows = min(MOST_ROWS, self._rows * 2)
        return removed
