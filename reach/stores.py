"""Which store a node works on."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from reach.config import Config
from reach.errors import InvalidRequest, Unavailable
from reach.store.base import Journal, KeyStore, StoreError, StoreLocked
from reach.store.keys import SqliteKeyStore
from reach.store.memory import MemoryJournal
from reach.store.sqlite import SqliteJournal


def open_journal(config: Config) -> Journal:
    """The journal, ready. Blocks.

    Raises:
        Unavailable: another process has it, or it cannot be reached; the message says what to do.
    """
    journal = _journal(config)
    try:
        journal.open()
    except StoreLocked as error:
        raise Unavailable(f"{error} with --data") from error
    except StoreError as error:
        raise Unavailable(f"cannot open the store: {error}") from error
    return journal


def _journal(config: Config) -> Journal:
    storage = config.storage
    if storage.type == "postgres":
        from reach.store.postgres import PostgresJournal  # which nobody else has to wait for

        return PostgresJournal(database_of(config))
    return MemoryJournal() if storage.type == "memory" else SqliteJournal(Path(storage.path))


def database_of(config: Config) -> str:
    """The address of the database, with its password if that is in a file.

    Raises:
        InvalidRequest: the file cannot be read, or is empty.
    """
    url, file = config.storage.url, config.storage.password_file
    if not file:
        return url
    try:
        password = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"storage.password_file cannot be read: {error}") from error
    if not password:
        raise InvalidRequest(f"storage.password_file is empty: {file}")
    user, _, rest = url.partition("@")
    return f"{user}:{quote(password, safe='')}@{rest}"


def open_keys(config: Config) -> KeyStore | None:
    """The API keys, where callers need one: beside the journal. Blocks."""
    if config.server.auth != "keys":
        return None
    if config.storage.type == "postgres":
        from reach.store.postgres_keys import PostgresKeyStore

        return PostgresKeyStore(database_of(config))
    return SqliteKeyStore(Path(config.storage.path))
