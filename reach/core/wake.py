"""Waking a pool in which nobody is ready (HLT-14): asked once, bounded, and shown apart from delivery.

The first task that has to wait while no instance is admitted asks for a wake; further ones do not. A hook that fails,
or after which nobody comes, is tried again with the same id, so that it can be idempotent; then it is given up with an
alert, and asked again after a pause if tasks still wait. They stay in their queue all the while.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from reach.core.effects import Noted, Turn, Wake

if TYPE_CHECKING:
    from reach.core.events import WakeAnswered
    from reach.core.pool import Pool

TRIES = 3
RETRY_MS = 5_000
"""Pause after a hook that failed."""
ARRIVE_MS = 120_000
"""How long after an acknowledged wake somebody must become ready."""
PAUSE_MS = 60_000
"""After it was given up, and between one wake and the next."""


class WakeState(IntEnum):
    """How far the waking of a pool has come."""

    ASLEEP = 0
    """Nobody asked."""
    REQUESTED = 1
    """The hook was called."""
    ACKNOWLEDGED = 2
    """The hook said that it did its part."""
    RESUMED = 3
    """An instance is ready."""
    FAILED = 4
    """Given up for now."""


class Waker:
    """The wake hook of one pool, if it has one."""

    __slots__ = ("number", "pool", "reason", "since_ms", "state", "timer_slot", "tries")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.state = WakeState.ASLEEP
        self.since_ms = 0
        self.number = 0
        """Counts the wakes of the pool; a repeated try has the number of the first."""
        self.tries = 0
        self.reason = ""
        """Why the last try failed, for people."""
        self.timer_slot = 0

    def task_waits(self, turn: Turn) -> None:
        """A task has to wait."""
        if self.pool.admission.anybody() or self.state in (WakeState.REQUESTED, WakeState.ACKNOWLEDGED):
            return
        if self.number and turn.now_ms < self.since_ms + PAUSE_MS:
            self.pool.wheel.arm(self, self.since_ms + PAUSE_MS)  # then we see whether it still waits
            return
        self.number += 1
        self.tries = 0
        self._ask(turn)

    def _ask(self, turn: Turn) -> None:
        self.tries += 1
        self._move(WakeState.REQUESTED, turn)
        turn.sends.append(Wake(self.pool.key, self.number, len(self.pool.queue)))

    def answered(self, event: WakeAnswered, turn: Turn) -> None:
        """The hook is done, well or not."""
        if self.state is not WakeState.REQUESTED or event.number != self.number:
            return
        if not event.error:
            self._move(WakeState.ACKNOWLEDGED, turn)
            self.pool.wheel.arm(self, turn.now_ms + ARRIVE_MS)
            return
        self.reason = event.error
        if self.tries < TRIES:
            self.pool.wheel.arm(self, turn.now_ms + RETRY_MS)
        else:
            self._give_up(turn)

    def due(self, turn: Turn) -> None:
        """Time to try again, or nobody came."""
        if self.pool.admission.anybody():
            return
        if not self.pool.queue:
            self._move(WakeState.ASLEEP, turn)
        elif self.state is WakeState.REQUESTED:
            self._ask(turn)
        elif self.state is WakeState.ACKNOWLEDGED:
            self.reason = f"nobody became ready within {ARRIVE_MS // 1_000} s"
            if self.tries < TRIES:
                self._ask(turn)
            else:
                self._give_up(turn)
        else:
            self.task_waits(turn)

    def resumed(self, turn: Turn) -> None:
        """Somebody is ready."""
        if self.state in (WakeState.REQUESTED, WakeState.ACKNOWLEDGED, WakeState.FAILED):
            self.pool.wheel.disarm(self)
            self._move(WakeState.RESUMED, turn)

    def _give_up(self, turn: Turn) -> None:
        self._move(WakeState.FAILED, turn)
        self.pool.wheel.arm(self, turn.now_ms + PAUSE_MS)
        turn.sends.append(Noted("wake_failed", f"pool {self.pool.key.agent_type!r}: {self.reason}"))

    def _move(self, state: WakeState, turn: Turn) -> None:
        self.state, self.since_ms = state, turn.now_ms
