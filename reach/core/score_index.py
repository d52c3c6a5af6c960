"""The instances of a pool by score, for one policy and method: bands of priority, each of 256 buckets (RTE-4, RTE-11).

Each bucket is a bitmap of the instances in it. A step of load or a new signal moves an instance from one bucket to
another: two XORs. The best candidates are found from the top of the highest band, whatever the size of the pool.
"""

from __future__ import annotations

from reach.core.at_hand import LEAST_CONNECTIONS
from reach.core.model import Instance
from reach.core.policies import NEAR_TIE, Figures, Policy, connections, parts

BUCKETS = 256
BANDS = 10
"""Priorities 0 … 9. A higher band goes before any score."""
_NOWHERE = -1


class ScoreIndex:
    """Where each free instance stands under one policy, for tasks of one method (empty: any)."""

    __slots__ = ("_places", "_scale", "base", "buckets", "exact", "known", "method", "occupied", "policy", "slope",
                 "stale", "tie_width", "unscored", "used")  # fmt: skip

    def __init__(self, policy: Policy, method: str) -> None:
        self.policy = policy
        self.method = method
        self.buckets = [0] * (BUCKETS * BANDS)
        self.occupied = 0
        """Which buckets are not empty."""
        self.base: list[float] = []
        self.slope: list[float] = []
        self.known: list[tuple[float, ...]] = []
        """The signals behind base and slope, as of the last time they were folded in; replaced, never changed."""
        self._places: list[int] = []
        self._scale = (BUCKETS - 1) / (policy.top or 1.0)
        self.exact = not 3 <= policy.near_tie * self._scale <= NEAR_TIE * BUCKETS
        """Near-equals are told apart by their exact scores. Else all buckets that are wholly within the near-tie are
        equals, which saves scoring 8 candidates in each decision."""
        self.tie_width = int(policy.near_tie * self._scale) + (1 if self.exact else -1) if policy.near_tie else 0
        """How many buckets lower a near-equal may be found."""
        self.stale: dict[int, None] = {}
        """Bits of instances that moved since this index was last asked."""
        self.unscored = 0
        """Bits of instances that have no score here yet: while there are some, the index is not asked."""
        self.used = 0
        """When it was last asked, in decisions of the pool."""

    def bucket_of(self, score: float) -> int:
        """The bucket of a score, within its band."""
        return min(BUCKETS - 1, max(0, int(score * self._scale)))

    def score(self, instance: Instance) -> float:
        """The score now: the signals as they were folded in, and the exact load."""
        if self.policy.way is LEAST_CONNECTIONS:
            return connections(instance)
        free = instance.max_concurrency - instance.inflight - instance.foreign
        bit = instance.bit
        return self.base[bit] + self.slope[bit] * (free / instance.max_concurrency if free > 0 else 0.0)

    def grow(self, count: int) -> None:
        """Makes room for `count` instances."""
        missing = count - len(self._places)
        if missing > 0:
            self._places += [_NOWHERE] * missing
            self.base += [0.0] * missing
            self.slope += [0.0] * missing
            self.known += [()] * missing

    def rescore(self, instance: Instance, figures: Figures, now_ms: int) -> bool:
        """Folds the signals of an instance in. True if that changed its score: `put` must follow."""
        bit = instance.bit
        if self.unscored:
            self.unscored &= ~(1 << bit)
        base, slope, self.known[bit] = parts(self.policy, instance, self.method, figures, now_ms)
        if base == self.base[bit] and slope == self.slope[bit]:
            return False
        self.base[bit], self.slope[bit] = base, slope
        return True

    def put(self, instance: Instance) -> None:
        """Moves a free instance to the bucket of its score."""
        bit = instance.bit
        if self.policy.way is LEAST_CONNECTIONS:
            score = connections(instance)
        else:
            slots = instance.max_concurrency
            score = self.base[bit] + self.slope[bit] * ((slots - instance.inflight - instance.foreign) / slots)
        number = int(score * self._scale)
        if not 0 <= number < BUCKETS:
            number = self.bucket_of(score)
        number += BUCKETS * instance.priority
        before = self._places[bit]
        if number != before:
            one = 1 << bit
            if before >= 0:
                left = self.buckets[before] ^ one
                self.buckets[before] = left
                if not left:
                    self.occupied ^= 1 << before
            joined = self.buckets[number]
            if not joined:
                self.occupied ^= 1 << number
            self.buckets[number] = joined | one
            self._places[bit] = number

    def take_out(self, bit: int) -> None:
        """The instance has no free slot, takes no work, or has left."""
        before = self._places[bit]
        if before >= 0:
            left = self.buckets[before] ^ (1 << bit)
            self.buckets[before] = left
            if not left:
                self.occupied ^= 1 << before
            self._places[bit] = _NOWHERE

    def best(self, mask: int) -> tuple[int, float]:
        """(highest band, best score there) of some free instances, as their bucket says."""
        occupied = self.occupied
        while occupied:
            number = occupied.bit_length() - 1
            if self.buckets[number] & mask:
                return number // BUCKETS, number % BUCKETS / (BUCKETS - 1)
            occupied ^= 1 << number
        return 0, 0.0
