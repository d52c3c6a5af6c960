"""The late index: whatever comes in, in whatever order, opening again finds it."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from reach.store.sqlite_keys import ROUND, STEP, Entry, KeyIndex, hash_of

KEYS = st.sampled_from([b"\x00", b"\x40", b"\x80", b"\xc0", b"\xff"])


class Disk:
    """What the database has of it: the table, the mark, and every entry by its task."""

    def __init__(self, index: KeyIndex) -> None:
        self.index = index
        self.table: set[Entry] = set()
        self.mark = 0
        self.all: set[Entry] = set()

    def commit(self, added: list[Entry], *, durable: bool = True) -> None:
        done = self.index.plan(added)
        assert done.entries == sorted(done.entries)
        if durable:
            self.table.update(done.entries)
            self.all.update(added)
            if done.mark is not None:
                self.mark = done.mark
            self.index.apply(added, done)

    def purge(self, removed: list[Entry]) -> None:
        self.table.difference_update(removed)
        self.all.difference_update(removed)
        self.index.remove(removed)

    def reopen(self, index: KeyIndex) -> None:
        self.index = index
        index.start(self.mark, sorted(self.above_mark(), key=lambda entry: entry[1]))

    def above_mark(self) -> set[Entry]:
        return {entry for entry in self.all if entry[1] > self.mark}

    def check(self) -> None:
        assert self.all <= self.table | self.above_mark(), "opening again would not find these"
        in_memory = {(key, row) for key in {key for key, _ in self.all} for row in self.index.find(key)}
        assert in_memory <= self.all, "these tasks are no more"
        assert self.all <= in_memory | self.table, "these cannot be found"


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_an_entry_is_in_memory_or_in_the_table_and_found_after_opening(data, buckets, step):
    disk = Disk(KeyIndex(buckets, step))
    free = list(range(1, 200))
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["commit"] * 6 + ["fail", "purge", "reopen"]))
        if what == "reopen":
            disk.reopen(KeyIndex(buckets, step))
        elif what == "purge":
            disk.purge(data.draw(st.lists(st.sampled_from(sorted(disk.all) or [(b"-", 0)]), max_size=3, unique=True)))
        else:
            # Rows come nearly in order, sometimes much too late; several entries may have one key or one row.
            added = []
            for _ in range(data.draw(st.integers(0, 5))):
                row = free.pop(data.draw(st.sampled_from([0, 0, 0, 0, 1, 5])))
                added += [(key, row) for key in data.draw(st.sets(KEYS, min_size=1))]
            disk.commit(added, durable=what == "commit")
        disk.check()


def test_memory_is_bounded_and_work_is_even():
    rng = random.Random(1)
    disk = Disk(KeyIndex())
    written = []
    for batch in range(2 * ROUND // 100):
        added = [(rng.randbytes(16), batch * 100 + number) for number in range(1, 101)]
        done = disk.index.plan(added)
        written.append(len(done.entries))
        disk.commit(added)
        assert len(disk.index) <= ROUND
    assert max(written) <= 3 * STEP
    assert len(disk.all) - 2 * ROUND < disk.mark
    disk.reopen(KeyIndex())
    assert len(disk.index) <= 2 * ROUND


def test_a_batch_of_any_size_is_worked_off():
    disk = Disk(KeyIndex())
    rng = random.Random(2)
    disk.commit([(rng.randbytes(16), row) for row in range(1, 3 * ROUND)])
    for row in range(3 * ROUND, 3 * ROUND + 5):
        disk.commit([(rng.randbytes(16), row)])
    disk.check()
    assert len(disk.index) < STEP


def test_hashes_tell_names_apart():
    names = [("a", "b"), ("b", "a"), ("a", "bb"), ("ab", "b"), ("", "ab"), ("a", ""), ("ü", "\ud800")]
    assert len({hash_of(*name) for name in names}) == len(names)
    assert {len(hash_of(*name)) for name in names} == {16}
    assert hash_of("acme", "task-1").hex() == "86071ae11e3ab50b33a674270120f762", "what is on disk was found by this"
