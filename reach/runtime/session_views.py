"""Sessions as people ask for them: one, many, forget one (SES-1, SES-4). Each tenant sees its own."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reach.core.context import Context
from reach.core.events import SessionForgotten
from reach.core.model import PoolKey
from reach.core.pool import Pool
from reach.core.session import SessionName
from reach.errors import InvalidRequest, Reason
from reach.runtime.host import Host


class PinView(NamedTuple):
    """Where a session is pinned."""

    pool: PoolKey
    instance_id: str
    handoffs: int
    expires_ms: int = 0
    """Of those of this node."""


class SessionView(NamedTuple):
    """What is known of a session, and where it is pinned."""

    context: Context
    pins: list[PinView]
    used_wall_ms: int
    """When it was used last."""


class Parts(NamedTuple):
    """What one node, or several, have of sessions that live elsewhere."""

    pins: dict[SessionName, list[PinView]]
    busy: set[SessionName]
    """Those with open tasks."""
    lasts: list[int]
    """The last row that each node has numbered."""


class FarSessions(Protocol):
    """What the other nodes have of sessions."""

    async def parts(self, names: Sequence[SessionName], *, forget: bool = False) -> Parts:
        """Asks all of them. `forget`: what they have is to be forgotten. Raises Unavailable, which says who does not
        answer."""


FEW = 10
"""Sessions per instance, below which chance alone makes some have many times what others have."""
LOOKS = 1_000
"""Looks at pins before others get their turn."""
Place = tuple[int, str]
"""Where a page begins: (last used, at the latest, by the wall clock; name, if it was used just then)."""


def not_there(session: str) -> InvalidRequest:
    """The answer for a session that is not there, or is another tenant's: one and the same."""
    shown = session.replace("%3A", ":").replace("%25", "%")
    return InvalidRequest(f"there is no session {shown!r}", Reason.SESSION_NOT_FOUND, session=session)


class SessionViews:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._zero_ms = host.clock.wall_ms() - host.clock.now_ms()
        """The wall clock when the other one began, as it is today: places in lists must not leap with it."""
        self.far: FarSessions | None = None
        """None on a node that is alone."""

    async def get(self, tenant: str, session: str) -> SessionView:
        """One session that lives here.

        Raises:
            InvalidRequest: SESSION_NOT_FOUND.
            Unavailable: a node does not tell where it is pinned.
        """
        name, now_ms = (tenant, session), self._host.clock.now_ms()
        pins = self.pins_here(name)
        if self.far is not None:
            pins += (await self.far.parts([name])).pins.get(name, [])
        context = self._host.sessions.home(name).look(name, now_ms)
        if context is None and not pins:
            raise not_there(session)
        if context is None:  # nothing has been said since the server started
            context = Context(*name)
            context.expires_ms = max(pin.expires_ms for pin in pins)
            context.used_ms = now_ms
        return self._view(context, pins)

    def _view(self, context: Context, pins: list[PinView]) -> SessionView:
        return SessionView(context, pins, self._zero_ms + context.used_ms)

    async def page(
        self, tenant: str, prefix: str, size: int, after: Place | None
    ) -> tuple[list[SessionView], Place | None]:
        """Sessions that live here, those that were used last first. Gives way to others now and then, for there may be
        many.

        Args:
            tenant: Whose.
            prefix: How their names begin, such as `app:`; empty: all.
            size: How many at most; a page with sessions that were just deleted has fewer.
            after: Where the last page ended; None: from the first. A session that is used meanwhile may be missing.

        Returns:
            The sessions, and where the page ends; None if there are no more.

        Raises:
            Unavailable: a node does not tell where they are pinned.
        """
        now_ms, zero_ms = self._host.clock.now_ms(), self._zero_ms
        page: list[tuple[int, str, Context]] = []
        for home in self._host.sessions.homes():
            found = [
                (zero_ms + one.used_ms, one.session, one)
                for one in home
                if one.tenant == tenant
                and one.session.startswith(prefix)
                and one.is_there
                and one.expires_ms > now_ms
                and (after is None or (zero_ms + one.used_ms, one.session) < after)
            ]
            page = heapq.nlargest(size + 1, [*page, *found], key=_place)
            await asyncio.sleep(0)
        contexts = [self._host.sessions.home(one.name).look(one.name, now_ms) for _, _, one in page[:size]]
        views = {one.name: self._view(one, []) for one in contexts if one is not None}
        await self._find_pins(views)
        if self.far is not None and views:
            for name, pins in (await self.far.parts([*views])).pins.items():
                views[name].pins.extend(pins)
        return list(views.values()), _place(page[size - 1]) if len(page) > size else None

    async def _find_pins(self, views: dict[SessionName, SessionView]) -> None:
        looked, now_ms = 0, self._host.clock.now_ms()
        for pool in self._host.pools():
            if not len(pool.pins):
                continue
            for name, view in views.items():
                pin = pool.pins.look(name, now_ms)
                if pin is not None:
                    view.pins.append(PinView(pool.key, pin.instance_id, pin.handoffs, pin.expires_ms))
            looked += len(views)
            if looked > LOOKS:
                looked = 0
                await asyncio.sleep(0)

    async def delete(self, tenant: str, session: str) -> None:
        """Forgets what is known of a session that lives here, and its pins.

        Raises:
            InvalidRequest: SESSION_NOT_FOUND.
            Unavailable: a node does not answer. Nothing is deleted but pins; it is to be asked again.
        """
        name = (tenant, session)
        await self.get(tenant, session)
        lasts = [self._host.last_row]
        if self.far is not None:  # what they accept later is not part of what is forgotten
            lasts += (await self.far.parts([name], forget=True)).lasts
            lasts[0] = self._host.last_row
        self._host.sessions.delete(name, lasts)
        self.forget_pins(name)
        self._host.sessions.flush()
        await self._host.settled()

    def forget_pins(self, name: SessionName) -> None:
        """The pins of a session in pools of this node go."""
        for pool in self._host.pools():
            if pool.pins.look(name, self._host.clock.now_ms()) is not None:
                self._host.post(pool, SessionForgotten(name))

    def pins_here(self, name: SessionName) -> list[PinView]:
        """The pins of a session in pools of this node."""
        now_ms = self._host.clock.now_ms()
        pins = ((pool.key, pool.pins.look(name, now_ms)) for pool in self._host.pools())
        return [PinView(key, pin.instance_id, pin.handoffs, pin.expires_ms) for key, pin in pins if pin is not None]

    async def parts_here(self, names: Sequence[SessionName], *, forget: bool) -> Parts:
        """What this node has of sessions of other nodes."""
        views = {name: SessionView(Context(*name), [], 0) for name in names}
        await self._find_pins(views)
        if forget:
            for name in names:
                self.forget_pins(name)
            await self._host.settled()
        # While shards are on their way, what is open in them is not known: then any session may have some of it.
        busy = self._host.sessions.busy().intersection(names) if self._host.is_whole() else set(names)
        return Parts({name: view.pins for name, view in views.items() if view.pins}, busy, [self._host.last_row])

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


def _skew_of(pool: Pool) -> float:
    """How many times the mean the instance with most sessions has; 0 where there are too few to say."""
    counts, instances = pool.pins.counts, pool.router.admitted().bit_count()
    if instances < 2 or len(pool.pins) < FEW * instances:
        return 0.0
    return max(counts.values(), default=0) * instances / len(pool.pins)


def _place(item: tuple[int, str, Context]) -> Place:
    return item[:2]
