"""Routing policies as data: weighted sums of signals, and the ways to pick that have no sum (RTE-3).

Every score is `base + slope * capacity` of an instance: what changes with each task (the capacity) is apart from what
changes with its signals, so that a step of load costs one multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import Final

from reach.core import signals
from reach.core.model import Instance

SIGNALS: Final = (
    "availability", "latency", "load", "capacity", "success_rate", "weight", "reach", "match", "region", "underload",
)  # fmt: skip
"""All that a policy may weigh (RTE-2), each 0 … 1."""
OF_THE_TASK: Final = frozenset({"match", "region"})
"""Signals that are not an instance's alone: they come from what the task asks for."""
_NOT_READ: Final = OF_THE_TASK | {"capacity", "load"}
NEAR_TIE = 0.02
MAX_OWN = 64
"""Policies that a configuration may declare."""
FORGOTTEN_MS = 300_000
"""What was seen of an instance that has done nothing for so long says nothing any more (HLT-5)."""
MATCH_AT_LEAST = 0.6
"""Under `content` an agent that matches the text less is no candidate."""


class Way(IntEnum):
    """How a policy makes a choice of what its signals say."""

    SUM = 0
    """The highest weighted sum."""
    PRODUCT = 1
    """The highest product of the named signals."""
    LEAST_CONNECTIONS = 2
    """The fewest slots in use, relative to the weight."""
    ROUND_ROBIN = 3
    """One after the other. From here on there is no score: all are alike but for their band."""
    CONSISTENT_HASH = 4
    """By the task's key on the ring, with bounded load."""
    POWER_OF_TWO = 5
    """The less loaded of two taken at random."""


class Policy:
    """Weights by signal, and how a choice is made of them."""

    __slots__ = ("digest", "flat", "match_at_least", "name", "near_tie", "read", "top", "way", "weights")

    def __init__(
        self,
        name: str,
        weights: Mapping[str, float],
        near_tie: float = NEAR_TIE,
        way: Way = Way.SUM,
        match_at_least: float = 0.0,
    ) -> None:
        self.name = name
        self.weights = dict(weights)
        self.near_tie = near_tie
        """Instances this close to the best are equals, and chance decides among them."""
        self.way = way
        self.match_at_least = match_at_least
        self.top = sum(self.weights.values()) if way is Way.SUM else 1.0
        """The highest score there is."""
        self.read = tuple((name, weight) for name, weight in self.weights.items() if name not in _NOT_READ)
        """(signal, weight) of those that are an instance's own and do not follow from its slots in use."""
        load = self.weights.get("load", 0.0)
        self.flat = (load, self.weights.get("capacity", 0.0) - load)
        """(base, slope) that come from the slots in use: load is 1 - capacity."""
        told = f"{way.name} {sorted(self.weights.items())} {near_tie} {match_at_least}"
        self.digest = blake2b(told.encode(), digest_size=6).hexdigest()
        """Changes with the definition: says whether two decisions were made by the same rule."""

    def __repr__(self) -> str:
        return f"Policy({self.name} {self.way.name} {self.weights})"


BALANCED = Policy("balanced", {"availability": 0.5, "latency": 0.3, "capacity": 0.2})
POLICIES: Final[Mapping[str, Policy]] = {
    policy.name: policy
    for policy in (
        BALANCED,
        Policy("reachability", {"reach": 1.0, "capacity": 1.0}, 0.05, Way.PRODUCT),
        Policy("capability", {"capacity": 0.5, "weight": 0.3, "success_rate": 0.2}),
        Policy("adaptive", {"success_rate": 0.5, "capacity": 0.3, "latency": 0.2, "underload": 0.05}),
        Policy("content", {"match": 0.5, "capacity": 0.3, "success_rate": 0.2}, match_at_least=MATCH_AT_LEAST),
        Policy("round_robin", {}, 0.0, Way.ROUND_ROBIN),
        Policy("least_connections", {}, 0.0, Way.LEAST_CONNECTIONS),
        Policy("consistent_hash", {}, 0.0, Way.CONSISTENT_HASH),
        Policy("power_of_two", {}, 0.0, Way.POWER_OF_TWO),
    )
}
"""The presets."""


def with_threshold(policies: Mapping[str, Policy], least: float) -> dict[str, Policy]:
    """Policies whose candidates need no better match than `least`: who lets texts go to agents that fit them less must
    not have these wait for a better one for ever."""
    return {
        name: Policy(name, one.weights, one.near_tie, one.way, least) if one.match_at_least > least else one
        for name, one in policies.items()
    }


def own_policy(name: str, declared: Mapping[str, float]) -> Policy:
    """A policy of the configuration: weights by signal, and `near_tie` if another than 0.02 is wanted.

    Weights need not sum to 1: they are brought to it, so that scores of all policies are 0 … 1.

    Raises:
        ValueError: With what is wrong, in words.
    """
    if name in POLICIES:
        raise ValueError(f"{name} is a built-in policy: choose another name")
    weights = dict(declared)
    near_tie = _checked("near_tie", weights.pop("near_tie", NEAR_TIE))
    if near_tie > 1:
        raise ValueError(f"near_tie must be 0 to 1, it is {near_tie}")
    for signal, weight in weights.items():
        if signal not in SIGNALS:
            raise ValueError(f"there is no signal {signal!r}; there is {', '.join(SIGNALS)}, and near_tie")
        _checked(signal, weight)
    total = sum(weights.values())
    if total <= 0:
        raise ValueError("its weights sum to 0: at least one must be more")
    if not math.isfinite(total):
        raise ValueError("its weights sum to infinity")
    return Policy(name, {signal: weight / total for signal, weight in weights.items() if weight}, near_tie)


def _checked(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number, it is {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} must be 0 or more, it is {value}")
    return float(value)


class Figures:
    """What of the whole pool bears on the signals of each of its instances."""

    __slots__ = ("baseline_ms", "baselines_ms", "heaviest", "mean_load", "usual_load")

    def __init__(self, baseline_ms: float = 0.0) -> None:
        self.baseline_ms = baseline_ms
        """Median of the mean latencies of its instances; 0 if unknown."""
        self.baselines_ms: dict[str, float] = {}
        """The same by method, where instances differ in what they are good at."""
        self.heaviest = 1
        """The largest weight."""
        self.mean_load = 0.0
        self.usual_load = 0.0


def load_of(instance: Instance) -> float:
    """max(reported, ours) / max_concurrency, at most 1. What was reported beyond ours stays on top of what is ours
    now, so that our own counts count at once (RTE-4)."""
    return signals.load(instance.inflight + instance.foreign, instance.max_concurrency)


def usual_ms(instance: Instance, method: str, now_ms: int) -> float:
    """Usual time of a task of a method (empty: of any) on an instance; 0 if unknown, or too old to say anything."""
    if method:
        return signals.mean_latency(instance.methods, method, now_ms)
    return instance.latency_ms if now_ms - instance.moved_ms <= FORGOTTEN_MS else 0.0


def signal(name: str, instance: Instance, method: str, figures: Figures, now_ms: int) -> float:
    """One signal of an instance for tasks of a method. Unknown is neutral; those of a task are told by the task."""
    if name == "availability":
        expected_from = instance.beats_expected_from_ms
        return signals.availability(instance.beats, instance.heartbeat_ms, expected_from, now_ms)
    if name == "latency":
        baseline = figures.baselines_ms.get(method, figures.baseline_ms) if method else figures.baseline_ms
        return signals.latency(usual_ms(instance, method, now_ms), baseline)
    return _OTHERS[name](instance, method, figures, now_ms)


_OTHERS: Final[Mapping[str, Callable[[Instance, str, Figures, int], float]]] = {
    "load": lambda instance, method, figures, now_ms: load_of(instance),
    "capacity": lambda instance, method, figures, now_ms: 1.0 - load_of(instance),
    "success_rate": lambda instance, method, figures, now_ms: (
        signals.success_rate(instance.methods, method, now_ms)
        if method
        else signals.overall_success(instance.methods, now_ms)
    ),
    "weight": lambda instance, method, figures, now_ms: min(1.0, instance.weight / figures.heaviest),
    "reach": lambda instance, method, figures, now_ms: (
        1.0 if instance.reach_score is None else instance.reach_score / 100
    ),
    "underload": lambda instance, method, figures, now_ms: signals.underload(instance.usual_load, figures.usual_load),
}


def parts(
    policy: Policy, instance: Instance, method: str, figures: Figures, now_ms: int
) -> tuple[float, float, tuple[float, ...]]:
    """(base, slope, the signals that were read, in the order of `Policy.read`): the score is base + slope * capacity.

    Signals of the task are left out: the choice adds them.
    """
    base, slope = policy.flat
    known: list[float] = []
    if policy.way is Way.PRODUCT:
        slope = 1.0
        for name, _ in policy.read:
            value = signal(name, instance, method, figures, now_ms)
            known.append(value)
            slope *= value
        return 0.0, slope, tuple(known)
    for name, weight in policy.read:
        if name == "availability":  # these two are in nearly every policy, so they are read without a call more
            expected_from = instance.beats_expected_from_ms
            value = signals.availability(instance.beats, instance.heartbeat_ms, expected_from, now_ms)
        elif name == "latency" and not method:
            mean, baseline = instance.latency_ms, figures.baseline_ms
            known_still = mean > 0 < baseline and now_ms - instance.moved_ms <= FORGOTTEN_MS
            value = baseline / (baseline + mean) if known_still else 0.5
        else:
            value = signal(name, instance, method, figures, now_ms)
        known.append(value)
        base += weight * value
    return base, slope, tuple(known)


def connections(instance: Instance) -> float:
    """The rank of `least_connections`: 1 for none, towards 0 the more slots are in use for its weight."""
    return 1.0 / (1.0 + (instance.inflight + instance.foreign) / instance.weight)
