"""Which tasks were done already, shared by the instances of an agent (DLV-3).

The memory of one process answers offers that come again to that process. A store that instances share also knows what
another instance did, or is doing, so that a task whose outcome was lost on its way is not done twice. It cannot promise
more than its own word: whoever dies between the deed and `done` leaves the deed undone in the eyes of the store.

`SqliteDedupe` serves the instances of one host, `PostgresDedupe` those of several; another store needs the methods of
`DedupeStore` and nothing else.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from reach.errors import InvalidRequest

LEASE_S: Final = 15.0
"""How long an owner is believed to live after it last said so."""
BUSY_S: Final = 5.0
SWEEP_EVERY: Final = 500
"""After so many tasks the store is looked through for what is old or too much."""


class Standing(IntEnum):
    """How a task stands in the store."""

    YOURS = 0
    """Nobody did it or does it: it is yours to do."""
    DONE = 1
    """It was done; here is its outcome."""
    ELSEWHERE = 2
    """Somebody who lives does it."""
    STALE = 3
    """A later attempt has it: this one is over."""


class Found(NamedTuple):
    """What the store says."""

    standing: Standing
    outcome: bytes = b""
    owner: str = ""


class DedupeStore(Protocol):
    """What instances share. Methods block, and are called from one thread at a time; `key` is (tenant, name of the
    task): its id and a digest of what it asks for, for an id that the server has forgotten may come back with another
    task."""

    def begin(self, key: tuple[str, str], token: int, owner: str) -> Found:
        """An attempt, by its fencing token, is about to begin. What is neither done nor being done is entered for the
        owner, in the same step; so is what an owner left that is gone."""

    def renew(self, owner: str) -> None:
        """The owner lives, with all that it has begun."""

    def done(self, key: tuple[str, str], token: int, owner: str, outcome: bytes) -> bool:
        """Its outcome, kept for attempts to come. False, and nothing is kept, if another attempt has it by now."""

    def release(self, key: tuple[str, str], token: int, owner: str) -> None:
        """It was not done: another attempt may do it."""

    def close(self) -> None:
        """Gives everything back."""


_SCHEMA: Final = """
create table if not exists task (
    tenant text,
    task_id text,
    token integer not null,
    owner text not null,
    done integer not null,
    changed real not null,      -- seconds since the epoch
    outcome blob,
    primary key (tenant, task_id)
) without rowid;
create index if not exists task_by_change on task (done, changed);
create table if not exists owner (owner text primary key, alive_until real not null) without rowid;
"""

# Only of what is the owner's, by this attempt, and not done.
_DONE: Final = (
    "update task set done = 1, changed = ?, outcome = ?"
    " where tenant = ? and task_id = ? and token = ? and owner = ? and done = 0"
)
_RELEASE: Final = "delete from task where tenant = ? and task_id = ? and token = ? and owner = ? and done = 0"


class SqliteDedupe:
    """A store in one file, for the instances of one host. Not for network file systems.

    Args:
        path: The file; made if it is not there, for its owner alone: it holds answers.
        retention: Seconds that outcomes are kept.
        most_tasks: Outcomes that are kept, the latest ones.
        most_bytes: What they may take.
        clock: Seconds since the epoch.

    Raises:
        InvalidRequest: The file cannot be opened, such as for want of its folder, or is something else.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        retention: float = 86_400.0,
        most_tasks: int = 100_000,
        most_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._retention = retention
        self._most_tasks = most_tasks
        self._most_bytes = most_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = 0
        try:
            Path(path).touch(0o600)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal").fetchall()
            self._db.execute("pragma synchronous = normal").fetchall()
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise InvalidRequest(f"{path} cannot be the store of what was done: {error}") from error

    def begin(self, key: tuple[str, str], token: int, owner: str) -> Found:
        """See `DedupeStore`."""
        with self._lock:
            self._begun += 1
            if self._begun % SWEEP_EVERY == 0:
                self._sweep()
            self._db.execute("begin immediate")
            try:
                found = self._look(key, token, owner)
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise
            return found

    def _look(self, key: tuple[str, str], token: int, owner: str) -> Found:
        db, now = self._db, self._clock()
        row = db.execute(
            "select token, owner, done, outcome from task where tenant = ? and task_id = ?", key
        ).fetchone()
        if row is not None:
            had, holder, done, outcome = row
            if done:
                return Found(Standing.DONE, outcome, holder)
            if token < had:
                return Found(Standing.STALE, owner=holder)
            if (token, owner) != (had, holder) and self._lives(holder, now):
                return Found(Standing.ELSEWHERE, owner=holder)
        self._renew(owner, now)
        db.execute(
            "insert or replace into task (tenant, task_id, token, owner, done, changed) values (?, ?, ?, ?, 0, ?)",
            (*key, token, owner, now),
        )
        return Found(Standing.YOURS)

    def _lives(self, owner: str, now: float) -> bool:
        row = self._db.execute("select alive_until from owner where owner = ?", (owner,)).fetchone()
        # Nobody lives longer than a lease from now: then the clock has leapt back, and whoever lives says so soon.
        return row is not None and now < row[0] <= now + LEASE_S

    def _renew(self, owner: str, now: float) -> None:
        self._db.execute("insert or replace into owner (owner, alive_until) values (?, ?)", (owner, now + LEASE_S))

    def renew(self, owner: str) -> None:
        """See `DedupeStore`."""
        with self._lock:
            self._renew(owner, self._clock())

    def done(self, key: tuple[str, str], token: int, owner: str, outcome: bytes) -> bool:
        """See `DedupeStore`."""
        with self._lock:
            return self._db.execute(_DONE, (self._clock(), outcome, *key, token, owner)).rowcount == 1

    def release(self, key: tuple[str, str], token: int, owner: str) -> None:
        """See `DedupeStore`."""
        with self._lock:
            self._db.execute(_RELEASE, (*key, token, owner))

    def _sweep(self) -> None:
        """Forgets what is old, what is too much, and what owners left that are long gone."""
        now = self._clock()
        db = self._db
        db.execute("delete from task where changed < ?", (now - self._retention,))
        db.execute("delete from owner where alive_until < ?", (now - self._retention,))
        kept = size = 0
        for changed, length in db.execute(
            "select changed, coalesce(length(outcome), 0) from task where done = 1 order by changed desc"
        ):
            kept, size = kept + 1, size + length
            if kept > self._most_tasks or size > self._most_bytes:
                db.execute("delete from task where done = 1 and changed <= ?", (changed,))
                return

    def close(self) -> None:
        """See `DedupeStore`."""
        with self._lock:
            self._db.close()
