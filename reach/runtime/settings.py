"""What the configuration says to the host and its pools."""

from __future__ import annotations

from reach.core.health import THRESHOLDS
from reach.core.model import PoolKey
from reach.core.policies import BALANCED, Policy
from reach.runtime.wake import WakeHook


class Settings:
    """Limits of the host, from the configuration."""

    __slots__ = (
        "dead_letters", "heartbeat_ms", "overcommit", "policy", "queue_bytes", "queue_limit", "session_ttl_ms",
        "thresholds", "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue_limit = 200_000
        self.queue_bytes = 1 << 30
        self.overcommit = 1.5
        self.session_ttl_ms = 720_000
        self.heartbeat_ms = 5_000
        self.dead_letters = True
        self.policy: Policy = BALANCED
        self.thresholds = THRESHOLDS
        self.wake: dict[PoolKey, WakeHook] = {}
        """How pools are woken in which nobody is ready."""
