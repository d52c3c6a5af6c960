"""Listing tasks by filter, without an index for each filter.

An index costs every task; a list is rare. So a session and a root are found by their hashes, open tasks by the set the
writer keeps, those that did not succeed by an index that successes do not pay for, and all else by walking down the
tasks, latest first, as far as needed. The walk goes in slices that are
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
from reach.store import base
from reach.store.base import StoredTask, TaskQuery, size_of
from reach.store.batch import storable_value
from reach.store.sqlite_rows import LARGEST
from reach.store.sqlite_tasks import read_tasks

SLICE: Final = 4_096
"""Row numbers walked per transaction."""
READ_AT_ONCE: Final = 32
"""Whole tasks that are read before we look how large they were."""
LAST_ROW: Final = (1 << 63) - 1

Reading = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Opens a read transaction."""


def list_tasks(reading: Reading, query: TaskQuery, known: set[int] | None) -> list[StoredTask]:
    """Tasks that match, latest first; `known` are the only rows that can match, None if any can."""
    where, values = _conditions(query)
    below = storable_value(query.before_row) or LAST_ROW
    found: list[StoredTask] = []
    taken = 0
    for span, bounds in _spans(reading, query, known, below):
        wanted = query.limit - len(found)
        if wanted <= 0:
            break
        text = (
            f"select t.row from task t left join outcome o on o.row = t.row where {span}{where}"
            " order by t.row desc limit ?"
        )
        with reading() as db:
            rows = [row for (row,) in db.execute(text, [*bounds, *values, wanted])]
            for start in range(0, len(rows), READ_AT_ONCE):
                some = read_tasks(db, rows[start : start + READ_AT_ONCE])
                found += reversed(some)
                taken += sum(map(size_of, some))
                if taken > base.LIST_BYTES:
                    return found
    return found


Span = tuple[str, list[int]]
"""A condition on `t.row`, and its values. The spans of a list lie below one another."""


def _spans(reading: Reading, query: TaskQuery, known: set[int] | None, below: int) -> Iterator[Span]:
    if known is not None:
        return _chunks(sorted((row for row in known if row < below), reverse=True))
    if query.states and all(state > TaskState.SUCCEEDED for state in query.states):
        return _ended(reading, [int(state) for state in query.states], below)
    return _walk(reading, below)


def _walk(reading: Reading, below: int) -> Iterator[Span]:
    """All rows, downwards; holes are jumped over."""
    while True:
        with reading() as db:
            (top,) = db.execute("select max(row) from task where row < ?", (below,)).fetchone()
        if top is None:
            return
        below = top - SLICE + 1
        yield "t.row between ? and ?", [below, top]


def _ended(reading: Reading, states: list[int], below: int) -> Iterator[Span]:
    """The rows that ended in one of the states, which are not success, downwards."""
    text = (
        "select row from outcome indexed by outcome_by_state"
        f" where state <> 5 and state in ({', '.join('?' * len(states))}) and row < ? order by row desc limit ?"
    )
    while True:
        with reading() as db:
            rows = [row for (row,) in db.execute(text, [*states, below, SLICE])]
        if not rows:
            return
        below = rows[-1]
        yield from _chunks(rows)


def _chunks(rows: list[int]) -> Iterator[Span]:
    """These rows, some at a time."""
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
        ("o.reason = ?", query.reason),
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
