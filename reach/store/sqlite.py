"""The journal of one process: a SQLite database in the data folder.

One connection writes, from the writer thread, one transaction per batch, durable when `commit` returns (write-ahead
log, synchronous=FULL). Another one reads, in transactions of a few milliseconds. Nobody waits for a lock: the folder's
lock keeps other processes out, `begin immediate` takes the write lock at once, and readers do not need it.

Where to look: the schema is in `migrations`, statements in `sqlite_rows`, the uniqueness of task ids in `sqlite_keys`,
lists in `sqlite_list`.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TypeVar

from reach.core.decision_record import Record
from reach.core.model import TaskState
from reach.core.rows import OutcomeRow, TaskRow, Writes, without
from reach.store import sqlite_purge as purge
from reach.store import sqlite_rows as sql
from reach.store.base import Loaded, StoreBroken, StoredFact, StoredTask, StoreError, StoreUnavailable, TaskQuery
from reach.store.batch import storable
from reach.store.folder import DataFolder
from reach.store.migrations import APPLICATION_ID, MIGRATIONS, NEWEST
from reach.store.sqlite_errors import translated
from reach.store.sqlite_keys import Entry, KeyIndex, Slice, entries_of, hash_of
from reach.store.sqlite_list import list_tasks
from reach.store.sqlite_log import BUSY_MS, MOST_BYTES, MOST_PAGES, WriteAheadLog
from reach.store.sqlite_tasks import read_tasks

FILE_NAME: Final = "journal.db"
CACHE_KIB: Final = 32_768

T = TypeVar("T")


class _Done(NamedTuple):
    """What a commit did to the database, to be done in memory once it is durable."""

    tasks: list[TaskRow]
    """The new ones."""
    outcomes: list[OutcomeRow]
    added: list[Entry]
    taken: list[int]
    indexed: Slice


class SqliteJournal:
    """Journal in `folder` (made if missing; mode 0700). See `base.Journal` for what the methods promise."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = DataFolder(Path(folder))
        self._path = self._folder.path / FILE_NAME
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        """Held during each read transaction of ours."""
        self._log = WriteAheadLog(f"{self._path}-wal", self._reading)
        self._broken: StoreBroken | None = None
        self._index = KeyIndex()
        self._open: set[int] = set()
        """Rows without an outcome, never less. After opening also such as ended since the mark, until `load`."""

    # Opening and closing

    def open(self) -> None:
        """See `Journal.open`."""
        self._folder.take()
        try:
            self._connect()
        except sqlite3.Error as error:
            self.close()
            raise translated(error, f"{self._path} cannot be opened") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `Journal.close`."""
        with self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None
        self._folder.give_back()

    def _connect(self) -> None:
        path = self._folder.make_file(FILE_NAME)
        db = self._writer = sqlite3.connect(
            path, timeout=BUSY_MS / 1_000, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        version = self._version(db)
        (mode,) = db.execute("pragma journal_mode = wal").fetchone()
        if mode != "wal":
            raise StoreUnavailable(f"{path}: SQLite cannot keep a write-ahead log on this file system")
        for setting in (
            "synchronous = full",
            f"wal_autocheckpoint = {MOST_PAGES}",
            f"journal_size_limit = {MOST_BYTES}",
            f"cache_size = -{CACHE_KIB}",
            "temp_store = memory",
            "secure_delete = fast",
        ):
            db.execute(f"pragma {setting}").fetchall()
        steps = [
            f"{statements} insert into migration values ({number}, cast(strftime('%s', 'now') as integer));"
            for number, statements in MIGRATIONS
            if number > version
        ]
        if steps:
            identity = f"pragma application_id = {APPLICATION_ID};"
            db.executescript(f"begin immediate; {' '.join(steps)} {identity} commit;")
        self._reader = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro",
            uri=True,
            timeout=BUSY_MS / 1_000,
            isolation_level=None,
            check_same_thread=False,
        )
        self._recall(db)

    def _version(self, db: sqlite3.Connection) -> int:
        """Version of the schema, 0 for an empty file."""
        (owner,) = db.execute("pragma application_id").fetchone()
        if owner != APPLICATION_ID:
            if owner or db.execute("select 1 from sqlite_master").fetchone():
                raise StoreBroken(f"{self._path} is not a journal of Agent-Reach; name another folder")
            return 0
        (version,) = db.execute("select max(version) from migration").fetchone()
        if version > NEWEST:
            raise StoreBroken(
                f"{self._path} has schema version {version}, this program knows up to {NEWEST}:"
                f" start an Agent-Reach that knows version {version}, or name another folder"
            )
        return int(version)

    def _recall(self, db: sqlite3.Connection) -> None:
        """Reads what is kept in memory: the index above its mark, and which tasks are open."""
        self._broken = None
        self._index = KeyIndex()
        self._open = set()
        mark = int(sql.counter(db, "indexed"))
        stored = db.execute("select rows from open_tasks").fetchone()
        if stored is not None:
            self._open.update(row for (row,) in struct.iter_unpack("<q", stored[0]))
        entries: list[Entry] = []
        for row, tenant, task_id, session, root, is_open in db.execute(
            "select t.row, t.tenant, t.task_id, t.session, t.root, o.row is null"
            " from task t left join outcome o on o.row = t.row where t.row > ? order by t.row",
            (mark,),
        ):
            if session or root:
                entries += entries_of(row, tenant, task_id, session, root)
            else:
                entries.append((hash_of(tenant, task_id), row))
            if is_open:
                self._open.add(row)
        self._index.start(mark, entries)

    # Writing

    def commit(self, writes: Writes) -> list[int]:
        """See `Journal.commit`."""
        if not writes:
            return []
        try:
            done = self._transact(partial(self._write, writes))
        except (UnicodeEncodeError, OverflowError):
            # Something that SQLite cannot keep, in one row: it must not keep the others out for ever.
            done = self._transact(partial(self._write, storable(writes)))
        try:
            self._index.apply(done.added, done.indexed)
            self._open.update([task.row for task in done.tasks])
            self._open.difference_update([outcome.row for outcome in done.outcomes])
        except BaseException:
            self._broken = StoreBroken("what is in memory is no longer what is on disk")
            raise
        self._log.grew(writes.size_bytes())
        return done.taken

    def heavy(self) -> bool:
        """See `Journal.heavy`."""
        return self._log.heavy()

    def _write(self, writes: Writes, db: sqlite3.Connection) -> _Done:
        tasks: list[TaskRow] = []
        added: list[Entry] = []
        taken: list[int] = []
        if writes.tasks:
            tasks, added, taken = self._sorted_out(db, writes.tasks)
            if taken:
                writes = without(writes, set(taken))
                db.execute(sql.SET_COUNTER, ("row", max(taken)))
            if sql.ADD_TASKS.run(db, sql.decided_values(tasks)) != len(tasks):
                raise StoreBroken("a row number was given to two tasks; nothing of the batch was kept")
        sql.write_rows(db, writes)
        indexed = self._index.plan(added)
        sql.ADD_KEYS.run(db, sql.flat(indexed.entries))
        if indexed.mark is not None:
            db.execute(sql.SET_MARK, (indexed.mark,))
        if indexed.ends_round:
            # Without this batch's tasks: they are above the mark.
            rows = self._open.difference([outcome.row for outcome in writes.outcomes])
            db.execute(sql.SET_OPEN, (struct.pack(f"<{len(rows)}q", *rows),))
        return _Done(tasks, writes.outcomes, added, taken, indexed)

    def _sorted_out(self, db: sqlite3.Connection, tasks: list[TaskRow]) -> tuple[list[TaskRow], list[Entry], list[int]]:
        """(tasks that are new, their index entries, rows whose task id another row has)."""
        hashes = [hash_of(task.tenant, task.task_id) for task in tasks]
        recent = [row for key in hashes for row in self._index.find(key)]
        owners = {(tenant, task_id): row for row, tenant, task_id in sql.OWNERS_BY_HASH.ask(db, [*hashes])}
        if recent:
            owners.update({(tenant, task_id): row for row, tenant, task_id in sql.OWNERS_BY_ROW.ask(db, recent)})
        new: list[TaskRow] = []
        added: list[Entry] = []
        taken: list[int] = []
        for task, key in zip(tasks, hashes, strict=True):
            owner = owners.setdefault((task.tenant, task.task_id), -1)
            if owner == -1:
                owners[task.tenant, task.task_id] = task.row
                new.append(task)
                added.append((key, task.row))
                if task.session:
                    added.append((hash_of(task.tenant, task.session), task.row))
                if task.root_task_id:
                    added.append((hash_of(task.tenant, task.root_task_id), task.row))
            elif owner != task.row:
                taken.append(task.row)
        return new, added, taken

    def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False) -> int:
        """See `Journal.purge`. The file does not shrink: what follows uses the space."""
        return self._remove(partial(purge.oldest, before_ms=ended_before_ms, limit=limit, dead_letters=dead_letters))

    def remove(self, rows: Sequence[int]) -> int:
        """See `Journal.remove`."""
        return self._remove(partial(purge.ended, rows=rows))

    def _remove(self, choose: Callable[[sqlite3.Connection], list[int]]) -> int:
        count, removed = self._transact(lambda db: purge.remove(db, choose(db)))
        self._index.remove(removed)
        return count

    def drop_facts(self, kind: str, before_ms: int, limit: int) -> int:
        """See `Journal.drop_facts`."""
        return self._transact(partial(purge.drop_facts, kind=kind, before_ms=before_ms, limit=limit))

    def dead_letters(self) -> int:
        """See `Journal.dead_letters`."""
        with self._read() as db:
            return purge.count_dead_letters(db)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` in a transaction: when this returns it is durable, when it raises nothing of it was kept."""
        if self._broken is not None:
            raise self._broken
        db = self._writer
        if db is None:
            raise StoreUnavailable("the journal is closed")
        try:
            self._log.tend(db)
        except sqlite3.Error as error:
            failure = translated(error, f"{self._path} cannot take over its log")
            if isinstance(failure, StoreBroken):
                self._broken = failure
                raise failure from error
        try:
            db.execute("begin immediate")
            result = work(db)
            db.execute("commit")
        except sqlite3.Error as error:
            self._give_up(translated(error, f"{self._path} cannot be written"), error)
        except BaseException as error:
            self._roll_back(db)
            if isinstance(error, StoreBroken):
                self._broken = error
            raise
        return result

    def _give_up(self, failure: StoreError, cause: sqlite3.Error) -> NoReturn:
        """Undoes the transaction. After a failed sync or with a damaged file nothing is tried again, ever."""
        if isinstance(failure, StoreBroken):
            self._broken = failure
        if self._writer is not None:
            self._roll_back(self._writer)
        raise failure from cause

    def _roll_back(self, db: sqlite3.Connection) -> None:
        if not db.in_transaction:
            return
        try:
            db.execute("rollback")
        except sqlite3.Error as error:
            self._broken = StoreBroken(f"{self._path} cannot be rolled back: {error}")

    # Reading

    def load(self) -> Loaded:
        """See `Journal.load`. Ended tasks cost nothing, but for the latest: what was open at the mark is known."""
        rows = self._open.copy()
        with self._read() as db, sql.no_collection():
            tasks = [found for found in read_tasks(db, list(rows)) if found.outcome is None]
            if len(tasks) < len(rows):
                self._open.difference_update(rows.difference([found.task.row for found in tasks]))
            tables = (
                "task", "outcome", "attempt", "failure", "reserve", "effect", "checkpoint", "question", "input",
                "handle",
            )  # fmt: skip
            tops = " union all ".join(f"select max(row) from {table}" for table in tables)
            highest = max(top or 0 for (top,) in db.execute(tops))
            return Loaded(
                tasks,
                sql.read_agents(db),
                sql.read_pins(db),
                max(highest, sql.counter(db, "row")) + 1,
                sql.counter(db, "revision") + 1,
                sql.read_contexts(db),
            )

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """See `Journal.find`."""
        with self._read() as db:
            found = read_tasks(db, self._rows_of(db, tenant, task_id))
        return found[0] if found else None

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """See `Journal.decisions`."""
        with self._read() as db:
            return sql.read_decisions(db, self._rows_of(db, tenant, task_id))

    def _rows_of(self, db: sqlite3.Connection, tenant: str, task_id: str) -> list[int]:
        key = hash_of(tenant, task_id)
        return sql.rows_of(db, self._index.find(key), key, tenant, task_id)

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """See `Journal.list_tasks`; `accepted_after_ms` is included, `accepted_before_ms` is not."""
        known: set[int] | None = None
        name = query.session or query.root_task_id
        if name and query.tenant:
            key = hash_of(query.tenant, name)
            known = set(self._index.find(key))
            with self._read() as db:
                known.update(row for (row,) in db.execute("select row from task_key where hash = ?", (key,)))
        elif query.states and all(state == TaskState.PENDING for state in query.states):
            known = self._open.copy()
        return list_tasks(self._read, query, known)

    def fact_lanes(self, kind: str, after: str | None, limit: int) -> list[str]:
        """See `Journal.fact_lanes`."""
        with self._read() as db:
            return sql.read_lanes(db, kind, after, limit)

    def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """See `Journal.facts`."""
        with self._read() as db:
            return sql.read_facts(db, kind, lane, after, limit)

    def every_fact(self, kind: str, after: int, limit: int, lane: str | None = None) -> list[StoredFact]:
        """See `Journal.every_fact`."""
        with self._read() as db:
            return sql.read_facts(db, kind, lane, after, limit)

    def size_bytes(self) -> int:
        """See `Journal.size_bytes`: pages in use and the write-ahead log."""
        with self._read() as db:
            used, free, page = (
                db.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
            )
        return int((used - free) * page) + self._log.size_bytes()

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """One read transaction, on one state of the store."""
        with self._reading:
            db = self._reader
            if db is None:
                raise StoreUnavailable("the journal is closed")
            try:
                db.execute("begin")
                try:
                    yield db
                finally:
                    db.execute("commit")
            except sqlite3.Error as error:
                raise translated(error, f"{self._path} cannot be read", otherwise=StoreUnavailable) from error
