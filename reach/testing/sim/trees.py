"""Tasks that other tasks ask for, and what must be true of them: a cancel reaches all, nothing joins what is cancelled,
and nobody may spend more than the one that asks (DLV-6, DLV-11)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from agentreach.v1 import task_pb2
from reach.core.model import TaskKey, TaskState
from reach.core.rows import OutcomeRow, TaskRow

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

LATEST = 6
"""A child's parent is one of so many tasks that came last: of later ones nothing is left to be seen."""


class Place(NamedTuple):
    """Who asked for a task."""

    parent: TaskKey
    root: TaskKey


class Family:
    """Makes trees of the tasks of a history."""

    def __init__(self, random: Random, share: float) -> None:
        self._random = random
        self._share = share
        self._latest: dict[str, list[tuple[str, str]]] = {}
        """Tasks of a tenant, and the roots of their trees."""

    def join(self, spec: task_pb2.TaskSpec, tenant: str) -> None:
        """Some tasks are asked for by an earlier one."""
        random, latest = self._random, self._latest.setdefault(tenant, [])
        root = ""
        if latest and random.random() < self._share:
            spec.parent_task_id, root = random.choice(latest[-LATEST:])
            if random.random() < 0.8:
                spec.root_task_id = root
            else:
                root = spec.parent_task_id  # who names none belongs to its parent
        latest.append((spec.task_id, root or spec.task_id))
        if self._share and random.random() < 0.3:
            spec.budget.max_hops = random.randrange(3)
        if self._share and random.random() < 0.2:
            spec.budget.tokens = random.choice((10, 1_000))


class TreeTruth:
    """Who asked for whom, as the journal has it. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._places: dict[TaskKey, Place] = {}
        self._rows: dict[TaskKey, int] = {}
        """What was written of each: a batch that comes again says nothing new."""
        self._doomed: dict[TaskKey, TaskKey] = {}
        """Open tasks that a cancelled one asked for."""
        self._late: set[TaskKey] = set()
        """New tasks that came when the one that asks for them had been cancelled."""
        self._askers: dict[TaskKey, bytes] = {}
        """New tasks that came while the one that asks for them was open, and the request of that one."""

    def comes(self, key: TaskKey, spec: task_pb2.TaskSpec) -> None:
        """A task arrives at the server."""
        known = self._checker.truth(key)
        if not spec.parent_task_id or known.row or known.volatile:
            return
        place = _place(key, spec)
        self._late.discard(key)
        if self._are_cancelled(place):
            self._late.add(key)
        parent = self._checker.truth(place.parent)
        self._askers.pop(key, None)
        if parent.row and parent.outcome is None:
            self._askers[key] = parent.spec

    def written(self, key: TaskKey, row: TaskRow) -> None:
        """A task is durable."""
        if not row.root_task_id or self._rows.get(key) == row.row:
            return  # nobody asked for it, or it is known
        self._rows[key] = row.row
        spec = task_pb2.TaskSpec.FromString(row.spec)
        place = _place(key, spec)
        if key in self._late and self._are_cancelled(place):  # else they were removed meanwhile, and nobody knows
            self._checker.violate("CANCELLED_TAKE_NOTHING", key, f"{place.parent} had been cancelled")
        there = [one for one in place if self._checker.truth(one).row]
        if there:  # else it is there before the one that asks for it, as no real one is
            self._places[key] = Place(there[0], there[-1])
        asker = self._askers.get(key)
        if asker is None:
            return
        limit, budget = task_pb2.TaskSpec.FromString(asker).budget, spec.budget
        more = (
            limit.HasField("max_hops") and not (budget.HasField("max_hops") and budget.max_hops < limit.max_hops),
            limit.HasField("tokens") and not (budget.HasField("tokens") and budget.tokens <= limit.tokens),
        )
        if any(more):
            self._checker.violate("BUDGETS_ONLY_SHRINK", key, f"it may spend {budget}, who asks for it {limit}")

    def _are_cancelled(self, place: Place) -> bool:
        """The root does not count while the one that asks is open and did not come below it: a root that came later
        than what names it is none, and nobody finds that when it is cancelled."""
        asker = self._checker.truth(place.parent)
        stray = asker.row and asker.outcome is None and place.root not in self._places.get(place.parent, ())
        outcomes = [self._checker.truth(one).outcome for one in (place[:1] if stray else place)]
        return any(one is not None and one.state == TaskState.CANCELLED for one in outcomes)

    def batch(self, outcomes: list[OutcomeRow]) -> None:
        """A batch is durable."""
        for row, key in zip(outcomes, self._checker.keys_of(outcomes), strict=False):
            doom = self._doomed.pop(key, None)
            if doom is not None and row.state != TaskState.CANCELLED:
                state = TaskState(row.state).name
                self._checker.violate("CANCEL_REACHES_ALL", key, f"{doom} was cancelled, and it ended as {state}")
        cancelled = [row for row in outcomes if row.state == TaskState.CANCELLED]
        for key in self._checker.keys_of(cancelled):
            for other, known in self._checker.tasks.items():
                if known.row and known.outcome is None and other[0] == key[0] and self._is_below(other, key):
                    self._doomed.setdefault(other, key)

    def _is_below(self, key: TaskKey, top: TaskKey) -> bool:
        """Whether one belongs to the other: to who asked for it, and to the first of the tree once that one has
        ended."""
        seen = {key}
        while (place := self._places.get(key)) is not None:
            parent, root = (self._checker.truth(one).outcome for one in place)
            if top in (place.parent, place.root) and (place.parent == top or parent is not None):
                return True
            if parent is not None and root is not None:
                return False  # both have ended: nobody is there whose it could be
            key = place.parent if parent is None else place.root
            if key in seen:
                return False
            seen.add(key)
        return False


def _place(key: TaskKey, spec: task_pb2.TaskSpec) -> Place:
    parent = (key[0], spec.parent_task_id)
    return Place(parent, (key[0], spec.root_task_id) if spec.root_task_id else parent)
