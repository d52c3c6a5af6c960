"""A process that owns a journal, to be killed, stopped and starved by tests.

    python -m tests.store.journal_child FOLDER load [SEED]      commit without end; a line per acknowledged batch
    python -m tests.store.journal_child FOLDER hold             open, say so, and wait
    python -m tests.store.journal_child FOLDER sync-fails       commit; then every sync fails; commit again, twice
    python -m tests.store.journal_child FOLDER write-fails      the same with files that may not grow

Batch n has tasks of the rows first..last, a second attempt for each of them, and outcomes for the rows of the batch
before: a half batch would show. Names tell of the batch, so that whoever reads can tell what belongs together.
"""

import ctypes
import os
import platform
import random
import resource
import signal
import struct
import sys
import time
from pathlib import Path

from reach.core.rows import Writes
from reach.store.base import StoreError
from reach.store.sqlite import SqliteJournal
from reach.store.sqlite_log import PAGE_BYTES
from tests.contracts.journal_rows import attempt, outcome, task

SYNC_CALLS = {"x86_64": (74, 75), "aarch64": (82, 83)}
"""fsync and fdatasync, by machine."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def batch_of(number: int, first: int, last: int, ended: range) -> Writes:
    made = Writes()
    made.tasks = [
        task(row, f"batch-{number}-{row}", root_task_id=f"batch-{number}", spec=os.urandom(row % 700))
        for row in range(first, last + 1)
    ]
    made.attempts = [attempt(row) for row in range(first, last + 1)]
    made.outcomes = [outcome(row, message=f"ended by batch-{number}") for row in ended]
    return made


def end_of_log(log: Path, known: int = 0) -> int:
    """Where the last frame of a log that has not begun anew ends; `known`: up to here there are frames. What follows
    are zeros, for the file is made longer ahead of need."""
    with log.open("rb") as file:
        header = file.read(32)
        end = max(known, len(header))
        while True:
            file.seek(end)
            if file.read(16)[8:] != header[16:24]:
                return end
            end += 24 + PAGE_BYTES


def load(journal: SqliteJournal, seed: int) -> None:
    chance = random.Random(seed)
    loaded = journal.load()
    ended = range(0)
    first = loaded.next_row
    number = first
    end = 0
    say("ready")
    while True:
        last = first + chance.choice([1, 1, 3, 10, 40, 130]) - 1
        journal.commit(batch_of(number, first, last, ended))
        end = end_of_log(Path(f"{journal._path}-wal"), end)
        say("kept", number, first, last, end)
        ended = range(first, last + 1)
        first = last + 1
        number += 1


def let_syncs_fail() -> None:
    """From here on fsync and fdatasync of this thread end with EIO: a seccomp filter, which needs no rights."""
    calls = SYNC_CALLS[platform.machine()]
    load_number, equal, give = 0x20, 0x15, 0x06
    steps = [
        (load_number, 0, 0, 0),
        (equal, 1, 0, calls[0]),
        (equal, 0, 1, calls[1]),
        (give, 0, 0, 0x00050000 | 5),
        (give, 0, 0, 0x7FFF0000),
    ]
    program = b"".join(struct.pack("HBBI", *step) for step in steps)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        say("no seccomp", ctypes.get_errno())
        sys.exit(77)


def let_writes_fail() -> None:
    """From here on no file may grow (EFBIG)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))


def commit_before_and_after(journal: SqliteJournal, fail: object) -> None:
    journal.commit(batch_of(1, 1, 50, range(0)))
    say("kept")
    fail()  # type: ignore[operator]
    for first in (51, 101):
        try:
            journal.commit(batch_of(first, first, first + 49, range(first - 50, first)))
            say("kept")
        except StoreError as error:
            say(type(error).__name__, error)
    say("still reads", journal.find("acme", "batch-1-50") is not None)


def main() -> None:
    folder, what = sys.argv[1:3]
    journal = SqliteJournal(folder)
    journal.open()
    if what == "load":
        load(journal, int(sys.argv[3]))
    elif what == "hold":
        say("holding")
        time.sleep(600)
    else:
        commit_before_and_after(journal, let_syncs_fail if what == "sync-fails" else let_writes_fail)
        os._exit(0)


if __name__ == "__main__":
    main()
