"""Slow start: an instance that has just become ready gets a growing share of the work (HLT-10).

Its `ramp` grows in ten steps to 1. A decision takes one draw, and instances whose ramp is below it stand back, so that
each gets `ramp` times what would be its due, whatever the policy. They stand back only for others: if nobody else has a
free slot, they are taken. As in the routing index, instances are bits of big integers, one mask per step.
"""

from __future__ import annotations

STEPS = 10
SLOW_START_MS = 30_000


def step_at(ready_for_ms: int, slow_start_ms: int) -> int:
    """The step of an instance that has been ready for so long, 1 … STEPS; STEPS is warm."""
    if ready_for_ms >= slow_start_ms:
        return STEPS
    return 1 + ready_for_ms * (STEPS - 1) // slow_start_ms


def step_begins_ms(step: int, slow_start_ms: int) -> int:
    """After how long of being ready a step begins."""
    return -(-(step - 1) * slow_start_ms // (STEPS - 1)) if step < STEPS else slow_start_ms


class SlowStart:
    """The instances of a pool that are not warm yet, by step."""

    __slots__ = ("_masks", "cold")

    def __init__(self) -> None:
        self._masks = [0] * STEPS
        """Those at each step or below it."""
        self.cold = 0
        """All of them; 0 if every instance is warm."""

    def place(self, bit: int, step: int) -> None:
        """Puts the instance with this number at a step; STEPS takes it out."""
        mask = 1 << bit
        if self.cold & mask:
            self._masks = [one & ~mask for one in self._masks]
            self.cold &= ~mask
        if step < STEPS:
            self._masks[step:] = [one | mask for one in self._masks[step:]]
            self.cold |= mask

    def stand_back(self, draw: int) -> int:
        """Those that leave this decision to others. `draw`: a chance number, any non-negative integer."""
        return self._masks[draw % STEPS]
