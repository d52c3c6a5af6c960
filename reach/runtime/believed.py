"""The wall clock, as far as it is to be believed: what is thrown away by age must not go because a clock leapt (F9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEAP_MS: Final = 60_000
"""A clock that goes ahead by more than this at once has leapt."""
PATIENCE_MS: Final = 3_600_000
"""After so long a leap is believed: by then somebody has seen a clock that is wrong, and most set themselves."""


class BelievedClock:
    """Milliseconds since the epoch. A leap ahead counts only after an hour of this process; one back at once.

    Args:
        wall_ms: The wall clock.
        now_ms: The monotonic clock.
    """

    def __init__(self, wall_ms: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._now_ms = now_ms
        self._known: tuple[int, int] | None = None
        """(wall, monotonic) of a moment at which it was right."""
        self._leapt_ms = 0
        """When it was first seen ahead; 0: it is not."""

    def was(self, wall_ms: int) -> None:
        """It was at least that late when something was written last, before this process began."""
        self._known = wall_ms, self._now_ms()

    def __call__(self) -> int:
        """The time."""
        wall_ms, now_ms = self._wall_ms(), self._now_ms()
        if self._known is not None:
            expected = self._known[0] + now_ms - self._known[1]
            if wall_ms - expected > LEAP_MS:
                self._leapt_ms = self._leapt_ms or now_ms
                if now_ms - self._leapt_ms < PATIENCE_MS:
                    return expected
        self._known, self._leapt_ms = (wall_ms, now_ms), 0
        return wall_ms
