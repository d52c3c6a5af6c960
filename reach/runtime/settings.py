"""What the configuration says to the host and its pools."""

from __future__ import annotations

from reach.core.backlog import ALERT
from reach.core.canary import SHARE
from reach.core.context import CONTEXT_BYTES
from reach.core.health import THRESHOLDS
from reach.core.homes import MAX_BYTES, MAX_SESSIONS
from reach.core.model import PoolKey
from reach.core.policies import BALANCED, POLICIES, Policy
from reach.core.questions import WAIT_MS
from reach.core.session import PIN_WAIT_MS
from reach.runtime.summarisers import Summariser
from reach.runtime.wake import WakeHook


class Settings:
    """Limits of the host, from the configuration."""

    __slots__ = (
        "backlog_alert", "canary_share", "context_bytes", "dead_letters", "heartbeat_ms", "input_wait_ms", "overcommit",
        "pin_wait_ms", "policies", "policy", "pool_policies", "queue_bytes", "queue_limit", "session_bytes",
        "session_limit", "session_ttl_ms", "summariser", "thresholds", "wake", "weights",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue_limit = 200_000
        self.queue_bytes = 1 << 30
        self.overcommit = 1.5
        self.session_ttl_ms = 720_000
        self.session_limit, self.session_bytes, self.context_bytes = MAX_SESSIONS, MAX_BYTES, CONTEXT_BYTES
        """How many sessions, and what all of them and the turns of each may take."""
        self.summariser: Summariser | None = None
        """What makes old turns short; None: their most telling sentences are kept."""
        self.heartbeat_ms = 5_000
        self.dead_letters = True
        self.input_wait_ms = WAIT_MS
        self.backlog_alert = ALERT
        self.weights: dict[str, float] = {}
        """Of turns in the queue, by tenant or `tenant/fairness key`."""
        self.policy: Policy = BALANCED
        self.policies: dict[str, Policy] = dict(POLICIES)
        """All that tasks may name."""
        self.pool_policies: dict[str, str] = {}
        """Names of policies, by agent type."""
        self.pin_wait_ms = PIN_WAIT_MS
        self.canary_share = SHARE
        self.thresholds = THRESHOLDS
        self.wake: dict[PoolKey, WakeHook] = {}
        """How pools are woken in which nobody is ready."""
