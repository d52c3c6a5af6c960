"""Durable work that waits for the store that nodes share, instead of being refused at once (CLU-4).

A database that is started anew, or changes over to another machine, is away for some seconds: callers need not notice.
What waits is in no queue and promised to nobody; if the store is not back in time it is refused, and may come again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reach.core.model import Fault
from reach.errors import ReachError, Reason
from reach.runtime.faults import fault_of

if TYPE_CHECKING:
    from reach.runtime.host import Host

WAIT_MS: Final = 5_000
"""How long (CLU-4)."""
MOST: Final = 10_000
"""Requests that wait."""
MOST_BYTES: Final = 64 << 20
"""What they take together; what is beyond is refused at once."""
LOOK_SECONDS: Final = 0.05
"""How often we look whether the store is back, while anybody waits for it."""


class _Waiting(NamedTuple):
    until_ms: int
    size: int
    whose: Any
    again: Callable[[int], None]
    refuse: Callable[[Fault], None]
    fault: Fault


class Patience:
    """See the module. A node that has its store to itself does not wait: what fails there is not back so soon."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[_Waiting] = deque()
        self._whose: set[int] = set()
        """Identities of those who waited when it was looked last, and who came since: most who let go do not."""
        self._bytes = 0
        self._looking: asyncio.TimerHandle | None = None

    def takes(self, error: ReachError, size: int, until_ms: int, whose: Any, again: Callable[[int], None],
              refuse: Callable[[Fault], None]) -> bool:  # fmt: skip
        """Whether a request waits instead of being refused with this error.

        Args:
            error: Why it is refused.
            size: What it takes, in bytes.
            until_ms: Until when it waits, if it has waited before; else 0.
            whose: Who may let go of it.
            again: Brings it again, and is given `until_ms`.
            refuse: Refuses it after all.
        """
        now_ms = self._host.clock.now_ms()
        if not self._host.by_shard or error.reason is not Reason.STORE_UNAVAILABLE or 0 < until_ms <= now_ms:
            return False
        if len(self._waiting) >= MOST or self._bytes + size > MOST_BYTES:
            return False
        self._waiting.append(_Waiting(until_ms or now_ms + WAIT_MS, size, whose, again, refuse, fault_of(error)))
        self._whose.add(id(whose))
        self._bytes += size
        self._look_soon()
        return True

    def let_go(self, whose: Any) -> None:
        """Nobody wants it any more."""
        if id(whose) in self._whose:
            gone = [one for one in self._waiting if one.whose is whose]
            self._waiting = deque(one for one in self._waiting if one.whose is not whose)
            self._bytes -= sum(one.size for one in gone)

    def _look_soon(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        committer, now_ms = self._host.committer, self._host.clock.now_ms()
        is_back = committer.held is None and not committer.doubt()
        waiting, self._waiting, self._bytes = self._waiting, deque(), 0
        self._whose.clear()
        for one in waiting:
            if is_back:
                one.again(one.until_ms)
            elif one.until_ms <= now_ms:
                one.refuse(one.fault)
            else:
                self._waiting.append(one)
                self._whose.add(id(one.whose))
                self._bytes += one.size
        if self._waiting:
            self._look_soon()

    def stop(self) -> None:
        """Refuses what waits."""
        if self._looking is not None:
            self._looking.cancel()
        for one in self._waiting:
            one.refuse(one.fault)
        self._waiting.clear()
