"""The wait queue of a pool (DLV-9): one queue per requirement, so that a busy capability never blocks an idle one; and
one for each thing that only some of a requirement wait for, such as the instance of their session.

Within a queue the order is by `accepted_ms - 1000 * priority`: a step of priority is worth a second of waiting. As
everybody ages alike this key never changes, and nobody starves: a task of priority 0 is overtaken only by those that
came less than nine seconds after it. Bounded by count and bytes; a full queue refuses, nothing accepted is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from reach.core.model import Requirement, Task

AGEING_MS_PER_STEP = 1_000
MAX_TASKS = 200_000
MAX_BYTES = 1 << 30

Entry = tuple[int, int, int, Task]
"""(order, row, number, task): among equals the one that was accepted first; the number only ends every comparison."""
Kind = Requirement | tuple[Requirement, str]
"""Which queue: of all with a requirement, or of those among them that wait for one thing."""


class WaitQueue:
    """Tasks that wait for an instance."""

    __slots__ = (
        "_apart", "_count", "_delayed", "_delayed_bytes", "_queues", "_waiting", "bytes", "max_bytes", "max_tasks",
    )  # fmt: skip

    def __init__(self, max_tasks: int = MAX_TASKS, max_bytes: int = MAX_BYTES) -> None:
        self._queues: dict[Kind, list[Entry]] = {}
        self._waiting: dict[int, Entry] = {}
        """The entry that counts of each task; one that was taken out may still lie in a queue."""
        self._apart: dict[int, str] = {}
        """What those that do not just wait for anybody wait for."""
        self._delayed: dict[int, Task] = {}
        """Those whose time has not come: they stand in no queue, and take room like those that do."""
        self._delayed_bytes = 0
        self._count = 0
        self.bytes = 0
        self.max_tasks = max_tasks
        self.max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task: Task) -> bool:
        return id(task) in self._waiting

    def has_room(self, size: int) -> bool:
        """Whether one more task of `size` bytes may be accepted."""
        return self.count() < self.max_tasks and self.bytes + self._delayed_bytes + size <= self.max_bytes

    def count(self) -> int:
        """How many take room."""
        return len(self._waiting) + len(self._delayed)

    def waits(self, requirement: Requirement) -> bool:
        """Whether somebody waits with this requirement: then nobody may overtake by not waiting."""
        return requirement in self._queues

    def kind(self, task: Task) -> Kind:
        """In which queue a task waits."""
        apart = self._apart.get(id(task))
        return (task.requirement, apart) if apart else task.requirement

    def waits_for(self, task: Task) -> str:
        """What a task waits for; empty: for anybody."""
        return self._apart.get(id(task), "")

    def delay(self, task: Task) -> None:
        """Takes in a task whose time has not come; `undelay` or `remove` takes it out."""
        if id(task) not in self._delayed:
            self._delayed[id(task)] = task
            self._delayed_bytes += task.size

    def undelay(self, task: Task) -> None:
        """The time of a task has come."""
        if self._delayed.pop(id(task), None) is not None:
            self._delayed_bytes -= task.size

    def delayed(self) -> list[Task]:
        """Those whose time has not come."""
        return list(self._delayed.values())

    def push(self, task: Task, waits_for: str = "") -> None:
        """Adds a task. It keeps its place by the time it was accepted, also when it comes back.

        Args:
            task: The task.
            waits_for: What it waits for beside its requirement; others do not stand behind it.
        """
        if id(task) in self._waiting:
            return
        self._count += 1
        order = task.accepted_ms - AGEING_MS_PER_STEP * task.priority
        if waits_for:
            self._apart[id(task)] = waits_for
        kind = self.kind(task)
        queue = self._queues.get(kind)
        if queue is None:
            queue = self._queues[kind] = []
        entry = (order, task.row, self._count, task)
        heappush(queue, entry)
        self._waiting[id(task)] = entry
        self.bytes += task.size

    def remove(self, task: Task) -> bool:
        """Takes a task out wherever it is; its entry is dropped when it comes up. False if it does not wait."""
        if self._delayed:
            self.undelay(task)
        if self._waiting.pop(id(task), None) is None:
            return False
        self.bytes -= task.size
        kind = self.kind(task)
        self._apart.pop(id(task), None)
        self._drop_gone(kind)
        return True

    def _drop_gone(self, kind: Kind) -> None:
        """Keeps the head of a queue alive, and the dead entries fewer than the living ones."""
        queue = self._queues.get(kind)
        if queue is None:
            return
        waiting = self._waiting
        while queue and waiting.get(id(queue[0][3])) is not queue[0]:
            heappop(queue)
        if not queue:
            del self._queues[kind]
        elif len(queue) > 64 and len(queue) > 2 * len(self._waiting):
            queue[:] = [entry for entry in queue if waiting.get(id(entry[3])) is entry]
            heapify(queue)

    def heads(self) -> list[Task]:
        """The first task of each queue, the most urgent first."""
        return [entry[3] for entry in sorted(queue[0] for queue in self._queues.values())]

    def head(self, kind: Kind) -> Task | None:
        """The first task of a queue."""
        queue = self._queues.get(kind)
        return queue[0][3] if queue else None

    def pop(self, task: Task) -> None:
        """Takes out the head of its queue."""
        kind = self.kind(task)
        self._apart.pop(id(task), None)
        heappop(self._queues[kind])
        del self._waiting[id(task)]
        self.bytes -= task.size
        self._drop_gone(kind)

    def __iter__(self) -> Iterator[Task]:
        return iter([entry[3] for entry in self._waiting.values()])
