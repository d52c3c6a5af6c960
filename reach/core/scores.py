"""The scores of a pool's instances, kept up to date: only what changed is scored anew (RTE-4).

Whatever happens, a refresh scores a bounded number of instances; the rest follows at the next one. So a baseline that
moves in a pool of 100,000 costs a little for a few seconds, not half a second at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from reach.core.effects import Turn
from reach.core.model import Instance
from reach.core.policies import Way, load_of, usual_ms
from reach.core.signals import usual_load

if TYPE_CHECKING:
    from reach.core.pool import Pool

REFRESH_MS = 200
"""Signals other than the load are folded in at most this late (RTE-4)."""
SCORED_AT_MOST = 4_000
"""Instances that one refresh scores, over all policies in use: 10 to 15 ms; so many beat in 200 ms in a pool of
100,000."""
AT_LEISURE = 2_000
"""Up to so many are scored only because a figure of the whole pool moved. Where more than that change by themselves,
their own beats bring them up to date."""
BASELINE_MOVES = 0.05
"""By how much the baseline must differ from the one in use for all scores to be made anew."""
MEDIAN_OF = 501
"""Instances whose latencies the median is taken of, spread evenly; all of them in pools up to this."""
LOOK_MS_EACH = 2
"""The figures of the pool are looked at so seldom, in ms for each instance that is asked for them, that it costs a
fraction of a percent of a core: every 200 ms in a pool of 100, once a second in one of 500 or more."""
MAX_METHODS = 16
"""Methods of a pool that have a baseline of their own."""


class Scores:
    """What routing compares."""

    __slots__ = (
        "_changed",
        "_look_ms",
        "_outdated",
        "_refreshed_ms",
        "_some",
        "_some_at",
        "_weights_moved",
        "follows_load",
        "pool",
    )

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._changed: dict[str, Instance] = {}
        self._outdated: list[Instance] = []
        """Those that are yet to be scored because a figure of the pool moved."""
        self._some: list[Instance] = []
        """Those whose latencies the median is taken of; made anew when anybody comes or goes."""
        self._some_at = -1
        self._refreshed_ms = 0
        self._look_ms = 0
        """When the figures of the pool are looked at next."""
        self._weights_moved = False
        self.follows_load = False
        """A policy in use weighs how the load compares with the pool's."""

    @property
    def baseline_ms(self) -> float:
        """Median of the mean latencies of the pool."""
        return self.pool.router.figures.baseline_ms

    def changed(self, instance: Instance) -> None:
        """A signal of the instance changed; its score follows at the next refresh."""
        if instance.bit >= 0:
            self._changed[instance.instance_id] = instance

    def forget(self, instance: Instance) -> None:
        """The instance has left."""
        self._changed.pop(instance.instance_id, None)
        self._weights_moved = True

    def refresh(self, turn: Turn) -> None:
        """Folds changed signals into the scores, at most every 200 ms."""
        router = self.pool.router
        router.now_ms = turn.now_ms
        if turn.now_ms < self._refreshed_ms + REFRESH_MS or not (self._changed or self._outdated or router.unscored()):
            return
        self._refreshed_ms = turn.now_ms
        indexes = router.indexes()
        self.follows_load = any(
            "underload" in index.policy.weights or index.policy.way is Way.CONSISTENT_HASH for index in indexes
        )
        by_reach = any("reach" in index.policy.weights for index in indexes)
        if turn.now_ms >= self._look_ms and self._pool_moved():
            self._outdated = list(self.pool.instances.values())
        left = SCORED_AT_MOST // len(indexes)
        if len(self._changed) <= left:
            changed, self._changed = list(self._changed.values()), {}
        else:
            changed = [self._changed.pop(name) for name in list(islice(self._changed, left))]
        while self._outdated and len(changed) < AT_LEISURE // len(indexes):
            changed.append(self._outdated.pop())
        for instance in changed:
            if instance.bit < 0:
                continue
            if self.follows_load:
                self._compare_load(instance, turn.now_ms)
            if by_reach:
                self.pool.vitals.rescore(instance, turn.now_ms)
            router.rescore(instance)
        router.score_more(left - len(changed))

    def score(self, instance: Instance, turn: Turn) -> None:
        """Scores an instance now: it has registered."""
        router = self.pool.router
        router.now_ms = turn.now_ms
        if instance.weight > router.figures.heaviest:
            router.figures.heaviest = instance.weight
        self._weights_moved = True
        self.changed(instance)
        self.pool.vitals.rescore(instance, turn.now_ms)
        router.rescore(instance)

    # -- what is of the pool ------------------------------------------------------------------------------------------

    def _pool_moved(self) -> bool:
        """Whether a figure of the pool moved so far that all scores are to be made anew."""
        router, instances = self.pool.router, self.pool.instances
        figures, moved = router.figures, False
        if self._some_at != router.revision:
            self._some_at = router.revision
            self._some = list(instances.values())[:: max(1, len(instances) // MEDIAN_OF)]
        some = self._some
        self._look_ms = router.now_ms + max(REFRESH_MS, LOOK_MS_EACH * len(some))
        methods = self._methods(some)
        router.judges_methods = len(methods) > 1
        for method in ("", *methods) if router.judges_methods else ("",):
            baseline = _median([usual_ms(one, method, router.now_ms) for one in some])
            before = figures.baselines_ms.get(method, 0.0) if method else figures.baseline_ms
            if abs(baseline - before) > BASELINE_MOVES * before:
                moved = True
                if method:
                    figures.baselines_ms[method] = baseline
                else:
                    figures.baseline_ms = baseline
        if self._weights_moved:
            self._weights_moved = False
            heaviest = max((one.weight for one in instances.values()), default=1)
            moved = moved or heaviest != figures.heaviest
            figures.heaviest = heaviest
        if self.follows_load:
            slots = sum(one.max_concurrency for one in some)
            figures.mean_load = sum(one.inflight + one.foreign for one in some) / slots if slots else 0.0
            figures.usual_load = sum(one.usual_load * one.max_concurrency for one in some) / slots if slots else 0.0
        return moved

    def _methods(self, some: list[Instance]) -> list[str]:
        """Methods that instances have figures of."""
        found: dict[str, None] = {}
        for instance in some:
            for method in instance.methods:
                found[method] = None
                if len(found) == MAX_METHODS:
                    return list(found)
        return list(found)

    def _compare_load(self, instance: Instance, now_ms: int) -> None:
        """Keeps what the load of an instance usually is."""
        if not instance.load_seen_ms:
            instance.usual_load = self.pool.router.figures.usual_load  # nobody has been idle before it was looked at
        else:
            elapsed = now_ms - instance.load_seen_ms
            instance.usual_load = usual_load(instance.usual_load, load_of(instance), elapsed)
        instance.load_seen_ms = now_ms


def _median(values: list[float]) -> float:
    known = sorted(value for value in values if value > 0)
    return known[len(known) // 2] if known else 0.0
