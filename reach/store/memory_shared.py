"""A journal in memory that several nodes of one process share: for tests and simulations of clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any, Final

from reach.core.decision_record import Record
from reach.core.handed import StreamRow
from reach.core.row_numbers import BLOCK_BITS
from reach.core.rows import Writes, shards_of, without_shards
from reach.core.stream import Event
from reach.store.base import (
    LOAD_BYTES,
    PARTS,
    Loaded,
    Place,
    StoredFact,
    StoredTask,
    StoreUnavailable,
    TaskQuery,
    next_place,
    some,
)
from reach.store.holding import Holding
from reach.store.memory import MemoryJournal

_KEYS: Final[dict[str, Callable[[Any], tuple[Any, ...]]]] = {
    "agents": lambda agent: (agent.tenant, agent.instance_id),
    "pins": lambda pin: pin[1:5],
    "contexts": lambda context: context[1:3],
    "tasks": lambda stored: (stored.task.row,),
}


class MemoryShared:
    """What the nodes share. All calls come from one thread, or each holds up the others."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.epochs: dict[int, int] = {}
        self.arrivals: dict[int, tuple[int, int]] = {}
        """Rows of tasks that moved, with the shards they came to and their hops."""
        self.holders: dict[int, str] = {}
        """Who has each shard that somebody has."""
        self.streams: dict[int, tuple[int, StreamRow]] = {}
        """How far tasks were told, by row, with the epoch in which they were."""
        self._blocks = 0

    def take_block(self) -> int:
        """The first row number of a block that nobody else has."""
        self._blocks += 1
        return 1 + ((self._blocks - 1) << BLOCK_BITS)


class MemoryNode(Holding):
    """One node's view of a `MemoryShared`. See `base.SharedJournal` for what the methods promise.

    Args:
        shared: The store.
    """

    def __init__(self, shared: MemoryShared) -> None:
        super().__init__()
        self._shared = shared
        self._store = shared.journal
        self._first_row = 0
        self._used = 0
        self._closed = False
        self.cut_off = False
        """The store cannot be reached from this node."""

    def open(self) -> None:
        """See `Journal.open`."""
        self._closed = False
        self._first_row = self._shared.take_block()
        self._used = 0

    def close(self) -> None:
        """See `Journal.close`. The store is there for the other nodes."""
        self._closed = True
        self._forget_all()

    def claim(self, shards: Collection[int], holder: str = "") -> dict[int, int]:
        """See `SharedJournal.claim`."""
        self._reach()
        claimed = {shard: self._shared.epochs.get(shard, 0) + 1 for shard in sorted(shards)}
        self._shared.epochs.update(claimed)
        self._shared.holders |= dict.fromkeys(claimed, holder)
        self._won(claimed)
        return claimed

    def holders(self, shards: Collection[int]) -> dict[int, str]:
        """See `SharedJournal.holders`."""
        self._reach()
        return {shard: holder for shard, holder in self._shared.holders.items() if shard in shards and holder}

    def give_up(self, shards: Collection[int], streams: Sequence[StreamRow] | None = ()) -> None:
        """See `SharedJournal.give_up`."""
        left = self._leave(shards)
        self._reach()
        shared = self._shared
        held = {shard: epoch for shard, epoch in left.items() if shared.epochs.get(shard) == epoch}
        shared.holders |= dict.fromkeys(held, "")
        if streams is None:
            streams = [row for epoch, row in shared.streams.values() if epoch + 1 == held.get(row.shard)]
        self._drop_streams(held, keep={row.row for row in streams})
        shared.streams |= {row.row: (held[row.shard], row) for row in streams if row.shard in held}

    def came(self, shards: Collection[int]) -> None:
        """See `SharedJournal.came`."""
        self._reach()
        self._look(dict(self._mine))
        self._drop_streams([shard for shard in shards if shard in self._mine])

    def _drop_streams(self, shards: Collection[int], keep: Collection[int] = ()) -> None:
        streams, epochs = self._shared.streams, self._shared.epochs
        for row, (epoch, one) in list(streams.items()):
            if one.shard not in shards or row in keep:
                continue
            if epoch < epochs[one.shard] - 2 or not self._end_of(row):
                del streams[row]

    def _end_of(self, row: int) -> int:
        """The number of the last event of a task that has ended; 0: it goes on."""
        found = self._store.stored([row])
        outcome = found[0].outcome if found else None
        return outcome.sequence if outcome is not None else 0

    def told(self, row: int) -> tuple[Event, ...]:
        """See `SharedJournal.told`."""
        self._reach()
        _, stream = self._shared.streams.get(row, (0, None))
        return stream.events if stream is not None and stream.sequence == self._end_of(row) else ()

    def _told(self, stored: StoredTask) -> StoredTask:
        """A task with how far it was told, as far as that still holds."""
        epoch, stream = self._shared.streams.get(stored.task.row, (0, None))
        if stream is None or stream.shard != stored.task.shard or epoch + 1 != self._shared.epochs[stream.shard]:
            return stored
        return stored._replace(stream=stream)

    def confirm(self) -> frozenset[int]:
        """See `SharedJournal.confirm`."""
        self._reach()
        self._look(self._mine)
        return frozenset(self._mine)

    def _look(self, shards: Collection[int]) -> set[int]:
        """Those of the shards that are not ours."""
        epochs = self._shared.epochs
        fenced = {shard for shard in shards if self._mine.get(shard, 0) != epochs.get(shard, -1)}
        self._lose(fenced)
        return fenced

    def commit(self, writes: Writes) -> list[int]:
        """See `Journal.commit`."""
        self._reach()
        fenced = self._look(shards_of(writes))
        if fenced:
            writes = without_shards(writes, fenced)
        self._used = max(self._used, max((task.row for task in writes.tasks), default=0))
        taken = self._store.commit(writes)
        for move in writes.moves:
            if self._store.shard_of(move.row) == move.to_shard != move.shard:
                self._shared.arrivals[move.row] = move.to_shard, move.hop
        return taken

    def arrived(self, shards: Collection[int], known: Sequence[tuple[int, int]], limit: int) -> list[StoredTask]:
        """See `SharedJournal.arrived`."""
        self._reach()
        self._look(dict(self._mine))
        arrivals = self._shared.arrivals
        for row, hop in known:
            shard, latest = arrivals.get(row, (-1, 0))
            if shard in self._mine and shard in shards and latest <= hop:
                del arrivals[row]
        rows = [row for row, (shard, _) in arrivals.items() if shard in self._mine and shard in shards]
        return self._store.stored(rows[:limit])

    def heavy(self) -> bool:
        """See `Journal.heavy`."""
        return False

    def load(self) -> Loaded:
        """See `Journal.load`: of all shards, whoever has them."""
        return self.load_shards(range(1 << 16))

    def load_shards(self, shards: Collection[int]) -> Loaded:
        """See `SharedJournal.load_shards`."""
        self._reach()
        found = self._store.load()
        return found._replace(
            tasks=[self._told(one) for one in found.tasks if one.task.shard in shards],
            pins=[pin for pin in found.pins if pin.shard in shards],
            contexts=[context for context in found.contexts if context.shard in shards],
            next_row=max(self._first_row, self._used + 1),
        )

    def load_some(self, shards: Collection[int], place: Place, limit: int) -> tuple[Loaded, Place | None]:
        """See `SharedJournal.load_some`."""
        name, loaded = PARTS[place.part], self.load_shards(shards)
        key = _KEYS[name]
        ours = (one for one in getattr(loaded, name) if name != "agents" or one.shard in shards)
        left = sorted((one for one in ours if not place.after or key(one) > place.after), key=key)
        found = left[:limit]
        if name == "tasks":
            before = accumulate((len(one.task.spec) for one in found), initial=0)
            found = [one for one, size in zip(found, before, strict=False) if size < LOAD_BYTES]
        following = next_place(place, key(found[-1]) if found else (), len(found) == len(left))
        return some(**{name: found}, next_revision=loaded.next_revision if place == Place() else 0), following

    def backlog(self, shards: Collection[int]) -> dict[int, int]:
        """See `SharedJournal.backlog`."""
        self._reach()
        return dict(Counter(one.task.shard for one in self._store.load().tasks if one.task.shard in shards))

    def stored(self, rows: Sequence[int]) -> list[StoredTask]:
        """See `SharedJournal.stored`."""
        self._reach()
        return self._store.stored(rows)

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """See `Journal.find`."""
        self._reach()
        return self._store.find(tenant, task_id)

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """See `Journal.decisions`."""
        self._reach()
        return self._store.decisions(tenant, task_id)

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """See `Journal.list_tasks`."""
        self._reach()
        return self._store.list_tasks(query)

    def fact_lanes(self, kind: str, after: str | None, limit: int) -> list[str]:
        """See `Journal.fact_lanes`."""
        self._reach()
        return self._store.fact_lanes(kind, after, limit, self._mine)

    def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """See `Journal.facts`."""
        self._reach()
        return self._store.facts(kind, lane, after, limit, self._mine)

    def every_fact(self, kind: str, after: int, limit: int, lane: str | None = None) -> list[StoredFact]:
        """See `Journal.every_fact`."""
        self._reach()
        return self._store.every_fact(kind, after, limit, lane)

    def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False) -> int:
        """See `Journal.purge`."""
        self._reach()
        self._look(dict(self._mine))
        return self._store.purge(ended_before_ms, limit, dead_letters=dead_letters, shards=self._mine)

    def remove(self, rows: Sequence[int]) -> int:
        """See `Journal.remove`: whoever has their shards, for what has ended is nobody's."""
        self._reach()
        return self._store.remove(rows)

    def drop_facts(self, kind: str, before_ms: int, limit: int) -> int:
        """See `Journal.drop_facts`."""
        self._reach()
        self._look(dict(self._mine))
        return self._store.drop_facts(kind, before_ms, limit, self._mine)

    def dead_letters(self) -> int:
        """See `Journal.dead_letters`."""
        self._reach()
        return self._store.dead_letters(self._mine)

    def size_bytes(self) -> int:
        """See `Journal.size_bytes`."""
        return self._store.size_bytes()

    def _reach(self) -> None:
        if self._closed or self.cut_off:
            raise StoreUnavailable("the journal is closed" if self._closed else "the store cannot be reached")
