"""The statements of the PostgreSQL journal. What a batch writes for shards is **one** statement, sent whole: its first
part locks the shard rows that have our epochs, and every row joins them (HAZARDS 3, M8 to M11)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from reach.core.handed import StreamRow
from reach.core.rows import AgentRow, ReserveRow, Writes
from reach.store.batch import latest_contexts, latest_pins
from reach.store.decision_bytes import pack
from reach.store.sqlite_rows import as_json

Columns = tuple[tuple[str, str], ...]


def _columns(text: str) -> Columns:
    """`a b:text c:bytea`: what has no type is bigint."""
    pairs = (item.partition(":") for item in text.split())
    return tuple((name, kind or "bigint") for name, _, kind in pairs)


KINDS: Final[dict[str, Columns]] = {
    "task": _columns(
        "row shard:int tenant:text task_id:text pool_tenant:text agent_type:text spec:bytea accepted reserved"
        " session:text root:text attempt instance_id:text agent_id:text generation decision:bytea"
    ),
    "attempt": _columns(
        "row shard:int number instance_id:text agent_id:text generation offered reserved decision:bytea"
    ),
    "failure": _columns("row shard:int number ended error_class reason message:text retries transfers next_try"),
    "outcome": _columns(
        "row shard:int state ended sequence agent_id:text instance_id:text attempts transfers queued_ms ran_ms"
        " media_type:text content:bytea error_class reason message:text metadata:text extra:text is_text:bool"
    ),
    "reserve": _columns("row shard:int reserved"),
    "effect": _columns("row shard:int number effect:text granted"),
    "checkpoint": _columns("row shard:int number data:bytea"),
    "handle": _columns("row shard:int number handle:text"),
    "question": _columns(
        "row shard:int attempt number kind media_type:text content:bytea name:text asked until is_text:bool"
    ),
    "input": _columns(
        "row shard:int number input_id:text question:text media_type:text content:bytea given is_text:bool"
    ),
    "outbox": _columns("shard:int kind:text lane:text key:text task tenant:text task_id:text at body:bytea"),
    "pin": _columns(
        "shard:int pool_tenant:text agent_type:text tenant:text session:text instance_id:text expires handoffs"
    ),
    "context": _columns("shard:int tenant:text session:text revision expires state:bytea"),
    "agent": _columns(
        "tenant:text instance_id:text agent_type:text boot_id:text generation stale_boots:text registration:bytea"
        " registered revision drained trial"
    ),
}
"""Columns of the tables, in the order of the rows' fields."""
_KEYS: Final[dict[str, Columns]] = {
    "outbox_done": _columns("fence:int shard:int kind:text key:text"),
    "pin_gone": _columns("shard:int pool_tenant:text agent_type:text tenant:text session:text"),
    "context_gone": _columns("shard:int tenant:text session:text"),
    "agent_gone": _columns("shard:int tenant:text instance_id:text agent_type:text"),
    "move": _columns("row shard:int to_shard:int pool_tenant:text agent_type:text hop sequence"),
}
OF_TASKS: Final = ("attempt", "failure", "outcome", "reserve", "effect", "checkpoint", "question", "input", "handle")
"""Tables about tasks, beside `task`."""
_LATEST: Final = {
    "reserve": "(row) do update set reserved = greatest(reserve.reserved, excluded.reserved)",
    "checkpoint": "(row) do update set number = excluded.number, data = excluded.data"
    " where excluded.number >= checkpoint.number",
    "handle": "(row) do update set number = excluded.number, handle = excluded.handle"
    " where excluded.number >= handle.number",
    "pin": "(pool_tenant, agent_type, tenant, session) do update set shard = excluded.shard,"
    " instance_id = excluded.instance_id, expires = excluded.expires, handoffs = excluded.handoffs",
    "context": "(tenant, session) do update set shard = excluded.shard, revision = excluded.revision,"
    " expires = excluded.expires, state = excluded.state",
    "agent": "(tenant, instance_id) do update set "
    + ", ".join(f"{name} = excluded.{name}" for name, _ in KINDS["agent"][2:])
    + " where excluded.revision >= agent.revision",
}
_SENT: Final = {"agent": _columns("shard:int") + KINDS["agent"]}
"""What is sent of rows that are fenced by a shard which their table does not have."""


def names(table: str, prefix: str = "") -> str:
    """Columns of a table, for a select."""
    return ", ".join(f'{prefix}"{name}"' for name, _ in KINDS[table])


def _unnest(columns: Columns, first: int) -> str:
    parameters = ", ".join(f"${first + place}::{kind}[]" for place, (_, kind) in enumerate(columns))
    listed = ", ".join(f'"{name}"' for name, _ in columns)
    return f"unnest({parameters}) with ordinality as r({listed}, place)"


MINE: Final = (
    "mine as (select s.shard from shard s join unnest($1::int[], $2::bigint[]) as m(shard, epoch)"
    " on s.shard = m.shard and s.epoch = m.epoch order by s.shard for share of s)"
)
"""The shards that are still ours. A claim that is under way is waited for, and then the epochs are compared again."""


@lru_cache(maxsize=512)
def commit_text(parts: tuple[str, ...]) -> str:
    """The statement for a batch with these parts, as `parts_of` names them. Answers (shards that are ours, rows of
    tasks that are not there under their ids)."""
    ctes, first, opened = [MINE], 3, ""
    has_tasks = "task" in parts
    for part in parts:
        columns = _SENT.get(part) or KINDS.get(part) or _KEYS[part]
        source = _unnest(columns, first)
        first += len(columns)
        ours = f"r.{'fence' if part == 'outbox_done' else 'shard'} in (select shard from mine)"
        if part == "task":
            listed = names("task")
            ctes.append(f"asked as materialized (select r.* from {source} where {ours})")
            ctes.append(
                f"fresh as (insert into task ({listed}) select {listed} from asked order by place"
                " on conflict (tenant, task_id) do nothing returning row, shard)"
            )
            ctes.append(
                "refused as materialized (select a.row from asked a where a.row not in (select row from fresh)"
                " and not exists (select 1 from task t where t.row = a.row and t.tenant = a.tenant"
                " and t.task_id = a.task_id))"
            )
            ended = " and f.row not in (select row from ended)" if "outcome" in parts else ""
            opened = (
                "do_open as (insert into open_task (row, shard) select f.row, f.shard from fresh f"
                f" where not exists (select 1 from outcome o where o.row = f.row){ended} on conflict do nothing)"
            )
            if not ended:
                ctes.append(opened)
            continue
        row = "task" if part == "outbox" else "row"
        if has_tasks and (part in OF_TASKS or part == "outbox"):
            ours += f" and r.{row} not in (select row from refused)"
        if part in _KEYS:
            ctes.append(_drop_text(part, columns, source, ours))
            continue
        listed = names(part)
        rule = _LATEST.get(part, "do nothing")
        if part == "outcome":
            ctes.append(f"ended as materialized (select r.* from {source} where {ours})")
            ctes.append(
                f"do_outcome as (insert into outcome ({listed}) select {listed} from ended order by place"
                " on conflict do nothing)"
            )
            ctes.append("do_close as (delete from open_task o using ended e where o.row = e.row)")
            if has_tasks:
                ctes.append(opened)
            continue
        ctes.append(
            f"do_{part} as (insert into {part} ({listed}) select {names(part, 'r.')} from {source} where {ours}"
            f" order by place on conflict {rule})"
        )
    refused = "(select array_agg(row) from refused)" if has_tasks else "null::bigint[]"
    return f"with {', '.join(ctes)} select (select array_agg(shard) from mine), {refused}"


def _drop_text(part: str, columns: Columns, source: str, ours: str) -> str:
    table = part.partition("_")[0]
    if part == "move":
        return (
            "moved as (update task t set shard = r.to_shard, pool_tenant = r.pool_tenant, agent_type = r.agent_type,"
            f" version = r.hop, reserved = r.sequence from {source} where {ours} and t.row = r.row"
            " and t.shard = r.shard and t.version < r.hop returning t.row, r.shard, r.to_shard, r.hop),"
            " do_open_move as (update open_task o set shard = r.to_shard from moved r where o.row = r.row),"
            " do_arrive as (insert into arrival (row, shard, hop) select row, to_shard, hop from moved"
            " where to_shard <> shard on conflict (row) do update set shard = excluded.shard, hop = excluded.hop)"
        )
    # Other than facts, pins, contexts and agents have their names whatever their shard is.
    other = "fence" if part == "outbox_done" else "shard"
    same = " and ".join(f"d.{name} = r.{name}" for name, _ in columns if name != other)
    return f"do_{part} as (delete from {table} d using {source} where {ours} and {same})"


_packer: Final = msgspec.msgpack.Encoder()


def _content(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def parts_of(writes: Writes) -> list[tuple[str, list[Sequence[Any]]]]:
    """What a batch has for the main statement: rows by part, in the order of its parts."""
    held, loose = latest_pins(writes.pins)
    contexts, forgotten = latest_contexts(writes.contexts)
    done = {(one.fence, one.shard, one.kind, one.key) for one in writes.outbox_done}
    told = {one[1:] for one in done if one[0] == one[1]}
    outbox = [fact for fact in writes.outbox if (fact.shard, fact.kind, fact.key) not in told]
    reserves: dict[int, ReserveRow] = {}
    for reserve in writes.reserves:
        known = reserves.get(reserve.row)
        if known is None or reserve.reserved > known.reserved:
            reserves[reserve.row] = reserve
    checkpoints, handles = _latest(writes.checkpoints), _latest(writes.handles)
    parts: list[tuple[str, list[Sequence[Any]]]] = [
        ("task", [(*task[:-1], task.decision and pack(task.decision)) for task in writes.tasks]),
        ("attempt", [(*one[:-1], one.decision and pack(one.decision)) for one in writes.attempts]),
        ("failure", list(writes.failures)),
        (
            "outcome",
            [
                (*one[:12], _content(one.content), *one[13:16], as_json(one.metadata), as_json(one.extra),
                 isinstance(one.content, str))
                for one in writes.outcomes
            ],
        ),
        ("reserve", list(reserves.values())),
        ("effect", list(writes.effects)),
        ("checkpoint", checkpoints),
        ("handle", handles),
        ("question", [(*q[:6], _content(q.content), *q[7:], isinstance(q.content, str)) for q in writes.questions]),
        ("input", [(*i[:6], _content(i.content), *i[7:], isinstance(i.content, str)) for i in writes.inputs]),
        ("outbox", list(outbox)),
        ("outbox_done", list(done)),
        ("pin", list(held)),
        ("pin_gone", [pin[:5] for pin in loose]),
        ("context", [(*one[:5], _packer.encode(one.state)) for one in contexts]),
        ("context_gone", [one[:3] for one in forgotten]),
    ]  # fmt: skip
    return [part for part in parts if part[1]]


def stream_values(row: StreamRow, epoch: int) -> Sequence[Any]:
    """The values of `STREAM`."""
    pieces = _packer.encode(row.pieces) if row.pieces is not None else None
    return (row.row, row.shard, epoch, row.sequence, row.attempt_sequence, pieces, _packer.encode(row.events))


def _latest(rows: Iterable[Any]) -> list[Any]:
    """The row with the highest number of each task; of the same number, the last."""
    latest: dict[int, Any] = {}
    for one in rows:
        if one.row not in latest or one.number >= latest[one.row].number:
            latest[one.row] = one
    return list(latest.values())


def agents_of(writes: Writes) -> list[tuple[str, list[Sequence[Any]]]]:
    """What a batch has about agents, each part for a statement of its own, in this order: one that goes and comes
    within a batch is there after it. Of an instance, a later row counts if it is of no older revision."""
    latest: dict[tuple[str, str], AgentRow] = {}
    for agent in writes.agents:
        known = latest.get((agent.tenant, agent.instance_id))
        if known is None or agent.revision >= known.revision:
            latest[agent.tenant, agent.instance_id] = agent
    gone: list[Sequence[Any]] = [(one.shard, *one) for one in writes.agents_gone]
    rows: list[Sequence[Any]] = []
    rows += [(one.shard, *one[:5], json.dumps(one.stale_boots), *one[6:]) for one in latest.values()]
    return [part for part in (("agent_gone", gone), ("agent", rows)) if part[1]]


def by_column(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Arrays for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]


SET_REVISION: Final = (
    "insert into counter (name, value) values ('revision', $1)"
    " on conflict (name) do update set value = greatest(counter.value, excluded.value)"
)
CLAIM: Final = (
    "insert into shard (shard, epoch, held_in, holder) select s, 1, 1, $2 from unnest($1::int[]) s order by s"
    " on conflict (shard) do update set epoch = shard.epoch + 1, held_in = shard.epoch + 1, holder = excluded.holder"
    " returning shard, epoch"
)
HOLDERS: Final = "select shard, holder from shard where shard = any($1::int[]) and holder <> '' and held_in = epoch"
"""Locks nothing: each commit of an owner needs its row, and this is asked many times a second."""
STREAM: Final = _columns("row shard:int epoch sequence attempt_sequence pieces:bytea events:bytea")
_OLD: Final = "(s.epoch < h.epoch - 2 or not exists (select 1 from outcome o where o.row = s.row))"
"""Of no use any more: of ended tasks they are, for a while."""
GIVE_UP: Final = (
    f"with {MINE}, gone as (delete from stream s using shard h where h.shard = s.shard"
    f" and s.shard in (select shard from mine) and s.row <> all($3::bigint[]) and {_OLD}),"
    f" told as (insert into stream (row, shard, epoch, sequence, attempt_sequence, pieces, events)"
    f" select row, shard, epoch, sequence, attempt_sequence, pieces, events from {_unnest(STREAM, 3)}"
    " where shard in (select shard from mine) on conflict (row) do update set shard = excluded.shard,"
    " epoch = excluded.epoch, sequence = excluded.sequence, attempt_sequence = excluded.attempt_sequence,"
    " pieces = excluded.pieces, events = excluded.events)"
    " update shard set holder = '' where shard in (select shard from mine)"
)
PASS_ON: Final = (
    f"with {MINE}, kept as (update stream s set epoch = h.epoch from shard h where h.shard = s.shard"
    " and s.shard in (select shard from mine) and s.epoch = h.epoch - 1)"
    " update shard set holder = '' where shard in (select shard from mine)"
)
"""As `GIVE_UP`, of an owner that told nothing: what was told to it, it leaves to the next one."""
CAME: Final = (
    f"with {MINE} delete from stream s using shard h where h.shard = s.shard and s.shard in (select shard from mine)"
    f" and {_OLD}"
)
TOLD: Final = (
    "select s.row, s.shard, s.sequence, s.attempt_sequence, s.pieces, s.events"
    " from stream s join shard h on h.shard = s.shard"
    " where s.row = any($1::bigint[]) and s.epoch = h.epoch - 1"
)
"""How far tasks were told by the owners before those of now."""
TOLD_BEFORE_END: Final = (
    "select s.events from stream s join outcome o on o.row = s.row where s.row = $1 and s.sequence = o.sequence"
)
CONFIRM: Final = f"with {MINE} select shard from mine"
HEARD: Final = (
    f"with {MINE} delete from arrival a using unnest($3::bigint[], $4::bigint[]) as k(row, hop)"
    " where a.row = k.row and a.hop <= k.hop and a.shard in (select shard from mine)"
)
ARRIVED: Final = (
    f"with {MINE}, waiting as (select a.row, octet_length(t.spec) as size from arrival a join task t on t.row = a.row"
    " where a.shard in (select shard from mine) order by a.row limit $3)"
    " select row from (select row, size, sum(size) over (order by row) as up_to from waiting) s"
    " where up_to - size < $4::bigint order by row"
)
"""Rows whose requests come to so many bytes, and one more, at most."""
CONFLICTING: Final = (
    "select r.row, t.row as owner from unnest($1::bigint[], $2::text[], $3::text[]) as r(row, tenant, task_id)"
    " left join task t on t.tenant = r.tenant and t.task_id = r.task_id"
)


def remove_text(chosen: str) -> str:
    """Removes the tasks of the rows that a query chooses, with all that belongs to them; answers how many."""
    tables = (*OF_TASKS, "stream")
    drops = ", ".join(f"d_{table} as (delete from {table} d using doomed x where d.row = x.row)" for table in tables)
    return (
        f"with {chosen}, {drops}, gone as (delete from task d using doomed x where d.row = x.row returning 1)"
        " select count(*) from gone"
    )


def oldest_text(*, dead_letters: bool) -> str:
    """Rows of tasks of our shards that ended first, before $3, at most $4."""
    state = "o.state = 9" if dead_letters else "o.state <> 9"
    return (
        f"{MINE}, doomed as materialized (select o.row from outcome o where {state} and o.ended < $3"
        " and o.shard in (select shard from mine) order by o.ended, o.row limit $4)"
    )


REMOVE_ROWS: Final = remove_text("doomed as materialized (select row from outcome where row = any($1::bigint[]))")
DROP_FACTS: Final = (
    f"with {MINE}, old as (select id from outbox where kind = $3 and at < $4 and shard in (select shard from mine)"
    " order by id limit $5), gone as (delete from outbox d using old where d.id = old.id returning 1)"
    " select count(*) from gone"
)
