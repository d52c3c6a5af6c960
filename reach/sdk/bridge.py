"""The way from threads to the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("reach.sdk")


class Bridge:
    """Brings calls from threads to the loop. What several threads post meanwhile goes there by one wake-up."""

    __slots__ = ("_loop", "_posted", "_posting", "_thread_id")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._posting = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where everything happens."""
        return self._loop

    def on_loop(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread_id

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Calls now, or from a thread: soon."""
        if threading.get_ident() == self._thread_id:
            function(*args)
        else:
            self.post(function, *args)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Calls on the loop, soon and in order."""
        self._posted.append((function, args))
        if not self._posting:
            self._posting = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:  # the loop is closed: the agent has ended, and nobody waits for the answer
                self._posted.clear()

    def _take(self) -> None:
        self._posting = False
        posted = self._posted
        while posted:
            function, args = posted.popleft()
            try:
                function(*args)
            except Exception:  # one that fails must not keep back the others
                log.exception("a call from a thread failed")
