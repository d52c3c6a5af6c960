"""A client that takes nothing of what waits for it is let go."""

from __future__ import annotations

import asyncio
from typing import Final

UNREAD_SECONDS: Final = 60.0
"""How long a client may take nothing of what waits for it."""


class Unread:
    """Watches one connection while its client does not keep up."""

    __slots__ = ("_loop", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """There is more than the transport likes to hold."""
        if self._timer is None:
            self._later()

    def end(self) -> None:
        """The client has read, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(UNREAD_SECONDS, self._look, waiting)

    def _look(self, before: int) -> None:
        """A slow client takes a little; one that is stuck takes nothing."""
        if self._transport.get_write_buffer_size() < before:
            self._later()
        else:
            self._transport.abort()
