"""What a node loads of the PostgreSQL journal when it takes shards over: all at once, or some at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from itertools import accumulate
from typing import Any, Final

import msgspec

from reach.core.handed import StreamRow
from reach.core.pieces import Delta, Kind, Mode
from reach.core.rows import AgentRow, ContextRow, PinRow
from reach.core.stream import Event
from reach.store.base import LOAD_BYTES, Loaded, Place, StoredTask, next_place, some
from reach.store.postgres_link import Connection
from reach.store.postgres_read import read_tasks
from reach.store.postgres_sql import TOLD, TOLD_BEFORE_END, names
from reach.store.sqlite_rows import Packed

_PATIENT: Final = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"
"""Who reads locks nothing; and between two statements tasks become objects, which may take a while."""
_IN_ORDER: Final = "; set local max_parallel_workers_per_gather = 0" + "".join(
    f"; set local enable_{way} = off" for way in ("sort", "bitmapscan", "mergejoin", "hashjoin")
)
"""Each part goes along the index of its keys, from where it was: other plans begin with all that a shard holds, in each
step anew."""
_REVISION: Final = "select coalesce(max(value), 0) from counter where name = 'revision'"
_TASKS: Final = (
    "select o.row, octet_length(t.spec) from open_task o join task t on t.row = o.row"
    " where o.shard = any($1::int[]) and o.row > $2 order by o.row limit $3"
)
_BACKLOG: Final = "select shard, count(*) from open_task where shard = any($1::int[]) group by shard"


async def everything(db: Connection, shards: list[int] | None) -> Loaded:
    """What is open in these shards; None: in all."""
    where = "" if shards is None else " where shard = any($1::int[])"
    values = [] if shards is None else [shards]
    await db.execute(_PATIENT)
    rows = [row for (row,) in await db.fetch(f"select row from open_task{where}", *values)]
    tasks = await _told(db, await read_tasks(db, rows))
    tasks.sort(key=lambda one: (one.task.accepted_wall_ms, one.task.row))
    agents = await db.fetch(
        f'select {names("agent")} from agent order by revision, tenant collate "C", instance_id collate "C"'
    )
    pins = await db.fetch(f"select {names('pin')} from pin{where}", *values)
    contexts = await db.fetch(f"select {names('context')} from context{where}", *values)
    return Loaded(
        tasks,
        list(map(_agent, agents)),
        sorted(map(PinRow._make, pins), key=lambda pin: pin[1:5]),
        0,
        await db.fetchval(_REVISION) + 1,
        sorted(map(_context, contexts), key=lambda one: one[1:3]),
    )


def _agent(value: Any) -> AgentRow:
    row = tuple(value)
    return AgentRow._make((*row[:5], tuple(json.loads(row[5])), *row[6:]))


def _context(value: Any) -> ContextRow:
    row = tuple(value)
    return ContextRow._make((*row[:5], Packed(row[5]), len(row[5])))


Some = tuple[Loaded, tuple[Any, ...], bool]
"""What was loaded, the last key, whether that was all."""
Part = Callable[[Connection, list[int], tuple[Any, ...], int], Coroutine[Any, Any, Some]]
"""Loads some of one part of these shards, from behind a key."""


async def some_of(db: Connection, shards: list[int], place: Place, limit: int) -> tuple[Loaded, Place | None]:
    """Some of what is open in these shards, and where to go on."""
    await db.execute(_PATIENT + _IN_ORDER)
    loaded, last, is_all = await _PARTS[place.part](db, shards, place.after, limit)
    if place == Place():
        loaded = loaded._replace(next_revision=await db.fetchval(_REVISION) + 1)
    return loaded, next_place(place, last, is_all)


async def _page(
    db: Connection, table: str, key: tuple[str, ...], shards: list[int] | None, after: tuple[Any, ...], limit: int
) -> list[Any]:
    """Rows of a table in the order of its key, which consists of names that are never empty."""
    values: list[Any] = [limit, *(after or ("",) * len(key))]
    places = ", ".join(f"${number}" for number in range(2, 2 + len(key)))
    where = ""
    if shards is not None:
        values.append(shards)
        where = f"shard = any(${len(values)}::int[]) and "
    listed = ", ".join(key)
    text = f"select {names(table)} from {table} where {where}({listed}) > ({places}) order by {listed} limit $1"
    return list(await db.fetch(text, *values))


async def _agents(db: Connection, shards: list[int], after: tuple[Any, ...], limit: int) -> Some:
    found = list(map(_agent, await _page(db, "agent", ("tenant", "instance_id"), None, after, limit)))
    ours = [agent for agent in found if agent.shard in shards]  # the table does not say
    return some(agents=ours), tuple(found[-1][:2]) if found else (), len(found) < limit


async def _pins(db: Connection, shards: list[int], after: tuple[Any, ...], limit: int) -> Some:
    key = ("pool_tenant", "agent_type", "tenant", "session")
    found = list(map(PinRow._make, await _page(db, "pin", key, shards, after, limit)))
    return some(pins=found), tuple(found[-1][1:5]) if found else (), len(found) < limit


async def _contexts(db: Connection, shards: list[int], after: tuple[Any, ...], limit: int) -> Some:
    found = list(map(_context, await _page(db, "context", ("tenant", "session"), shards, after, limit)))
    return some(contexts=found), tuple(found[-1][1:3]) if found else (), len(found) < limit


async def _tasks(db: Connection, shards: list[int], after: tuple[Any, ...], limit: int) -> Some:
    found = await db.fetch(_TASKS, shards, *(after or (0,)), limit)
    before = accumulate((size for _, size in found), initial=0)
    rows = [row for (row, _), size in zip(found, before, strict=False) if size < LOAD_BYTES]
    tasks = await _told(db, await read_tasks(db, rows)) if rows else []
    return some(tasks=tasks), tuple(rows[-1:]), len(found) < limit and len(rows) == len(found)


async def _told(db: Connection, tasks: list[StoredTask]) -> list[StoredTask]:
    """With how far they were told by owners that gave them up."""
    streams = {row[0]: row for row in await db.fetch(TOLD, [one.task.row for one in tasks])}
    return [_with_stream(one, streams.get(one.task.row)) for one in tasks] if streams else tasks


def _with_stream(stored: StoredTask, found: Any) -> StoredTask:
    if found is None or found[1] != stored.task.shard:
        return stored
    packed, events = found[4:]
    pieces = tuple(map(_delta, msgspec.msgpack.decode(packed))) if packed is not None else None
    return stored._replace(stream=StreamRow._make((*found[:4], pieces, _events(events))))


def _delta(found: Any) -> Delta:
    channel, mode, media_type, content = found
    return Delta(channel, Mode(mode), media_type, content)


def _events(packed: bytes | None) -> tuple[Event, ...]:
    """None: it was written by a program of before."""
    found = msgspec.msgpack.decode(packed) if packed is not None else ()
    return tuple((*event[:3], Kind(event[3]), _data(event[3], event[4])) for event in found)


def _data(kind: int, data: Any) -> Any:
    if kind == Kind.DELTA:
        return _delta(data)
    return tuple(data) if isinstance(data, list) else data


async def told_before_end(db: Connection, row: int) -> tuple[Event, ...]:
    """See `SharedJournal.told`."""
    return _events(await db.fetchval(TOLD_BEFORE_END, row))


_PARTS: Final[tuple[Part, ...]] = (_agents, _pins, _contexts, _tasks)
"""As `base.PARTS`."""


async def backlog(db: Connection, shards: list[int]) -> dict[int, int]:
    """How many open tasks there are, by shard."""
    await db.execute(_PATIENT)
    return dict(await db.fetch(_BACKLOG, shards))
