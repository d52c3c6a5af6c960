"""The thread in which a journal is written: work in order, one piece at a time, off the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Work = Callable[[], None]
"""A piece of work. It may block, and raises nothing."""

STOP_SECONDS = 10.0


class Writer(Protocol):
    """Does one piece of work after the other, each in the order it came. Simulations bring one without a thread."""

    def put(self, work: Work) -> None:
        """Adds a piece of work; returns at once."""

    def stop(self) -> None:
        """What was put before is finished first; nothing is put afterwards."""


class ThreadWriter:
    """A writer with a thread of its own."""

    __slots__ = ("_thread", "_work", "put")

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self.put: Callable[[Work], None] = self._work.put
        """See Writer. The queue's own method: each group commit comes here."""
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def stop(self) -> None:
        """See Writer."""
        self._work.put(None)
        self._thread.join(timeout=STOP_SECONDS)
