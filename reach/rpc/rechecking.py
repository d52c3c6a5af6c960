"""Calls that another node does for somebody: it does not know his key or token, so this node watches it (GOV-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reach.rpc import services
from reach.rpc.principal import Principal


class Recheck:
    """Asks every `services.RECHECK_SECONDS` whether credentials are good still.

    Args:
        principal: Whose.
        end: Ends what they opened. Called once, when they are not.
    """

    __slots__ = ("_end", "_loop", "_principal", "_timer", "ended")

    def __init__(self, principal: Principal, end: Callable[[], object]) -> None:
        self._principal = principal
        self._end = end
        self._loop = asyncio.get_running_loop()
        self.ended = False
        """They are not."""
        self._timer: asyncio.TimerHandle | None = None
        if principal.can_end:
            self._timer = self._loop.call_later(services.RECHECK_SECONDS, self._look)

    def _look(self) -> None:
        if self._principal.still_valid():
            self._timer = self._loop.call_later(services.RECHECK_SECONDS, self._look)
        else:
            self.ended = True
            self._end()

    def stop(self) -> None:
        """It is over."""
        if self._timer is not None:
            self._timer.cancel()
