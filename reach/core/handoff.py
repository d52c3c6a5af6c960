"""Sessions that move from one instance of a pool to another, and sessions that are forgotten (SES-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core.effects import Turn
from reach.core.rows import PinRow

if TYPE_CHECKING:
    from reach.core.events import SessionForgotten
    from reach.core.pool import Pool


class Handoffs:
    """The sessions of one pool that are on their way."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def forget(self, event: SessionForgotten, turn: Turn) -> None:
        """A session was deleted: its pin goes, and what waited for its instance may go anywhere."""
        pool = self.pool
        if pool.pins.look(event.name, 0) is None:
            return
        pool.pins.drop(event.name)
        turn.writes.pins.append(PinRow(pool.shard, pool.key.tenant, pool.key.agent_type, *event.name, "", 0, 0))
        pool.slot_freed = True
