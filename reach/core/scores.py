"""The scores of a pool's instances, kept up to date: only what changed is scored anew (RTE-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core.effects import Turn
from reach.core.model import Instance
from reach.core.policies import base_score

if TYPE_CHECKING:
    from reach.core.pool import Pool

REFRESH_MS = 200
"""Signals other than the load are folded in at most this late (RTE-4)."""
BASELINE_MOVES = 0.05
"""By how much the baseline must differ from the one in use for all scores to be made anew."""


class Scores:
    """What routing compares."""

    __slots__ = ("_changed", "_refreshed_ms", "baseline_ms", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._changed: dict[str, Instance] = {}
        self._refreshed_ms = 0
        self.baseline_ms = 0.0
        """Median of the mean latencies of the pool."""

    def changed(self, instance: Instance) -> None:
        """A signal of the instance changed; its score follows at the next refresh."""
        if instance.bit >= 0:
            self._changed[instance.instance_id] = instance

    def forget(self, instance: Instance) -> None:
        """The instance has left."""
        self._changed.pop(instance.instance_id, None)

    def refresh(self, turn: Turn) -> None:
        """Folds changed signals into the scores, at most every 200 ms."""
        if not self._changed or turn.now_ms < self._refreshed_ms + REFRESH_MS:
            return
        self._refreshed_ms = turn.now_ms
        pool = self.pool
        known = sorted(one.latency_ms for one in pool.instances.values() if one.latency_ms > 0)
        baseline = known[len(known) // 2] if known else 0.0
        moved = abs(baseline - self.baseline_ms) > BASELINE_MOVES * self.baseline_ms
        if moved:
            self.baseline_ms = baseline
        for instance in pool.instances.values() if moved else self._changed.values():
            self.score(instance, turn)
        self._changed.clear()

    def score(self, instance: Instance, turn: Turn) -> None:
        """Scores an instance now."""
        self.pool.vitals.rescore(instance, turn.now_ms)
        instance.base = base_score(self.pool.router.policy, instance, self.baseline_ms, turn.now_ms)
        self.pool.router.place(instance)
