"""Choosing among the free instances of a pool, by whatever policy (RTE-3, RTE-4).

From the top bucket of the highest band down; of the near-equals at most 8 are looked at one by one, and chance, from a
seed, decides among them.
"""

from __future__ import annotations

from collections.abc import Callable

from reach.core.at_hand import ROUND_ROBIN
from reach.core.chance import mix
from reach.core.model import Instance, Requirement
from reach.core.picking import LOOKED_AT, power_of_two, round_robin, sample
from reach.core.policies import OF_THE_TASK, Policy, Way, parts
from reach.core.roster import Roster
from reach.core.score_index import BUCKETS, ScoreIndex
from reach.core.signals import NEUTRAL_TASK

Propose = Callable[[Callable[[Instance], bool | int]], Instance | None]
"""What a ring proposes: the first instance on the walk that is allowed."""


Choice = tuple[Instance | None, list[Instance], str]
"""(the chosen one, those that were looked at with it first, cause)"""

TURNS = 1_000
"""Kinds of tasks whose turns are remembered."""
TRIES = 4
"""Samples that are taken for a task that takes several slots, until one has an instance in which it fits."""
MAX_GROUPS = 8
"""Capability documents that a task's text is told apart by, the best first; the others count as one."""


class Choosing(Roster):
    """What chooses, on top of who is there."""

    __slots__ = ()

    def choose(
        self, policy: Policy, requirement: Requirement, mask: int, cost: int, seed: int, propose: Propose | None
    ) -> Choice:
        """One of some free instances, by a policy; the ring goes first where there is one.

        Args:
            policy: How to choose.
            requirement: What the task asks for.
            mask: Those of whom one may be chosen; each has a free slot.
            cost: Slots the task takes.
            seed: Decides among near-equals.
            propose: The ring, for a session or a policy that goes by it.
        """
        if propose is not None:
            chosen = self._proposed(mask, cost, propose)
            if chosen is not None:
                return chosen, [chosen], "ring"
        elif not mask & (mask - 1):  # nothing to choose
            alone = self.instances[mask.bit_length() - 1]
            return (alone, [alone], "score") if alone is not None and fits_in(alone, cost) else (None, [], "")
        method = requirement.method if self.judges_methods else ""
        if policy is self.policy and not method:
            index: ScoreIndex | None = self.main
        else:
            index = self.index_for(policy, method)
        if index is None:
            return self._on_sight(policy, method, mask, cost, seed)
        if (requirement.region or requirement.documents) and not OF_THE_TASK.isdisjoint(policy.weights):
            return self._by_group(index, mask, cost, seed, requirement)
        return self._best_of(index, mask, cost, seed, requirement)

    def _proposed(self, mask: int, cost: int, propose: Propose) -> Instance | None:
        """What the ring proposes, in the highest band that has somebody."""
        for band in sorted(self.bands, reverse=True):
            members = mask & self.bands[band] if len(self.bands) > 1 else mask
            if members:
                chosen = propose(lambda one, members=members: members >> one.bit & 1 and fits_in(one, cost))  # type: ignore[misc]
                if chosen is not None:
                    return chosen
        return None

    def _best_of(self, index: ScoreIndex, mask: int, cost: int, seed: int, requirement: Requirement) -> Choice:
        """The best of some free instances: from the top bucket down, until the task fits in one."""
        policy, buckets = index.policy, index.buckets
        occupied = index.occupied
        while occupied:
            number = occupied.bit_length() - 1
            occupied ^= 1 << number
            found = buckets[number] & mask
            if not found:
                continue
            if policy.way >= ROUND_ROBIN:
                looked = self._in_turn(policy, found, cost, seed, requirement)
            else:
                if index.tie_width:
                    least = max(number - index.tie_width, number - number % BUCKETS)
                    near, lower = occupied >> least, 0
                    while near:
                        low = near & -near
                        lower |= buckets[least + low.bit_length() - 1]
                        near ^= low
                    if lower:
                        found |= lower & mask
                looked = self._near_equals(index, found, cost, seed)
            if looked:
                return looked[0], looked, "score"
        return None, [], ""

    def _in_turn(self, policy: Policy, found: int, cost: int, seed: int, requirement: Requirement) -> list[Instance]:
        """The choice of a policy without a score, first; all are alike but for their band."""
        fits = lambda one: fits_in(one, cost)  # noqa: E731
        if policy.way is Way.ROUND_ROBIN:
            turn = (policy.name, requirement)  # each kind of task has turns of its own: others would skew them
            looked = round_robin(self.instances, found, self._turns.get(turn, -1), fits)
            if looked:
                if len(self._turns) >= TURNS:
                    self._turns.clear()
                self._turns[turn] = looked[0].bit
            return looked
        if policy.way is Way.POWER_OF_TWO:
            return power_of_two(self.instances, found, seed, fits)
        looked = self._sampled(found, cost, seed)
        return looked[mix(seed, LOOKED_AT) % len(looked) :][:1] if looked else []

    def _sampled(self, found: int, cost: int, seed: int) -> list[Instance]:
        """At most 8 of some free instances in which the task fits."""
        instances = self.instances
        for draw in range(TRIES):
            positions = sample(found, mix(seed, draw))
            looked = [one for position in positions if (one := instances[position]) is not None and fits_in(one, cost)]
            for position in positions:
                found ^= 1 << position
            if looked or not found:
                return looked
        return []

    def _near_equals(self, index: ScoreIndex, found: int, cost: int, seed: int) -> list[Instance]:
        """Candidates of which the first is the choice: one of the near-equals of the best, by chance."""
        draw = mix(seed, 0)
        looked: list[Instance]
        if cost > 1:
            looked = self._sampled(found, cost, seed)
        else:  # the hot path: whoever has a free slot has room for it
            instances = self.instances
            looked = [instances[position] for position in sample(found, draw)]  # type: ignore[misc]
        if len(looked) > 1:
            if index.exact:
                scores = [index.score(one) for one in looked]
                _choose_near_equal(looked, scores, index.policy.near_tie, draw >> 40)
            else:
                chosen = (draw >> 40) % len(looked)
                looked[0], looked[chosen] = looked[chosen], looked[0]
        return looked

    def _by_group(self, index: ScoreIndex, mask: int, cost: int, seed: int, requirement: Requirement) -> Choice:
        """As `_best_of`, where the task itself says how good some instances are for it: the best of each group of
        instances that are equally good, then the best of these."""
        looked: list[Instance] = []
        scores: list[float] = []
        for members, added in self._groups(index.policy, mask, requirement):
            best = self._best_of(index, members, cost, seed, requirement)[0]
            if best is not None:
                looked.append(best)
                scores.append(index.score(best) + added)
        if not looked:
            return None, [], ""
        _choose_near_equal(looked, scores, index.policy.near_tie, mix(seed, LOOKED_AT))
        return looked[0], looked[:LOOKED_AT], "score"

    def _groups(self, policy: Policy, mask: int, requirement: Requirement) -> list[tuple[int, float]]:
        """(members, what the task adds to their score)"""
        weights, filters = policy.weights, self.filters
        groups = [(mask, 0.0)]
        if (weight := weights.get("match", 0.0)) and requirement.documents:
            groups, others = [], mask
            for key, percent in sorted(requirement.documents, key=lambda one: -one[1])[:MAX_GROUPS]:
                members = others & filters.having("document", key)  # each counts with the best that it declares
                groups.append((members, weight * percent / 100))
                others ^= members
            groups.append((others, 0.0))
        if (weight := weights.get("region", 0.0)) and requirement.region:
            near, none = filters.having("region", requirement.region), filters.having("region", "")
            apart = ((near, 1.0), (none, NEUTRAL_TASK["region"]), (~(near | none), 0.0))
            groups = [(members & part, added + weight * value) for members, added in groups for part, value in apart]
        return [group for group in groups if group[0]]

    def _on_sight(self, policy: Policy, method: str, mask: int, cost: int, seed: int) -> Choice:
        """The best of 8 at random: while there is no index for the policy."""
        looked = self._sampled(mask, cost, seed)
        scores = []
        for one in looked:
            base, slope, _ = parts(policy, one, method, self.figures, self.now_ms)
            scores.append(base + slope * max(0.0, 1 - (one.inflight + one.foreign) / one.max_concurrency))
        if not looked:
            return None, [], ""
        _choose_near_equal(looked, scores, policy.near_tie, mix(seed, LOOKED_AT))
        return looked[0], looked, "score"

    def least_loaded(self, found: int, cost: int, seed: int) -> tuple[Instance | None, list[Instance]]:
        best: Instance | None = None
        looked: list[Instance] = []
        for position in sample(found, mix(seed, 0)):
            instance = self.instances[position]
            if instance is None:
                continue
            looked.append(instance)
            if instance.inflight + instance.foreign + cost > int(instance.max_concurrency * self.overcommit):
                continue
            if best is None or instance.inflight * best.max_concurrency < best.inflight * instance.max_concurrency:
                best = instance
        return best, looked


def fits_in(instance: Instance, cost: int) -> bool:
    """Whether a task fits in what is free of an instance; one larger than the whole instance needs it empty."""
    held = instance.inflight + instance.foreign
    return held + cost <= instance.max_concurrency or not held


def _choose_near_equal(looked: list[Instance], scores: list[float], near_tie: float, draw: int) -> None:
    """Moves one of those that are as good as the best to the front."""
    least = max(scores) - near_tie
    equals = [number for number, score in enumerate(scores) if score >= least]
    chosen = equals[draw % len(equals)]
    looked[0], looked[chosen] = looked[chosen], looked[0]
