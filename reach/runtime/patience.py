"""Durable work that waits for the store that nodes share, instead of being refused at once (CLU-4).

A database that is started anew, or changes over to another machine, is away for some seconds: callers need not notice.
What waits is in no queue and promised to nobody; if the store is not back in time it is refused, and may come again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reach.core.model import Fault
from reach.errors import ReachError, Reason, error_of
from reach.runtime.faults import fault_of

if TYPE_CHECKING:
    from reach.runtime.elsewhere import Elsewhere
    from reach.runtime.host import Host

WAIT_MS: Final = 5_000
"""How long (CLU-4)."""
MOST: Final = 10_000
"""Requests that wait."""
MOST_BYTES: Final = 64 << 20
"""What they take together; what is beyond is refused at once."""
CALL_BYTES: Final = 1_024
"""What a call takes that brings no payload."""
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
    """See the module. A node that has its store to itself does not wait: what fails there is not back so soon.

    Args:
        host: Whose store.
        check: Raises ReachError while it takes nothing.
    """

    def __init__(self, host: Host, check: Callable[[], None]) -> None:
        self._host = host
        self._check = check
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

    async def over(self) -> None:
        """For calls: returns once the store takes what they want to keep. At once on a node that does not wait.

        Raises:
            ReachError: it does not.
        """
        until_ms = 0
        while self._host.by_shard:
            try:
                self._check()
            except ReachError as error:
                back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                if not self.takes(error, CALL_BYTES, until_ms, back, back.set_result, partial(_refuse, back)):
                    raise
                try:
                    until_ms = await back
                finally:
                    self.let_go(back)
            else:
                return

    def let_go(self, whose: Any) -> None:
        """Nobody wants it any more."""
        if id(whose) in self._whose:
            gone = [one for one in self._waiting if one.whose is whose]
            self._waiting = deque(one for one in self._waiting if one.whose is not whose)
            self._bytes -= sum(one.size for one in gone)

    def reply(self, reply: Any, again: Callable[[int], None], until_ms: int) -> _Patient:
        """One that is not told that the store cannot be read before the time is over; until then it comes `again`."""
        return _Patient(self, reply, again, until_ms)

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


def _refuse(back: asyncio.Future[int], fault: Fault) -> None:
    back.set_exception(_error(fault))


def _error(fault: Fault) -> ReachError:
    return error_of(fault.error_class, fault.reason, fault.message, retry_after_ms=fault.retry_after_ms)


class _Patient:
    """See `Patience.reply`."""

    def __init__(self, patience: Patience, reply: Any, again: Callable[[int], None], until_ms: int) -> None:
        self._patience = patience
        self._reply = reply
        self._again = again
        self._until_ms = until_ms

    def done(self, value: Any) -> None:
        """See `Reply`."""
        self._reply.done(value)

    def elsewhere(self, where: Elsewhere) -> None:
        """See `Reply`."""
        self._reply.elsewhere(where)

    def refused(self, fault: Fault) -> None:
        """See `Reply`."""
        reply, refuse = self._reply, self._reply.refused
        if not self._patience.takes(_error(fault), CALL_BYTES, self._until_ms, reply, self._again, refuse):
            refuse(fault)
