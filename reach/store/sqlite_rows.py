"""Between rows and SQL: statements that carry many rows each. (Whole tasks are read back in `sqlite_tasks`.)

Why not `executemany`: it takes the interpreter's lock once per row, and beside a busy event loop each taking may cost
a whole switch interval. One statement of many rows takes it once. Statements come in a few sizes, so that SQLite's
compiled form is found in the cache; a batch in between is filled up with rows of nulls, which "insert or ignore" drops
(the column `shard` may not be null) and which no "in (...)" matches.
"""

from __future__ import annotations

import gc
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec

from reach.core.decision_record import Record
from reach.core.rows import (
    AgentRow,
    AttemptRow,
    ContextRow,
    OutboxRow,
    OutcomeRow,
    PinRow,
    TaskRow,
    Writes,
)
from reach.store.base import StoredFact
from reach.store.batch import latest_contexts, latest_pins, whole_moves
from reach.store.decision_bytes import pack, unpack_all

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LARGEST: Final = SIZES[-1]
_FITTING: Final = [next(size for size in SIZES if size >= count) for count in range(1, LARGEST + 1)]


class Statement:
    """One statement in all its sizes: `head`, then `width` question marks per row, then `tail`."""

    def __init__(self, head: str, width: int, tail: str = "", row: str = "") -> None:
        self.width = width
        row = row or f"({', '.join('?' * width)})"
        self._texts = {size: f"{head} {', '.join([row] * size)}{tail}" for size in SIZES}

    def run(self, db: sqlite3.Connection, values: list[Any]) -> int:
        """Runs it for all rows, whose values stand one after the other; returns how many rows it changed."""
        return sum(db.execute(text, part).rowcount for text, part in self._parts(values))

    def ask(self, db: sqlite3.Connection, values: list[Any]) -> list[Any]:
        """The same for a query; returns what it answers, in order within each `LARGEST` rows of values."""
        found: list[Any] = []
        for text, part in self._parts(values):
            found += db.execute(text, part).fetchall()
        return found

    def _parts(self, values: list[Any]) -> Iterable[tuple[str, list[Any]]]:
        most = LARGEST * self.width
        for start in range(0, len(values), most):
            part = values[start : start + most]
            count = len(part) // self.width
            size = _FITTING[count - 1]
            if size != count:
                part += [None] * ((size - count) * self.width)
            yield self._texts[size], part


def among(head: str, tail: str = "") -> Statement:
    """A query for rows whose last named column is among the values."""
    return Statement(head + " in (", 1, ")" + tail, row="?")


TASK_COLUMNS: Final = (
    "row, shard, tenant, task_id, pool_tenant, agent_type, spec, accepted, reserved, session, root, attempt,"
    " instance_id, agent_id, generation"
)
OUTCOME_COLUMNS: Final = (
    "row, shard, state, ended, sequence, agent_id, instance_id, attempts, transfers, queued_ms, ran_ms, media_type,"
    " content, error_class, reason, message, metadata, extra"
)
ATTEMPT_COLUMNS: Final = "row, shard, number, instance_id, agent_id, generation, offered, reserved"
FAILURE_COLUMNS: Final = "row, shard, number, ended, error_class, reason, message, retries, transfers, next_try"
QUESTION_COLUMNS: Final = "row, shard, attempt, number, kind, media_type, content, name, asked, until"
INPUT_COLUMNS: Final = "row, shard, number, input_id, question, media_type, content, given"
_AGENT: Final = (
    "tenant, instance_id, agent_type, boot_id, generation, stale_boots, registration, registered, revision, drained,"
    " trial"
)
_PIN: Final = "shard, pool_tenant, agent_type, tenant, session, instance_id, expires, handoffs"
_OUTBOX: Final = "shard, kind, lane, key, task, tenant, task_id, at, body"

# A row that is there already stays as it is: that is what makes sending a batch again harmless.
ADD_TASKS: Final = Statement(f"insert or ignore into task ({TASK_COLUMNS}, decision) values", 16)
ADD_KEYS: Final = Statement("insert or ignore into task_key (hash, row) values", 2)
ADD_OUTCOMES: Final = Statement(f"insert or ignore into outcome ({OUTCOME_COLUMNS}) values", 18)
ADD_ATTEMPTS: Final = Statement(f"insert or ignore into attempt ({ATTEMPT_COLUMNS}, decision) values", 9)
ADD_FAILURES: Final = Statement(f"insert or ignore into failure ({FAILURE_COLUMNS}) values", 10)
ADD_EFFECTS: Final = Statement("insert or ignore into effect (row, shard, number, effect, granted) values", 5)
ADD_QUESTIONS: Final = Statement(f"insert or ignore into question ({QUESTION_COLUMNS}) values", 10)
ADD_INPUTS: Final = Statement(f"insert or ignore into input ({INPUT_COLUMNS}) values", 8)
ADD_OUTBOX: Final = Statement(f"insert or ignore into outbox ({_OUTBOX}) values", 9)
# These have a latest one, and go forward only.
SET_RESERVES: Final = Statement(
    "insert or ignore into reserve (row, shard, reserved) values",
    3,
    " on conflict (row) do update set reserved = max(reserved, excluded.reserved)",
)
SET_CHECKPOINTS: Final = Statement(
    "insert or ignore into checkpoint (row, shard, number, data) values",
    4,
    " on conflict (row) do update set number = excluded.number, data = excluded.data"
    " where excluded.number >= checkpoint.number",
)
SET_HANDLES: Final = Statement(
    "insert or ignore into handle (row, shard, number, handle) values",
    4,
    " on conflict (row) do update set number = excluded.number, handle = excluded.handle"
    " where excluded.number >= handle.number",
)
SET_AGENTS: Final = Statement(
    f"insert or ignore into agent ({_AGENT}) values",
    11,
    " on conflict (tenant, instance_id) do update set agent_type = excluded.agent_type, boot_id = excluded.boot_id,"
    " generation = excluded.generation, stale_boots = excluded.stale_boots, registration = excluded.registration,"
    " registered = excluded.registered, revision = excluded.revision, drained = excluded.drained,"
    " trial = excluded.trial where excluded.revision >= agent.revision",
)
SET_PINS: Final = Statement(
    f"insert or ignore into pin ({_PIN}) values",
    8,
    " on conflict (pool_tenant, agent_type, tenant, session) do update set shard = excluded.shard,"
    " instance_id = excluded.instance_id, expires = excluded.expires, handoffs = excluded.handoffs",
)
DROP_AGENTS: Final = Statement(
    "delete from agent where (tenant, instance_id, agent_type) in (select * from (values", 3, "))"
)
DROP_PINS: Final = Statement(
    "delete from pin where (pool_tenant, agent_type, tenant, session) in (select * from (values", 4, "))"
)
DROP_OUTBOX: Final = Statement("delete from outbox where (shard, kind, key) in (select * from (values", 3, "))")
SET_CONTEXTS: Final = Statement(
    "insert or ignore into context (shard, tenant, session, revision, expires, state) values",
    6,
    " on conflict (tenant, session) do update set shard = excluded.shard, revision = excluded.revision,"
    " expires = excluded.expires, state = excluded.state",
)
MOVE_TASKS: Final = Statement(
    "update task set shard = column3, pool_tenant = column4, agent_type = column5, version = column6,"
    " reserved = column7 from (values",
    7,
    ") where row = column1 and shard = column2 and version < column6",
)
"""`version` of a task is how often it went to another pool."""
DROP_CONTEXTS: Final = Statement("delete from context where (tenant, session) in (select * from (values", 2, "))")
SET_COUNTER: Final = (
    "insert into counter (name, value) values (?, ?)"
    " on conflict (name) do update set value = max(value, excluded.value)"
)
SET_MARK: Final = "insert or replace into counter (name, value) values ('indexed', ?)"
SET_OPEN: Final = "insert or replace into open_tasks (id, rows) values (1, ?)"

KEYS_OF: Final = among("select row, tenant, task_id, session, root from task where row")
OWNERS_BY_ROW: Final = among("select row, tenant, task_id from task where row")
OWNERS_BY_HASH: Final = among(
    "select t.row, t.tenant, t.task_id from task_key k cross join task t on t.row = k.row where k.hash"
)
DROP_KEYS: Final = Statement("delete from task_key where (hash, row) in (select * from (values", 2, "))")
PURGED: Final = tuple(
    among(f"delete from {table} where row")
    for table in ("attempt", "failure", "reserve", "effect", "checkpoint", "question", "input", "handle", "outcome")
)
DROP_TASKS: Final = among("delete from task where row")
DROP_FACTS: Final = among("delete from outbox where id")
ENDED: Final = among("select row from outcome where row")

_DECISIONS: Final = (
    "select attempt, decision from task where row = ?1 and decision is not null"
    " union all select number, decision from attempt where row = ?1 and decision is not null order by 1"
)


class Packed(NamedTuple):
    """The state of a session as it is stored: most sessions that are loaded are not looked at soon."""

    blob: bytes

    def unpack(self) -> Any:
        """The values, with lists where there were tuples."""
        return msgspec.msgpack.decode(self.blob)


_packer: Final = msgspec.msgpack.Encoder()
_encoder: Final = msgspec.json.Encoder(enc_hook=str)


def as_json(value: dict[str, Any] | None) -> str | None:
    """Text for a column; null for None. What JSON cannot say is said in words rather than refused."""
    if value is None:
        return None
    try:
        return _encoder.encode(value).decode()
    except (OverflowError, TypeError, ValueError):
        return json.dumps(value, skipkeys=True, default=str)


def decided_values(rows: Iterable[TaskRow] | Iterable[AttemptRow]) -> list[Any]:
    """Values for `ADD_TASKS` and `ADD_ATTEMPTS`, whose last column is the decision."""
    values: list[Any] = []
    for row in rows:
        values += row
        if row.decision is not None:
            values[-1] = pack(row.decision)
    return values


def outcome_values(outcomes: Iterable[OutcomeRow]) -> list[Any]:
    """Values for `ADD_OUTCOMES`."""
    values: list[Any] = []
    for outcome in outcomes:
        values += outcome
        if outcome.metadata is not None or outcome.extra is not None:
            values[-2:] = as_json(outcome.metadata), as_json(outcome.extra)
    return values


def agent_values(agents: Iterable[AgentRow]) -> list[Any]:
    """Values for `SET_AGENTS`."""
    values: list[Any] = []
    for agent in agents:
        values += agent
        values[5 - len(agent)] = json.dumps(agent.stale_boots)
    return values


def write_rows(db: sqlite3.Connection, writes: Writes) -> None:
    """Writes all kinds of rows but tasks."""
    for statement, rows in (
        (ADD_FAILURES, writes.failures),
        (SET_RESERVES, writes.reserves),
        (ADD_EFFECTS, writes.effects),
        (SET_CHECKPOINTS, writes.checkpoints),
        (SET_HANDLES, writes.handles),
        (ADD_QUESTIONS, writes.questions),
        (ADD_INPUTS, writes.inputs),
        (ADD_OUTBOX, writes.outbox),
        # An instance that goes and comes within one batch is there after it.
        (DROP_AGENTS, writes.agents_gone),
    ):
        if rows:
            statement.run(db, flat(rows))
    if writes.attempts:
        ADD_ATTEMPTS.run(db, decided_values(writes.attempts))
    if writes.outcomes:
        ADD_OUTCOMES.run(db, outcome_values(writes.outcomes))
    if writes.agents:
        SET_AGENTS.run(db, agent_values(writes.agents))
        db.execute(SET_COUNTER, ("revision", max(agent.revision for agent in writes.agents)))
    if writes.pins:
        held, gone = latest_pins(writes.pins)
        SET_PINS.run(db, flat(held))
        DROP_PINS.run(db, [value for pin in gone for value in pin[1:5]])
    if writes.contexts:
        contexts, forgotten = latest_contexts(writes.contexts)
        SET_CONTEXTS.run(db, [value for one in contexts for value in (*one[:5], _packer.encode(one.state))])
        DROP_CONTEXTS.run(db, [value for one in forgotten for value in one[1:3]])
    if writes.moves:
        MOVE_TASKS.run(db, flat(whole_moves(writes.moves)))
    if writes.outbox_done:
        # After what was added: a fact that is delivered within its own batch is not there after it.
        DROP_OUTBOX.run(db, [value for done in writes.outbox_done for value in (done.shard, done.kind, done.key)])


def flat(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """The values of rows that are stored as they are."""
    values: list[Any] = []
    for row in rows:
        values += row
    return values


@contextmanager
def no_collection() -> Iterator[None]:
    """While many objects are made that stay, looking for garbage among them takes as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def rows_of(db: sqlite3.Connection, recent: list[int], key: bytes, tenant: str, task_id: str) -> list[int]:
    """The row of a task, none if it is not there: by its hash, and of the rows that are not in the index yet."""
    owners = OWNERS_BY_ROW.ask(db, recent) + OWNERS_BY_HASH.ask(db, [key])
    return [row for row, *owner in owners if owner == [tenant, task_id]][:1]


def read_decisions(db: sqlite3.Connection, rows: list[int]) -> dict[int, Record]:
    """Why the attempts of a task are where they are."""
    return unpack_all(dict(db.execute(_DECISIONS, rows).fetchall())) if rows else {}


def read_agents(db: sqlite3.Connection) -> list[AgentRow]:
    """All agents, the longest unchanged first."""
    found = db.execute(f"select {_AGENT} from agent order by revision, tenant, instance_id")
    return [AgentRow._make((*values[:5], tuple(json.loads(values[5])), *values[6:])) for values in found]


def read_pins(db: sqlite3.Connection) -> list[PinRow]:
    """All pins."""
    found = db.execute(f"select {_PIN} from pin order by pool_tenant, agent_type, tenant, session")
    return [PinRow._make(values) for values in found]


def read_contexts(db: sqlite3.Connection) -> list[ContextRow]:
    """What is known of sessions."""
    text = "select shard, tenant, session, revision, expires, state from context order by tenant, session"
    found = db.execute(text)
    return [ContextRow._make((*values[:5], Packed(values[5]), len(values[5]))) for values in found]


def read_lanes(db: sqlite3.Connection, kind: str, after: str | None, limit: int) -> list[str]:
    """Lanes of a kind that hold facts: each is found by one step in the index, however many facts it holds."""
    found: list[str] = []
    first = "select lane from outbox where kind = ? and lane >= ? order by lane limit 1"
    later = "select lane from outbox where kind = ? and lane > ? order by lane limit 1"
    while len(found) < limit:
        one = db.execute(first if after is None else later, (kind, after or "")).fetchone()
        if one is None:
            break
        after = one[0]
        found.append(one[0])
    return found


def read_facts(db: sqlite3.Connection, kind: str, lane: str | None, after: int, limit: int) -> list[StoredFact]:
    """Facts of a lane, or of all (None), in order."""
    of_lane, name = ("", ()) if lane is None else ("and lane = ?", (lane,))
    text = f"select id, {_OUTBOX} from outbox where kind = ? {of_lane} and id > ? order by id limit ?"
    found = db.execute(text, (kind, *name, after, max(limit, 0)))
    return [StoredFact(values[0], OutboxRow._make(values[1:])) for values in found]


def counter(db: sqlite3.Connection, name: str) -> int:
    """The value of a counter; 0 if it was never set."""
    found = db.execute("select value from counter where name = ?", (name,)).fetchone()
    return int(found[0]) if found else 0
