"""The only reader of time and chance."""

from __future__ import annotations

import os
import time


def stopwatch() -> float:
    """Seconds on the monotonic clock, finer than the loop's, to measure what the loop itself does."""
    return time.monotonic()


class Clock:
    """Time in milliseconds, and random names. Tests and simulations give another one."""

    def now_ms(self) -> int:
        """The monotonic clock of this process."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def seed(self) -> int:
        """64 random bits."""
        return int.from_bytes(os.urandom(8), "big")

    def new_id(self) -> str:
        """A random name of 32 hexadecimal digits."""
        return os.urandom(16).hex()
