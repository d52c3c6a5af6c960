"""One shard: a mailbox in front of its pools. Events gather during a turn of the loop and are stepped together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from reach.core.effects import Turn
from reach.core.model import PoolKey
from reach.core.pool import Pool

log = logging.getLogger(__name__)


class Shard:
    """The pools of one shard, and what has happened to them since the last step."""

    __slots__ = ("gone", "mail", "number", "pools")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pools: dict[PoolKey, Pool] = {}
        self.mail: dict[Pool, list[Any]] = {}
        self.gone = False
        """It is another node's: nothing that was decided here is told."""

    def step(self, turn: Turn) -> None:
        """Steps each pool that has mail, with what is due besides."""
        mail, self.mail = self.mail, {}
        for pool, events in mail.items():
            if pool.shard == self.number:  # else it was dropped, for it has nothing that anything could happen to
                self._step(pool, events, turn)

    def wake(self, turn: Turn) -> None:
        """Steps each pool whose timers are due."""
        for pool in self.pools.values():
            due = pool.next_wake_ms()
            if due is not None and due <= turn.now_ms:
                self._step(pool, (), turn)

    def _step(self, pool: Pool, events: Sequence[Any], turn: Turn) -> None:
        """One event that breaks a rule of the core is a bug of ours, and must not take the others with it."""
        left = iter(events)
        for _ in range(len(events) + 1):
            try:
                pool.step(left, turn)
            except Exception:
                log.exception("an event was lost: the core could not take it; please report this")
            else:
                return

    def next_wake_ms(self) -> int | None:
        """When the next timer of any pool is due."""
        times = [due for pool in self.pools.values() if (due := pool.next_wake_ms()) is not None]
        return min(times, default=None)
