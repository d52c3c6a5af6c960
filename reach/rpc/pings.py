"""Pings on Attach streams: the protocol probe of agents that dial us (HLT-3).

The loop that runs an agent's handlers answers them, so an answer proves more than an open connection. Only agents that
say that they answer are asked (feature `ping`); of others nothing is held against them. When to ask is the core's
decision (`Instance.probe_due_ms`); one timer serves all links of the server.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from reach.core.events import Probed
from reach.core.model import Instance
from reach.core.pool import Pool
from reach.core.wheel import TimerWheel
from reach.runtime.clock import Clock
from reach.runtime.reach_api import Reach

FEATURE = "ping"
TIMEOUT_MS = 1_000
"""An answer that takes longer is a lost one."""
SETTLE_MS = 50
"""How long after an outcome we look when the next ping is due: the core has heard of it by then."""


class Pingable(Protocol):
    """A link that pings can be sent on."""

    pool: Pool | None
    instance: Instance | None

    def ping(self, nonce: int) -> None:
        """Sends a ping."""


class Pinger:
    """The pings of one link."""

    __slots__ = ("link", "nonce", "sent_ms", "timer_slot")

    def __init__(self, link: Pingable) -> None:
        self.link = link
        self.nonce = 0
        self.sent_ms = 0
        """When the ping was sent whose answer is awaited; 0 if none is."""
        self.timer_slot = 0


class Pings:
    """The pings of all streams of a server."""

    def __init__(self, reach: Reach, clock: Clock) -> None:
        self._reach = reach
        self._clock = clock
        self._wheel = TimerWheel()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def watch(self, link: Pingable) -> Pinger:
        """Begins to ping."""
        pinger = Pinger(link)
        self._arm(pinger, self._clock.now_ms() + SETTLE_MS)
        return pinger

    def forget(self, pinger: Pinger) -> None:
        """The link is gone."""
        self._wheel.disarm(pinger)
        pinger.sent_ms = 0

    def answered(self, pinger: Pinger, nonce: int) -> None:
        """A pong came. One that is late was counted as lost already."""
        if not pinger.sent_ms or nonce != pinger.nonce:
            return
        now = self._clock.now_ms()
        self._outcome(pinger, ok=True, rtt_ms=now - pinger.sent_ms, error="")

    def _outcome(self, pinger: Pinger, *, ok: bool, rtt_ms: float, error: str) -> None:
        pinger.sent_ms = 0
        pool, instance = pinger.link.pool, pinger.link.instance
        if pool is not None and instance is not None and instance.link is pinger.link:
            self._reach.post(pool, Probed(instance, ok, rtt_ms, error))
            self._arm(pinger, self._clock.now_ms() + SETTLE_MS)

    def _arm(self, pinger: Pinger, at_ms: int) -> None:
        self._wheel.arm(pinger, at_ms)
        if self._timer is None or at_ms < self._timer_ms:
            self._set_timer(at_ms)

    def _set_timer(self, at_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer_ms = at_ms
            delay = max(0, at_ms - self._clock.now_ms()) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._clock.now_ms()
        for pinger in self._wheel.due(now):
            assert isinstance(pinger, Pinger)
            self._look_at(pinger, now)
        self._set_timer(self._wheel.next_ms())

    def _look_at(self, pinger: Pinger, now_ms: int) -> None:
        instance = pinger.link.instance
        if pinger.sent_ms:
            self._outcome(pinger, ok=False, rtt_ms=0.0, error=f"no answer to a ping within {TIMEOUT_MS} ms")
        elif instance is None or instance.probe_due_ms > now_ms:
            self._arm(pinger, now_ms + SETTLE_MS if instance is None else instance.probe_due_ms)
        else:
            pinger.nonce += 1
            pinger.sent_ms = now_ms
            pinger.link.ping(pinger.nonce)
            self._arm(pinger, now_ms + TIMEOUT_MS)
