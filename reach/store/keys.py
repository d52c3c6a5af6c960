"""API keys in a SQLite file of their own beside the journal; what keys are is in `key_rules`.

The file is written by the server and by `reach keys` at the same time (WAL, short transactions). A server answers from
memory and asks the file at most twice a second whether another connection changed it (`PRAGMA data_version`, about
5 µs): a key made or revoked by hand counts within 1 s, without a restart.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from reach.errors import Reason, ResourceExhausted, Unavailable
from reach.store.key_rules import COLUMNS, Change, HashedKeys, Keys, keys_of, wall_ms

FILE_NAME: Final = "keys.db"

_LOOK_EVERY_S: Final = 0.5
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
create table key (
    key_id     text primary key,
    hash       blob not null,
    tenant     text not null,
    app_id     text not null,
    scopes     text not null,
    created_ms integer not null,
    expires_ms integer,
    revoked_ms integer
) without rowid
"""

_log = logging.getLogger(__name__)


class SqliteKeyStore(HashedKeys):
    """The KeyStore in `keys.db` of a data folder."""

    def __init__(
        self,
        folder: Path,
        *,
        now_ms: Callable[[], int] = wall_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the file, and makes it (mode 0600, in a folder of mode 0700) if it is not there."""
        super().__init__(now_ms)
        self._path = folder / FILE_NAME
        self._monotonic = monotonic
        self._look = threading.Lock()
        self._look_at = 0.0
        self._version: int | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(self._path)
            self._migrate()
            self._reader = self._connect()
            self._refresh()
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"{self._path} cannot be used: {error}", Reason.STORE_UNAVAILABLE) from error

    def close(self) -> None:
        """See KeyStore."""
        with self._look:
            self._reader.close()

    def _refresh_if_due(self) -> None:
        if self._monotonic() < self._look_at:
            return
        try:
            self._refresh()
        except sqlite3.Error as error:
            # Known keys go on being honoured: a sick disk must not lock everybody out. At most two lines a second.
            _log.warning("API keys could not be read again; the ones known before hold", extra={"error": str(error)})

    def _refresh(self) -> None:
        """Reads all keys again if another connection changed the file since the last look."""
        with self._look:
            self._look_at = self._monotonic() + _LOOK_EVERY_S
            (version,) = self._reader.execute("pragma data_version").fetchone()
            if version != self._version:
                rows = self._reader.execute(f"select {COLUMNS} from key").fetchall()
                self._keys = keys_of(rows)
                self._version = version

    def _change(self, decide: Callable[[Keys], Change]) -> None:
        with self._writing() as connection:
            self._refresh()
            change = decide(self._keys)
            if change.drop_ended_before is not None:
                before = change.drop_ended_before
                connection.execute("delete from key where revoked_ms < ? or expires_ms < ?", (before, before))
            if change.end is not None:
                key_id, at = change.end
                connection.execute("update key set revoked_ms = ? where key_id = ?", (at, key_id))
            if change.make is not None:
                connection.execute(f"insert into key ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)", change.make)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction on a connection of its own: the reader's then sees it as another's change."""
        try:
            with closing(self._connect()) as connection:
                connection.execute("begin immediate")
                try:
                    yield connection
                except BaseException:
                    connection.execute("rollback")
                    raise
                connection.execute("commit")
            self._refresh()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise ResourceExhausted("no space for API keys", Reason.STORE_FULL) from error
            raise Unavailable(f"API keys cannot be written: {error}", Reason.STORE_UNAVAILABLE) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        return connection

    def _migrate(self) -> None:
        with closing(self._connect()) as connection:
            connection.execute("begin immediate")
            (version,) = connection.execute("pragma user_version").fetchone()
            if version == 0:
                connection.execute(_SCHEMA)
                connection.execute(f"pragma user_version = {_SCHEMA_VERSION}")
            connection.execute("commit")
        if version > _SCHEMA_VERSION:
            raise Unavailable(f"{self._path} was written by a newer version of Agent-Reach", Reason.STORE_UNAVAILABLE)


def _make_private(path: Path) -> None:
    """The file with mode 0600, whatever the umask is; SQLite gives its -wal and -shm files the same."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
