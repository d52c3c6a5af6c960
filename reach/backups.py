"""Backup and restore of the store that a configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reach.config import Config
from reach.errors import InvalidRequest, Unavailable
from reach.store.base import StoreError
from reach.stores import database_of


def back_up(config: Config, target: Path) -> dict[str, Any]:
    """Copies what a server with this configuration keeps; returns what the backup says of itself. Blocks.

    Raises:
        InvalidRequest: The configuration names nothing that can be copied.
        Unavailable: It cannot be read or written; the message says what to do.
    """
    try:
        if config.storage.type == "postgres":
            from reach.store import postgres_backup

            return postgres_backup.back_up(database_of(config), target)
        _check(config)
        from reach.store import sqlite_backup

        return sqlite_backup.back_up(Path(config.storage.path), target)
    except StoreError as error:
        raise Unavailable(f"no backup: {error}") from error


def restore(config: Config, source: Path) -> dict[str, Any]:
    """Puts a backup where a server with this configuration will look for it. Blocks.

    Raises:
        InvalidRequest: The configuration names no place for it.
        Unavailable: It is no good backup, or something is there already.
    """
    try:
        if config.storage.type == "postgres":
            from reach.store import postgres_backup

            return postgres_backup.restore(source, database_of(config))
        _check(config)
        from reach.store import sqlite_backup

        return sqlite_backup.restore(source, Path(config.storage.path))
    except StoreError as error:
        raise Unavailable(f"not restored: {error}") from error


def _check(config: Config) -> None:
    if config.storage.type == "memory":
        raise InvalidRequest("what is kept in memory cannot be copied: storage.type must be sqlite or postgres")
