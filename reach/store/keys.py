"""API keys: who may call, kept hashed in a SQLite file of their own beside the journal.

A key is `ar_<key_id>_<secret>`. The key_id is public: it is listed, logged and revoked. The secret is 32 random bytes,
shown once. What is kept of it is a plain SHA-256: that is right for 256 random bits, which nobody can guess however
fast the hash is (slow salted hashes are for passwords, which people choose), and lets a call be checked in about 2 µs.

The file is written by the server and by `reach keys` at the same time (WAL, short transactions). A server answers from
memory and asks the file at most twice a second whether another connection changed it (`PRAGMA data_version`, about
5 µs): a key made or revoked by hand counts within 1 s, without a restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from reach.errors import InvalidRequest, Reason, ResourceExhausted, Unavailable
from reach.store.base import ApiKey

SCOPES: Final = frozenset({"agent", "caller", "reader", "operator"})
FILE_NAME: Final = "keys.db"
MAX_KEYS: Final = 10_000
"""Keys in one store, ended ones too. When it is full, keys that ended more than 30 days ago make room."""

_NAME: Final = re.compile(r"[a-z0-9._-]{1,64}")
_TOKEN: Final = re.compile(r"ar_([a-z2-7]{13})_([a-z2-7]{52})")
_LOOK_EVERY_S: Final = 0.5
_KEEP_ENDED_MS: Final = 30 * 86_400_000
_MAX_TTL_MS: Final = 100 * 366 * 86_400_000
_SCHEMA_VERSION: Final = 1
_NO_HASH: Final = bytes(32)
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
_COLUMNS: Final = "key_id, hash, tenant, app_id, scopes, created_ms, expires_ms, revoked_ms"

_log = logging.getLogger(__name__)


def check_name(field: str, value: str) -> str:
    """A tenant or app_id of the documented grammar, 1–64 of a–z, 0–9, dot, underscore, hyphen; else InvalidRequest."""
    if not _NAME.fullmatch(value):
        raise InvalidRequest(f"{field} must be 1 to 64 of a-z, 0-9, '.', '_' and '-'", field=field)
    return value


class SqliteKeyStore:
    """The KeyStore in `keys.db` of a data folder.

    Invariant: `_keys` is replaced whole, never changed, so that it can be read without the lock.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the file, and makes it (mode 0600, in a folder of mode 0700) if it is not there."""
        self._path = folder / FILE_NAME
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._look = threading.Lock()
        self._look_at = 0.0
        self._version: int | None = None
        self._keys: dict[str, tuple[ApiKey, bytes]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(self._path)
            self._migrate()
            self._reader = self._connect()
            self._refresh()
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(f"{self._path} cannot be used: {error}", Reason.STORE_UNAVAILABLE) from error

    def create(self, tenant: str, app_id: str, scopes: Iterable[str], ttl_ms: int | None = None) -> tuple[ApiKey, str]:
        """See KeyStore. InvalidRequest for bad names, scopes or times, ResourceExhausted over MAX_KEYS."""
        wanted = frozenset(scopes)
        if not wanted or not wanted <= SCOPES:
            raise InvalidRequest(f"scopes must be some of {', '.join(sorted(SCOPES))}", field="scopes")
        if ttl_ms is not None and not 0 < ttl_ms <= _MAX_TTL_MS:
            raise InvalidRequest("ttl must be more than 0 and at most 100 years", field="ttl")
        now = self._now_ms()
        expires_ms = None if ttl_ms is None else now + ttl_ms
        check_name("tenant", tenant)
        check_name("app_id", app_id)
        with self._writing() as connection:
            return self._insert(connection, ApiKey(_random_text(8), tenant, app_id, wanted, now, expires_ms))

    def list_keys(self, tenant: str | None = None, *, after: str = "", limit: int = 100) -> list[ApiKey]:
        """See KeyStore."""
        self._refresh()
        keys = sorted((key for key, _ in self._keys.values()), key=lambda key: (key.created_ms, key.key_id))
        keys = [key for key in keys if tenant is None or key.tenant == tenant]
        start = next((place + 1 for place, key in enumerate(keys) if key.key_id == after), 0)
        return keys[start : start + limit]

    def revoke(self, key_id: str, tenant: str | None = None) -> ApiKey:
        """See KeyStore. InvalidRequest if there is no such key."""
        now = self._now_ms()
        with self._writing() as connection:
            if self._select(connection, key_id, tenant).valid_at(now):
                connection.execute("update key set revoked_ms = ? where key_id = ?", (now, key_id))
            return self._select(connection, key_id, tenant)

    def rotate(self, key_id: str, tenant: str | None = None, *, overlap_ms: int = 0) -> tuple[ApiKey, str]:
        """See KeyStore. InvalidRequest if there is no such key or it has ended."""
        if not 0 <= overlap_ms <= _MAX_TTL_MS:
            raise InvalidRequest("overlap must be 0 to 100 years", field="overlap")
        now = self._now_ms()
        with self._writing() as connection:
            old = self._select(connection, key_id, tenant)
            if not old.valid_at(now):
                raise InvalidRequest("the key has ended; create a new one", Reason.WRONG_STATE, key_id=key_id)
            ends = now + overlap_ms
            if old.revoked_ms is None or ends < old.revoked_ms:
                connection.execute("update key set revoked_ms = ? where key_id = ?", (ends, key_id))
            expires_ms = None if old.expires_ms is None else now + old.expires_ms - old.created_ms
            fresh = ApiKey(_random_text(8), old.tenant, old.app_id, old.scopes, now, expires_ms)
            return self._insert(connection, fresh)

    def verify(self, token: str) -> ApiKey | None:
        """See KeyStore. The comparison takes the same time whether the key_id, the secret or nothing is right."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        self._refresh_if_due()
        found = self._keys.get(parts[1])
        key, kept = found if found is not None else (None, _NO_HASH)
        right = hmac.compare_digest(hashlib.sha256(parts[2].encode()).digest(), kept)
        return key if right and key is not None and key.valid_at(self._now_ms()) else None

    def is_valid(self, key_id: str) -> bool:
        """See KeyStore."""
        self._refresh_if_due()
        found = self._keys.get(key_id)
        return found is not None and found[0].valid_at(self._now_ms())

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
                rows = self._reader.execute(f"select {_COLUMNS} from key").fetchall()
                self._keys = {row[0]: (_key_of(row), row[1]) for row in rows}
                self._version = version

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

    def _insert(self, connection: sqlite3.Connection, key: ApiKey) -> tuple[ApiKey, str]:
        self._make_room(connection, key.created_ms)
        secret = _random_text(32)
        columns = (key.tenant, key.app_id, " ".join(sorted(key.scopes)), key.created_ms, key.expires_ms, None)
        connection.execute(
            f"insert into key ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
            (key.key_id, hashlib.sha256(secret.encode()).digest(), *columns),
        )
        return key, f"ar_{key.key_id}_{secret}"

    def _make_room(self, connection: sqlite3.Connection, now_ms: int) -> None:
        (count,) = connection.execute("select count(*) from key").fetchone()
        if count < MAX_KEYS:
            return
        before = now_ms - _KEEP_ENDED_MS
        deleted = connection.execute(
            "delete from key where revoked_ms < ? or expires_ms < ?", (before, before)
        ).rowcount
        if deleted == 0:
            raise ResourceExhausted(f"there are {MAX_KEYS} API keys already", Reason.STORE_FULL, limit=str(MAX_KEYS))

    def _select(self, connection: sqlite3.Connection, key_id: str, tenant: str | None) -> ApiKey:
        row = connection.execute(f"select {_COLUMNS} from key where key_id = ?", (key_id,)).fetchone()
        if row is None or (tenant is not None and row[2] != tenant):
            raise InvalidRequest("there is no such key", field="key_id")
        return _key_of(row)


def _key_of(row: tuple[str, bytes, str, str, str, int, int | None, int | None]) -> ApiKey:
    key_id, _, tenant, app_id, scopes, created_ms, expires_ms, revoked_ms = row
    return ApiKey(key_id, tenant, app_id, frozenset(scopes.split()), created_ms, expires_ms, revoked_ms)


def _random_text(size: int) -> str:
    """`size` random bytes as a–z and 2–7: without padding or underscore, and selected whole by a double click."""
    return base64.b32encode(secrets.token_bytes(size)).decode().rstrip("=").lower()


def _make_private(path: Path) -> None:
    """The file with mode 0600, whatever the umask is; SQLite gives its -wal and -shm files the same."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
