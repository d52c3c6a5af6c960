"""Threads for handlers that block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue

Work = Callable[[], None]


class HandlerThreads:
    """At most `limit` threads, started when needed and used again.

    Unlike those of `concurrent.futures`, they do not keep a process alive: a handler that ignores its cancellation must
    not keep an agent from exiting after its grace.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._works: SimpleQueue[tuple[Context, Work] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that wait, less works that wait for one."""

    @property
    def waiting(self) -> int:
        """How many works wait for a thread."""
        return max(0, -self._free)

    @property
    def has_room(self) -> bool:
        """Whether the next work begins at once. True stays true until `run`, if only one thread calls that."""
        return self._free > 0 or self._threads < self._limit

    def run(self, work: Work, context: Context | None = None) -> None:
        """Runs `work`, which must not raise, in a thread; in a copy of the caller's context, if none is given."""
        with self._lock:
            self._free -= 1
            if self._free < 0 and self._threads < self._limit:
                self._start()
        self._works.put((context or copy_context(), work))

    def lend(self) -> None:
        """One of the threads waits for something outside: another may work instead, until `take_back`."""
        with self._lock:
            self._limit += 1
            if self._free < 0:
                self._start()

    def take_back(self) -> None:
        """The thread goes on."""
        with self._lock:
            self._limit -= 1

    def _start(self) -> None:
        self._threads += 1
        self._free += 1
        threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()

    def close(self) -> None:
        """Lets the threads end when they have nothing more to do."""
        for _ in range(self._threads):
            self._works.put(None)

    def _serve(self) -> None:
        while (item := self._works.get()) is not None:
            context, work = item
            context.run(work)
            del item, context, work  # nothing of a task is held while we wait for the next
            with self._lock:
                self._free += 1
