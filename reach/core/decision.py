"""What a decision was made of: cheap to keep with every attempt, told in full only when somebody asks (RTE-12, RTE-13).

A `Verdict` refers to what the choice had in hand anyway: the instances it looked at, their signals as they were folded
in (tuples that are replaced, never changed), and counts. Names and sums are made by `candidates`, when asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reach.core.documents import schema_key
from reach.core.filters import Static
from reach.core.model import Instance, Requirement
from reach.core.policies import OF_THE_TASK, Policy, Way
from reach.core.signals import NEUTRAL_TASK, region
from reach.core.signals import load as load_ratio


def task_signal(name: str, requirement: Requirement, instance: Instance) -> float:
    """A signal that is not the instance's alone: how well it fits what the task says (`region`, `match`)."""
    if name == "region":
        return region(requirement.region, instance.profile.region)
    return match_of(requirement, instance)


def match_of(requirement: Requirement, instance: Instance) -> float:
    """How well the best capability of an instance fits the text of a task; 1 where the task has none."""
    if not requirement.documents:
        return NEUTRAL_TASK["match"]
    percent = dict(requirement.documents)
    keys = [key for one in instance.profile.documents for key in (one.digest, schema_key(one.name, one.schema_id))]
    return max((percent.get(key, 0) for key in keys), default=0) / 100


class Verdict:
    """Which instance was chosen, or why none was, and by what."""

    __slots__ = ("cause", "chosen", "dropped", "known", "loads", "looked", "moved_from", "policy", "revision", "seed",
                 "static")  # fmt: skip

    def __init__(
        self, chosen: Instance | None, cause: str, seed: int, policy: Policy, static: Static,
        revision: int, looked: list[Instance], loads: list[int], known: list[tuple[float, ...]],
        dropped: tuple[tuple[str, int], ...],
    ) -> None:  # fmt: skip
        self.chosen = chosen
        self.cause = cause
        """`score`, `pin`, `ring`, `probe`, `overcommit`; where nobody was chosen `capacity` or `no_match`."""
        self.seed = seed
        self.policy = policy
        self.static = static
        self.revision = revision
        """Of the pool's static attributes."""
        self.looked = looked
        """At most 8."""
        self.loads = loads
        """Slots in use of each of them, before the choice."""
        self.known = known
        """Signals of each of them, in the order of the policy's weights."""
        self.dropped = dropped
        """(reason, how many) beyond the static filters."""
        self.moved_from = ""
        """The instance that had the session before, where the session moved."""


class Candidate(NamedTuple):
    """An instance as a decision tells it; one that is dropped has a reason."""

    instance: Instance
    score: float
    signals: dict[str, float]
    drop_reason: str


def candidates(verdict: Verdict) -> list[Candidate]:
    """The instances that a decision looked at, the chosen one first, then by score."""
    rows = [
        _candidate(verdict, instance, held, "", known)
        for instance, held, known in zip(verdict.looked, verdict.loads, verdict.known, strict=True)
    ]
    rows.sort(key=lambda row: (row.instance is not verdict.chosen, -row.score, row.instance.instance_id))
    return rows


def dropped(verdict: Verdict) -> dict[str, int]:
    """How many were dropped, by reason: those of the static filters first."""
    counts: dict[str, int] = {}
    for reason, number in (*verdict.static.dropped, *verdict.dropped):
        counts[reason] = counts.get(reason, 0) + number
    return counts


def candidate_of(verdict: Verdict, instance: Instance, drop_reason: str, known: tuple[float, ...]) -> Candidate:
    """Any instance as the decision of a task would tell it, with its load now."""
    return _candidate(verdict, instance, instance.inflight + instance.foreign, drop_reason, known)


def _candidate(
    verdict: Verdict, instance: Instance, held: int, drop_reason: str, known: tuple[float, ...]
) -> Candidate:
    slots, policy = instance.max_concurrency, verdict.policy
    signals = told(policy, known, load_ratio(held, slots), of_the_task(verdict, instance))
    return Candidate(instance, score_of(policy, signals, held, slots, instance.weight), signals, drop_reason)


def of_the_task(verdict: Verdict, instance: Instance) -> dict[str, float]:
    """The signals that come from what the task asks for, as far as the policy weighs them."""
    names = OF_THE_TASK.intersection(verdict.policy.weights)
    return {name: task_signal(name, verdict.static.requirement, instance) for name in names}


def told(policy: Policy, known: Iterable[float], load: float, asked: dict[str, float]) -> dict[str, float]:
    """The signals of an instance by name, with those of its load and of the task (`asked`)."""
    signals = {name: value for (name, _), value in zip(policy.read, known, strict=False)}
    for name in policy.weights:
        if name == "capacity":
            signals[name] = 1.0 - load
        elif name == "load":
            signals[name] = load
        elif name in asked:
            signals[name] = asked[name]
    if not signals:
        signals["load"] = load
    return signals


def score_of(policy: Policy, signals: dict[str, float], held: int, slots: int, weight: int) -> float:
    """A score from its signals, from scratch: what the index keeps in parts must come to the same.

    Args:
        policy: What is weighed.
        signals: By name.
        held: Slots in use of the instance.
        slots: All its slots.
        weight: The instance's.
    """
    if policy.way is Way.PRODUCT:
        product = 1.0
        for name in policy.weights:
            product *= signals[name]
        return product
    if policy.way is Way.LEAST_CONNECTIONS:
        return 1.0 / (1.0 + load_ratio(held, slots) * slots / weight)
    return sum(share * signals[name] for name, share in policy.weights.items())
