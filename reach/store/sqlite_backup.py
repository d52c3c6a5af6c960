"""Backup and restore of a data folder. A server that runs in it is not disturbed: what is copied is one snapshot, which
locks nobody out (SQLite's online backup, in one step)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from reach.store import keys
from reach.store.base import StoreBroken, StoreUnavailable
from reach.store.folder import DataFolder
from reach.store.manifest import Counts, make_folder, read_manifest, write_manifest
from reach.store.migrations import APPLICATION_ID, NEWEST
from reach.store.sqlite import FILE_NAME
from reach.store.sqlite_errors import translated

KIND: Final = "sqlite"
_COUNTS: Final = """
select (select count(*) from task),
    (select count(*) from open where instance_id = ''),
    (select count(*) from open where instance_id <> ''),
    (select count(*) from open where row in (select row from effect where granted)),
    (select count(*) from outbox)
"""
_OPEN: Final = """
create temp view open as
    select task.row, coalesce((select instance_id from attempt where attempt.row = task.row order by number desc
        limit 1), task.instance_id, '') as instance_id
    from task where not exists (select 1 from outcome where outcome.row = task.row)
"""


def back_up(folder: Path, target: Path) -> dict[str, Any]:
    """Copies the journal and the keys of a data folder; returns what the backup says of itself.

    Raises:
        StoreError: There is nothing to copy, or it cannot be read or written.
    """
    source = folder / FILE_NAME
    if not source.exists():
        raise StoreUnavailable(f"there is no journal in {folder}: --data names the folder of the server")
    make_folder(target)
    try:
        _copy(source, target / FILE_NAME)
        if (folder / keys.FILE_NAME).exists():
            _copy(folder / keys.FILE_NAME, target / keys.FILE_NAME)
        schema, counts = _look(target / FILE_NAME)
    except sqlite3.Error as error:
        raise translated(error, f"{folder} cannot be copied") from error
    return write_manifest(target, KIND, schema, counts, {})


def restore(backup: Path, folder: Path) -> dict[str, Any]:
    """Puts a backup into a data folder that has no journal yet; returns what it says of itself.

    Raises:
        StoreError: It is no good backup, or something is there already, or a server runs there.
    """
    said = read_manifest(backup, KIND, NEWEST)
    place = DataFolder(folder)
    place.take()
    try:
        for name in (FILE_NAME, keys.FILE_NAME):
            if name in said["files"] and (folder / name).exists():
                raise StoreUnavailable(f"{folder / name} is there already: restore into an empty folder")
        for name in (keys.FILE_NAME, FILE_NAME):  # the journal last: without it nothing is restored
            if name in said["files"]:
                _put(backup / name, folder / name)
    finally:
        place.give_back()
    return said


def _put(source: Path, target: Path) -> None:
    draft = target.with_suffix(".part")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with source.open("rb") as data, open(handle, "wb") as file:
            shutil.copyfileobj(data, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(target)
    except OSError as error:
        raise StoreUnavailable(f"{target} cannot be written: {error.strerror}") from error


def _copy(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as reading,
        closing(sqlite3.connect(target, isolation_level=None)) as writing,
    ):
        reading.backup(writing, pages=-1)
        writing.execute("pragma journal_mode = delete").fetchall()  # one file, without a log beside it
        (verdict,) = writing.execute("pragma quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreBroken(f"{source} is damaged: {verdict}")


def _look(file: Path) -> tuple[int, Counts]:
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as db:
        (owner,) = db.execute("pragma application_id").fetchone()
        if owner != APPLICATION_ID:
            raise StoreBroken(f"{file} is not a journal of Agent-Reach")
        (schema,) = db.execute("select max(version) from migration").fetchone()
        db.execute(_OPEN)
        return schema, Counts(*db.execute(_COUNTS).fetchone())
