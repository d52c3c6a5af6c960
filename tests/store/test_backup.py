"""Backups of both stores: one snapshot, sealed, put back only into an empty place; who owned before is fenced."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing

import asyncpg
import pytest

from reach.store import postgres_backup, postgres_schema, postgres_sql, sqlite, sqlite_backup
from reach.store.base import StoreBroken, StoreUnavailable
from reach.store.keys import SqliteKeyStore
from reach.store.manifest import MANIFEST, Counts
from reach.store.migrations import MIGRATIONS
from reach.store.migrations import postgres as postgres_migrations
from reach.store.postgres import PostgresJournal
from reach.store.postgres_backup import RAISED
from reach.store.postgres_keys import PostgresKeyStore
from reach.store.sqlite import SqliteJournal
from tests import postgres
from tests.contracts.journal_rows import (
    CLAIM_OF_BEFORE,
    agent,
    attempt,
    checkpoint,
    context,
    effect,
    fact,
    failure,
    given,
    handle,
    outcome,
    pin,
    question,
    reserve,
    task,
    writes,
)  # fmt: skip

ROWS = writes(
    tasks=[task(row, instance_id="" if row == 3 else "inst-1") for row in range(1, 6)],
    outcomes=[outcome(1), outcome(2)],
    attempts=[attempt(4)], failures=[failure(4)], reserves=[reserve(4, 2_000)], effects=[effect(5)],
    checkpoints=[checkpoint(4)], questions=[question(4)], inputs=[given(4)], handles=[handle(4)],
    agents=[agent()], pins=[pin()], contexts=[context()], outbox=[fact("k1", row=1)],
)  # fmt: skip
TORN = "select (select count(*) from outcome where row not in (select row from task))"
"""Ends of tasks that are not there: parts of what was committed at once."""
TORN_OPEN = """select count(*) from task full join open_task using (row) left join outcome using (row)
    where (task.row is null) or (open_task.row is null) <> (outcome.row is not null)"""
HELD = Counts(tasks=5, waiting=1, begun=2, granted=1, facts=1)


class Sqlite:
    """A data folder, and another one to put its backup into."""

    def __init__(self, folder):
        self.source, self.target = folder / "from", folder / "to"

    def opened(self, where):
        journal = SqliteJournal(where)
        journal.open()
        return journal

    def keys(self, where):
        return SqliteKeyStore(where)

    def torn(self, where):
        with closing(sqlite3.connect(where / "journal.db")) as db:
            return db.execute(TORN).fetchone()[0]

    def back_up(self, target):
        return sqlite_backup.back_up(self.source, target)

    def restore(self, backup):
        return sqlite_backup.restore(backup, self.target)


class Postgres:
    """A database, and another one."""

    def __init__(self, _folder):
        self.source, self.target = postgres.server().database(), postgres.server().database()

    def opened(self, where):
        journal = PostgresJournal(where)
        journal.open()
        journal.claim(range(64))
        return journal

    def keys(self, where):
        return PostgresKeyStore(where)

    def torn(self, where):
        async def ask():
            db = await asyncpg.connect(where)
            try:
                return await db.fetchval(f"{TORN} + ({TORN_OPEN})")
            finally:
                await db.close()

        return asyncio.run(ask())

    def back_up(self, target):
        return postgres_backup.back_up(self.source, target)

    def restore(self, backup):
        return postgres_backup.restore(backup, self.target)


@pytest.fixture(params=[Sqlite, Postgres])
def store(request, tmp_path):
    return request.param(tmp_path)


def whole(journal):
    """All that is open, and what has ended, as a server would find it."""
    loaded = journal.load()
    found = [journal.find("acme", f"task-{row}") for row in range(1, 6)]
    return loaded._replace(next_row=0), found


def open_then_row(journal):
    """The next row number."""
    return journal.load().next_row


def test_CLU_1_what_is_put_back_is_what_was_there_and_keys_open_what_they_opened(store, tmp_path):
    journal = store.opened(store.source)
    journal.commit(ROWS)
    keys = store.keys(store.source)
    _, token = keys.create("acme", "app", ["caller"])
    said = store.back_up(tmp_path / "backup")
    assert Counts(**said["counts"]) == HELD
    before = whole(journal)
    journal.commit(writes(tasks=[task(9)], outcomes=[outcome(4)]))
    assert store.restore(tmp_path / "backup") == said
    back = store.opened(store.target)
    open_then, all_then = whole(back)
    journal.close()
    assert (open_then._replace(next_revision=0), all_then) == (before[0]._replace(next_revision=0), before[1])
    assert all_then[3].handle == handle(4)
    assert back.find("acme", "task-9") is None, "it came after"
    assert [bool(one.outcome) for one in all_then] == [True, True, False, False, False]
    assert len(open_then.tasks) == 3
    row = open_then_row(back)
    assert back.commit(writes(tasks=[task(row, "task-1"), task(row + 1, "new")])) == [row], "ids stay taken"
    assert back.find("acme", "new") is not None
    again = store.keys(store.target)
    assert again.verify(token) is not None
    for one in (keys, again, back):
        one.close()


def test_HAZ4_a_backup_of_before_handles_is_put_back_and_takes_them(store, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", MIGRATIONS[:7])
        patch.setattr(sqlite, "NEWEST", 7)
        patch.setattr(postgres_schema, "MIGRATIONS", postgres_migrations.MIGRATIONS[:3])
        patch.setattr(postgres_sql, "CLAIM", CLAIM_OF_BEFORE)
        journal = store.opened(store.source)
        journal.commit(writes(tasks=[task(1), task(2)], attempts=[attempt(1)]))
        said = store.back_up(tmp_path / "backup")
        journal.close()
    assert said["schema"] in (3, 7)
    store.restore(tmp_path / "backup")
    back = store.opened(store.target)
    assert [(found.task.task_id, found.handle) for found in back.load().tasks] == [("task-1", None), ("task-2", None)]
    back.commit(writes(handles=[handle(1)]))
    assert back.find("acme", "task-1").handle == handle(1)
    back.close()


def test_CLU_2_nothing_is_overwritten_and_what_is_damaged_is_refused(store, tmp_path):
    journal = store.opened(store.source)
    journal.commit(ROWS)
    store.back_up(tmp_path / "backup")
    journal.close()
    with pytest.raises(StoreUnavailable, match="not empty"):
        store.back_up(tmp_path / "backup")
    store.restore(tmp_path / "backup")
    with pytest.raises(StoreUnavailable, match=r"not empty|there already"):
        store.restore(tmp_path / "backup")
    files = [path for path in (tmp_path / "backup").iterdir() if path.name != MANIFEST]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(StoreBroken, match="not what it was"):
        store.restore(tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(StoreUnavailable, match="no complete backup"):
        store.restore(tmp_path / "backup")


def test_CLU_1_what_was_acknowledged_before_is_in_a_backup_that_is_made_while_commits_go_on(store, tmp_path):
    journal = store.opened(store.source)
    kept, going = [], True

    def load() -> None:
        row = 1
        while going:
            journal.commit(writes(tasks=[task(row, f"t-{row}")], outcomes=[outcome(row)] if row % 2 else []))
            kept.append(row)
            row += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        before = []
        for number in range(3):
            while len(kept) < 30 * (number + 1):
                time.sleep(0.001)  # a thread commits
            before = list(kept)
            store.back_up(tmp_path / f"backup-{number}")
    finally:
        going = False
        thread.join()
    journal.close()
    store.restore(tmp_path / "backup-2")
    assert store.torn(store.target) == 0
    back = store.opened(store.target)
    for row in before:
        stored = back.find("acme", f"t-{row}")
        assert stored is not None
        assert (stored.outcome is not None) == bool(row % 2)
    back.close()


def test_CLU_2_a_restore_fences_whoever_owned_before_and_numbers_go_on_behind_those_given_since(tmp_path):
    store = Postgres(tmp_path)
    first = store.opened(store.source)
    first.commit(ROWS)
    store.back_up(tmp_path / "backup")
    epochs = first.claim(range(64))  # given since the backup
    since = PostgresJournal(store.source)
    since.open()
    given_row = since.load().next_row
    since.close()

    async def emptied() -> None:
        db = await asyncpg.connect(store.source)
        await db.execute("drop schema public cascade; create schema public")
        await db.close()

    asyncio.run(emptied())
    store.target = store.source
    store.restore(tmp_path / "backup")
    assert first.commit(writes(tasks=[task(given_row, "late")])) == []
    assert first.lost(), "it is told that it is the owner no more"
    second = PostgresJournal(store.target)
    second.open()
    claimed = second.claim(range(64))
    assert all(claimed[shard] > RAISED > epochs[shard] for shard in range(64))
    assert second.find("acme", "late") is None
    assert second.load().next_row > given_row
    first.close()
    second.close()


def test_CFG_1_a_folder_without_a_journal_and_another_kind_are_refused(tmp_path):
    with pytest.raises(StoreUnavailable, match="no journal"):
        sqlite_backup.back_up(tmp_path / "nothing", tmp_path / "backup")
    store = Sqlite(tmp_path)
    store.opened(store.source).close()
    store.back_up(tmp_path / "backup")
    with pytest.raises(StoreUnavailable, match="backup of sqlite"):
        postgres_backup.restore(tmp_path / "backup", "postgres://nobody@127.0.0.1:1/x")
