"""The wait queue of a pool (DLV-9): one line per requirement, so that a busy capability never blocks an idle one; and
one for each thing that only some of a requirement wait for, such as the instance of their session.

Whose turn it is: the priority, which grows by a step with each second of waiting up to the highest, so that nobody
starves; among equals weighted fair turns over (tenant, fairness key), in all lines together; within these the order
`accepted_ms - 1000 * priority`, which never changes. So a task of priority 0 waits at most nine seconds more than its
share of the turns would have it. Bounded by count and bytes; a full queue refuses, nothing accepted is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from reach.core.fairness import AGEING_MS_PER_STEP, Entry, Line, Shares, step_of
from reach.core.model import Requirement, Task

MAX_TASKS = 200_000
MAX_BYTES = 1 << 30
RATE_MS = 2_000
"""Over how long the rate of turns is looked at."""
LEAST_WAIT_MS, MOST_WAIT_MS = 500, 60_000
"""What who finds the queue full is told to wait."""
ROOM_SHARE = 0.05
"""They are told to come back when about this much of it has had its turn."""

Kind = Requirement | tuple[Requirement, str]
"""Which line: of all with a requirement, or of those among them that wait for one thing."""
Rank = tuple[int, float, float, int, int]
"""Whose turn it is, the smallest first: priority, turns of the tenant, turns of the key, order."""


class WaitQueue:
    """Tasks that wait for an instance."""

    __slots__ = (
        "_apart", "_count", "_delayed", "_delayed_bytes", "_lines", "_rate", "_rate_from_ms", "_turns", "_waiting",
        "bytes", "looked_ms", "max_bytes", "max_tasks", "shares",
    )  # fmt: skip

    def __init__(
        self, max_tasks: int = MAX_TASKS, max_bytes: int = MAX_BYTES, weights: Mapping[str, float] | None = None
    ) -> None:
        self._lines: dict[Kind, Line] = {}
        self._waiting: dict[int, Entry] = {}
        """The entry that counts of each task; one that was taken out may still lie in a line."""
        self._apart: dict[int, str] = {}
        """What those that do not just wait for anybody wait for."""
        self._delayed: dict[int, Task] = {}
        """Those whose time has not come: they stand in no line, and take room like those that do."""
        self._delayed_bytes = 0
        self._count = 0
        self.bytes = 0
        self.max_tasks = max_tasks
        self.max_bytes = max_bytes
        self.shares = Shares(weights)
        self.looked_ms = 0
        """When free slots were last given away. Who is first then and finds nobody holds up the line until something
        happens, though with time another one would be first."""
        self._turns = 0
        self._rate_from_ms = 0
        self._rate = 0.0

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
        return requirement in self._lines

    def kind(self, task: Task) -> Kind:
        """In which line a task waits."""
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
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = Line()
        flow = self.shares.enter(task.tenant, task.fairness_key)
        entry: Entry = (order, task.row, self._count, task, flow)
        line.add(entry)
        self._waiting[id(task)] = entry
        self.bytes += task.size

    def push_all(self, tasks: Iterable[Task]) -> None:
        """Adds many tasks that are not here, and wait for nothing but their requirement: as `push` one by one."""
        alike: dict[tuple[int, str, str], list[Task]] = {}
        for task in tasks:
            alike.setdefault((id(task.requirement), task.tenant, task.fairness_key), []).append(task)
        waiting = self._waiting
        for (_, tenant, fairness_key), group in alike.items():
            flow = self.shares.enter(tenant, fairness_key, len(group))
            entries: list[Entry] = []
            for number, task in enumerate(group, self._count + 1):
                order = task.accepted_ms - AGEING_MS_PER_STEP * task.priority
                entry = waiting[id(task)] = (order, task.row, number, task, flow)
                entries.append(entry)
                self.bytes += task.size
            self._count += len(group)
            self._lines.setdefault(group[0].requirement, Line()).add_all(entries)

    def remove(self, task: Task) -> bool:
        """Takes a task out wherever it is; its entry is dropped when it comes up. False if it does not wait."""
        if self._delayed:
            self.undelay(task)
        entry = self._waiting.pop(id(task), None)
        if entry is None:
            return False
        self._left(task, entry)
        return True

    def _left(self, task: Task, entry: Entry, *, popped: bool = False) -> None:
        self.bytes -= task.size
        kind = self.kind(task)
        self._apart.pop(id(task), None)
        line = self._lines.get(kind)
        if line is not None:
            line.drop_gone(entry[4], self._waiting, popped=popped)
            if not line:
                del self._lines[kind]
        self.shares.leave(entry[4])

    def kinds(self, now_ms: int) -> list[tuple[Rank, int, Kind]]:
        """All lines, each with the rank of its first task and a number of its own."""
        return [(self._rank(line, now_ms), number, kind) for number, (kind, line) in enumerate(self._lines.items())]

    def rank(self, kind: Kind, now_ms: int) -> Rank | None:
        """The rank of the first task of a line; None if there is nobody."""
        line = self._lines.get(kind)
        return self._rank(line, now_ms) if line is not None else None

    @staticmethod
    def _rank(line: Line, now_ms: int) -> Rank:
        order, row, _, _, flow = line.head(now_ms)
        return (-step_of(order, now_ms), *flow.rank(), order, row)

    def firsts(self) -> list[Task]:
        """One task of each line, in no order that means anything."""
        return [line.one()[3] for line in self._lines.values()]

    def head(self, kind: Kind, now_ms: int = 0) -> Task | None:
        """The task whose turn it is in a line."""
        line = self._lines.get(kind)
        return line.head(now_ms)[3] if line is not None else None

    def pop(self, task: Task) -> None:
        """Takes out the head of its line."""
        entry = self._waiting.pop(id(task))
        self._lines[self.kind(task)].pop(entry[4])
        self._left(task, entry, popped=True)

    def serve(self, task: Task, now_ms: int) -> None:
        """Takes out the head of its line, which has its turn."""
        self.shares.served(self._waiting[id(task)][4], task.cost)
        self.pop(task)
        self._turns += 1
        if now_ms - self._rate_from_ms >= RATE_MS:
            latest = self._turns * 1_000 / (now_ms - self._rate_from_ms) if self._rate_from_ms else 0.0
            self._rate = latest if not self._rate else (self._rate + latest) / 2
            self._turns, self._rate_from_ms = 0, now_ms

    def come_back_ms(self) -> int:
        """When who finds it full should come back: when a part of it has had its turn, by the rate of late."""
        if not self._rate:
            return 1_000
        return round(max(LEAST_WAIT_MS, min(MOST_WAIT_MS, 1_000 * ROOM_SHARE * self.count() / self._rate)))

    def __iter__(self) -> Iterator[Task]:
        return iter([entry[3] for entry in self._waiting.values()])
