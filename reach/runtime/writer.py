"""Where a journal is written: in a thread of its own, work in order and one piece at a time, or on the loop, if that is
sooner done than handed over.

A commit of a few rows takes about half a millisecond. Handed to a thread it takes two to four times as long: the thread
has to wake up, to win the interpreter from the loop for each statement, and to wake the loop again. So small commits
run where they are asked for, as long as the disk is quick and nothing else is in the thread.
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
HERE_BYTES: Final = 64 << 10
"""Bytes of such a commit."""
SLOW_MS: Final = 1.2
"""Mean time of commits on the loop from which they no longer run there: the loop has others to look after, and in the
thread the rows of several frames share a sync."""
STUCK_MS: Final = 50.0
"""Time of a single one that is enough for that."""
AWAY_SECONDS: Final = (0.5, 8.0)
"""How long they then run in the thread, before the disk is given another chance: the first time, and at most, for it
doubles each time."""
FORGIVEN: Final = 256
"""Commits on the loop without a reason to leave it, after which the next time is a first time again."""
NEWEST_SHARE: Final = 0.125
"""Weight of the newest commit in the mean. One counts as twice `SLOW_MS` at most: a single one does not make a mean."""


class Writer(Protocol):
    """Does one piece of work after the other, each in the order it came. Simulations bring one without a thread."""

    def now(self) -> float:
        """Seconds, to measure commits."""

    def put(self, work: Callable[[], T], then: Callable[[T], None] = nothing) -> None:
        """Adds a piece of work, which may block; returns at once. `then` is told what it came to, in the thread, once
        nothing of it is left to do. Neither raises."""

    def here(self, rows: int, size_bytes: Callable[[], int]) -> bool:
        """Whether a commit of so many rows may run on the loop instead, now. Whoever then does so calls `took`."""

    def took(self, ms: float) -> None:
        """How long a commit on the loop took."""

    def stop(self) -> None:
        """What was put before is finished first; nothing is put afterwards."""


class ThreadWriter:
    """A writer with a thread of its own."""

    __slots__ = ("_away_s", "_away_until", "_done", "_mean_ms", "_put", "_thread", "_well", "_work", "now")

    def __init__(self, now: Callable[[], float] = stopwatch) -> None:
        self.now = now
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._put = 0
        self._done = 0
        """Counted by the thread alone."""
        self._mean_ms = 0.0
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
        return (
            rows <= HERE_ROWS
            and self._put == self._done
            and (not self._away_until or self.now() >= self._away_until)
            and size_bytes() <= HERE_BYTES
        )

    def took(self, ms: float) -> None:
        """See Writer."""
        self._mean_ms += (min(ms, 2 * SLOW_MS) - self._mean_ms) * NEWEST_SHARE
        self._well += 1
        if self._mean_ms > SLOW_MS or ms > STUCK_MS:
            if self._well > FORGIVEN:
                self._away_s = AWAY_SECONDS[0]
            self._away_until = self.now() + self._away_s
            self._away_s = min(2 * self._away_s, AWAY_SECONDS[1])
            self._mean_ms = self._well = 0

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def stop(self) -> None:
        """See Writer."""
        self._work.put(None)
        self._thread.join(timeout=STOP_SECONDS)
