"""The schema of the PostgreSQL journal, version by version; rules as in `migrations`. Two adjacent versions of the
program run on one schema: a step only adds what the older one does not look at.

Plain SQL, but for `bytea` arrays and `unnest` of several arrays, which CockroachDB lacks in part.
"""

from __future__ import annotations

from typing import Final

from reach.store.postgres_sql import KINDS

_TYPES: Final = {"int": "integer", "bigint": "bigint", "text": "text", "bytea": "bytea", "bool": "boolean"}


def _table(name: str, key: str) -> str:
    columns = ", ".join(f"{column} {_TYPES[kind]}" for column, kind in KINDS[name])
    version = ", version integer not null default 0" if name == "task" else ""
    return f"create table {name} ({columns}{version}, primary key ({key}));\n"


_FIRST = (
    """
create table shard (shard integer primary key, epoch bigint not null);
create table counter (name text primary key, value bigint not null);
create sequence row_block;
create sequence outbox_number;
-- Tasks without an outcome.
create table open_task (row bigint primary key, shard integer not null);
create index open_task_by_shard on open_task (shard);
"""
    + _table("task", "row")
    + _table("outcome", "row")
    + _table("attempt", "row, number")
    + _table("failure", "row, number")
    + _table("reserve", "row")
    + _table("effect", "row, number")
    + _table("checkpoint", "row")
    + _table("question", "row, attempt, number")
    + _table("input", "row, number")
    + _table("agent", "tenant, instance_id")
    + _table("pin", "pool_tenant, agent_type, tenant, session")
    + _table("context", "tenant, session")
    + _table("outbox", "shard, kind, key")
    + """
alter table outbox add column id bigint not null default nextval('outbox_number');
create unique index task_by_id on task (tenant, task_id);
create index task_by_time on task (accepted, row);
create index task_by_session on task (tenant, session, row) where session <> '';
create index task_by_root on task (tenant, root, row) where root <> '';
create index outcome_by_end on outcome (ended, row) where state <> 9;
create index outcome_dead on outcome (ended, row) where state = 9;
create index pin_by_shard on pin (shard);
create index context_by_shard on context (shard);
create index outbox_by_lane on outbox (kind, lane, id);
"""
)

_KEYS = """
-- API keys, without their secrets. The counter grows with each change: who changes them names what it has seen.
create table api_key (
    key_id     text primary key,
    hash       bytea not null,
    tenant     text not null,
    app_id     text not null,
    scopes     text not null,
    created_ms bigint not null,
    expires_ms bigint,
    revoked_ms bigint
);
insert into counter (name, value) values ('api_keys', 0);
"""

_ARRIVALS = """
-- Tasks that moved to another shard, until the node that owns it has heard of them.
create table arrival (row bigint primary key, shard integer not null, hop bigint not null);
create index arrival_by_shard on arrival (shard);
"""

_STREAMS = """
-- How far tasks were told by the owner of their shard when that gave it up, in which epoch; for its next owner alone.
create table stream (
    row bigint primary key, shard integer not null, epoch bigint not null,
    sequence bigint not null, attempt_sequence bigint not null, pieces bytea
);
create index stream_by_shard on stream (shard);
-- Who has a shard, and in which epoch that was said: programs of before do not say it. Empty: nobody has it.
alter table shard add column holder text not null default '';
alter table shard add column held_in bigint not null default 0;
"""

_EVENTS = """
-- The latest of what was told, so that readers who are on their way hear it from the next owner.
alter table stream add column events bytea;
"""

_HANDLES = "-- Where attempts at agents that are dialled can be asked about.\n" + _table("handle", "row")

MIGRATIONS: Final[tuple[tuple[int, str], ...]] = (
    (1, _FIRST), (2, _KEYS), (3, _ARRIVALS), (4, _HANDLES), (5, _STREAMS), (6, _EVENTS),
)  # fmt: skip
"""Oldest first."""

NEWEST: Final = MIGRATIONS[-1][0]
"""The schema this build reads and writes."""
ADJACENT: Final = 1
"""So many versions that are newer than what a build knows, it still works on."""
