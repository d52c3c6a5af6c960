"""The SQLite journal when its process or the machine ends at any moment: what was acknowledged is there, whole."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reach.store.sqlite import SqliteJournal
from tests.contracts.journal_rows import attempt

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 20
STOPS = int(os.environ.get("STOPS", "20"))
"""Each is cut at CUTS places; 40 make the 200 power losses of F8."""
CUTS = 5
BEHIND = 1 << 20
"""How far behind the last acknowledged commit the log is cut."""


class Child:
    """A process that commits without end, and what it has acknowledged so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.store.journal_child", str(folder), "load", str(seed)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.pipe = self.process.stdout
        self.rest = b""
        self.kept: list[tuple[int, int, int, int]] = []
        """(batch, first row, last row, where the log ended then)."""
        assert self.pipe.readline() == b"ready\n"
        os.set_blocking(self.pipe.fileno(), False)

    def hear(self) -> None:
        """Reads what it has said; a line that is not whole yet was not said."""
        while data := self.pipe.read():
            self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            word, *numbers = line.split()
            assert word == b"kept"
            batch, first, last, size = map(int, numbers)
            self.kept.append((batch, first, last, size))

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            self.hear()  # Else the pipe would be full, and it would wait.

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        self.hear()

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.hear()
        self.pipe.close()


def check(folder: Path, kept: list[tuple[int, int, int, int]]) -> int:
    """Opens the journal and looks whether all of `kept` is there, and no half batch; returns the number of tasks."""
    journal = SqliteJournal(folder)
    journal.open()
    try:
        db = journal._writer
        assert db is not None
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        there: dict[int, list[int]] = {}
        for row, name in db.execute("select row, task_id from task order by row"):
            found = re.fullmatch(r"batch-(\d+)-(\d+)", name)
            assert found is not None
            assert int(found[2]) == row
            there.setdefault(int(found[1]), []).append(row)
        assert sum(map(len, there.values())) == db.execute("select count(*) from attempt").fetchone()[0]
        ended: dict[str, list[int]] = {}
        for row, message in db.execute("select row, message from outcome order by row"):
            ended.setdefault(message, []).append(row)
        for batch, first, last, _ in kept:
            assert there.get(batch) == list(range(first, last + 1)), f"acknowledged batch {batch} is not there"
        # A batch has each row between those of its neighbours, and ended all of the one before, unless a new life of
        # the process began with it.
        rows = [row for batch in sorted(there) for row in there[batch]]
        assert rows == list(range(1, len(rows) + 1))
        for before, batch in zip(sorted(there), sorted(there)[1:], strict=False):
            assert ended.pop(f"ended by batch-{batch}", there[before]) == there[before]
        assert ended == {}
        loaded = journal.load()
        assert loaded.next_row == len(rows) + 1
        open_rows = {item.task.row for item in loaded.tasks}
        assert open_rows == set(rows) - {row for (row,) in db.execute("select row from outcome")}
        if kept:
            batch, _, last, _ = kept[-1]
            found_task = journal.find("acme", f"batch-{batch}-{last}")
            assert found_task is not None
            assert found_task.attempts == [attempt(last)]
        return len(rows)
    finally:
        journal.close()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_at_any_moment(tmp_path):
    """One journal through many lives; each opens what the one before left behind."""
    chance = random.Random(os.environ.get("SEED", "7"))
    folder = tmp_path / "data"
    kept: list[tuple[int, int, int, int]] = []
    total = 0
    for life in range(KILLS):
        child = Child(folder, chance.randrange(1 << 30))
        try:
            child.run_for(chance.choice([0.0, 0.005, 0.03, 0.1, 0.3]) * (0.5 + chance.random()))
        finally:
            child.kill()
        kept += child.kept
        total = check(folder, kept)
        assert total >= sum(last - first + 1 for _, first, last, _ in kept), life
    assert total > 1_000


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_power_loss_anywhere_after_the_last_acknowledged_commit(tmp_path):
    """F8. The copy of a stopped process's files, with the log cut off, or torn, behind the last acknowledged commit.

    Lives are so short that the log is never copied into the database: then its last frame at an acknowledgement is
    where that commit ends.
    """
    chance = random.Random(os.environ.get("SEED", "8"))
    cuts = 0
    for stop in range(STOPS):
        folder = tmp_path / str(stop)
        child = Child(folder, chance.randrange(1 << 30))
        try:
            child.run_for(chance.choice([0.0, 0.02, 0.1, 0.25]) * (0.5 + chance.random()))
            child.stop()
            acknowledged = child.kept[-1][3] if child.kept else 0
            size = (folder / "journal.db-wal").stat().st_size
            assert size < 40_000_000
            size = min(size, acknowledged + BEHIND)  # what is farther behind are the zeros that wait to be used
            for cut in range(CUTS):
                copy = tmp_path / f"{stop}-{cut}"
                copy.mkdir()
                for name in ("journal.db", "journal.db-wal"):
                    shutil.copyfile(folder / name, copy / name)
                if acknowledged:
                    at = chance.choice([acknowledged, size, chance.randint(acknowledged, size)])
                    with (copy / "journal.db-wal").open("r+b") as log:
                        log.truncate(at)
                        log.seek(at)
                        # What the disk may hold behind it: nothing, zeros, anything, or part of the next commit.
                        log.write(chance.choice([b"", bytes(9_000), chance.randbytes(9_000)]))
                check(copy, child.kept)
                shutil.rmtree(copy)
                cuts += 1
        finally:
            child.kill()
        shutil.rmtree(folder)
    assert cuts == STOPS * CUTS


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_power_loss_while_the_log_is_copied(tmp_path):
    """The same over a long life, in which the log begins anew several times: stopped anywhere, nothing cut."""
    chance = random.Random(os.environ.get("SEED", "9"))
    folder = tmp_path / "data"
    child = Child(folder, 9)
    try:
        for stop in range(8):
            child.run_for(0.3 + chance.random() / 2)
            child.stop()
            copy = tmp_path / str(stop)
            copy.mkdir()
            for name in ("journal.db", "journal.db-wal"):
                shutil.copyfile(folder / name, copy / name)
            child.go_on()
            check(copy, child.kept)
            shutil.rmtree(copy)
    finally:
        child.kill()
    check(folder, child.kept)
