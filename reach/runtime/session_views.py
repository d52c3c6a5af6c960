"""Sessions as people ask for them: one, many, forget one (SES-1, SES-4). Each tenant sees its own."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import NamedTuple

from reach.core.context import Context
from reach.core.events import SessionForgotten
from reach.core.pool import Pool
from reach.core.session import Pin, SessionName
from reach.errors import InvalidRequest, Reason
from reach.runtime.host import Host


class SessionView(NamedTuple):
    """What is known of a session, and where it is pinned."""

    context: Context
    pins: list[tuple[Pool, Pin]]


FEW = 10
"""Sessions per instance, below which chance alone makes some have many times what others have."""
LOOKS = 1_000
"""Looks at pins before others get their turn."""
Place = tuple[int, str]
"""Where a page begins: (last used, at the latest; name, if it was used just then)."""


def not_there(session: str) -> InvalidRequest:
    """The answer for a session that is not there, or is another tenant's: one and the same."""
    shown = session.replace("%3A", ":").replace("%25", "%")
    return InvalidRequest(f"there is no session {shown!r}", Reason.SESSION_NOT_FOUND, session=session)


class SessionViews:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def get(self, tenant: str, session: str) -> SessionView:
        """One session. Raises InvalidRequest (SESSION_NOT_FOUND)."""
        name, now_ms = (tenant, session), self._host.clock.now_ms()
        context, pins = self._host.sessions.home(name).look(name, now_ms), list(self._pins(name, now_ms))
        if context is None and not pins:
            raise not_there(session)
        if context is None:  # nothing has been said since the server started
            context = Context(*name)
            context.expires_ms = max(pin.expires_ms for _, pin in pins)
        return SessionView(context, pins)

    async def list(
        self, tenant: str, prefix: str, size: int, after: Place | None
    ) -> tuple[list[SessionView], Place | None]:
        """Sessions, those that were used last first. Gives way to others now and then, for there may be many.

        Args:
            tenant: Whose.
            prefix: How their names begin, such as `app:`; empty: all.
            size: How many at most; a page with sessions that were just deleted has fewer.
            after: Where the last page ended; None: from the first. A session that is used meanwhile may be missing.

        Returns:
            The sessions, and where the page ends; None if there are no more.
        """
        now_ms = self._host.clock.now_ms()
        page: list[tuple[int, str, Context]] = []
        for home in self._host.sessions.homes():
            found = [
                (one.used_ms, one.session, one)
                for one in home
                if one.tenant == tenant
                and one.session.startswith(prefix)
                and one.is_there
                and one.expires_ms > now_ms
                and (after is None or (one.used_ms, one.session) < after)
            ]
            page = heapq.nlargest(size + 1, [*page, *found], key=_place)
            await asyncio.sleep(0)
        contexts = [self._host.sessions.home(one.name).look(one.name, now_ms) for _, _, one in page[:size]]
        views = {one.name: SessionView(one, []) for one in contexts if one is not None}
        await self._find_pins(views, now_ms)
        return list(views.values()), _place(page[size - 1]) if len(page) > size else None

    async def _find_pins(self, views: dict[SessionName, SessionView], now_ms: int) -> None:
        looked = 0
        for pool in self._host.pools():
            if not len(pool.pins):
                continue
            for name, view in views.items():
                pin = pool.pins.look(name, now_ms)
                if pin is not None:
                    view.pins.append((pool, pin))
            looked += len(views)
            if looked > LOOKS:
                looked = 0
                await asyncio.sleep(0)

    async def delete(self, tenant: str, session: str) -> None:
        """Forgets what is known of a session, and its pins. Raises InvalidRequest (SESSION_NOT_FOUND)."""
        name = (tenant, session)
        pins = self.get(tenant, session).pins
        self._host.sessions.delete(name)
        for pool, _ in pins:
            self._host.post(pool, SessionForgotten(name))
        self._host.sessions.flush()
        await self._host.settled()

    def figures(self) -> dict[str, float]:
        """How many sessions are known, what they take, how many had to go early, how unevenly they lie (SES-5), and how
        often they moved."""
        room, pools = self._host.sessions.room, self._host.pools()
        return {
            "known": room.sessions,
            "bytes": room.bytes,
            "evicted": room.evicted,
            "skew": max((_skew_of(pool) for pool in pools), default=0.0),
            "handoffs": sum(pool.handoffs.moves for pool in pools),
        }

    def _pins(self, name: SessionName, now_ms: int) -> Iterator[tuple[Pool, Pin]]:
        for pool in self._host.pools():
            pin = pool.pins.look(name, now_ms)
            if pin is not None:
                yield pool, pin


def _skew_of(pool: Pool) -> float:
    """How many times the mean the instance with most sessions has; 0 where there are too few to say."""
    counts, instances = pool.pins.counts, pool.router.admitted().bit_count()
    if instances < 2 or len(pool.pins) < FEW * instances:
        return 0.0
    return max(counts.values(), default=0) * instances / len(pool.pins)


def _place(item: tuple[int, str, Context]) -> Place:
    return item[:2]
