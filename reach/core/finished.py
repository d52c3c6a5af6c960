"""Finished tasks that stay in memory for a while: to answer repeats, and for their events to be read again (STR-2)."""

from __future__ import annotations

from collections import deque

from reach.core.effects import Forget, Turn
from reach.core.model import Task, TaskKey
from reach.core.stream import KEEP_MS, size_in_bytes

KEEP_PLAIN = 200
"""Finished tasks without deltas that stay in memory; the journal has the rest."""
KEEP_VOLATILE = 2_000
"""The same of tasks that no journal has."""
KEEP_BYTES = 64 << 20
"""What each kind of finished tasks may take in all: plain, volatile, streamed."""


class Finished:
    """The finished tasks of one pool, oldest first, by kind."""

    __slots__ = ("_bytes", "_kept", "_streamed", "_streamed_bytes", "_tasks")

    def __init__(self, tasks: dict[TaskKey, Task]) -> None:
        self._tasks = tasks
        self._kept: tuple[deque[tuple[int, Task]], deque[tuple[int, Task]]] = (deque(), deque())
        """(bytes, task): plain, volatile"""
        self._bytes = [0, 0]
        self._streamed: deque[tuple[int, int, Task]] = deque()
        """(until_ms, bytes, task)"""
        self._streamed_bytes = 0

    def keep(self, task: Task, turn: Turn) -> None:
        """A task has finished. If it is one too many, the oldest of its kind is forgotten."""
        log = task.log
        if log is not None and (log.fold.channels or log.readers):
            size = log.bytes + log.fold.size
            self._streamed.append((turn.now_ms + KEEP_MS, size, task))
            self._streamed_bytes += size
            return
        kind, most = (1, KEEP_VOLATILE) if task.volatile else (0, KEEP_PLAIN)
        kept = self._kept[kind]
        content = task.outcome.content if task.outcome is not None else None
        size = task.size + (size_in_bytes(content) if content else 0)
        kept.append((size, task))
        self._bytes[kind] += size
        while len(kept) > most or (self._bytes[kind] > KEEP_BYTES and len(kept) > 1):
            size, oldest = kept.popleft()
            self._bytes[kind] -= size
            self._forget(oldest, turn)

    def drop(self, turn: Turn) -> None:
        """Forgets the streamed ones whose time is over, and the oldest if they are too much."""
        kept = self._streamed
        while kept and (kept[0][0] <= turn.now_ms or self._streamed_bytes > KEEP_BYTES):
            _, size, task = kept.popleft()
            self._streamed_bytes -= size
            self._forget(task, turn)

    def _forget(self, task: Task, turn: Turn) -> None:
        if self._tasks.get(task.key) is task:
            del self._tasks[task.key]
            turn.sends.append(Forget(task))
