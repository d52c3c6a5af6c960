"""Pins: which instance of a pool has a session (RTE-7, SES-4)."""

from __future__ import annotations

from collections import OrderedDict

from reach.core.ring import Ring

IDLE_TTL_MS = 720_000
"""12 minutes: a business timeout of 10 and 2 to spare (SES-2)."""
MAX_PINS = 1_000_000
SWEEP = 4
"""Expired pins that are dropped each time a pin is set."""

SessionName = tuple[str, str]
"""(tenant, "app:user:session")"""


class Pin:
    """A session and its instance."""

    __slots__ = ("expires_ms", "handoffs", "instance_id")

    def __init__(self, instance_id: str, expires_ms: int) -> None:
        self.instance_id = instance_id
        self.expires_ms = expires_ms
        self.handoffs = 0


class Pins:
    """All pins of one pool. The ring proposes for new sessions; a pin holds while its instance is admitted."""

    __slots__ = ("_pins", "counts", "ring", "ttl_ms")

    def __init__(self, ttl_ms: int = IDLE_TTL_MS) -> None:
        self._pins: OrderedDict[SessionName, Pin] = OrderedDict()
        """The one that expires first comes first."""
        self.counts: dict[str, int] = {}
        self.ring = Ring()
        self.ttl_ms = ttl_ms

    def __len__(self) -> int:
        return len(self._pins)

    def get(self, name: SessionName, now_ms: int) -> Pin | None:
        """The pin of a session, if it has not expired."""
        pin = self._pins.get(name)
        if pin is not None and pin.expires_ms <= now_ms:
            self.drop(name)
            return None
        return pin

    def set(self, name: SessionName, instance_id: str, now_ms: int) -> Pin:
        """Pins a session to an instance, or renews its pin."""
        self._sweep(now_ms)
        pin = self._pins.get(name)
        if pin is None:
            pin = self._pins[name] = Pin(instance_id, 0)
            self.counts[instance_id] = self.counts.get(instance_id, 0) + 1
        elif pin.instance_id != instance_id:
            self._uncount(pin.instance_id)
            self.counts[instance_id] = self.counts.get(instance_id, 0) + 1
            pin.instance_id = instance_id
            pin.handoffs += 1
        pin.expires_ms = now_ms + self.ttl_ms
        self._pins.move_to_end(name)
        return pin

    def live(self, now_ms: int) -> int:
        """How many have not expired; the others are dropped."""
        for name in [name for name, pin in self._pins.items() if pin.expires_ms <= now_ms]:
            self.drop(name)
        return len(self._pins)

    def expire(self, now_ms: int) -> None:
        """Drops a few that have expired: their places are free."""
        self._sweep(now_ms)

    def _sweep(self, now_ms: int) -> None:
        """Drops a few that have expired, so that they bear on no bound, and the oldest if there are too many."""
        for _ in range(SWEEP):
            first = next(iter(self._pins), None)
            if first is None or (self._pins[first].expires_ms > now_ms and len(self._pins) < MAX_PINS):
                return
            self.drop(first)

    def drop(self, name: SessionName) -> None:
        """Forgets a pin."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._uncount(pin.instance_id)

    def _uncount(self, instance_id: str) -> None:
        left = self.counts.get(instance_id, 0) - 1
        if left > 0:
            self.counts[instance_id] = left
        else:
            self.counts.pop(instance_id, None)
