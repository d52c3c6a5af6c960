"""Finished tasks that stay in memory for a while: to answer repeats, and for their events to be read again (STR-2)."""

from __future__ import annotations

from collections import deque

from reach.core.effects import Forget, Turn
from reach.core.model import Task
from reach.core.pieces import size_in_bytes
from reach.core.stream import KEEP_MS

KEEP_PLAIN = 200
"""Finished tasks without deltas that stay in memory; the journal has the rest."""
KEEP_VOLATILE = 2_000
"""The same of tasks that no journal has."""
KEEP_BYTES = 64 << 20
"""What each kind of finished tasks may take in all: plain, volatile, streamed."""


class Finished:
    """The finished tasks of one pool, oldest first, by kind."""

    __slots__ = ("_bytes", "_kept", "_leaving", "_postponed_ms", "_streamed", "_streamed_bytes")

    def __init__(self) -> None:
        self._leaving: list[Task] = []
        self._kept: tuple[deque[tuple[int, Task]], deque[tuple[int, Task]]] = (deque(), deque())
        """(bytes, task): plain, volatile"""
        self._bytes = [0, 0]
        self._streamed: deque[tuple[int, int, Task]] = deque()
        """(until_ms, bytes, task); all times are later by `_postponed_ms`."""
        self._streamed_bytes = 0
        self._postponed_ms = 0

    def postpone(self, ms: int) -> None:
        """Time that does not count, for nobody could be told of an end."""
        self._postponed_ms += ms

    def keep(self, task: Task, now_ms: int) -> None:
        """A task has finished. If it is one too many, the oldest of its kind leaves."""
        log = task.log
        if log is not None and (log.fold.channels or log.readers):
            size = log.bytes + log.fold.size
            self._streamed.append((now_ms + KEEP_MS - self._postponed_ms, size, task))
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
            self._leaving.append(oldest)

    def drop(self, turn: Turn) -> None:
        """Lets go of those that have to leave: also of the streamed ones whose time is over or that are too much."""
        kept = self._streamed
        now_ms = turn.now_ms - self._postponed_ms
        while kept and (kept[0][0] <= now_ms or self._streamed_bytes > KEEP_BYTES):
            _, size, task = kept.popleft()
            self._streamed_bytes -= size
            self._leaving.append(task)
        if self._leaving:
            turn.sends.append(Forget(self._leaving))
            self._leaving = []
