"""Pins: which instance of a pool has a session (RTE-7, SES-4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from reach.core.ring import Ring

IDLE_TTL_MS = 720_000
"""12 minutes: a business timeout of 10 and 2 to spare (SES-2)."""
PIN_WAIT_MS = 5_000
"""How long a session's task waits for its full instance before it may go elsewhere."""
PINNED_FULL = "pinned_instance_full"
"""What such a task waits for, as callers read it."""
TURN = "turn"
"""Kind of the fact that a task of a session has ended, which adds its turn to the context (see core/ending.py)."""
MAX_PINS = 1_000_000
SWEEP = 4
"""Expired pins that are dropped each time a pin is set."""

SessionName = tuple[str, str]
"""(tenant, "app:user:session")"""


class Pin:
    """A session and its instance."""

    __slots__ = (
        "expires_ms",
        "generation",
        "handoffs",
        "instance_id",
        "kept_until_ms",
        "moving_to",
        "ttl_ms",
        "version",
    )

    def __init__(self, instance_id: str, expires_ms: int, ttl_ms: int = 0) -> None:
        self.instance_id = instance_id
        self.expires_ms = expires_ms
        self.ttl_ms = ttl_ms
        """How long it holds without activity."""
        self.handoffs = 0
        self.generation = 0
        """The process of its instance that has the session; 0: not known, after a restart of ours."""
        self.kept_until_ms = 0
        """Until when it holds by what is written of it."""
        self.moving_to = ""
        """The instance that has been given the session, and has not taken it up yet."""
        self.version = ""
        """The agent's version that the session began with, as filters name it (RTE-9); empty if unknown."""


class Pins:
    """All pins of one pool. The ring proposes for new sessions; a pin holds while its instance is admitted."""

    __slots__ = ("_pins", "busy", "counted", "counts", "ring", "ttl_ms")

    def __init__(self, ttl_ms: int = IDLE_TTL_MS) -> None:
        self._pins: OrderedDict[SessionName, Pin] = OrderedDict()
        """The one that was used longest ago comes first; it expires first too, but where a route has its own TTL."""
        self.counts: dict[str, int] = {}
        """Sessions by instance."""
        self.counted: Callable[[str], None] = lambda _: None
        """Hears of each instance whose count changed."""
        self.busy: Callable[[SessionName, str], bool] = lambda name, instance_id: False
        """Whether a session has tasks that are not over at its instance: then it is not idle, however long it takes."""
        self.ring = Ring()
        self.ttl_ms = ttl_ms

    def __len__(self) -> int:
        return len(self._pins)

    def get(self, name: SessionName, now_ms: int) -> Pin | None:
        """The pin of a session, if it has not expired."""
        pin = self._pins.get(name)
        if pin is not None and self._is_over(name, pin, now_ms):
            self.drop(name)
            return None
        return pin

    def _is_over(self, name: SessionName, pin: Pin, now_ms: int) -> bool:
        """Whether a pin has expired; that of a session which is at work is renewed."""
        if pin.expires_ms > now_ms:
            return False
        if self.busy(name, pin.instance_id):
            pin.expires_ms = now_ms + pin.ttl_ms
            self._pins.move_to_end(name)
            return False
        return True

    def look(self, name: SessionName, now_ms: int) -> Pin | None:
        """As `get`, and changes nothing."""
        pin = self._pins.get(name)
        if pin is not None and (pin.expires_ms > now_ms or self.busy(name, pin.instance_id)):
            return pin
        return None

    def renew(self, name: SessionName, now_ms: int) -> None:
        """Something happened in a session: its time begins anew, if it has a pin."""
        pin = self._pins.get(name)
        if pin is not None:
            pin.expires_ms = now_ms + pin.ttl_ms
            self._pins.move_to_end(name)

    def set(self, name: SessionName, instance_id: str, now_ms: int, ttl_ms: int | None = None) -> Pin:
        """Pins a session to an instance, or renews its pin; `ttl_ms`: for how long, where its route says so."""
        self.sweep(now_ms)
        pin = self._pins.get(name)
        if pin is None:
            pin = self._pins[name] = Pin(instance_id, 0)
            self._count(instance_id)
        elif pin.instance_id != instance_id:
            self._uncount(pin.instance_id)
            self._count(instance_id)
            pin.instance_id = instance_id
            pin.handoffs += 1
            pin.kept_until_ms = 0
        pin.ttl_ms = ttl_ms or self.ttl_ms
        pin.expires_ms = now_ms + pin.ttl_ms
        self._pins.move_to_end(name)
        return pin

    def live(self, now_ms: int) -> int:
        """How many have not expired; the others are dropped."""
        for name, pin in [(name, pin) for name, pin in self._pins.items() if pin.expires_ms <= now_ms]:
            if self._is_over(name, pin, now_ms):
                self.drop(name)
        return len(self._pins)

    def sweep(self, now_ms: int) -> bool:
        """Drops a few that have expired, so that they bear on no bound, and the oldest if there are too many. True if
        any was dropped."""
        dropped = 0
        for _ in range(SWEEP):
            first = next(iter(self._pins), None)
            if first is None:
                return dropped > 0
            pin = self._pins[first]
            if self._is_over(first, pin, now_ms) or len(self._pins) >= MAX_PINS:
                self.drop(first)
                dropped += 1
            elif pin.ttl_ms > self.ttl_ms:
                self._pins.move_to_end(first)  # it must not stand before those that expire sooner
            else:
                break
        return dropped > 0

    def next_expiry_ms(self) -> int | None:
        """When a pin expires, if nothing renews it: the next one, but where a route has its own TTL."""
        first = next(iter(self._pins), None)
        return self._pins[first].expires_ms if first is not None else None

    def drop(self, name: SessionName) -> None:
        """Forgets a pin."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._uncount(pin.instance_id)

    def _count(self, instance_id: str) -> None:
        self.counts[instance_id] = self.counts.get(instance_id, 0) + 1
        self.counted(instance_id)

    def _uncount(self, instance_id: str) -> None:
        left = self.counts.get(instance_id, 0) - 1
        if left > 0:
            self.counts[instance_id] = left
        else:
            self.counts.pop(instance_id, None)
        self.counted(instance_id)
