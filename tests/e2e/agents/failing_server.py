"""`reach serve` whose disk fails at a moment that the test chooses.

    failing_server.py sync N serve …      every sync fails (EIO) from the N-th commit on
    failing_server.py pages N serve …     SQLite may use N pages (max_page_count); SIGUSR1 lifts the limit
    failing_server.py clock MS serve …    the wall clock is this far ahead (behind, if negative); SIGUSR1 takes it back

Nothing of it is in the product: the journal and the clock are wrapped here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from reach.cli import main
from reach.runtime.clock import Clock
from reach.store.sqlite import SqliteJournal
from tests.store.journal_child import let_syncs_fail

UNLIMITED = 1 << 30


def sync(at: int) -> None:
    """The filter holds for the thread that sets it, so each thread that commits sets its own."""
    honest, count, mine = SqliteJournal.commit, [0], threading.local()

    def commit(self: SqliteJournal, writes: Any) -> list[int]:
        count[0] += 1
        if count[0] >= at and not getattr(mine, "fails", False):
            mine.fails = True
            let_syncs_fail()
        return honest(self, writes)

    SqliteJournal.commit = commit  # type: ignore[method-assign]


def pages(most: int) -> None:
    """The limit is that of a connection, and said before each commit."""
    honest, limit = SqliteJournal.commit, [most]

    def commit(self: SqliteJournal, writes: Any) -> list[int]:
        assert self._writer is not None
        self._writer.execute(f"pragma max_page_count = {limit[0]}").fetchall()
        return honest(self, writes)

    def lift(*_: object) -> None:
        limit[0] = UNLIMITED

    SqliteJournal.commit = commit  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, lift)


def clock(ahead_ms: int) -> None:
    """As the core sees it."""
    honest, ahead = Clock.wall_ms, [ahead_ms]

    def wall_ms(self: Clock) -> int:
        return honest(self) + ahead[0]

    def back(*_: object) -> None:
        ahead[0] = 0

    Clock.wall_ms = wall_ms  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, back)


if __name__ == "__main__":
    what, number, *arguments = sys.argv[1:]
    {"sync": sync, "pages": pages, "clock": clock}[what](int(number))
    sys.argv = ["reach", *arguments]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
