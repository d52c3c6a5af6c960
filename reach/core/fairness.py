"""Weighted fair turns over (tenant, fairness key) among those that wait (DLV-9).

Start-time fair queueing on two levels: tenants share the turns of a pool by their weights, the keys of a tenant share
its turns. Whoever waits has a virtual time, which grows by cost / weight with each turn; the smallest goes next. Who
begins to wait starts at the time of the last turn, so nobody saves up turns by being away.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from reach.core.model import Task

AGEING_MS_PER_STEP = 1_000
"""A step of priority is worth so much waiting."""
TOP = 9
"""The highest priority: whoever has waited long enough has it, and waits for no higher one."""
LOOK = 32
"""Flows of one step of priority below the top that are compared."""
KEPT = 10_000
"""Tenants, and keys of a tenant, that are remembered though they do not wait, for what they had of late."""
MERGE = 16
"""Tasks that come together and are so many times fewer than those that wait are put in one by one: looking through all
that wait would take longer."""
SWEEP = 64
"""From so many on they are looked through, whenever they are twice as many as were left."""

Entry = tuple[int, int, int, "Task", "Flow"]
"""(order, row, number, task, flow): among equals the one that was accepted first; the number ends every comparison."""


class Tenant:
    """The turns of one tenant."""

    __slots__ = ("clock", "flows", "name", "sweep_at", "time", "waiting", "weight")

    def __init__(self, name: str, weight: float, time: float) -> None:
        self.name = name
        self.weight = weight
        self.time = time
        self.clock = 0.0
        """Virtual time of its last turn, among its keys."""
        self.flows: dict[str, Flow] = {}
        self.waiting = 0
        self.sweep_at = SWEEP


class Flow:
    """The turns of one fairness key of a tenant."""

    __slots__ = ("key", "tenant", "time", "waiting", "weight")

    def __init__(self, key: str, tenant: Tenant, weight: float) -> None:
        self.key = key
        self.tenant = tenant
        self.weight = weight
        self.time = tenant.clock
        self.waiting = 0

    def rank(self) -> tuple[float, float]:
        """The smallest goes next."""
        return self.tenant.time, self.time


T = TypeVar("T", Tenant, Flow)


class Shares:
    """Who waits in one pool, and who had how many turns.

    Args:
        weights: By tenant, or by `tenant/key`; 1 where nothing is said.
    """

    __slots__ = ("_sweep_at", "_tenants", "clock", "weights")

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._tenants: dict[str, Tenant] = {}
        self._sweep_at = SWEEP
        self.clock = 0.0
        """Virtual time of the last turn."""

    def enter(self, name: str, key: str, count: int = 1) -> Flow:
        """A task begins to wait, or several."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, self.weights.get(name, 1.0), self.clock)
        elif not tenant.waiting:
            tenant.time = max(tenant.time, self.clock)
        flow = tenant.flows.get(key)
        if flow is None:
            flow = tenant.flows[key] = Flow(key, tenant, self.weights.get(f"{name}/{key}", 1.0))
        elif not flow.waiting:
            flow.time = max(flow.time, tenant.clock)
        tenant.waiting += count
        flow.waiting += count
        return flow

    def leave(self, flow: Flow) -> None:
        """A task does not wait any more."""
        tenant = flow.tenant
        tenant.waiting -= 1
        flow.waiting -= 1
        if not flow.waiting and len(tenant.flows) > tenant.sweep_at:
            tenant.flows = _remembered(tenant.flows, tenant.clock)
            tenant.sweep_at = max(SWEEP, 2 * len(tenant.flows))
        if not tenant.waiting and len(self._tenants) > self._sweep_at:
            self._tenants = _remembered(self._tenants, self.clock)
            self._sweep_at = max(SWEEP, 2 * len(self._tenants))

    def served(self, flow: Flow, cost: int) -> None:
        """A task of it had its turn."""
        tenant = flow.tenant
        self.clock = max(self.clock, tenant.time)
        tenant.clock = max(tenant.clock, flow.time)
        tenant.time += cost / tenant.weight
        flow.time += cost / flow.weight


def _remembered(known: dict[str, T], clock: float) -> dict[str, T]:
    """Less those that do not wait and are behind nobody."""
    if len(known) > KEPT:
        return {name: one for name, one in known.items() if one.waiting}
    return {name: one for name, one in known.items() if one.waiting or one.time > clock}


class _Tasks:
    """The tasks of one flow in one line."""

    __slots__ = ("alive", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.alive = 0


class Line:
    """Tasks that wait for the same: by priority with ageing, then fair over their flows."""

    __slots__ = ("_number", "_ripe", "_tasks", "_young")

    def __init__(self) -> None:
        self._tasks: dict[Flow, _Tasks] = {}
        self._ripe: dict[Tenant, list[tuple[float, int, int, int, Flow]]] = {}
        """Flows whose first task has the highest priority by now, by time. (A line seldom has more than one tenant.)"""
        self._young: list[tuple[int, int, int, Flow]] = []
        """The others, by the order of their first task. In both, entries that are not so any more are dropped late."""
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def entries(self) -> int:
        """How many entries are held, those of tasks that have left included."""
        return sum(len(tasks.entries) for tasks in self._tasks.values())

    def one(self) -> Entry:
        """Anyone."""
        return next(iter(self._tasks.values())).entries[0]

    def add(self, entry: Entry) -> None:
        """A task comes."""
        flow = entry[4]
        tasks = self._tasks.get(flow)
        if tasks is None:
            tasks = self._tasks[flow] = _Tasks()
            if len(self._tasks) == 2:
                self._begin_to_choose()
        heappush(tasks.entries, entry)
        tasks.alive += 1
        if len(self._tasks) > 1 and tasks.entries[0] is entry:
            self._push_young(entry)

    def add_all(self, entries: list[Entry]) -> None:
        """Many tasks of one flow come at once: as `add` one by one."""
        flow = entries[0][4]
        tasks = self._tasks.get(flow)
        if tasks is None:
            tasks = self._tasks[flow] = _Tasks()
            if len(self._tasks) == 2:
                self._begin_to_choose()
        before = tasks.entries[0] if tasks.entries else None
        if MERGE * len(entries) < len(tasks.entries):
            for entry in entries:
                heappush(tasks.entries, entry)
        else:
            tasks.entries += entries
            tasks.entries.sort()
        tasks.alive += len(entries)
        if len(self._tasks) > 1 and tasks.entries[0] is not before:
            self._push_young(tasks.entries[0])

    def _begin_to_choose(self) -> None:
        """There is a second flow: until now there was nothing to choose."""
        self._ripe, self._young = {}, []
        for tasks in self._tasks.values():
            if tasks.entries:
                self._push_young(tasks.entries[0])

    def _push_young(self, first: Entry) -> None:
        self._number += 1
        heappush(self._young, (first[0], first[1], self._number, first[4]))

    def drop_gone(self, flow: Flow, waiting: Mapping[int, Entry], *, popped: bool = False) -> None:
        """A task of a flow has left: keeps the head of its flow alive, and dead entries fewer than living ones."""
        tasks = self._tasks.get(flow)
        if tasks is None:
            return
        tasks.alive -= 1
        entries = tasks.entries
        before = None if popped or not entries else entries[0]
        while entries and waiting.get(id(entries[0][3])) is not entries[0]:
            heappop(entries)
        if not entries:
            del self._tasks[flow]
            return
        if len(entries) > 64 and len(entries) > 2 * tasks.alive:
            entries[:] = [entry for entry in entries if waiting.get(id(entry[3])) is entry]
            heapify(entries)
        if len(self._tasks) > 1 and entries[0] is not before:
            self._push_young(entries[0])

    def pop(self, flow: Flow) -> None:
        """Takes out the first task of a flow."""
        heappop(self._tasks[flow].entries)

    def head(self, now_ms: int) -> Entry:
        """Whose turn it is."""
        if len(self._tasks) == 1:
            return self.one()
        ripe_ms = now_ms - TOP * AGEING_MS_PER_STEP
        young = self._young
        while young and young[0][0] <= ripe_ms:
            self._ripen(heappop(young)[3])
        best: Entry | None = None
        for tenant in list(self._ripe):
            first = self._first_ripe(tenant, ripe_ms)
            if first is None:
                del self._ripe[tenant]
            elif best is None or (tenant.time, *first[:2]) < (best[4].tenant.time, *best[:2]):
                best = first
        return best if best is not None else self._first_young(now_ms)

    def _first_ripe(self, tenant: Tenant, ripe_ms: int) -> Entry | None:
        ripe = self._ripe[tenant]
        while ripe:
            time, order, row, number, flow = ripe[0]
            tasks = self._tasks.get(flow)
            if tasks is None:
                heappop(ripe)
            elif tasks.entries[0][0] > ripe_ms:
                heappop(ripe)
                self._push_young(tasks.entries[0])
            elif (time, order, row) != (flow.time, *tasks.entries[0][:2]):
                heapreplace(ripe, (flow.time, *tasks.entries[0][:2], number, flow))
            else:
                return tasks.entries[0]
        return None

    def _ripen(self, flow: Flow) -> None:
        if flow in self._tasks:
            self._number += 1
            order, row = self._tasks[flow].entries[0][:2]
            heappush(self._ripe.setdefault(flow.tenant, []), (flow.time, order, row, self._number, flow))

    def _first_young(self, now_ms: int) -> Entry:
        """The fairest among those with the highest priority, if nobody has the top."""
        young = self._young
        found: list[tuple[int, int, int, Flow]] = []
        best: Entry | None = None
        step = 0
        while young and len(found) < LOOK:
            order, row, _, flow = young[0]
            tasks = self._tasks.get(flow)
            first = tasks.entries[0] if tasks is not None else None
            if first is None or first[:2] != (order, row):
                heappop(young)
                continue
            if best is None:
                step = step_of(order, now_ms)
            elif step_of(order, now_ms) != step:
                break
            found.append(heappop(young))
            if best is None or (*flow.rank(), *first[:2]) < (*best[4].rank(), *best[:2]):
                best = first
        for one in found:
            heappush(young, one)
        assert best is not None, "a line has a first one as long as it has any"
        return best


def step_of(order: int, now_ms: int) -> int:
    """The priority that a task has by now, 0 … 9, from its place in the order (`accepted_ms - 1000 * priority`)."""
    return max(0, min(TOP, (now_ms - order) // AGEING_MS_PER_STEP))
