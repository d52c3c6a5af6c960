"""Group commit: one per node, over all its shards. **Journal, then send.**

Whatever gathered while the last commit ran is the next batch, with what this turn of the loop still brings; there is
no other delay. The sends of a turn leave when its rows are durable; a turn without rows waits for the commit that was
open when it was made, so that nobody is told what a crash could still undo. A batch that finds no space or no store is
held and tried again; intake is stopped meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial

from reach.core.effects import Turn
from reach.core.rows import Writes, without, without_shards
from reach.runtime.writer import ThreadWriter, Writer, nothing
from reach.store.base import Journal, StoreBroken, StoreError, StoreFull

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
LOG_EVERY_SECONDS = 10.0

Committed = Callable[[int, float], None]
"""Hears of each commit: its rows, and how long it took in ms."""

Perform = Callable[[Turn, list[int]], None]
"""Sends what a turn asks for; the list holds the rows that were taken by another task."""


def certain() -> bool:
    """A node that owns all there is has no doubt of it."""
    return False


class Committer:
    """Owns the writer of a journal.

    Args:
        journal: Where rows go.
        perform: Called on the loop for each turn, in order, once its rows are durable.
        on_broken: Called once if the journal can no longer be trusted: the process has to end.
        on_committed: Keeps figures.
        writer: Where commits run; None: in a thread of their own, or on the loop where that is quicker.
    """

    def __init__(self, journal: Journal, perform: Perform, on_broken: Callable[[StoreError], None],
                 on_committed: Committed, writer: Writer | None = None) -> None:  # fmt: skip
        self._journal = journal
        self._perform = perform
        self._on_broken = on_broken
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._writes = Writes()
        self._turns: list[Turn] = []
        self._open: list[Turn] | None = None
        self._beginning = False
        self._here = False
        """The open commit runs on the loop."""
        self._open_writes: Writes | None = None
        self._began = 0.0
        self._logged_at = 0.0
        self._idle: list[asyncio.Future[None]] = []
        self.held: StoreError | None = None
        """Why the current batch is held; None while all is well."""
        self.is_unsure = False
        """The journal may have kept the last batch and may not; it comes again. Right also in the writer."""
        self.on_held: dict[Callable[[], None], None] = {}
        """Called each time that the store takes nothing, for those who would rather not wait for it."""
        self._lost: Callable[[], frozenset[int]] | None = getattr(journal, "lost", None)
        """Only a journal that nodes share loses shards."""
        self.on_lost: Callable[[frozenset[int]], None] = nothing
        """Hears which shards turned out to be another node's, before the turns of that commit are performed: what these
        ask to be sent for such a shard is not to be. Rows of other shards were kept."""
        self.doubt: Callable[[], bool] = certain
        """Whether this node may have lost what it owns, and does not know: then nothing is sent (CLU-2)."""
        self._doubtful: list[tuple[Turn, list[int]]] = []
        """What is to be sent once there is no doubt. Bound: nothing new is taken meanwhile, and who has been sent no
        credit says nothing more."""
        self._writer = writer if writer is not None else ThreadWriter()

    def submit(self, turn: Turn) -> None:
        """Takes over a turn."""
        if turn.writes:
            self._writes.merge(turn.writes)
            self._turns.append(turn)
            if self._open is None:
                self._begin_soon()
        elif not turn.sends:
            return
        elif self._turns:
            self._turns.append(turn)
        elif self._open is not None:
            self._open.append(turn)
        else:
            self._send(turn, [])

    def _send(self, turn: Turn, taken: list[int]) -> None:
        if self.doubt():
            self._doubtful.append((turn, taken))
        else:
            self._perform(turn, taken)

    def sure(self) -> None:
        """There is no doubt any more: what waited for that is sent."""
        waiting, self._doubtful = self._doubtful, []
        for turn, taken in waiting:
            self._send(turn, taken)

    def _begin_soon(self) -> None:
        """What else this turn of the loop brings comes along, and what it has to send leaves first: the writer thread
        would only wait until the loop lets it run."""
        if not self._beginning:
            self._beginning = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._beginning = False
        if self._open is not None or not self._turns:
            return
        self._open, self._turns = self._turns, []
        self._open_writes, self._writes = self._writes, Writes()
        self._began = self._writer.now()
        writes = self._open_writes
        self._here = not self._journal.heavy() and self._writer.here(writes.count(), writes.size_bytes)
        if self._here:
            self._committed(self._commit(writes))
        else:
            self._writer.put(partial(self._commit, writes), self._tell)

    def _commit(self, writes: Writes) -> list[int] | StoreError:
        try:
            taken = self._journal.commit(writes)
        except StoreError as error:
            self.is_unsure = not isinstance(error, StoreFull)
            return error
        except Exception as error:
            log.exception("the journal failed in a way it should not")
            return StoreBroken(f"{type(error).__name__}: {error}")
        self.is_unsure = False
        return taken

    def _tell(self, taken: list[int] | StoreError) -> None:
        """From the writer's thread."""
        try:
            self._loop.call_soon_threadsafe(self._committed, taken)
        except RuntimeError:  # the loop is closed: the process is ending
            log.debug("nobody is left to hear of the last commit")

    def may_undo(self, row: int) -> bool:
        """Whether the journal may still say that another task has the id of the one of this row. For one that came
        from the journal that may be a false alarm."""
        pending = self._open_writes
        tasks = pending.tasks if pending is not None and pending.tasks else self._writes.tasks
        return not row or bool(tasks and row >= tasks[0].row)

    def forget(self, shards: Collection[int]) -> None:
        """These shards are not this node's any more: what is still to be written for them is not to be. Called before
        they are claimed anew. A batch that is being written meanwhile goes on; what follows in the writer waits for
        it."""
        self._writes = without_shards(self._writes, shards)
        for turn in self._turns:
            turn.writes = without_shards(turn.writes, shards)
        if self._open_writes is not None:
            self._open_writes = without_shards(self._open_writes, shards)

    def tend(self, work: Callable[[], object]) -> None:
        """Has the writer do something with the journal between commits, such as a purge or a claim."""
        self._writer.put(partial(self._tend, work))

    def _tend(self, work: Callable[[], object]) -> None:
        try:
            work()
        except StoreError as error:
            log.warning("tending the journal failed: %s", error)

    def _committed(self, taken: list[int] | StoreError) -> None:
        if isinstance(taken, StoreError):
            self._hold(taken)
            return
        if self.held is not None:
            log.warning("the journal works again")
            self.held = None
        if self._open_writes is not None:
            rows, ms = self._open_writes.count(), (self._writer.now() - self._began) * 1_000
            self._writer.took(ms, rows, here=self._here)
            self._on_committed(rows, ms)
        turns, self._open, self._open_writes = self._open or [], None, None
        if self._lost is not None and (lost := self._lost()):
            self.forget(lost)
            self.on_lost(lost)
            for turn in turns:
                turn.writes = without_shards(turn.writes, lost)
        if taken:
            self._refused(set(taken))
        if self._turns:
            self._begin_soon()
        for turn in turns:
            self._send(turn, taken)
        if not self._turns:
            for waiting in self._idle:
                if not waiting.done():
                    waiting.set_result(None)
            self._idle.clear()

    def _refused(self, rows: set[int]) -> None:
        """The journal has other tasks of these names. What was decided of ours since then is not to be kept either, and
        nobody is to hear of their ends."""
        self._writes = without(self._writes, rows)
        for turn in self._turns:
            turn.writes = without(turn.writes, rows)

    def _hold(self, error: StoreError) -> None:
        if isinstance(error, StoreBroken):
            self._on_broken(error)
            return
        self.held = error
        for tell in list(self.on_held):
            tell()
        if self._loop.time() - self._logged_at > LOG_EVERY_SECONDS:
            self._logged_at = self._loop.time()
            kind = "no space in" if isinstance(error, StoreFull) else "cannot reach"
            log.error("%s the journal: new work is refused, what is accepted is held (%s)", kind, error)
        self._loop.call_later(RETRY_SECONDS, self._again)

    def _again(self) -> None:
        if self._open_writes is not None:
            self._began, self._here = self._writer.now(), False
            self._writer.put(partial(self._commit, self._open_writes), self._tell)

    async def drain(self) -> None:
        """Waits until nothing is open."""
        if self._open is not None or self._turns:
            waiting = self._loop.create_future()
            self._idle.append(waiting)
            await waiting

    def stop(self) -> None:
        """Ends the writer. What is open is finished first."""
        self._writer.stop()
