"""What one node holds of a journal that several share, as far as it knows: the epochs it has claimed, and what it found
to be another's. See `base.SharedJournal` for what the methods promise."""

from __future__ import annotations

from collections.abc import Collection


class Holding:
    """The part of every `SharedJournal` that asks nobody."""

    def __init__(self) -> None:
        self._mine: dict[int, int] = {}
        """Epoch by shard. Replaced whole, never changed: another thread may be reading it."""
        self._lost: set[int] = set()

    def _leave(self, shards: Collection[int]) -> dict[int, int]:
        """These are this node's no more; returns the epochs of those that were."""
        left = {shard: epoch for shard, epoch in self._mine.items() if shard in shards}
        self._mine = {shard: epoch for shard, epoch in self._mine.items() if shard not in shards}
        self._lost.difference_update(shards)
        return left

    def epochs(self) -> dict[int, int]:
        """See `SharedJournal.epochs`."""
        return dict(self._mine)

    def lost(self) -> frozenset[int]:
        """See `SharedJournal.lost`. What another thread adds meanwhile is in the answer, or stays for the next one."""
        found = []
        while self._lost:
            found.append(self._lost.pop())
        return frozenset(found)

    def _won(self, claimed: dict[int, int]) -> None:
        self._mine = self._mine | claimed
        self._lost.difference_update(claimed)

    def _lose(self, shards: Collection[int]) -> None:
        if shards:
            self._mine = {shard: epoch for shard, epoch in self._mine.items() if shard not in shards}
            self._lost.update(shards)

    def _forget_all(self) -> None:
        self._mine = {}
        self._lost.clear()
