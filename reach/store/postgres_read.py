"""What is read from the PostgreSQL journal; each function within one snapshot."""

from __future__ import annotations

import json
from typing import Any, Final

from reach.core.decision_record import Record
from reach.core.model import FIRST_TERMINAL, TaskState
from reach.core.rows import (
    AttemptRow,
    FailureRow,
    HandleRow,
    InputRow,
    OutboxRow,
    OutcomeRow,
    QuestionRow,
    TaskRow,
    granted_of,
)
from reach.store import base
from reach.store.base import StoredFact, StoredTask, TaskQuery, size_of
from reach.store.batch import storable_value
from reach.store.decision_bytes import unpack_all
from reach.store.postgres_link import Connection
from reach.store.postgres_sql import KINDS, OF_TASKS, names

AT_ONCE: Final = 1_024
"""Whole tasks that are read together."""
LISTED_AT_ONCE: Final = 32
"""The same for lists, which look how large they were."""
_ORDER: Final = {
    "attempt": " order by row, number",
    "failure": " order by row, number",
    "question": " order by row, attempt, number",
    "input": " order by row, number",
}
_TASK: Final = ", ".join(f"t.{name}" for name, _ in KINDS["task"] if name != "decision")
_DECISIONS: Final = (
    "select attempt, decision from task where row = $1 and decision is not null"
    " union all select number, decision from attempt where row = $1 and decision is not null order by 1"
)


async def read_tasks(db: Connection, rows: list[int]) -> list[StoredTask]:
    """Whole tasks, in the order of `rows`; rows that are not there are left out."""
    found: list[StoredTask] = []
    for start in range(0, len(rows), AT_ONCE):
        found += await _read_some(db, rows[start : start + AT_ONCE])
    return found


async def _read_some(db: Connection, rows: list[int]) -> list[StoredTask]:
    text = f"select {_TASK}, null, t.version from task t where t.row = any($1::bigint[])"
    tasks = {value[0]: tuple(value) for value in await db.fetch(text, rows)}
    of: dict[str, dict[int, list[Any]]] = {}
    for table in OF_TASKS:
        by_row = of[table] = {}
        text = f"select {names(table)} from {table} where row = any($1::bigint[]){_ORDER.get(table, '')}"
        for value in await db.fetch(text, rows):
            by_row.setdefault(value[0], []).append(tuple(value))
    return [_whole(tasks[row], of) for row in rows if row in tasks]


def _whole(values: tuple[Any, ...], of: dict[str, dict[int, list[Any]]]) -> StoredTask:
    task = TaskRow._make(values[:-1])
    row = task.row
    attempts = [AttemptRow._make((*value[:-1], None)) for value in of["attempt"].get(row, ())]
    reserves = [value[2] for value in of["reserve"].get(row, ())]
    checkpoints, handles = of["checkpoint"].get(row), of["handle"].get(row)
    outcomes = of["outcome"].get(row)
    return StoredTask(
        task,
        [one for one in attempts if one.number > task.attempt],
        [FailureRow._make(value) for value in of["failure"].get(row, ())],
        max([task.reserved, *reserves, *(one.reserved for one in attempts)]),
        granted_of({value[2] for value in of["effect"].get(row, ())}),
        checkpoints[0][3] if checkpoints else None,
        _outcome(outcomes[0]) if outcomes else None,
        tuple(QuestionRow._make(_with_content(value)) for value in of["question"].get(row, ())),
        tuple(InputRow._make(_with_content(value)) for value in of["input"].get(row, ())),
        HandleRow._make(handles[0]) if handles else None,
        values[-1],
    )


def _with_content(values: tuple[Any, ...], place: int = 6) -> tuple[Any, ...]:
    content = values[place]
    if values[-1] and content is not None:
        content = content.decode()
    return (*values[:place], content, *values[place + 1 : -1])


def _outcome(values: tuple[Any, ...]) -> OutcomeRow:
    whole = _with_content(values, 12)
    metadata, extra = whole[-2:]
    return OutcomeRow._make((*whole[:-2], metadata and json.loads(metadata), extra and json.loads(extra)))


async def _row_of(db: Connection, tenant: str, task_id: str) -> int | None:
    names = [storable_value(name).replace("\0", "\ufffd") for name in (tenant, task_id)]
    row: int | None = await db.fetchval("select row from task where tenant = $1 and task_id = $2", *names)
    return row


async def find(db: Connection, tenant: str, task_id: str) -> StoredTask | None:
    """One task."""
    row = await _row_of(db, tenant, task_id)
    found = [] if row is None else await read_tasks(db, [row])
    return found[0] if found else None


async def decisions(db: Connection, tenant: str, task_id: str) -> dict[int, Record]:
    """Why the attempts of a task are where they are."""
    row = await _row_of(db, tenant, task_id)
    return {} if row is None else unpack_all(dict(await db.fetch(_DECISIONS, row)))


async def list_tasks(db: Connection, query: TaskQuery) -> list[StoredTask]:
    """Tasks that match, latest first."""
    values: list[Any] = []

    def is_(condition: str, value: Any) -> str:
        values.append(storable_value(value) if not isinstance(value, list) else value)
        return condition.replace("?", f"${len(values)}")

    where = [
        is_(condition, value)
        for condition, value in (
            ("t.tenant = ?", query.tenant),
            ("t.session = ?", query.session),
            ("t.agent_type = ?", query.agent_type),
            ("t.root = ?", query.root_task_id),
            ("t.accepted >= ?", query.accepted_after_ms),
            ("t.accepted < ?", query.accepted_before_ms),
            ("o.reason = ?", query.reason),
        )
        if value
    ]
    if query.states:
        ended = [int(state) for state in query.states if state >= FIRST_TERMINAL]
        state = is_("o.state = any(?::bigint[])", ended)
        where.append(f"({state} or o.row is null)" if TaskState.PENDING in query.states else state)
    if query.before_row:
        before = storable_value(query.before_row)
        accepted = await db.fetchval("select accepted from task where row = $1", before)
        if accepted is None:
            where.append(is_("t.row < ?", before))
        else:
            where.append(f"(t.accepted, t.row) < ({is_('?', accepted)}, {is_('?', before)})")
    text = (
        "select t.row from task t left join outcome o on o.row = t.row"
        + (" where " + " and ".join(where) if where else "")
        + " order by t.accepted desc, t.row desc limit "
        + is_("?", max(query.limit, 0))
    )
    await db.execute("set local statement_timeout = 9000")
    rows = [row for (row,) in await db.fetch(text, *values)]
    found: list[StoredTask] = []
    taken = 0
    for start in range(0, len(rows), LISTED_AT_ONCE):
        some = await read_tasks(db, rows[start : start + LISTED_AT_ONCE])
        found += some
        taken += sum(map(size_of, some))
        if taken > base.LIST_BYTES:
            break
    return found


async def facts(db: Connection, kind: str, lane: str, after: int, limit: int, shards: list[int]) -> list[StoredFact]:
    """Facts of a lane, in order."""
    text = (
        f"select id, {names('outbox')} from outbox where kind = $1 and lane = $2 and id > $3"
        " and shard = any($4::int[]) order by id limit $5"
    )
    found = await db.fetch(text, kind, lane, after, shards, max(limit, 0))
    return [StoredFact(value[0], OutboxRow._make(value[1:])) for value in map(tuple, found)]


async def every_fact(db: Connection, kind: str, after: int, limit: int, lane: str | None) -> list[StoredFact]:
    """Facts of all shards, in order."""
    where = "kind = $1 and id > $2 and ($4::text is null or lane = $4)"
    text = f"select id, {names('outbox')} from outbox where {where} order by id limit $3"
    found = await db.fetch(text, kind, after, max(limit, 0), lane)
    return [StoredFact(value[0], OutboxRow._make(value[1:])) for value in map(tuple, found)]
