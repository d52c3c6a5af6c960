"""The index of tasks by id, session and root, filled late.

A hash is in random order: written into a B-tree with each commit it would dirty a page of its own per task. So new
entries stay in memory, in 256 buckets by their first byte, and one bucket after the other is written to `task_key`, in
sorted order, by the commits that follow: each commit writes about as many old entries as it brings new ones, next to
one another in the tree. After a whole round every task that was there at its start is indexed, and the mark in
`counter` moves up; on opening, only the tasks above the mark are read back into memory.

Used by the writer thread; `find` also by readers, which must ask it *before* they ask the table.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

BUCKETS: Final = 256
ROUND: Final = 51_200
"""New entries per round. About half as many are in memory (5 MB), up to twice as many for a while after opening.
Larger: fewer pages written per entry (56 against 80 thousand rows a second, at a million tasks, for 25,600 and 51,200),
but a longer start."""
STEP: Final = ROUND // BUCKETS
"""New entries that pay for writing one bucket."""

Entry = tuple[bytes, int]
"""(hash, row)."""


def hash_of(tenant: str, name: str) -> bytes:
    """16 bytes for a task id, a session or a root of a tenant. Equal hashes prove nothing; different ones do."""
    return blake2b(f"{tenant}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Slice(NamedTuple):
    """What one commit has to write."""

    entries: list[Entry]
    """For `task_key`, sorted."""
    first: int
    """The buckets they are of: from here ..."""
    end: int
    """... up to, not including, here."""
    mark: int | None
    """The new value of the mark in `counter`, if it moves."""
    ends_round: bool


class KeyIndex:
    """The part of the index that is not in `task_key` yet."""

    def __init__(self, buckets: int = BUCKETS, step: int = STEP) -> None:
        self._buckets: list[dict[bytes, int | list[int]]] = [{} for _ in range(buckets)]
        self._step = step
        self._turn = 0
        self._credit = 0
        self._mark = 0
        """As it is in `counter`."""
        self._top = 0
        """Tasks up to here will be indexed when this round ends."""
        self._highest = 0

    def start(self, mark: int, entries: list[Entry]) -> None:
        """Begins with what is not indexed: all entries above the mark."""
        self._mark = mark
        self._add(entries)
        self._top = self._highest = max((row for _, row in entries), default=mark)

    def find(self, key: bytes) -> list[int]:
        """Rows under a hash that may not be in the table yet."""
        found = self._bucket(key).get(key)
        if found is None:
            return []
        return [found] if isinstance(found, int) else list(found)

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets)

    def plan(self, added: list[Entry]) -> Slice:
        """What the commit that brings `added` has to write. Changes nothing."""
        steps = min((self._credit + len(added)) // self._step, len(self._buckets) - self._turn)
        end = self._turn + steps
        entries: list[Entry] = []
        for bucket in self._buckets[self._turn : end]:
            for key, rows in sorted(bucket.items()):
                if isinstance(rows, int):
                    entries.append((key, rows))
                else:
                    entries.extend((key, row) for row in sorted(rows))
        lowest = min((row for _, row in added), default=self._highest + 1)
        mark = None
        ends_round = end == len(self._buckets)
        if ends_round:
            mark = min(self._top, lowest - 1)
        elif lowest <= self._mark:
            # A row from before the mark, which this round may have passed already: let opening look again from there.
            mark = lowest - 1
        return Slice(entries, self._turn, end, mark, ends_round)

    def apply(self, added: list[Entry], done: Slice) -> None:
        """The commit is durable: what it wrote leaves the memory, what it brought comes in."""
        for number in range(done.first, done.end):
            if self._buckets[number]:
                self._buckets[number] = {}
        self._credit += len(added) - (done.end - done.first) * self._step
        self._turn = done.end
        self._add(added)
        for _, row in added:
            if row > self._highest:
                self._highest = row
            elif row <= self._top:
                self._top = row - 1
        if done.mark is not None:
            self._mark = done.mark
        if done.ends_round:
            self._turn = 0
            self._top = self._highest

    def remove(self, removed: list[Entry]) -> None:
        """These tasks are no more."""
        for key, row in removed:
            bucket = self._bucket(key)
            rows = bucket.get(key)
            if rows == row:
                del bucket[key]
            elif isinstance(rows, list) and row in rows:
                rows.remove(row)
                if not rows:
                    del bucket[key]

    def _bucket(self, key: bytes) -> dict[bytes, int | list[int]]:
        return self._buckets[key[0] * len(self._buckets) >> 8]

    def _add(self, added: list[Entry]) -> None:
        buckets, count = self._buckets, len(self._buckets)
        for key, row in added:
            bucket = buckets[key[0] * count >> 8]
            rows = bucket.setdefault(key, row)
            if rows is row:
                continue
            if isinstance(rows, list):
                rows.append(row)
            elif rows != row:
                bucket[key] = [rows, row]


def entries_of(row: int, tenant: str, task_id: str, session: str, root: str) -> list[Entry]:
    """What the index holds of a task."""
    return [(hash_of(tenant, name), row) for name in (task_id, session, root) if name]
