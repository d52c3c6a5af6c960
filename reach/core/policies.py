"""Routing policies: weighted sums of signals, as data (RTE-3)."""

from __future__ import annotations

from reach.core import signals
from reach.core.model import Instance


class Policy:
    """Weights by signal. A score is their sum, 0 … 1."""

    __slots__ = ("name", "near_tie", "weights")

    def __init__(self, name: str, weights: dict[str, float], near_tie: float = 0.02) -> None:
        self.name = name
        self.weights = weights
        self.near_tie = near_tie
        """Instances this close to the best are equals, and chance decides among them."""


BALANCED = Policy("balanced", {"availability": 0.5, "latency": 0.3, "capacity": 0.2})
POLICIES = {policy.name: policy for policy in (BALANCED,)}


def signals_of(instance: Instance, baseline_ms: float, now_ms: int) -> dict[str, float]:
    """All signals of an instance that policies may use."""
    return {
        "availability": signals.availability(
            instance.beats, instance.heartbeat_ms, instance.beats_expected_from_ms, now_ms
        ),
        "latency": signals.latency(instance.latency_ms, baseline_ms),
        "capacity": 1.0 - signals.load(instance.inflight, instance.max_concurrency),
    }


def base_score(policy: Policy, instance: Instance, baseline_ms: float, now_ms: int) -> float:
    """The part of a score that does not change with the load."""
    known = signals_of(instance, baseline_ms, now_ms)
    return sum(weight * known[name] for name, weight in policy.weights.items() if name != "capacity")


def score(policy: Policy, instance: Instance) -> float:
    """The score now: the cached base and the exact load."""
    free = instance.max_concurrency - instance.inflight
    capacity = free / instance.max_concurrency if free > 0 else 0.0
    return instance.base + policy.weights.get("capacity", 0.0) * capacity
