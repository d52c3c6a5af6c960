"""What happened, for people: kept as it comes, put into words only when somebody wants to read it."""

from __future__ import annotations

from collections import deque
from typing import Any

from reach.testing.sim.loop import VirtualLoop

KEEP = 20_000
"""Lines that are kept."""

Line = tuple[float, str, str, tuple[Any, ...]]


class Story:
    """Who did what when."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.lines: deque[Line] = deque(maxlen=KEEP)

    def tell(self, who: str, what: str, *details: Any) -> None:
        """Adds a line. `what` has a `{}` for each of the details, which must not change any more."""
        self.lines.append((self._loop.now, who, what, details))

    def text(self, about: str = "", last: int = 120) -> str:
        """The last lines, of those that name `about` or no task at all (faults, restarts)."""
        told = []
        for at, who, what, details in self.lines:
            words = what.format(*details)
            if not about or about in details or not any(isinstance(one, TaskName) for one in details):
                told.append(f"{at:9.3f}  {who:<9} {words}")
        return "\n".join(told[-last:])


class TaskName(str):
    """The id of a task in a line, so that lines about other tasks can be left out."""

    __slots__ = ()
