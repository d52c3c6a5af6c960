"""How long an attempt waits for its instance (DLV-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import health
from reach.core.effects import Turn
from reach.core.model import Fault, Instance, Task
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool

REATTACH_MS = 5_000
"""How long attempts wait for their instance after we closed its link."""
RETURN_MS = 30_000
"""How long attempts wait for an instance that did not hear us, and those with a granted effect for a lost one."""


class Leases:
    """The leases of the attempts of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def until_ms(self, task: Task) -> int:
        """Until when the current attempt may be silent. Any sign of life of its instance renews it (DLV-7)."""
        instance: Instance | None = task.instance
        if instance is None or (instance.link is None and task.lease_until_ms):
            return task.lease_until_ms
        timeout = health.tolerance_ms(instance, self.pool.thresholds) + health.WAIT_UNHEALTHY_MS
        return max(task.lease_until_ms, instance.beat_ms + timeout)

    def expired(self, task: Task, turn: Turn) -> None:
        """The instance of an attempt was silent for too long, or did not come back."""
        instance: Instance | None = task.instance
        if instance is None or instance.link is None:
            fault, moves = lost(f"instance {task.instance_id!r} did not come back"), True
        else:
            message = f"instance {task.instance_id!r} was silent for too long"
            fault, moves = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_UNHEALTHY, message), False
            self.pool.delivery.stop_attempt(task, Reason.INSTANCE_UNHEALTHY, turn)
        self.pool.delivery.give_up_attempt(task, fault, turn, lost=moves)


def lost(message: str) -> Fault:
    """An instance is gone for certain."""
    return Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, message)
