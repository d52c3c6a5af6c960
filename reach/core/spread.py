"""Level 1 where several pools could take a task (RTE-11, RTE-15): which one, from what is known of each.

The highest priority band with a free slot comes first; within it the region asked for, if anybody is there; then the
best score. Pools whose best scores are near are equals: chance chooses among them in proportion to their free slots,
so that callers who know the same do not all run to the same place. What does not fit spills over to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from reach.core.chance import fraction
from reach.core.model import Fault, PoolKey

NEAR = 0.1
"""Pools whose best scores differ by no more than this are equals."""
TRIED = 3
"""Pools that a task is brought to at most, before it is refused."""


class Room(NamedTuple):
    """What is known of a pool, as far as one requirement goes."""

    slots: int
    """Free slots of the instances that could take it."""
    priority: int = 3
    """Highest priority among those that have one."""
    best: float = 0.0
    """Best score among those."""
    queued: int = 0
    """Tasks that wait in the pool."""
    capacity: int = 1
    """Instances that could ever take it."""
    near: bool = True
    """Whether one of them is in the region asked for."""


class Placing(NamedTuple):
    """How far level 1 has come with a task that is brought from one node to another, or whose first pool was full."""

    pool: PoolKey | None = None
    """Where it is placed; None: it is to be chosen."""
    brought: bool = False
    """Another node has brought it, and chooses."""
    others: bool = False
    """That node goes on with another pool if this one is full."""
    full: tuple[PoolKey, ...] = ()
    """Pools that took no more of it."""
    fault: Fault | None = None
    """What it is refused with if none is left: what that of these says which is worth coming back to soonest."""

    def and_full(self, pool: PoolKey, fault: Fault) -> Self:
        """Another pool takes no more: the next one is to be chosen."""
        known = self.fault
        sooner = known is None or (fault.retry_after_ms or 0) < (known.retry_after_ms or 0)
        return self._replace(pool=None, full=(*self.full, pool), fault=fault if sooner else known)


def ranked(rooms: Sequence[Room], seed: int) -> Iterator[int]:
    """Positions of the rooms in the order in which they should be tried, at most TRIED."""
    left = list(range(len(rooms)))
    for tried in range(min(TRIED, len(rooms))):
        position = _first(rooms, left, seed + tried)
        yield position
        left.remove(position)


def _first(rooms: Sequence[Room], left: list[int], seed: int) -> int:
    band, best, near, slots = -1, 0.0, False, 0
    for at in left:
        room = rooms[at]
        if room.slots > 0 and (room.priority, room.near) >= (band, near):
            if (room.priority, room.near) > (band, near):
                band, near, best = room.priority, room.near, room.best
            elif room.best > best:
                best = room.best
    if band < 0:
        return min(left, key=lambda at: (-rooms[at].priority, rooms[at].queued / max(1, rooms[at].capacity), at))
    equals = []
    for at in left:
        room = rooms[at]
        if room.slots > 0 and room.priority == band and room.near == near and room.best >= best - NEAR:
            equals.append(at)
            slots += room.slots
    drawn = fraction(seed, 1) * slots if len(equals) > 1 else 0
    for at in equals:
        drawn -= rooms[at].slots
        if drawn < 0:
            break
    return at
