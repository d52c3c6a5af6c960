"""Slots of attempts that were told to stop: taken until the agent says that it did, or the grace is over (DLV-11)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from reach.core.model import Instance, Task

if TYPE_CHECKING:
    from reach.core.pool import Pool

AttemptName = tuple[str, str, int]
"""(tenant, task_id, attempt)"""


class HeldSlots:
    """What one stopping attempt still takes of its instance."""

    __slots__ = ("cost", "instance", "key", "timer_slot")

    def __init__(self, instance: Instance, key: tuple[str, str, str, int], cost: int) -> None:
        self.instance = instance
        self.key = key
        self.cost = cost
        self.timer_slot = 0


class Held:
    """The stopping attempts of one pool."""

    __slots__ = ("_by_key", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._by_key: dict[tuple[str, str, str, int], HeldSlots] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[HeldSlots]:
        return iter(self._by_key.values())

    def hold(self, instance: Instance, task: Task, until_ms: int) -> None:
        """Keeps the slots of an attempt that was told to stop."""
        key = (instance.instance_id, task.tenant, task.task_id, task.attempt)
        if key not in self._by_key:
            held = self._by_key[key] = HeldSlots(instance, key, task.cost)
            instance.inflight += task.cost
            self.pool.wheel.arm(held, until_ms)

    def stopped(self, instance: Instance, tenant: str, task_id: str, attempt: int) -> None:
        """The agent says that an attempt has ended."""
        held = self._by_key.get((instance.instance_id, tenant, task_id, attempt))
        if held is not None:
            self.free(held)

    def free(self, held: HeldSlots) -> None:
        """Frees the slots of an attempt that has stopped, or had its grace."""
        del self._by_key[held.key]
        self.pool.wheel.disarm(held)
        held.instance.inflight -= held.cost
        self.pool.router.place(held.instance)
        self.pool.slot_freed = True

    def free_all(self, instance: Instance, but: Collection[AttemptName]) -> None:
        """A process holds only what it says that it runs, and what it is told only now to stop."""
        for held in [held for held in self if held.instance is instance and held.key[1:] not in but]:
            self.free(held)
