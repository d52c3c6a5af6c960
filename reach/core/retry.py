"""When a failed attempt is tried again (DLV-4, DLV-5)."""

from __future__ import annotations

from reach.core.chance import fraction
from reach.core.model import Fault
from reach.errors import ErrorClass

RETRIED = frozenset({ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT})
"""Classes that are retried unless a policy says otherwise. INTERNAL is not retried blindly."""

JITTER = 0.2
"""± share of each delay, unless full jitter is asked for."""

BUDGET_PER_FIRST_ATTEMPT = 0.19
"""A little less than the fifth that a storm may add: what was saved before it (BUDGET_LIMIT) comes on top."""
BUDGET_RESERVE = 3.0
BUDGET_PER_GOOD_RETRY = 1.5
"""A retry that went well gives back more than it took: where two of three go well, what waits for tokens is soon gone,
whether or not new tasks come that would pay for it. Where none does, none of this is paid."""
BUDGET_IDLE_MS = 1_000
"""When no retry has had a token for this long, one goes without."""
BUDGET_LIMIT = 100.0
"""Tokens are not saved up beyond this, so that a quiet hour does not pay for a storm."""
BUDGET_PAUSE_MS = 100
"""Shortest time until a retry that got no token asks again."""
BUDGET_APART_MS = 1
"""Between two that ask again: a thousand a second, however many thousands wait, and first come, first served."""


class RetryPolicy:
    """Delays before each retry, and what is retried."""

    __slots__ = ("delays_ms", "full_jitter", "name", "retry_on")

    def __init__(
        self,
        name: str,
        delays_ms: tuple[int, ...],
        full_jitter: bool = False,
        retry_on: frozenset[ErrorClass] = RETRIED,
    ) -> None:
        self.name = name
        self.delays_ms = delays_ms
        self.full_jitter = full_jitter
        self.retry_on = retry_on

    def delay_ms(self, retries: int, fault: Fault, seed: int) -> int | None:
        """How long to wait before retry number `retries` + 1; None if there is no further one.

        The delay is spread by ± 20 % (or over 0 … delay), and is never shorter than the fault's own `retry_after_ms`.
        """
        if fault.error_class not in self.retry_on or retries >= len(self.delays_ms):
            return None
        delay = self.delays_ms[retries]
        chance = fraction(seed, retries)
        spread = delay * chance if self.full_jitter else delay * (1 - JITTER + 2 * JITTER * chance)
        return max(round(spread), fault.retry_after_ms or 0)


POLICIES = {
    policy.name: policy
    for policy in (
        RetryPolicy("ladder", (300, 1_500, 5_000)),
        RetryPolicy("exponential", (1_000, 2_000, 4_000, 8_000, 16_000)),
        RetryPolicy("quick", (200, 400, 800)),
        RetryPolicy("patient", (2_000, 4_000)),
        RetryPolicy("never", ()),
    )
}
"""The presets of DLV-5, by number of retries after the first try."""

DEFAULT = POLICIES["ladder"]


class RetryBudget:
    """Paces the retries of a pool: each first attempt adds 0.19 token, a retry takes one.

    Without a token a retry waits; it does not fail. So a pool that fails wholly is asked at most 1.2 times as often as
    its callers ask. A retry that goes well adds 1.5. Where nobody comes who could pay for it, one retry a second goes
    all the same, so that nothing waits for ever.
    """

    __slots__ = ("_asked_ms", "_taken_ms", "tokens")

    def __init__(self) -> None:
        self.tokens = BUDGET_RESERVE
        self._taken_ms = 0
        self._asked_ms = 0
        """When the last of those that wait for a token asks again."""

    def first_attempt(self) -> None:
        """A task got its first attempt."""
        if self.tokens < BUDGET_LIMIT:
            self.tokens += BUDGET_PER_FIRST_ATTEMPT

    def went_well(self) -> None:
        """A retry succeeded."""
        self.tokens = min(self.tokens + BUDGET_PER_GOOD_RETRY, BUDGET_LIMIT)

    def ask_again_ms(self, now_ms: int) -> int:
        """When a retry that got no token should ask for one again."""
        self._asked_ms = max(self._asked_ms + BUDGET_APART_MS, now_ms + BUDGET_PAUSE_MS)
        return self._asked_ms

    def take(self, now_ms: int) -> bool:
        """Takes a token for a retry; False if there is none."""
        if self.tokens >= 1:
            self.tokens -= 1
        elif now_ms < self._taken_ms + BUDGET_IDLE_MS:
            return False
        self._taken_ms = now_ms
        return True
