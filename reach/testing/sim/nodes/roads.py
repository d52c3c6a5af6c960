"""The network between machines: what is said waits where the way is blocked, and arrives late or never.

A way that is blocked keeps what is said, as TCP does, until somebody gives the connection up. Ways have directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from reach.testing.sim.nodes.process import NodeProcess, NodesLoop

Way = tuple[str, str]
LOOK_S = 0.5
"""How often connections look whether the other end still answers."""


class Roads:
    """See the module. Machines are named; a machine reaches itself always."""

    def __init__(self, loop: NodesLoop, random: Random, slow: float) -> None:
        self.loop = loop
        self.random = random
        self.slow = slow
        """Share of messages that take long."""
        self._blocked: dict[Way, int] = {}
        self._waiting: dict[Lane, None] = {}
        self.watched: dict[Any, Callable[[], None]] = {}
        """What looks whether the other end answers."""
        loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        for look in list(self.watched.values()):
            look()
        self.loop.call_later(LOOK_S, self._look)

    def delay(self) -> float:
        """How long the next message takes, in seconds."""
        chance = self.random.random()
        if chance < self.slow:
            return 0.1 + self.random.random()
        return 0.0003 + 0.01 * chance * chance

    def open(self, source: str, target: str) -> bool:
        """Whether messages get through."""
        return (source, target) not in self._blocked

    def block(self, *ways: Way) -> Callable[[], None]:
        """Blocks some ways; returns what opens them again. A way that two have blocked opens when both have."""
        for way in ways:
            self._blocked[way] = self._blocked.get(way, 0) + 1

        def unblock() -> None:
            nonlocal ways
            for way in ways:
                self._blocked[way] -= 1
                if not self._blocked[way]:
                    del self._blocked[way]
            ways = ()
            self._go_on()

        return unblock

    def heal(self) -> None:
        """All ways are open."""
        self._blocked = _Forgiving()
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for lane in waiting:
            lane.go_on()

    def wait(self, lane: Lane) -> None:
        """The way of a lane is blocked."""
        self._waiting[lane] = None


class _Forgiving(dict[Way, int]):
    """Nothing is blocked, whatever is opened late."""

    def __missing__(self, way: Way) -> int:
        return 0

    def __delitem__(self, way: Way) -> None:
        self.pop(way, None)

    def __setitem__(self, way: Way, count: int) -> None:
        if count > 0:
            super().__setitem__(way, count)


class Lane:
    """One direction of a connection: ordered. What is put while a message is on its way travels along."""

    def __init__(self, roads: Roads, source: str, to: NodeProcess, hear: Callable[[Any], None]) -> None:
        self._roads = roads
        self.source = source
        self.to = to
        self._hear = hear
        self._items: deque[Any] = deque()
        self._moving = False
        self.cut = False
        """Nothing arrives any more."""

    @property
    def open(self) -> bool:
        """Messages get through."""
        return self._roads.open(self.source, self.to.name)

    def put(self, item: Any) -> None:
        """Sends something."""
        if self.cut:
            return
        self._items.append(item)
        self.go_on()

    def go_on(self) -> None:
        """The way may be open now."""
        if self._items and not self._moving and not self.cut:
            self._moving = True
            self._roads.loop.call_later(self._roads.delay(), self._arrive)

    def _arrive(self) -> None:
        self._moving = False
        if self.cut:
            return
        if not self.open:
            self._roads.wait(self)
            return
        items, self._items = self._items, deque()
        self.to.call_soon(self._heard, items)

    def _heard(self, items: deque[Any]) -> None:
        for item in items:
            if self.cut:
                return
            self._hear(item)
