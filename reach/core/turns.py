"""Giving free slots to those who wait (DLV-9): whose turn it is goes first, who finds nobody holds up no other line."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from reach.core.assignment import AVOIDS
from reach.core.effects import Turn
from reach.core.model import Task

if TYPE_CHECKING:
    from reach.core.pool import Pool

SET_ASIDE = 8
"""Heads of a queue that may be passed over because the instances they failed on are the only free ones."""
MOVED = 256
"""Heads of a queue that are sent to a queue of their own in one look, for they wait for something else."""


def pump(pool: Pool, turn: Turn) -> None:
    """Gives free slots to waiting tasks: of all lines, the one whose turn it is first. A line whose first task finds
    nobody has to wait for the next look."""
    queue, assignment, now = pool.queue, pool.assignment, turn.now_ms
    if not pool.router.has_room():
        return
    queue.looked_ms = now
    lines = queue.kinds(now)
    heapify(lines)
    aside: list[Task] = []
    passed: dict[int, int] = {}
    moved: dict[int, int] = {}
    while lines:
        _, number, kind = heappop(lines)
        while (head := queue.head(kind, now)) is not None:
            instance = assignment.find(head, turn)
            if instance is not None:
                queue.serve(head, now)
                assignment.assign(head, instance, turn)
            elif (apart := assignment.waits_for(head, turn)) != queue.waits_for(head):
                queue.pop(head)
                queue.push(head, apart)
                pool.deadlines.arm(head, turn)
                moved[number] = moved.get(number, 0) + 1
                if moved[number] == MOVED:
                    pool.slot_freed = True  # there is more to look at
                    break
            elif head.avoided:
                queue.pop(head)
                aside.append(head)
                passed[number] = passed.get(number, 0) + 1
                if passed[number] == SET_ASIDE:
                    break
            else:
                break
            if lines:
                rank = queue.rank(kind, now)
                if rank is not None and rank > lines[0][0]:
                    heappush(lines, (rank, number, kind))  # it is another line's turn
                    break
    for task in aside:
        queue.push(task, AVOIDS)
        pool.deadlines.arm(task, turn)
