"""How much waits in a pool: what those are told who find it full, and the alert before it is (DLV-9, OBS-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core.effects import Noted, Turn
from reach.core.model import Fault
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool

ALERT = 1_000
"""So many waiting tasks are worth an alert."""


class Backlog:
    """The waiting tasks of one pool, counted."""

    __slots__ = ("alert", "pool", "told")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.alert = ALERT
        self.told = False
        """There was an alert, and it is not over."""

    def full(self) -> Fault:
        """The queue takes nothing more: how it stands, and when it is worth coming back."""
        queue = self.pool.queue
        waiting, wait_ms = queue.count(), queue.come_back_ms()
        message = (
            f"{waiting} tasks wait in this pool, the limit is {queue.max_tasks} (or its bytes are used up);"
            f" come back in {wait_ms / 1_000:.1f} s"
        )
        metadata = {"waiting": str(waiting), "limit": str(queue.max_tasks)}
        return Fault(ErrorClass.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL, message, metadata, wait_ms)

    def look(self, turn: Turn) -> None:
        """Says once that too many wait, and once that it is over: when half as many do."""
        waiting = self.pool.queue.count()
        if not self.told and waiting >= self.alert:
            self.told = True
            said = f"{waiting} tasks wait in pool {self.pool.key.agent_type!r} of {self.pool.key.tenant!r}"
            turn.sends.append(Noted("backlog", said))
        elif self.told and waiting <= self.alert // 2:
            self.told = False
            turn.sends.append(Noted("backlog_over", f"{waiting} tasks wait"))
