"""Listing tasks by filter, without an index for each filter.

An index costs every task; a list is rare. So a session and a root are found by their hashes, open tasks by the set the
writer keeps, and all else by walking down the tasks, latest first, as far as needed. The walk goes in slices that are
each a transaction of a few milliseconds: it reads about a million rows a second, and neither holds back the cleaning of
the write-ahead log nor needs the interpreter's lock meanwhile. A task that changes between two slices is told as the
slice found it; one that is accepted meanwhile may be missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from reach.core.model import FIRST_TERMINAL, TaskState
from reach.store.base import StoredTask, TaskQuery
from reach.store.batch import storable_value
from reach.store.sqlite_rows import LARGEST, read_tasks

SLICE: Final = 4_096
"""Row numbers walked per transaction."""

Reading = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Opens a read transaction."""


def list_tasks(reading: Reading, query: TaskQuery, known: set[int] | None) -> list[StoredTask]:
    """Tasks that match, latest first; `known` are the only rows that can match, None if any can."""
    where, values = _conditions(query)
    before = storable_value(query.before_row)
    found: list[StoredTask] = []
    spans = _walk(reading, before) if known is None else _chunks(known, before)
    for span, bounds in spans:
        wanted = query.limit - len(found)
        if wanted <= 0:
            break
        text = (
            f"select t.row from task t left join outcome o on o.row = t.row where {span}{where}"
            " order by t.row desc limit ?"
        )
        with reading() as db:
            rows = [row for (row,) in db.execute(text, [*bounds, *values, wanted])]
            found += reversed(read_tasks(db, rows))
    return found


def _walk(reading: Reading, before: int) -> Iterator[tuple[str, list[int]]]:
    """Spans of row numbers, downwards; holes are jumped over."""
    below = before or (1 << 63) - 1
    while True:
        with reading() as db:
            (top,) = db.execute("select max(row) from task where row < ?", (below,)).fetchone()
        if top is None:
            return
        below = top - SLICE + 1
        yield "t.row between ? and ?", [below, top]


def _chunks(known: set[int], before: int) -> Iterator[tuple[str, list[int]]]:
    """The known rows, downwards, some at a time."""
    rows = sorted((row for row in known if row < before) if before else known, reverse=True)
    for start in range(0, len(rows), LARGEST):
        some = rows[start : start + LARGEST]
        some += [some[-1]] * (LARGEST - len(some))
        yield f"t.row in ({', '.join('?' * LARGEST)})", some


def _conditions(query: TaskQuery) -> tuple[str, list[Any]]:
    values: list[Any] = []
    text = ""
    for condition, value in (
        ("t.tenant = ?", query.tenant),
        ("t.session = ?", query.session),
        ("t.agent_type = ?", query.agent_type),
        ("t.root = ?", query.root_task_id),
        ("t.accepted >= ?", query.accepted_after_ms),
        ("t.accepted < ?", query.accepted_before_ms),
    ):
        if value:
            text += f" and {condition}"
            values.append(storable_value(value))
    if query.states:
        ended = [int(state) for state in query.states if state >= FIRST_TERMINAL]
        text += f" and (o.state in ({', '.join('?' * len(ended))})"
        text += " or o.row is null)" if TaskState.PENDING in query.states else ")"
        values += ended
    return text, values
