"""Level 2: which instance of a pool takes a task (RTE-1).

Instances are bits of big integers: static filters are bitmaps per attribute (core/filters.py), scores are bitmaps per
bucket (core/score_index.py), so a decision is a few ANDs whatever the size of the pool. Blocked and full instances are
in no bucket. Of the best buckets at most 8 candidates are scored exactly, and chance, from a seed, decides among
near-equals. Order: static filters, health (who is blocked), region, free session slots, canary share, free capacity,
score; then overcommit.
"""

from __future__ import annotations

from collections.abc import Callable

from reach.core.chance import mix
from reach.core.decision import Verdict
from reach.core.filters import Static
from reach.core.model import Instance, Requirement
from reach.core.picking import LOOKED_AT, power_of_two, round_robin, sample
from reach.core.policies import OF_THE_TASK, Policy, Way, parts
from reach.core.roster import Lane, Roster
from reach.core.score_index import BUCKETS, ScoreIndex
from reach.core.signals import NEUTRAL_TASK

Propose = Callable[[Callable[[Instance], bool | int]], Instance | None]
"""What a ring proposes: the first instance on the walk that is allowed."""


Dropped = tuple[tuple[str, int], ...]
"""(reason, how many)"""
Choice = tuple[Instance | None, list[Instance], str]
"""(the chosen one, those that were looked at with it first, cause)"""

TRIES = 4
"""Samples that are taken for a task that takes several slots, until one has an instance in which it fits."""
MAX_GROUPS = 8
"""Capability documents that a task's text is told apart by, the best first; the others count as one."""

_OUT, _FREE, _OVER, _FULL = (int(lane) for lane in Lane)


class Router(Roster):
    """Decides for one pool."""

    __slots__ = ()

    def static_mask(self, requirement: Requirement) -> int:
        """The instances that could ever take a task with this requirement."""
        return self.filters.static(requirement).mask

    def policy_of(self, name: str) -> Policy:
        """The policy that a task names, else the pool's. One that is no longer declared is the pool's too."""
        return self.policies.get(name, self.policy) if name else self.policy

    def pick(
        self,
        requirement: Requirement,
        excluded: tuple[str, ...] = (),
        cost: int = 1,
        seed: int = 0,
        policy: Policy | None = None,
        *,
        new_session: bool = False,
        may_probe: bool = False,
        propose: Propose | None = None,
        version: str = "",
    ) -> Verdict:
        """Chooses an instance with a free slot, or, if no candidate has one, one that may be overfilled.

        Args:
            requirement: What it must have.
            excluded: Instances that failed this task: avoided while another admitted one exists.
            cost: Slots the task takes.
            seed: Decides among near-equals, and who is of the canary's share.
            policy: How to choose; None: the pool's.
            new_session: It needs a session slot too.
            may_probe: It may show whether an open circuit can be closed.
            propose: The ring, for a session or a policy that goes by it.
            version: The version that the session began with: preferred, and no canary's business.
        """
        self.decisions += 1
        policy = policy or self.policy
        static = self.filters.static(requirement)
        eligible, then = static.mask, 0
        dropped: Dropped = ()
        if excluded or requirement.region:
            eligible, dropped = self.prefer(eligible, excluded, requirement.region, policy)
        if self.probing and may_probe:
            probe = self._probe(eligible, cost)
            if probe is not None:
                return self.verdict(probe, "probe", seed, policy, static, [probe], dropped)
        free = self._masks[_FREE]
        if eligible & free != eligible:
            dropped += self._not_free(eligible)
        if (
            self.canary.trials
            or (new_session and self.sessions_full)
            or (policy.match_at_least and requirement.documents)
        ):
            eligible, then, dropped = self.narrow(eligible, dropped, new_session, seed, policy, requirement, version)
        for mask in (eligible & free, then & free) if then else (eligible & free,):
            if mask:
                chosen, looked, cause = self._choose(policy, requirement, mask, cost, seed, propose)
                if chosen is not None:
                    return self.verdict(chosen, cause, seed, policy, static, looked, dropped)
        found = (self._masks[_OVER] | free) & (eligible | then)
        chosen, looked = self._least_loaded(found, cost, seed) if found else (None, [])
        if chosen is not None:
            return self.verdict(chosen, "overcommit", seed, policy, static, looked, dropped)
        cause = "no_match" if not static.mask else dropped[-1][0] if dropped and not eligible | then else "capacity"
        return self.verdict(None, cause, seed, policy, static, [], dropped)

    def undisturbed(self, decide: Callable[[], Verdict]) -> Verdict:
        """A decision that leaves no trace: whose turn it is stays as it was."""
        turns, decisions = dict(self._turns), self.decisions
        try:
            return decide()
        finally:
            self._turns, self.decisions = turns, decisions

    def verdict(
        self, chosen: Instance | None, cause: str, seed: int, policy: Policy, static: Static, looked: list[Instance],
        dropped: Dropped = (),
    ) -> Verdict:  # fmt: skip
        """A decision, with what it saw."""
        return Verdict(
            chosen, cause, seed, policy, static, self.filters.revision, tuple(looked),
            tuple([one.inflight + one.foreign for one in looked]), self.known(policy, looked), dropped,
        )  # fmt: skip

    def known(self, policy: Policy, looked: list[Instance]) -> tuple[tuple[float, ...], ...]:
        """The signals of some instances, in the order of the policy's weights, as they were last folded in."""
        if policy is self.policy:
            known = self.main.known
        else:
            index = self._indexes.get((policy.name, ""))
            if index is None or index.unscored:
                return tuple([parts(policy, one, "", self.figures, self.now_ms)[2] for one in looked])
            known = index.known
        return tuple([known[one.bit] for one in looked])

    # -- preferences and counts ---------------------------------------------------------------------------------------

    def prefer(self, eligible: int, excluded: tuple[str, ...], region: str, policy: Policy) -> tuple[int, Dropped]:
        """Avoids those that failed the task, and other regions, while there is somebody else."""
        dropped: Dropped = ()
        if region and "region" not in policy.weights:
            near = eligible & self.filters.having("region", region)
            if near & self._masks[_FREE]:
                dropped = (("region", (eligible & ~near).bit_count()),) if eligible != near else ()
                eligible = near
        if excluded:
            others = eligible ^ (eligible & self.filters.named(excluded))
            if others != eligible and others & self.admitted():
                dropped += (("failed_before", (eligible & ~others).bit_count()),)
                eligible = others
        return eligible, dropped

    def _not_free(self, eligible: int) -> Dropped:
        """How many take no work now, by what blocks them, and how many have no free slot."""
        dropped: list[tuple[str, int]] = []
        for reason, mask in self._blocked.items():
            count = (eligible & mask).bit_count()
            if count:
                dropped.append((reason, count))
        count = (eligible & (self._masks[_OVER] | self._masks[_FULL])).bit_count()
        if count:
            dropped.append(("capacity", count))
        return tuple(dropped)

    def narrow(
        self,
        eligible: int,
        dropped: Dropped,
        new_session: bool,
        seed: int,
        policy: Policy,
        requirement: Requirement,
        version: str,
    ) -> tuple[int, int, Dropped]:
        """(who may take it, who else if none of these has room, drop counts): session slots, match, canary share."""
        free = self._masks[_FREE]
        if new_session and self.sessions_full:
            if gone := (eligible & free & self.sessions_full).bit_count():
                dropped += (("session_slots", gone),)
            eligible ^= eligible & self.sessions_full
        if policy.match_at_least and requirement.documents:
            good = 0
            for key, percent in requirement.documents:
                if percent >= policy.match_at_least * 100:
                    good |= self.filters.having("document", key)
            if gone := (eligible & free & ~good).bit_count():
                dropped += (("match", gone),)
            eligible &= good
        then = 0
        if self.canary.trials:
            before = eligible
            same = eligible & self.filters.having("version", version) & self.admitted() if version else 0
            eligible, then = (same, 0) if same else self.canary.split(eligible, self.admitted(), seed)
            if gone := (before & free & ~(eligible | then)).bit_count():
                dropped += (("canary", gone),)
        return eligible, then, dropped

    def _probe(self, eligible: int, cost: int) -> Instance | None:
        """An instance whose open circuit may be tried with this task."""
        due = eligible & self.probing
        while due:
            low = due & -due
            due ^= low
            instance = self.instances[low.bit_length() - 1]
            if instance is not None and instance.blocked_by == "circuit_open" and _fits(instance, cost):
                return instance
        return None

    # -- choosing among free instances --------------------------------------------------------------------------------

    def _choose(
        self, policy: Policy, requirement: Requirement, mask: int, cost: int, seed: int, propose: Propose | None
    ) -> Choice:
        if propose is not None:
            chosen = self._proposed(mask, cost, propose)
            if chosen is not None:
                return chosen, [chosen], "ring"
        method = requirement.method if self.judges_methods else ""
        if policy is self.policy and not method:
            index: ScoreIndex | None = self.main
        else:
            index = self.index_for(policy, method)
        if index is None:
            return self._on_sight(policy, method, mask, cost, seed)
        if (requirement.region or requirement.documents) and not OF_THE_TASK.isdisjoint(policy.weights):
            return self._by_group(index, mask, cost, seed, requirement)
        return self._best_of(index, mask, cost, seed)

    def _proposed(self, mask: int, cost: int, propose: Propose) -> Instance | None:
        """What the ring proposes, in the highest band that has somebody."""
        for band in sorted(self.bands, reverse=True):
            members = mask & self.bands[band] if len(self.bands) > 1 else mask
            if members:
                chosen = propose(lambda one, members=members: members >> one.bit & 1 and _fits(one, cost))  # type: ignore[misc]
                if chosen is not None:
                    return chosen
        return None

    def _best_of(self, index: ScoreIndex, mask: int, cost: int, seed: int) -> Choice:
        """The best of some free instances: from the top bucket down, until the task fits in one."""
        policy, buckets = index.policy, index.buckets
        occupied = index.occupied
        while occupied:
            number = occupied.bit_length() - 1
            occupied ^= 1 << number
            found = buckets[number] & mask
            if not found:
                continue
            if policy.way >= Way.ROUND_ROBIN:
                looked = self._in_turn(policy, found, cost, seed)
            else:
                if policy.near_tie:
                    least = max(number - index.width(policy.near_tie), number - number % BUCKETS)
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

    def _in_turn(self, policy: Policy, found: int, cost: int, seed: int) -> list[Instance]:
        """The choice of a policy without a score, first; all are alike but for their band."""
        fits = lambda one: _fits(one, cost)  # noqa: E731
        if policy.way is Way.ROUND_ROBIN:
            looked = round_robin(self.instances, found, self._turns.get(policy.name, -1), fits)
            if looked:
                self._turns[policy.name] = looked[0].bit
            return looked
        if policy.way is Way.POWER_OF_TWO:
            return power_of_two(self.instances, found, seed, fits)
        looked = self._sampled(found, cost, seed)
        return looked[mix(seed, LOOKED_AT) % len(looked) :][:1] if looked else []

    def _sampled(self, found: int, cost: int, seed: int) -> list[Instance]:
        """At most 8 of some free instances in which the task fits."""
        instances = self.instances
        for draw in range(TRIES):
            positions = sample(found, seed + draw)
            looked = [one for position in positions if (one := instances[position]) is not None]
            if cost > 1:
                looked = [one for one in looked if _fits(one, cost)]
                for position in positions:
                    found ^= 1 << position
            if looked or not found:
                return looked
        return []

    def _near_equals(self, index: ScoreIndex, found: int, cost: int, seed: int) -> list[Instance]:
        """Candidates of which the first is the choice: one of the near-equals of the best, by chance."""
        looked = self._sampled(found, cost, seed)
        if len(looked) > 1:
            scores = [index.score(one) for one in looked]
            _choose_near_equal(looked, scores, index.policy.near_tie, seed)
        return looked

    def _by_group(self, index: ScoreIndex, mask: int, cost: int, seed: int, requirement: Requirement) -> Choice:
        """As `_best_of`, where the task itself says how good some instances are for it: the best of each group of
        instances that are equally good, then the best of these."""
        looked: list[Instance] = []
        scores: list[float] = []
        for members, added in self._groups(index.policy, mask, requirement):
            best = self._best_of(index, members, cost, seed)[0]
            if best is not None:
                looked.append(best)
                scores.append(index.score(best) + added)
        if not looked:
            return None, [], ""
        _choose_near_equal(looked, scores, index.policy.near_tie, seed)
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
        _choose_near_equal(looked, scores, policy.near_tie, seed)
        return looked[0], looked, "score"

    def _least_loaded(self, found: int, cost: int, seed: int) -> tuple[Instance | None, list[Instance]]:
        best: Instance | None = None
        looked: list[Instance] = []
        for position in sample(found, seed):
            instance = self.instances[position]
            if instance is None:
                continue
            looked.append(instance)
            if instance.inflight + instance.foreign + cost > int(instance.max_concurrency * self.overcommit):
                continue
            if best is None or instance.inflight * best.max_concurrency < best.inflight * instance.max_concurrency:
                best = instance
        return best, looked

    # -- single instances ---------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether any instance could take anything."""
        return bool(self._masks[_FREE] or self._masks[_OVER] or self.probing)

    def matches(self, instance: Instance, requirement: Requirement) -> bool:
        """Whether this very instance could ever take a task with this requirement."""
        return bool(self.static_mask(requirement) >> instance.bit & 1)

    def fits(self, instance: Instance, requirement: Requirement, cost: int) -> bool:
        """Whether this very instance may take a task now (for pins)."""
        if instance.blocked_by or not self.matches(instance, requirement):
            return False
        held = instance.inflight + instance.foreign
        return held + cost <= max(int(instance.max_concurrency * self.overcommit), cost)

    def free_count(self, requirement: Requirement) -> int:
        """How many instances with a free slot could take a task with this requirement."""
        return (self.static_mask(requirement) & self._masks[_FREE]).bit_count()


def _fits(instance: Instance, cost: int) -> bool:
    """Whether a task fits in what is free of an instance; one larger than the whole instance needs it empty."""
    held = instance.inflight + instance.foreign
    return held + cost <= instance.max_concurrency or not held


def _choose_near_equal(looked: list[Instance], scores: list[float], near_tie: float, seed: int) -> None:
    """Moves one of those that are as good as the best to the front."""
    least = max(scores) - near_tie
    equals = [number for number, score in enumerate(scores) if score >= least]
    chosen = equals[mix(seed, LOOKED_AT) % len(equals)]
    looked[0], looked[chosen] = looked[chosen], looked[0]
