"""Removing what has been kept long enough, or is not wanted any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from reach.store import sqlite_rows as sql
from reach.store.batch import storable_value
from reach.store.sqlite_keys import Entry, entries_of

# The words of the conditions are those of the indexes `outcome_by_end` and `outcome_dead`, or they would not be used.
_RESULTS: Final = "select row from outcome where state <> 9 and ended < ? order by ended, row limit ?"
_DEAD_LETTERS: Final = "select row from outcome where state = 9 and ended < ? order by ended, row limit ?"


def oldest(db: sqlite3.Connection, *, before_ms: int, limit: int, dead_letters: bool) -> list[int]:
    """Rows of the tasks that ended first, among those that ended before."""
    text = _DEAD_LETTERS if dead_letters else _RESULTS
    return [row for (row,) in db.execute(text, (storable_value(before_ms), max(limit, 0)))]


def ended(db: sqlite3.Connection, *, rows: Sequence[int]) -> list[int]:
    """Those of the rows that have ended."""
    return [row for (row,) in sql.ENDED.ask(db, list(rows))] if rows else []


def remove(db: sqlite3.Connection, rows: list[int]) -> tuple[int, list[Entry]]:
    """Removes tasks with all that belongs to them. (how many there were, what the index of names holds of them)"""
    if not rows:
        return 0, []
    removed = [entry for named in sql.KEYS_OF.ask(db, rows) for entry in entries_of(*named)]
    sql.DROP_KEYS.run(db, sql.flat(removed))
    for statement in sql.PURGED:
        statement.run(db, rows)
    db.execute(sql.SET_COUNTER, ("row", max(rows)))
    return sql.DROP_TASKS.run(db, rows), removed


def drop_facts(db: sqlite3.Connection, *, kind: str, before_ms: int, limit: int) -> int:
    """Drops facts of a kind that are older. Only for kinds that nobody takes, of which there are few."""
    rows = db.execute(
        "select id from outbox where kind = ? and at < ? order by id limit ?",
        (kind, storable_value(before_ms), max(limit, 0)),
    ).fetchall()
    return sql.DROP_FACTS.run(db, [row for (row,) in rows]) if rows else 0


def count_dead_letters(db: sqlite3.Connection) -> int:
    """How many there are: a walk over an index that holds nothing else."""
    return int(db.execute("select count(*) from outcome indexed by outcome_dead where state = 9").fetchone()[0])
