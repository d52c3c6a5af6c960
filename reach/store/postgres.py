"""The journal that the nodes of a cluster share: a PostgreSQL database (15 or newer).

One connection writes, from the writer thread, one statement per batch; a few others read. No transaction of ours that
writes is ever open between two messages, so a node that is stopped holds no lock (M9). See `base.SharedJournal` for
what the methods promise; statements are in `postgres_sql`, connections in `postgres_link`, reading in `postgres_read`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from queue import Empty, LifoQueue
from typing import Any, Final, TypeVar

import asyncpg

from reach.core.decision_record import Record
from reach.core.handed import StreamRow
from reach.core.row_numbers import BLOCK_BITS
from reach.core.rows import MoveRow, TaskRow, Writes, shards_of
from reach.core.stream import Event
from reach.store import postgres_load as load
from reach.store import postgres_read as read
from reach.store import postgres_sql as sql
from reach.store.base import Loaded, Place, StoreBroken, StoredFact, StoredTask, StoreUnavailable, TaskQuery
from reach.store.batch import storable, whole_moves
from reach.store.holding import Holding
from reach.store.postgres_link import Connection, Link
from reach.store.postgres_schema import LOAD_SECONDS, migrate

READERS: Final = 3
"""Connections that read: for the thread that reads, the one that loads, and the writer."""
READ_SECONDS: Final = 10.0
ARRIVED_BYTES: Final = 8 << 20
"""Requests of tasks that came from other shards, read at a time: they have the time of a commit."""
TRIES: Final = 4
"""How often a batch is looked at again whose ids another batch is just taking."""

T = TypeVar("T")


class PostgresJournal(Holding):
    """A node's view of the journal at `address` (postgres://user:password@host:port/database)."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._writer = Link(address)
        self._all = [Link(address) for _ in range(READERS)]
        self._readers: LifoQueue[Link] = LifoQueue()
        for link in self._all:
            self._readers.put(link)
        self._first_row = 0
        self._used = 0
        self._broken: StoreBroken | None = None

    def open(self) -> None:
        """See `Journal.open`. There is no lock to take: epochs say who owns what."""
        for link in (self._writer, *self._all):
            link.reopen()
        self._forget_all()
        self._used, self._broken = 0, None
        self._writer.ask(migrate, LOAD_SECONDS)
        block = self._writer.ask(lambda db: db.fetchval("select nextval('row_block')"))
        self._first_row = 1 + ((block - 1) << BLOCK_BITS)

    def close(self) -> None:
        """See `Journal.close`."""
        for link in (self._writer, *self._all):
            link.close()

    # Owning

    def claim(self, shards: Collection[int], holder: str = "") -> dict[int, int]:
        """See `SharedJournal.claim`."""
        if not shards:
            return {}
        found = self._writer.ask(lambda db: db.fetch(sql.CLAIM, sorted(shards), holder))
        claimed: dict[int, int] = dict(found)
        self._won(claimed)
        return claimed

    def holders(self, shards: Collection[int]) -> dict[int, str]:
        """See `SharedJournal.holders`."""
        return dict(self._writer.ask(lambda db: db.fetch(sql.HOLDERS, sorted(shards)))) if shards else {}

    def give_up(self, shards: Collection[int], streams: Sequence[StreamRow] | None = ()) -> None:
        """See `SharedJournal.give_up`."""
        left = self._leave(shards)
        if streams is None:
            if left:
                self._writer.ask(lambda db: db.execute(sql.PASS_ON, [*left], [*left.values()]))
            return
        told = [sql.stream_values(row, left[row.shard]) for row in streams if row.shard in left]
        values = sql.by_column(told) if told else [[] for _ in sql.STREAM]
        if left:
            self._writer.ask(lambda db: db.execute(sql.GIVE_UP, [*left], [*left.values()], *values))

    def came(self, shards: Collection[int]) -> None:
        """See `SharedJournal.came`."""
        held = self._held(shards)
        if held[0]:
            self._writer.ask(lambda db: db.execute(sql.CAME, *held))

    def told(self, row: int) -> tuple[Event, ...]:
        """See `SharedJournal.told`."""
        found: tuple[Event, ...] = self._read(lambda db: load.told_before_end(db, row))
        return found

    def confirm(self) -> frozenset[int]:
        """See `SharedJournal.confirm`."""
        mine = self._mine
        if mine:
            found = self._writer.ask(lambda db: db.fetch(sql.CONFIRM, [*mine], [*mine.values()]))
            self._lose(mine.keys() - {shard for (shard,) in found})
        return frozenset(self._mine)

    def arrived(self, shards: Collection[int], known: Sequence[tuple[int, int]], limit: int) -> list[StoredTask]:
        """See `SharedJournal.arrived`. Only under epochs that hold: what an ex-owner has heard of, nobody has."""
        held = self._held(shards)

        async def look(db: Connection) -> list[StoredTask]:
            if known:
                await db.execute(sql.HEARD, *held, *sql.by_column(known))
            rows = [row for (row,) in await db.fetch(sql.ARRIVED, *held, limit, ARRIVED_BYTES)]
            return await read.read_tasks(db, rows) if rows else []

        found: list[StoredTask] = self._writer.ask(look) if held[0] else []
        return found

    # Writing

    def heavy(self) -> bool:
        """See `Journal.heavy`: a database elsewhere may always take long."""
        return True

    def commit(self, writes: Writes) -> list[int]:
        """See `Journal.commit`. Moves and rows of agents have statements of their own, with fences of their own, so
        that a crash may leave a batch without what follows; sent again, it is whole. A task that stays in its shard
        moves before all else: there its attempt is looked for after a crash."""
        if not writes:
            return []
        if self._broken is not None:
            raise self._broken
        try:
            return self._commit(writes)
        except (asyncpg.DataError, asyncpg.UntranslatableCharacterError, UnicodeEncodeError, OverflowError):
            # Something that PostgreSQL cannot keep, in one row: it must not keep the others out for ever.
            return self._commit(_without_nul(storable(writes)))

    def _commit(self, writes: Writes) -> list[int]:
        moves = whole_moves(writes.moves)
        new = {task.row for task in writes.tasks} if moves else set()
        staying = {move.row for move in moves if move.shard == move.to_shard and move.row not in new}
        self._move([move for move in moves if move.row in staying])
        taken = self._write(sql.parts_of(writes), shards_of(writes), writes.tasks)
        self._used = max(self._used, max((task.row for task in writes.tasks), default=0))
        self._move([move for move in moves if move.row not in staying.union(taken)])
        for part in sql.agents_of(writes):
            self._write([part], {row[0] for row in part[1]}, [])
        if writes.agents:
            last = max(agent.revision for agent in writes.agents)
            self._writer.ask(lambda db: db.execute(sql.SET_REVISION, last))
        return taken

    def _move(self, moves: list[MoveRow]) -> None:
        """A statement for these, if there are any."""
        if moves:
            self._write([("move", list(moves))], {move.shard for move in moves}, [])

    def _write(self, parts: list[tuple[str, list[Sequence[Any]]]], shards: set[int], tasks: list[TaskRow]) -> list[int]:
        """Runs the statement; loses what turns out to be another's; answers the rows of tasks whose ids are taken."""
        if not parts:
            return []
        mine = self._mine
        held = [shard for shard in shards if shard in mine]
        self._lose(shards.difference(held))
        if not held:
            return []
        text = sql.commit_text(tuple(name for name, _ in parts))
        values = [held, [mine[shard] for shard in held]]
        for _, rows in parts:
            values += sql.by_column(rows)
        for attempt in range(TRIES):
            try:
                ours, refused = self._writer.ask(lambda db: db.fetchrow(text, *values))
            except asyncpg.UniqueViolationError as error:
                if attempt + 1 < TRIES:  # the same batch may be on its way a second time, over a lost connection
                    continue
                self._broken = StoreBroken(
                    f"a row number was given to two tasks; nothing of the batch was kept: {error}"
                )
                raise self._broken from error
            self._lose(set(held).difference(ours or ()))
            if not refused:
                return []
            taken = self._taken({task.row: task for task in tasks}, refused)
            if taken is not None:
                return taken
        raise StoreUnavailable("task ids of the batch keep changing their owner")

    def _taken(self, tasks: dict[int, TaskRow], refused: list[int]) -> list[int] | None:
        """The rows, once it is certain that others have their ids. None: to be sent again, for an id has gone
        meanwhile, or the same batch was just kept over another connection."""
        asked = [tasks[row] for row in refused]
        columns = ([one.row for one in asked], [one.tenant for one in asked], [one.task_id for one in asked])
        owners = dict(self._writer.ask(lambda db: db.fetch(sql.CONFLICTING, *columns)))
        if any(owner is None or owner == row for row, owner in owners.items()):
            return None
        return [row for row in tasks if row in owners]

    def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False) -> int:
        """See `Journal.purge`."""
        text = sql.remove_text(sql.oldest_text(dead_letters=dead_letters))
        before = max(-(1 << 63), min(ended_before_ms, (1 << 63) - 1))
        return self._change(text, *self._held(), before, max(limit, 0))

    def remove(self, rows: Sequence[int]) -> int:
        """See `Journal.remove`: whoever has their shards, for what has ended is nobody's."""
        return self._change(sql.REMOVE_ROWS, list(rows)) if rows else 0

    def drop_facts(self, kind: str, before_ms: int, limit: int) -> int:
        """See `Journal.drop_facts`."""
        return self._change(sql.DROP_FACTS, *self._held(), kind, before_ms, max(limit, 0))

    def _held(self, shards: Collection[int] | None = None) -> tuple[list[int], list[int]]:
        """Shards and epochs; of these shards only."""
        mine = self._mine
        held = [shard for shard in mine if shards is None or shard in shards]
        return held, [mine[shard] for shard in held]

    def _change(self, text: str, *values: Any) -> int:
        return int(self._writer.ask(lambda db: db.fetchval(text, *values)))

    # Reading

    def _read(self, work: Callable[[Connection], Any], seconds: float = READ_SECONDS) -> Any:
        """Reads in one snapshot, which locks nothing."""

        async def snapshot(db: Connection) -> Any:
            async with db.transaction(isolation="repeatable_read", readonly=True):
                return await work(db)

        try:
            link = self._readers.get(timeout=seconds)
        except Empty:
            raise StoreUnavailable("all connections that read are busy") from None
        try:
            return link.ask(snapshot, seconds)
        finally:
            self._readers.put(link)

    def load(self) -> Loaded:
        """See `Journal.load`: of all shards, whoever has them."""
        return self._load(None)

    def load_shards(self, shards: Collection[int]) -> Loaded:
        """See `SharedJournal.load_shards`."""
        return self._load(sorted(shards))

    def _load(self, shards: list[int] | None) -> Loaded:
        found: Loaded = self._read(lambda db: load.everything(db, shards), LOAD_SECONDS)
        return found._replace(next_row=max(self._first_row, self._used + 1))

    def load_some(self, shards: Collection[int], place: Place, limit: int) -> tuple[Loaded, Place | None]:
        """See `SharedJournal.load_some`."""
        found: tuple[Loaded, Place | None] = self._read(
            lambda db: load.some_of(db, sorted(shards), place, limit), LOAD_SECONDS
        )
        return found

    def backlog(self, shards: Collection[int]) -> dict[int, int]:
        """See `SharedJournal.backlog`."""
        found: dict[int, int] = self._read(lambda db: load.backlog(db, sorted(shards)), LOAD_SECONDS)
        return found

    def stored(self, rows: Sequence[int]) -> list[StoredTask]:
        """See `SharedJournal.stored`."""
        found: list[StoredTask] = self._read(lambda db: read.read_tasks(db, list(rows)))
        return found

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """See `Journal.find`."""
        found: StoredTask | None = self._read(lambda db: read.find(db, tenant, task_id))
        return found

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """See `Journal.decisions`."""
        found: dict[int, Record] = self._read(lambda db: read.decisions(db, tenant, task_id))
        return found

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """See `Journal.list_tasks`. Latest by the time of acceptance, for the row numbers of nodes lie apart."""
        found: list[StoredTask] = self._read(lambda db: read.list_tasks(db, query))
        return found

    def fact_lanes(self, kind: str, after: str | None, limit: int) -> list[str]:
        """See `Journal.fact_lanes`."""
        text = (
            'select distinct lane collate "C" as lane from outbox'
            ' where kind = $1 and ($2::text is null or lane collate "C" > $2) and shard = any($3::int[])'
            " order by 1 limit $4"
        )
        found = self._read(lambda db: db.fetch(text, kind, after, [*self._mine], max(limit, 0)))
        return [lane for (lane,) in found]

    def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """See `Journal.facts`."""
        found: list[StoredFact] = self._read(lambda db: read.facts(db, kind, lane, after, limit, [*self._mine]))
        return found

    def every_fact(self, kind: str, after: int, limit: int, lane: str | None = None) -> list[StoredFact]:
        """See `Journal.every_fact`."""
        found: list[StoredFact] = self._read(lambda db: read.every_fact(db, kind, after, limit, lane))
        return found

    def dead_letters(self) -> int:
        """See `Journal.dead_letters`."""
        text = "select count(*) from outcome where state = 9 and shard = any($1::int[])"
        return int(self._read(lambda db: db.fetchval(text, [*self._mine])))

    def size_bytes(self) -> int:
        """See `Journal.size_bytes`."""
        return int(self._read(lambda db: db.fetchval("select pg_database_size(current_database())")))


def _without_nul(writes: Writes) -> Writes:
    """PostgreSQL's text has no NUL."""
    repaired = Writes()
    for kind in Writes.__slots__:
        rows = [
            type(item)._make(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in item)
            for item in getattr(writes, kind)
        ]
        setattr(repaired, kind, rows)
    return repaired
