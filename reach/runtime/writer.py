"""Where a journal is written: in a thread of its own, work in order and one piece at a time, or on the loop, if that is
sooner done than handed over.

A commit of 32 rows takes about half a millisecond. Handed to a thread it takes two to four times as long: the thread
has to wake up, to win the interpreter from the loop for each statement, and to wake the loop again. So commits of a
frame's rows (`FEW_ROWS` to `HERE_ROWS`) run where they are asked for, as long as the disk is quick and nothing else is
in the thread. Smaller and larger ones go to the thread, where rows gather while others are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol, TypeVar

from reach.runtime.clock import stopwatch

T = TypeVar("T")
Work = Callable[[], None]


def nothing(_: object) -> None:
    """Nobody has to hear of it."""


STOP_SECONDS = 10.0

HERE_ROWS: Final = 40
"""Rows of a commit that may run on the loop: a frame of the callers, and some. More at once are better off in the
thread, where they gather while others are written: 12.8 thousand tasks a second there, 8.2 here, with 500 in flight."""
FEW_ROWS = 8
"""Fewer rows had better gather in the thread, where one sync does for all that come while the last one runs: 64 unary
calls in flight made 800 tasks a second on the loop, 1,360 by way of the thread."""
HERE_BYTES: Final = 64 << 10
"""Bytes of such a commit."""
SLOW_MS: Final = 5.0
"""Mean time of commits on the loop from which they no longer run there, whatever the thread takes: the loop has others
to look after."""
STUCK_MS: Final = 50.0
"""Time of a single one that is enough for that."""
AWAY_SECONDS: Final = (0.5, 8.0)
"""How long they then run in the thread, before the disk is given another chance: the first time, and at most, for it
doubles each time."""
FORGIVEN: Final = 256
"""Commits on the loop without a reason to leave it, after which the next time is a first time again."""
BETTER: Final = 0.9
"""The loop is the place if a commit takes at most this share there of what it takes by way of the thread."""
TRY_OTHER: Final = 64
"""Commits at the better place, after which the next one tries the other: what was better may change."""
NEWEST_SHARE: Final = 0.125
"""Weight of the newest commit in a mean. One counts as twice `SLOW_MS` at most: a single one does not make a mean."""


class Writer(Protocol):
    """Does one piece of work after the other, each in the order it came. Simulations bring one without a thread."""

    def now(self) -> float:
        """Seconds, to measure commits."""

    def put(self, work: Callable[[], T], then: Callable[[T], None] = nothing) -> None:
        """Adds a piece of work, which may block; returns at once. `then` is told what it came to, in the thread, once
        nothing of it is left to do. Neither raises."""

    def here(self, rows: int, size_bytes: Callable[[], int]) -> bool:
        """Whether a commit of so many rows had better run on the loop, now."""

    def took(self, ms: float, rows: int, *, here: bool) -> None:
        """How long a commit took until the loop knew of it."""

    def stop(self) -> None:
        """What was put before is finished first; nothing is put afterwards."""


class ThreadWriter:
    """A writer with a thread of its own."""

    __slots__ = (
        "_away_s", "_away_until", "_done", "_in_a_row", "_on_loop_ms", "_put", "_thread", "_thread_ms", "_well",
        "_work", "now",
    )  # fmt: skip

    def __init__(self, now: Callable[[], float] = stopwatch) -> None:
        self.now = now
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._put = 0
        self._done = 0
        """Counted by the thread alone."""
        self._on_loop_ms = 0.0
        """Mean of small commits on the loop; 0: not known."""
        self._thread_ms = 0.0
        """The same by way of the thread."""
        self._in_a_row = 0
        """Small commits at the better place since the other one was tried."""
        self._well = 0
        self._away_s = AWAY_SECONDS[0]
        self._away_until = 0.0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], T], then: Callable[[T], None] = nothing) -> None:
        """See Writer."""

        def run() -> None:
            result = work()
            self._done += 1
            then(result)

        self._put += 1
        self._work.put(run)

    def here(self, rows: int, size_bytes: Callable[[], int]) -> bool:
        """See Writer."""
        if not FEW_ROWS <= rows <= HERE_ROWS or self._put != self._done or size_bytes() > HERE_BYTES:
            return False
        if self._away_until and self.now() < self._away_until:
            return False
        better = not self._thread_ms or self._on_loop_ms <= BETTER * self._thread_ms
        self._in_a_row += 1
        if self._in_a_row > TRY_OTHER:
            self._in_a_row = 0
            return not better
        return better

    def took(self, ms: float, rows: int, *, here: bool) -> None:
        """See Writer."""
        if not FEW_ROWS <= rows <= HERE_ROWS:
            return
        counted = min(ms, 2 * SLOW_MS)
        if not here:
            self._thread_ms = _mean(self._thread_ms, counted)
            return
        self._on_loop_ms = _mean(self._on_loop_ms, counted)
        self._well += 1
        if self._on_loop_ms > SLOW_MS or ms > STUCK_MS:
            if self._well > FORGIVEN:
                self._away_s = AWAY_SECONDS[0]
            self._away_until = self.now() + self._away_s
            self._away_s = min(2 * self._away_s, AWAY_SECONDS[1])
            self._on_loop_ms = self._well = 0

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def stop(self) -> None:
        """See Writer."""
        self._work.put(None)
        self._thread.join(timeout=STOP_SECONDS)


def _mean(mean: float, newest: float) -> float:
    return mean + (newest - mean) * NEWEST_SHARE if mean else newest
