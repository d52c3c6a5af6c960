"""The write-ahead log of the journal: when it is copied into the database, and how it is kept short."""

from __future__ import annotations

import os
import sqlite3
import threading
from errno import ENOSPC
from typing import Final

MOST_PAGES: Final = 10_000
"""Pages in the log (40 MB) from which SQLite copies it into the database with any commit. Smaller: the same pages are
copied more often; larger: longer pauses (45 to 90 ms here) and a longer start after a crash. Copying from a thread of
its own made the longest pauses shorter and the usual ones longer (two syncs at a time)."""
HEAVY_PAGES: Final = 7_500
"""Pages, as we guess them, from which we have it copied before that: by a commit of which `heavy` has warned."""
PAGES_PER_COMMIT: Final = 6
"""Pages that a commit changes beside those which its bytes fill."""
PAGE_BYTES: Final = 4_096
PIECE_BYTES: Final = 2 << 20
"""By so much the file is made longer at a time, with zeros, before it is needed. Left to SQLite it grows with each
commit until it is first copied, and a sync after which a file is longer has the file system write its own log too: a
commit of 32 rows takes 0.54 ms that way and 0.46 this way, the zeros counted in. What follows the last commit means
nothing to SQLite: zeros are no frame."""
AHEAD_BYTES: Final = 256 << 10
"""When so little of it is left, as we guess, the next piece is due."""
MOST_BYTES: Final = 56 << 20
"""Size of the log's file from which it is cut off: readers kept it from beginning anew."""
TRIM_EVERY: Final = 16
"""Commits between two looks at that size."""
BUSY_MS: Final = 1_000
"""How long a statement waits for somebody else who holds the file, which nobody should."""


class WriteAheadLog:
    """See the module.

    Args:
        path: Of the log's file.
        reading: Held during each read transaction of ours.
    """

    def __init__(self, path: str, reading: threading.Lock) -> None:
        self._path = path
        self._reading = reading
        self._commits = 0
        self._pages = 0
        """As a guess: what was committed since the log was last copied."""
        self._long = 0
        """Bytes that the file has at least; more than it ever needs if it cannot be made longer."""

    def heavy(self) -> bool:
        """Whether the next `tend` copies it, or makes it longer."""
        return self.is_full() or self._is_short()

    def is_full(self) -> bool:
        """Whether the next `tend` copies it."""
        return self._pages >= HEAVY_PAGES

    def grew(self, size_bytes: int) -> None:
        """A commit is done."""
        self._pages += PAGES_PER_COMMIT + size_bytes // PAGE_BYTES

    def size_bytes(self) -> int:
        """Size of the file."""
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def tend(self, db: sqlite3.Connection) -> None:
        """To be called before a transaction of the writer. Raises sqlite3.Error if there is no space, or a reader
        elsewhere: what was committed is durable all the same, and there will be another try."""
        self._commits += 1
        if not self._commits % TRIM_EVERY and self.size_bytes() > MOST_BYTES:
            self._cut_off(db)
        elif self.is_full():
            self._pages = 0
            db.execute("pragma wal_checkpoint(passive)").fetchall()
        elif self._is_short():
            self._lengthen()

    def _is_short(self) -> bool:
        return self._pages * PAGE_BYTES + AHEAD_BYTES > self._long < HEAVY_PAGES * PAGE_BYTES

    def _lengthen(self) -> None:
        """The next commit syncs it. A file that cannot be made longer is left to SQLite. To close it ends no lock of
        SQLite's: those are on the database and the shared memory."""
        try:
            size = self.size_bytes()
            with open(self._path, "r+b", buffering=0) as file:
                try:
                    file.seek(size)
                    if file.write(bytes(PIECE_BYTES)) < PIECE_BYTES:
                        raise OSError(ENOSPC, "no space for a longer log")
                except OSError:
                    file.truncate(size)  # the database needs the space more
                    raise
        except OSError:
            self._long = MOST_BYTES
        else:
            self._long = size + PIECE_BYTES

    def _cut_off(self, db: sqlite3.Connection) -> None:
        """Copies it and begins with an empty file; no reader of ours runs meanwhile."""
        if not self._reading.acquire(timeout=0.05):
            return
        try:
            db.execute("pragma busy_timeout = 0").fetchall()
            db.execute("pragma wal_checkpoint(truncate)").fetchall()
            self._pages = self._long = 0
        finally:
            db.execute(f"pragma busy_timeout = {BUSY_MS}").fetchall()
            self._reading.release()
