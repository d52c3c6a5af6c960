"""What the SQLite journal promises besides the contract: files, locks, errors, bounds."""

import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path

import pytest

from reach.core.rows import AgentGone
from reach.store import sqlite as sqlite_module
from reach.store import sqlite_log, sqlite_purge, sqlite_rows, sqlite_tasks
from reach.store.base import StoreBroken, StoreFull, StoreLocked, StoreUnavailable, TaskQuery
from reach.store.migrations import MIGRATIONS, NEWEST
from reach.store.sqlite import SqliteJournal
from reach.store.sqlite_keys import KeyIndex
from reach.store.sqlite_log import HEAVY_PAGES, MOST_BYTES, MOST_PAGES, PAGE_BYTES, PIECE_BYTES
from tests.contracts.journal_rows import agent, attempt, handle, outcome, pin, task, writes
from tests.store.journal_child import end_of_log

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "data"


@pytest.fixture
def journal(folder):
    journal = SqliteJournal(folder)
    journal.open()
    yield journal
    journal.close()


def child(folder, *words, **options):
    command = [sys.executable, "-m", "tests.store.journal_child", str(folder), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


def by_hand(folder, *statements):
    """What somebody else does to the file, while no journal has it open."""
    db = sqlite3.connect(folder / "journal.db", isolation_level=None)
    try:
        return [db.execute(statement).fetchall() for statement in statements]
    finally:
        db.close()


def log_bytes(folder) -> int:
    return int((folder / "journal.db-wal").stat().st_size)


# Files


def test_its_files_are_private(journal, folder):
    journal.commit(writes(tasks=[task(1)]))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("journal.db", "journal.db-wal", "journal.db-shm", "lock"), 0o600)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o750)
    journal = SqliteJournal(tmp_path)
    journal.open()
    journal.close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_it_is_durable_by_its_settings(journal):
    settings = {
        name: journal._writer.execute(f"pragma {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "journal_size_limit")
    }
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "wal_autocheckpoint": 10_000,
        "journal_size_limit": MOST_BYTES,
    }
    assert MOST_BYTES < 64_000_000


def test_open_is_quick(tmp_path):
    times = []
    for number in range(5):
        journal = SqliteJournal(tmp_path / str(number))
        start = time.perf_counter()
        journal.open()
        times.append(time.perf_counter() - start)
        journal.close()
    assert min(times) < 0.05


def test_names_with_odd_characters_are_names(tmp_path):
    folder = tmp_path / "a b?mode=memory#c%20ü"
    for _ in range(2):
        journal = SqliteJournal(folder)
        journal.open()
        journal.commit(writes(tasks=[task(1)]))
        journal.close()
    assert (folder / "journal.db").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        SqliteJournal(tmp_path / "data").open()


def test_a_file_where_the_folder_should_be_is_told(tmp_path):
    (tmp_path / "data").write_text("x")
    with pytest.raises(StoreUnavailable, match="data"):
        SqliteJournal(tmp_path / "data").open()


# The lock


def test_a_second_journal_of_this_process_is_refused(journal, folder):
    with pytest.raises(StoreLocked) as refused:
        SqliteJournal(folder).open()
    assert str(folder) in str(refused.value)
    assert f"process {os.getpid()} since 2" in str(refused.value)
    journal.commit(writes(tasks=[task(1)]))
    journal.close()
    other = SqliteJournal(folder)
    other.open()
    assert other.find("acme", "task-1") is not None
    other.close()


def test_another_process_is_refused_until_the_first_one_ends_however_it_ends(folder):
    with child(folder, "hold") as holder:
        try:
            assert holder.stdout.readline() == "holding\n"
            with pytest.raises(StoreLocked, match=f"{folder} is in use by process {holder.pid} since "):
                SqliteJournal(folder).open()
        finally:
            holder.kill()
    journal = SqliteJournal(folder)
    journal.open()
    journal.close()


def test_a_journal_that_does_not_open_holds_no_lock(folder):
    journal = SqliteJournal(folder)
    journal.open()
    journal.close()
    by_hand(folder, "pragma application_id = 7")
    for _ in range(2):
        with pytest.raises(StoreBroken):
            SqliteJournal(folder).open()


def test_nothing_is_left_open(folder):
    def handles() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = handles()
    for _ in range(3):
        journal = SqliteJournal(folder)
        journal.open()
        with pytest.raises(StoreLocked):
            SqliteJournal(folder).open()
        journal.close()
    assert handles() == before


# Files that are not ours, or not of our time


def test_a_later_schema_is_refused_and_says_what_is_needed(folder):
    journal = SqliteJournal(folder)
    journal.open()
    journal.commit(writes(tasks=[task(1)]))
    journal.close()
    by_hand(folder, f"insert into migration values ({NEWEST + 3}, 0)")
    with pytest.raises(StoreBroken, match=f"schema version {NEWEST + 3}.*knows version {NEWEST + 3}"):
        SqliteJournal(folder).open()
    by_hand(folder, f"delete from migration where version > {NEWEST}")
    journal.open()
    assert journal.find("acme", "task-1") is not None
    journal.close()


def test_a_step_of_the_schema_runs_once(folder, monkeypatch):
    for _ in range(2):
        journal = SqliteJournal(folder)
        journal.open()
        journal.close()
    assert [version for version, _ in by_hand(folder, "select * from migration")[0]] == [*range(1, NEWEST + 1)]
    later = (*MIGRATIONS, (NEWEST + 1, "alter table task add column later text;"))
    monkeypatch.setattr(sqlite_module, "MIGRATIONS", later)
    monkeypatch.setattr(sqlite_module, "NEWEST", NEWEST + 1)
    for _ in range(2):
        journal = SqliteJournal(folder)
        journal.open()
        journal.close()
    assert [version for version, _ in by_hand(folder, "select * from migration")[0]] == [*range(1, NEWEST + 2)]


def test_HAZ4_a_journal_of_before_handles_keeps_its_tasks_and_takes_handles(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_module, "MIGRATIONS", MIGRATIONS[:7])
        patch.setattr(sqlite_module, "NEWEST", 7)
        journal = SqliteJournal(folder)
        journal.open()
        journal.commit(writes(tasks=[task(1), task(2)], attempts=[attempt(1)], agents=[agent()], pins=[pin()]))
        journal.close()
    assert by_hand(folder, "select count(*) from sqlite_master where name = 'handle'") == [[(0,)]]
    journal.open()
    loaded = journal.load()
    assert ([found.task.row for found in loaded.tasks], len(loaded.agents), len(loaded.pins)) == ([1, 2], 1, 1)
    assert [len(found.attempts) for found in loaded.tasks] == [1, 0]
    assert {found.handle for found in loaded.tasks} == {None}
    journal.commit(writes(handles=[handle(1)]))
    journal.close()
    journal.open()
    assert [found.handle for found in journal.load().tasks] == [handle(1), None]
    journal.commit(writes(outcomes=[outcome(1)]))
    journal.close()


def test_a_step_that_fails_leaves_the_schema_as_it_was(folder, monkeypatch):
    journal = SqliteJournal(folder)
    journal.open()
    journal.close()
    with monkeypatch.context() as patch:
        wrong = "create table later (x); alter table nothing add column y;"
        patch.setattr(sqlite_module, "MIGRATIONS", (*MIGRATIONS, (NEWEST + 1, wrong)))
        with pytest.raises(StoreBroken):
            SqliteJournal(folder).open()
    assert by_hand(folder, "select count(*) from sqlite_master where name = 'later'") == [[(0,)]]
    journal.open()
    journal.close()


def test_another_program_s_database_is_left_alone(folder):
    folder.mkdir(parents=True)
    by_hand(folder, "create table theirs (x)")
    before = (folder / "journal.db").read_bytes()
    with pytest.raises(StoreBroken, match="not a journal of Agent-Reach"):
        SqliteJournal(folder).open()
    assert (folder / "journal.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"x" * 5_000, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_database_is_broken(folder, content):
    folder.mkdir(parents=True)
    (folder / "journal.db").write_bytes(content)
    with pytest.raises(StoreBroken, match="journal"):
        SqliteJournal(folder).open()
    assert (folder / "journal.db").read_bytes() == content


def test_an_empty_file_is_a_new_journal(folder):
    """A first start that was killed before its first transaction."""
    folder.mkdir(parents=True)
    (folder / "journal.db").touch()
    journal = SqliteJournal(folder)
    journal.open()
    journal.commit(writes(tasks=[task(1)]))
    journal.close()


def test_damage_is_found_when_it_is_met(folder):
    journal = SqliteJournal(folder)
    journal.open()
    journal.commit(writes(tasks=[task(row, spec=b"x" * 2_000) for row in range(1, 200)]))
    journal.close()
    path = folder / "journal.db"
    with path.open("r+b") as file:
        for page in range(40, path.stat().st_size // 4_096):
            file.seek(page * 4_096)
            file.write(b"\xa5" * 4_096)

    def open_and_load() -> None:
        journal.open()
        journal.load()

    with pytest.raises(StoreBroken, match="SQLITE_CORRUPT"):
        open_and_load()
    journal.close()


# No space


def test_no_space_keeps_nothing_of_the_batch_and_goes_on_when_there_is_space(journal, folder):
    """F7: refused with its own error, reads live, and the same batch goes in later."""
    journal.commit(writes(tasks=[task(1)]))
    (pages,) = journal._writer.execute("pragma page_count").fetchone()
    journal._writer.execute(f"pragma max_page_count = {pages + 40}")
    kept = 1
    batch = writes()
    full = None
    while full is None:
        rows = range(kept + 1, kept + 11)
        batch = writes(
            tasks=[task(row, session="s", spec=b"x" * 3_000) for row in rows],
            attempts=[attempt(row) for row in rows],
            outcomes=[outcome(row - 10) for row in rows if row > 11],
        )
        try:
            assert journal.commit(batch) == []
            kept += 10
        except StoreFull as error:
            full = error
    assert "full" in str(full)
    assert kept > 1
    for _ in range(20):
        with pytest.raises(StoreFull):
            journal.commit(batch)
    assert [item.task.row for item in journal.list_tasks(TaskQuery("acme", limit=1_000))] == list(range(kept, 0, -1))
    assert journal.find("acme", f"task-{kept + 1}") is None
    assert journal.find("acme", f"task-{kept}").outcome is None
    # What needs no new page is still taken.
    assert journal.commit(writes(outcomes=[outcome(1, content="")])) == []
    journal._writer.execute("pragma max_page_count = 1000000")
    # The names of the batch that was refused are free; here another row takes one of them first.
    assert journal.commit(writes(tasks=[task(9_000, f"task-{kept + 1}")])) == []
    assert journal.commit(batch) == [kept + 1]
    assert journal.find("acme", f"task-{kept + 2}").attempts == [attempt(kept + 2)]
    journal.close()
    journal.open()
    assert journal.find("acme", f"task-{kept + 10}") is not None
    assert by_hand_check(journal) == "ok"


def by_hand_check(journal) -> str:
    return str(journal._writer.execute("pragma integrity_check").fetchone()[0])


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounts a small file system")
def test_a_disk_that_is_really_full(tmp_path):
    script = """
import sys, pathlib
from reach.store.base import StoreFull
from reach.store.sqlite import SqliteJournal
from tests.contracts.journal_rows import outcome, task, writes
folder = pathlib.Path(sys.argv[1])
ballast = folder / "ballast"
ballast.write_bytes(b"x" * (2 << 20))
journal = SqliteJournal(folder / "data")
journal.open()
first, full = 1, 0
while full < 30:
    batch = writes(tasks=[task(row, spec=b"x" * 500) for row in range(first, first + 20)])
    try:
        assert journal.commit(batch) == []
        first += 20
    except StoreFull:
        full += 1
        assert journal.find("acme", f"task-{first}") is None
        assert journal.find("acme", f"task-{first - 1}") is not None
        if full == 20:
            ballast.unlink()
journal.close()
journal = SqliteJournal(folder / "data")
journal.open()
assert [item.task.row for item in journal.load().tasks] == list(range(1, first))
assert journal._writer.execute("pragma integrity_check").fetchone() == ("ok",)
print("kept", first - 1)
"""
    mount = f"mount -t tmpfs -o size=6m none {tmp_path} && exec {sys.executable} - {tmp_path}"
    finished = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount], cwd=ROOT, input=script, capture_output=True, text=True, check=False
    )
    if finished.returncode and ("unshare" in finished.stderr or "mount:" in finished.stderr):
        pytest.skip(finished.stderr)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.split()[1]) > 2_000


# Syncs and writes that fail


@pytest.mark.parametrize("what", ["sync-fails", "write-fails"])
def test_after_a_failed_sync_or_write_nothing_more_is_promised(folder, what):
    """The real thing: the kernel answers EIO to fsync, EFBIG to write. Nobody tries a second sync."""
    with child(folder, what) as process:
        said = process.stdout.read().splitlines()
    if process.returncode == 77:
        pytest.skip(said[-1])
    assert process.returncode == 0
    assert said[0] == "kept"
    assert said[1].startswith("StoreBroken ")
    assert "SQLITE_IOERR" in said[1]
    assert said[2] == said[1], "the first failure is what is told"
    assert said[3] == "still reads True"
    journal = SqliteJournal(folder)
    journal.open()
    found = [item.task.row for item in journal.load().tasks]
    assert found in (list(range(1, 51)), list(range(51, 101))), (
        "the batch that failed is there as a whole or not at all"
    )
    journal.close()


class Failing:
    """A connection whose statements fail from a certain one on."""

    def __init__(self, db, text, code, name="SQLITE_X"):
        self.db = db
        self.text = text
        self.error = sqlite3.OperationalError("it failed")
        self.error.sqlite_errorcode = code
        self.error.sqlite_errorname = name

    def execute(self, text, *values):
        if text.startswith(self.text):
            raise self.error
        return self.db.execute(text, *values)

    def __getattr__(self, name):
        return getattr(self.db, name)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, StoreFull),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable),
        (sqlite3.SQLITE_LOCKED, StoreUnavailable),
        (sqlite3.SQLITE_CANTOPEN, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreBroken),
        (sqlite3.SQLITE_IOERR_WRITE, StoreBroken),
        (sqlite3.SQLITE_CORRUPT, StoreBroken),
        (sqlite3.SQLITE_NOTADB, StoreBroken),
        (sqlite3.SQLITE_READONLY, StoreBroken),
        (sqlite3.SQLITE_ERROR, StoreBroken),
    ],
)
@pytest.mark.parametrize("where", ["begin", "insert or ignore into outcome", "commit"])
def test_each_error_has_its_word_and_leaves_nothing_behind(folder, code, expected, where):
    journal = SqliteJournal(folder)
    journal.open()
    journal._index = KeyIndex(2, 1)
    journal.commit(writes(tasks=[task(1)]))
    batch = writes(tasks=[task(2, session="s"), task(3, "task-1")], outcomes=[outcome(1), outcome(2)])
    writer = journal._writer
    assert writer is not None
    journal._writer = Failing(writer, where, code)  # type: ignore[assignment]
    before = vars(journal._index).copy(), len(journal._index), journal._open.copy()
    with pytest.raises(expected, match="it failed"):
        journal.commit(batch)
    assert (vars(journal._index), len(journal._index), journal._open) == before
    assert not writer.in_transaction
    journal._writer = writer
    if expected is StoreBroken:
        with pytest.raises(StoreBroken):
            journal.commit(batch)
        with pytest.raises(StoreBroken):
            journal.purge(1 << 60, 10)
        journal.close()
        journal = SqliteJournal(folder)
        journal.open()
    assert journal.find("acme", "task-2") is None
    assert [item.task.row for item in journal.load().tasks] == [1]
    assert journal.commit(batch) == [3]
    assert [item.outcome for item in journal.list_tasks(TaskQuery("acme"))] == [outcome(2), outcome(1)]
    journal.close()


def test_memory_that_falls_behind_the_disk_ends_the_journal(journal, monkeypatch):
    """Else an id that is taken on disk could be given again."""

    def no_memory(added, done):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(journal._index, "apply", no_memory)
        with pytest.raises(MemoryError):
            journal.commit(writes(tasks=[task(1, "same")]))
    with pytest.raises(StoreBroken, match="no longer"):
        journal.commit(writes(tasks=[task(2, "same")]))
    journal.close()
    journal.open()
    assert journal.commit(writes(tasks=[task(2, "same")])) == [2]


def test_a_reading_error_of_ours_does_not_end_the_journal(journal, monkeypatch):
    journal.commit(writes(tasks=[task(1)]))
    monkeypatch.setattr("reach.store.sqlite.read_tasks", lambda db, rows: db.execute("select nonsense"))
    with pytest.raises(StoreUnavailable):
        journal.find("acme", "task-1")
    monkeypatch.undo()
    assert journal.commit(writes(tasks=[task(2)])) == []
    assert journal.find("acme", "task-1") is not None


def test_somebody_else_who_writes_is_unavailable_for_a_while(journal, folder, monkeypatch):
    journal._writer.execute("pragma busy_timeout = 20")
    other = sqlite3.connect(folder / "journal.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreUnavailable, match="locked"):
        journal.commit(writes(tasks=[task(1)]))
    other.execute("rollback")
    assert journal.commit(writes(tasks=[task(1)])) == []
    other.close()


def test_what_cannot_be_stored_does_not_keep_the_rest_out(journal):
    bad = outcome(
        2,
        message="half \ud83d",
        queued_ms=1 << 70,
        metadata={"k": "\ud83d"},
        extra={"n": 1 << 70, "x": {1}, "y": 1 + 2j},
    )
    assert journal.commit(writes(tasks=[task(1), task(2)], outcomes=[outcome(1), bad])) == []
    assert journal.find("acme", "task-1").outcome == outcome(1)
    found = journal.find("acme", "task-2").outcome
    assert (found.message, found.queued_ms, found.content) == ("half ?", (1 << 63) - 1, bad.content)
    assert found.metadata == {"k": "\ud83d"}
    assert found.extra == {"n": 1 << 70, "x": [1], "y": "(1+2j)"}


def test_a_name_that_cannot_be_stored_is_not_found(journal):
    assert journal.find("acme", "\ud83d") is None
    assert journal.list_tasks(TaskQuery("\ud83d", session="\ud83d")) == []


# Bounds


def test_the_log_is_bounded_while_nobody_is_in_the_way(journal, folder):
    for row in range(1, 101):
        journal.commit(writes(tasks=[task(row, spec=os.urandom(1 << 20))]))
    assert log_bytes(folder) <= 64_000_000


def test_a_commit_that_copies_the_log_is_told_before(journal, folder):
    """Small rows or large ones: the guess is near enough that no other commit does it."""
    row = 1
    for size in (256, 30_000):
        end = 0
        while not journal._log.is_full():
            journal.commit(writes(tasks=[task(row + number, spec=os.urandom(size)) for number in range(32)]))
            row += 32
            end = end_of_log(folder / "journal.db-wal", end)
        assert HEAVY_PAGES * 0.5 < end / PAGE_BYTES < MOST_PAGES
        assert journal.heavy()
        before = log_bytes(folder)
        journal.commit(writes(tasks=[task(row)]))
        row += 1
        assert not journal.heavy()
        assert log_bytes(folder) == before, "it begins anew in the same file"
        journal._writer.execute("pragma wal_checkpoint(truncate)").fetchall()


def test_the_log_is_made_longer_before_it_is_needed(journal, folder):
    """So that a sync finds a file that is as long as before. The commit that does it is told before; all others find
    room."""
    end, longer = 0, 0
    for row in range(1, 2_000, 32):
        told, before = journal.heavy(), log_bytes(folder)
        journal.commit(writes(tasks=[task(row + number, spec=os.urandom(256)) for number in range(32)]))
        assert (log_bytes(folder) > before) == told
        longer += told
        end = end_of_log(folder / "journal.db-wal", end)
        assert end < log_bytes(folder)
    assert longer <= 1 + 2 * end // PIECE_BYTES, "a guess, but no bad one"


def test_a_log_that_cannot_be_made_longer_is_left_to_sqlite(journal, folder, monkeypatch):
    def no_space(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "no space")

    monkeypatch.setattr(sqlite_log, "open", no_space, raising=False)
    for row in range(1, 1_000, 32):
        journal.commit(writes(tasks=[task(row + number, spec=os.urandom(256)) for number in range(32)]))
        assert not journal.heavy()
    assert log_bytes(folder) == end_of_log(folder / "journal.db-wal")


def test_the_log_shrinks_after_a_reader_who_stayed(journal, folder):
    """S2. The reader is another connection; ours never stay."""
    reader = sqlite3.connect(folder / "journal.db", isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from task").fetchone()
    for row in range(1, 151):
        journal.commit(writes(tasks=[task(row, spec=os.urandom(1 << 20))]))
    assert log_bytes(folder) > 140_000_000
    reader.execute("commit")
    for row in range(151, 185):
        journal.commit(writes(tasks=[task(row)]))
    assert log_bytes(folder) <= 64_000_000
    assert reader.execute("select count(*) from task").fetchone() == (184,)
    reader.close()
    assert by_hand_check(journal) == "ok"


def test_the_log_is_cut_off_under_readers_who_take_turns(folder, monkeypatch):
    """Our own reads never keep the log from beginning anew for long, however many there are."""
    monkeypatch.setattr(sqlite_log, "MOST_BYTES", 2_000_000)
    monkeypatch.setattr(sqlite_module, "MOST_PAGES", 100)
    journal = SqliteJournal(folder)
    journal.open()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            journal.list_tasks(TaskQuery("acme", agent_type="none"))

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            cuts = size = 0
            for row in range(1, 600):  # 18 MB
                journal.commit(writes(tasks=[task(row, spec=os.urandom(30_000))]))
                before, size = size, log_bytes(folder)
                cuts += size < before / 2
        finally:
            ended.set()
        for reader in readers:
            reader.result()
    assert cuts > 15, "when it is cut hangs on when the readers let go; that it is, again and again, does not"
    journal.close()


def test_nothing_of_a_purged_task_stays_in_the_index(folder):
    journal = SqliteJournal(folder)
    journal.open()
    journal._index = KeyIndex(4, 2)
    row = 0
    for _ in range(30):
        rows = range(row + 1, row + 11)
        batch = [task(number, session=f"s{number % 3}", root_task_id="r") for number in rows]
        journal.commit(writes(tasks=batch, outcomes=[outcome(number) for number in rows]))
        row += 10
        assert journal.purge(1 << 60, 7) == 7
    while journal.purge(1 << 60, 7):
        pass
    tables = ("task", "outcome", "task_key")
    assert journal._writer is not None
    assert [journal._writer.execute(f"select count(*) from {table}").fetchone()[0] for table in tables] == [0, 0, 0]
    assert len(journal._index) == 0
    assert journal._open == set()
    journal.close()


def test_purged_space_is_used_again(journal, folder):
    sizes = []
    row = 0
    for _ in range(8):
        rows = range(row + 1, row + 201)
        journal.commit(writes(tasks=[task(number, spec=os.urandom(3_000)) for number in rows]))
        journal.commit(writes(outcomes=[outcome(number) for number in rows]))
        row += 200
        assert journal.purge(1 << 60, 200) == 200
        journal._writer.execute("pragma wal_checkpoint(truncate)").fetchall()
        sizes.append((journal.size_bytes(), (folder / "journal.db").stat().st_size))
    assert sizes[-1][1] <= sizes[1][1] * 1.2
    assert sizes[-1][0] < 200_000


def test_opening_reads_open_tasks_only(folder):
    """However many have ended: those below the mark are not looked at."""
    journal = SqliteJournal(folder)
    journal.open()
    journal._index = KeyIndex(4, 5)
    for first in range(1, 2_001, 50):
        rows = range(first, first + 50)
        journal.commit(writes(tasks=[task(row) for row in rows], outcomes=[outcome(row) for row in rows if row % 100]))
    journal.close()
    journal.open()
    assert len(journal._index) <= 200
    assert len(journal._open) <= 20 + 10
    assert [item.task.row for item in journal.load().tasks] == list(range(100, 2_001, 100))
    assert len(journal._open) == 20
    journal.close()


def test_statements_find_their_rows_by_key(journal):
    """No statement of the hot path, of a purge or of reading one task walks through a table."""
    db = journal._writer
    for name, statement in (vars(sqlite_rows) | vars(sqlite_tasks)).items():
        if isinstance(statement, sqlite_rows.Statement):
            for size in (1, 256):
                plan = db.execute(f"explain query plan {statement._texts[size]}", [1] * (size * statement.width))
                walked = [line[3] for line in plan if line[3].startswith("SCAN")]
                assert [line for line in walked if not re.fullmatch(r"SCAN (\(.*\)|.*CONSTANT ROWS?)", line)] == [], (
                    name
                )


def test_purges_find_what_ended_first_by_an_index(journal):
    for text, index in ((sqlite_purge._RESULTS, "outcome_by_end"), (sqlite_purge._DEAD_LETTERS, "outcome_dead")):
        (line,) = journal._writer.execute(f"explain query plan {text}", (1, 1)).fetchall()
        assert f"{index} (ended<?)" in line[3]


def test_many_agents_and_pins_at_once(journal):
    agents = [agent(f"inst-{number}", number) for number in range(1, 601)]
    pins = [pin(f"s{number:03}") for number in range(600)]
    journal.commit(writes(agents=agents, pins=pins))
    assert journal.load().agents == agents
    assert journal.load().pins == pins
    journal.commit(
        writes(
            agents_gone=[AgentGone("acme", item.instance_id, item.agent_type) for item in agents[5:]],
            pins=[pin(p.session, "") for p in pins[5:]],
        )
    )
    assert journal.load().agents == agents[:5]
    assert journal.load().pins == pins[:5]
