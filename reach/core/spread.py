"""Level 1 where several pools could take a task (RTE-11, RTE-15): which one, from what is known of each.

The highest priority band with a free slot comes first; within it the region asked for, if anybody is there; then the
best score. Pools whose best scores are near are equals: chance chooses among them in proportion to their free slots,
so that callers who know the same do not all run to the same place. What does not fit spills over to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reach.core.chance import fraction

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


def ranked(rooms: Sequence[Room], seed: int) -> list[int]:
    """Positions of the rooms in the order in which they should be tried, at most TRIED."""
    order: list[int] = []
    left = list(range(len(rooms)))
    while left and len(order) < TRIED:
        position = _first(rooms, left, seed + len(order))
        order.append(position)
        left.remove(position)
    return order


def _first(rooms: Sequence[Room], left: list[int], seed: int) -> int:
    free = [at for at in left if rooms[at].slots > 0]
    if not free:
        return min(left, key=lambda at: (-rooms[at].priority, rooms[at].queued / max(1, rooms[at].capacity), at))
    band = max(rooms[at].priority for at in free)
    free = [at for at in free if rooms[at].priority == band]
    free = [at for at in free if rooms[at].near] or free
    best = max(rooms[at].best for at in free)
    free = [at for at in free if rooms[at].best >= best - NEAR]
    drawn = fraction(seed, 1) * sum(rooms[at].slots for at in free)
    for at in free:
        drawn -= rooms[at].slots
        if drawn < 0:
            return at
    return free[-1]
