"""How many tasks an agent is given that never said how many it takes: one at first, then more while it goes well.

Additive growth, multiplicative decrease, as TCP does with its window: a success while all slots were in use counts, and
as many of these as there are slots make one slot more. The agent's word that it is full halves them; tasks that take
much longer than when there was one slot hold them where they are.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 128
"""Slots that are never exceeded by growing; whoever knows better says so when the agent is adopted."""
SLOW: Final = 2.0
"""Tasks that take so many times as long as the fastest that were seen on average: no slot more."""
NEWEST: Final = 0.2
"""Weight of the newest task in the mean time."""
FORGETS: Final = 1.02
"""The fastest mean grows by this with each task: an agent whose tasks are others by now is not held for ever."""


class Growth:
    """The slots of one agent."""

    __slots__ = ("_fastest_ms", "_good", "_mean_ms", "slots")

    def __init__(self) -> None:
        self.slots = 1
        self._good = 0
        self._mean_ms = 0.0
        self._fastest_ms = 0.0

    def succeeded(self, took_ms: float, held: int) -> bool:
        """A task went well; `held`: how many there were at the time, with it. True: there are more slots now."""
        self._mean_ms = took_ms if not self._mean_ms else self._mean_ms + NEWEST * (took_ms - self._mean_ms)
        self._fastest_ms = min(self._fastest_ms * FORGETS or self._mean_ms, self._mean_ms)
        if held < self.slots or self.slots >= MOST or self._mean_ms > SLOW * self._fastest_ms:
            return False
        self._good += 1
        if self._good < self.slots:
            return False
        self._good = 0
        self.slots += 1
        return True

    def full(self) -> bool:
        """The agent said that it takes no more. True: there are fewer slots now."""
        self._good = 0
        before, self.slots = self.slots, max(1, self.slots // 2)
        return self.slots < before
