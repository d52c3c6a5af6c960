"""In which pools of other nodes sessions are pinned, so that a conversation stays with its agent whichever node is
asked (RTE-1, SES-4).

Pins are where their pools are. So where several pools could take a task of a session, and some are elsewhere, their
owners are asked before it is placed: once for each session, for what was told, and where its tasks were placed since,
is remembered for a while. It is a hint: a task that comes where its session is not pinned is taken like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from reach.core.model import PoolKey
from reach.core.session import SessionName

if TYPE_CHECKING:
    from reach.runtime.clock import Clock

log = logging.getLogger(__name__)

KNOWN_MS: Final = 60_000
"""How long it is remembered where a session is pinned; a session that goes on is remembered for longer."""
KNOWN: Final = 100_000
"""Sessions that are remembered; the one that is remembered for longest makes room."""
ASKED: Final = 1_000
"""Sessions that are asked for at the same time; the tasks of others are placed by what is known."""
ASK_SECONDS: Final = 0.5
"""How long owners may take to answer. A task that they do not answer for is placed by what is known."""

Ask = Callable[[SessionName, Sequence[PoolKey]], Awaitable[frozenset[PoolKey]]]
"""Asks the owners of pools in which of them a session is pinned. Who does not answer is left out."""

NOWHERE: Final[frozenset[PoolKey]] = frozenset()


class FarPins:
    """See the module. A node that is alone has none.

    Args:
        clock: Of this node.
        ask: Asks other nodes.
        begin: Runs what asks them, for as long as this node lives.
    """

    def __init__(self, clock: Clock, ask: Ask, begin: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._known: OrderedDict[SessionName, tuple[int, frozenset[PoolKey]]] = OrderedDict()
        self._asking: dict[SessionName, list[Callable[[], None]]] = {}
        self._begin = begin

    def pools_of(self, name: SessionName) -> frozenset[PoolKey] | None:
        """Where a session is pinned, as far as is known; None: nobody was asked."""
        found = self._known.get(name)
        if found is None:
            return None
        until_ms, pools = found
        if until_ms <= self._clock.now_ms():
            del self._known[name]
            return None
        return pools

    def placed(self, name: SessionName, pool: PoolKey) -> None:
        """A task of a session was brought to a pool: that is where the session is from now on."""
        self._keep(name, frozenset((pool,)))

    def _keep(self, name: SessionName, pools: frozenset[PoolKey]) -> None:
        self._known[name] = self._clock.now_ms() + KNOWN_MS, pools
        self._known.move_to_end(name)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def ask(self, name: SessionName, pools: Sequence[PoolKey], then: Callable[[], None]) -> bool:
        """Asks the owners of pools; `then` is called when it is known, or the time for that is over. False: there is
        too much to ask."""
        waiting = self._asking.get(name)
        if waiting is not None:
            waiting.append(then)
            return True
        if len(self._asking) >= ASKED:
            return False
        self._asking[name] = [then]
        self._begin(self._find(name, pools))
        return True

    async def _find(self, name: SessionName, pools: Sequence[PoolKey]) -> None:
        found = NOWHERE
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = await self._ask(name, pools)
        except TimeoutError:
            log.info("where a session is pinned was not told in time")
        finally:
            if name not in self._known:
                self._keep(name, found)
            for then in self._asking.pop(name):
                then()
