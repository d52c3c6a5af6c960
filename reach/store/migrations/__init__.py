"""The schema of the SQLite journal, version by version.

Each step is `(version, statements)`; a step that was released is never changed, only followed by another. Steps that
are due run in one transaction, together with their lines in `migration`.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x52454143
"""Says in the file's header that it is a journal of ours ("REAC")."""

_FIRST = """
create table migration (
    version integer primary key,
    applied integer not null              -- seconds since the epoch
);

-- High-water marks: 'row' and 'revision' (never used again), 'indexed' (every task up to this row is in task_key and,
-- if it was open when the mark was set, in open_tasks).
create table counter (
    name text primary key,
    value integer not null
) without rowid;

-- Who owns a shard. Embedded there is one owner, and nothing is written here.
create table shard (
    shard integer primary key,
    epoch integer not null,
    node text not null
);

-- In the tables below `shard` is the one column that may not be null, besides keys: rows that only fill up a statement
-- are all null, and "insert or ignore" drops them by it. `version` grows when a row is changed, which nothing does yet.

-- Insert only. The large column is the last one, so that reading the others does not walk through it.
create table task (
    row integer primary key,
    shard integer not null,
    version integer default 0,
    tenant text,
    task_id text,
    pool_tenant text,
    agent_type text,
    accepted integer,                     -- milliseconds since the epoch
    reserved integer,
    session text,
    root text,
    attempt integer,
    instance_id text,
    agent_id text,
    generation integer,
    spec blob
);

-- Finds tasks by hash: of (tenant, task_id), of (tenant, session) and of (tenant, root). A hash proves nothing: who
-- asks compares the columns of `task`. Filled late and in sorted batches (see sqlite_keys.py).
create table task_key (
    hash blob,
    row integer,
    primary key (hash, row)
) without rowid;

-- One line: the tasks without an outcome when counter 'indexed' was set, as 64-bit little-endian rows.
create table open_tasks (
    id integer primary key check (id = 1),
    rows blob not null
);

-- Insert only. `content` has no type, so text stays text and bytes stay bytes.
create table outcome (
    row integer primary key,
    shard integer not null,
    version integer default 0,
    state integer,
    ended integer,
    sequence integer,
    agent_id text,
    instance_id text,
    attempts integer,
    transfers integer,
    queued_ms integer,
    ran_ms integer,
    media_type text,
    error_class integer,
    reason integer,
    message text,
    metadata text,                        -- JSON
    extra text,                           -- JSON
    content
);
-- Rows end nearly in the order of this index, so it grows at its right edge.
create index outcome_by_end on outcome (ended);
-- Dead letters and failures are looked for among many successes (state 5), which this costs nothing.
create index outcome_by_state on outcome (state) where state <> 5;

create table attempt (
    row integer,
    number integer,
    shard integer not null,
    instance_id text,
    agent_id text,
    generation integer,
    offered integer,
    reserved integer,
    primary key (row, number)
) without rowid;

create table failure (
    row integer,
    number integer,
    shard integer not null,
    ended integer,
    error_class integer,
    reason integer,
    message text,
    retries integer,
    transfers integer,
    next_try integer,
    primary key (row, number)
) without rowid;

create table reserve (
    row integer primary key,
    shard integer not null,
    reserved integer
);

create table effect (
    row integer,
    number integer,
    shard integer not null,
    effect text,
    granted integer,
    primary key (row, number)
) without rowid;

create table checkpoint (
    row integer primary key,
    shard integer not null,
    number integer,
    data blob
);

create table agent (
    tenant text,
    instance_id text,
    agent_type text not null,
    boot_id text,
    generation integer,
    stale_boots text,                     -- JSON
    registration blob,
    registered integer,
    revision integer,
    primary key (tenant, instance_id)
) without rowid;

create table pin (
    shard integer not null,
    pool_tenant text,
    agent_type text,
    tenant text,
    session text,
    instance_id text,
    expires integer,
    handoffs integer,
    primary key (pool_tenant, agent_type, tenant, session)
) without rowid;

create table outbox (
    id integer primary key,
    shard integer not null,
    kind text,
    key text,
    body blob,
    unique (shard, kind, key)
);
"""

_OUTBOX = """
-- Facts for others, until they are delivered. Version 1 had the table and wrote nothing to it. Numbers are never used
-- again, so that who has read up to one misses nothing.
drop table outbox;
create table outbox (
    id integer primary key autoincrement,
    shard integer not null,
    kind text,
    lane text,
    key text,
    task integer,                         -- its row
    tenant text,
    task_id text,
    at integer,                           -- milliseconds since the epoch
    body blob,
    unique (shard, kind, key)
);
create index outbox_by_lane on outbox (kind, lane, id);
"""

_CONTEXT = """
-- What is known of a session. The large column is the last one.
create table context (
    id integer primary key,
    shard integer not null,
    tenant text,
    session text,
    revision integer,
    expires integer,                      -- milliseconds since the epoch
    state blob,                           -- msgpack of the values of `Context.state`
    unique (tenant, session)
);
"""

_QUESTIONS = """
-- What attempts asked, and what they were answered. Large content last; it has no type, so text stays text.
create table question (
    row integer,
    attempt integer,
    number integer,
    shard integer not null,
    kind integer,
    media_type text,
    name text,
    asked integer,                        -- milliseconds since the epoch
    until integer,
    content,
    primary key (row, attempt, number)
) without rowid;

create table input (
    row integer,
    number integer,
    shard integer not null,
    input_id text,
    question text,
    media_type text,
    given integer,
    content,
    primary key (row, number)
) without rowid;
"""

_DECISIONS = """
-- Why the attempt is where it is (decision_bytes.py), at most 512 bytes.
alter table task add column decision blob;
alter table attempt add column decision blob;
"""

_STANDING = """
-- An operator's drain (until when its sessions may stay, ms since the epoch) and the trial of its version (1 + stage).
alter table agent add column drained integer default 0;
alter table agent add column trial integer default 0;
"""

_DEAD_LETTERS = """
-- Dead letters are kept for longer than other results; neither is to be looked at when the others are purged.
drop index outcome_by_end;
create index outcome_by_end on outcome (ended) where state <> 9;
create index outcome_dead on outcome (ended) where state = 9;
"""

_HANDLES = """
-- Where attempts at agents that are dialled can be asked about.
create table handle (
    row integer primary key,
    shard integer not null,
    number integer,
    handle text
);
"""

MIGRATIONS: Final[tuple[tuple[int, str], ...]] = (
    (1, _FIRST),
    (2, _OUTBOX),
    (3, _CONTEXT),
    (4, _QUESTIONS),
    (5, _DECISIONS),
    (6, _STANDING),
    (7, _DEAD_LETTERS),
    (8, _HANDLES),
)
"""Oldest first."""

NEWEST: Final = MIGRATIONS[-1][0]
"""The schema this build reads and writes."""
