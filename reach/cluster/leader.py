"""The leader's loop: it watches the members and writes the wish, and does nothing else (CLU-1).

Every node runs one `Leader`; only the one whose election says so acts. Losses are answered at once, arrivals after a
moment in which no other node came (`settle_ms`), so that nodes that start together, or a rolling restart, move each
shard once. What else waits for a moment: `settling.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from reach.cluster.base import Cluster, ClusterUnavailable, NodeInfo, NotLeading, Unsubscribe
from reach.cluster.drained import DRAINED, drained
from reach.cluster.settling import Settling
from reach.core.placement import Candidate, wish_for

SETTLE_MS = 1_000
"""Longest wait of one arrival is three of these, whatever else arrives."""
AGAIN_MS = 500
"""After a write that may not have been done."""

_log = logging.getLogger(__name__)


class Leader:
    """Places shards while this node leads. `run()` is the loop; it ends only by cancellation."""

    def __init__(self, cluster: Cluster, now_ms: Callable[[], int], settle_ms: int = SETTLE_MS) -> None:
        self._cluster = cluster
        self._now_ms = now_ms
        self._settle_ms = settle_ms
        self._stirred = asyncio.Event()
        self._arrivals: dict[tuple[str, str], int] = {}
        """When each process that holds no shard was seen first; at most one entry per member."""
        self._settling = Settling(settle_ms)
        self._led: tuple[int, int] | None = None
        """The term of now, and when it began."""

    @property
    def leading_ms(self) -> int | None:
        """How long this node has led; None: it does not."""
        term = self._cluster.election.term
        return self._now_ms() - self._led[1] if self._led is not None and self._led[0] == term else None

    async def run(self) -> None:
        """Acts on every change of members, leader or wish."""
        subscriptions: list[Unsubscribe] = [
            self._cluster.membership.subscribe(self._stirred.set),
            self._cluster.election.subscribe(self._stirred.set),
            self._cluster.placement.subscribe(self._stirred.set),
            self._cluster.registry.subscribe_documents(self._drained),
        ]
        try:
            while True:
                self._stirred.clear()
                wait_ms = await self._turn()
                try:
                    async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                        await self._stirred.wait()
                except TimeoutError:
                    pass
        finally:
            for unsubscribe in subscriptions:
                unsubscribe()

    def _drained(self, name: str) -> None:
        if name == DRAINED:
            self._stirred.set()

    async def place_now(self) -> int:
        """Places without waiting for anything to settle (`reach cluster rebalance`); returns how many shards go to
        another node.

        Raises:
            NotLeading: Another node leads.
            ClusterUnavailable: The wish could not be written.
        """
        term = self._cluster.election.term
        if term is None:
            raise NotLeading("this node does not lead")
        nodes, _ = self._settling.judged(self._members(), self._now_ms(), at_once=True)
        return await self._place(term, nodes)

    async def _turn(self) -> int | None:
        """Writes the wish if it must change.

        Returns in how many milliseconds to look again; None: after the next change.
        """
        now = self._now_ms()
        self._settling.saw(self._cluster.membership.nodes(), now)
        term = self._cluster.election.term
        if term is None:
            self._arrivals.clear()
            self._led = None
            return None
        if self._led is None or self._led[0] != term:
            self._led = term, now
        current = self._cluster.placement.wish().nodes
        if awaits_ms := self._settling.awaits(current, now):
            return awaits_ms
        judged, judged_ms = self._settling.judged(self._members(), now)
        counted, counted_ms = self._counted(judged, current)
        wait_ms = min((one for one in (judged_ms, counted_ms) if one is not None), default=None)
        try:
            await self._place(term, counted)
        except NotLeading:
            return wait_ms
        except ClusterUnavailable as error:
            _log.warning("the wish could not be written: %s", error)
            return AGAIN_MS
        return wait_ms

    def _members(self) -> dict[str, NodeInfo]:
        """Who is there, as the leader weighs them."""
        away = drained(self._cluster.registry)
        return {
            name: info._replace(weight=0) if name in away else info
            for name, info in self._cluster.membership.nodes().items()
        }

    async def _place(self, term: int, nodes: dict[str, NodeInfo]) -> int:
        """Writes the wish for these if it must change; returns how many shards it moves."""
        current = self._cluster.placement.wish().nodes
        wish = wish_for({name: Candidate(info.weight, info.store_reachable) for name, info in nodes.items()}, current)
        if wish == current or not wish:
            return 0
        await self._cluster.placement.publish(wish, term)
        moved = sum(1 for shard, node in enumerate(wish) if not current or current[shard] != node)
        _log.info("shards placed", extra={"moved": moved, "nodes": len(set(wish)), "term": term})
        return moved

    def _counted(self, nodes: dict[str, NodeInfo], current: tuple[str, ...]) -> tuple[dict[str, NodeInfo], int | None]:
        """The members to place on now, and when to look again.

        Those that own nothing yet wait until arrivals have settled.
        """
        now = self._now_ms()
        owners = set(current)
        waiting = {(name, info.boot) for name, info in nodes.items() if info.weight > 0 and name not in owners}
        self._arrivals = {key: self._arrivals.get(key, now) for key in waiting}
        if not self._arrivals:
            return nodes, None
        settled = max(self._arrivals.values()) + self._settle_ms
        longest = min(self._arrivals.values()) + 3 * self._settle_ms
        due = min(settled, longest)
        if now >= due:
            return nodes, None
        kept = {name: info for name, info in nodes.items() if name in owners or info.weight <= 0}
        if not any(info.weight > 0 for info in kept.values()) and owners:
            return nodes, None
        return kept, due - now
