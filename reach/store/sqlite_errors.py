"""SQLite's errors in the journal's words."""

from __future__ import annotations

import sqlite3
from typing import Final

from reach.store.base import StoreBroken, StoreError, StoreFull, StoreUnavailable

_FULL: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        # The file of shared memory could not grow: a full disk, too.
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
_LATER: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        # No file descriptor left, or the folder is gone for a while.
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_IOERR_NOMEM,
    }
)


_DAMAGED: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def translated(error: sqlite3.Error, what: str, otherwise: type[StoreError] = StoreBroken) -> StoreError:
    """Full, unavailable, or broken (input and output, syncs among them, and damage); `otherwise` for faults of ours."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    message = f"{what}: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    if code in _FULL or code & 0xFF in _FULL:
        return StoreFull(message)
    if code in _LATER or code & 0xFF in _LATER:
        return StoreUnavailable(message)
    return (StoreBroken if code & 0xFF in _DAMAGED else otherwise)(message)
