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
from reach.core.choosing import Choosing, Propose, fits_in
from reach.core.decision import Verdict
from reach.core.filters import Static
from reach.core.model import Instance, Requirement
from reach.core.picking import sample
from reach.core.policies import Policy, parts
from reach.core.roster import Lane
from reach.core.warmup import STEPS

Dropped = tuple[tuple[str, int], ...]
"""(reason, how many)"""

_OUT, _FREE, _OVER, _FULL = (int(lane) for lane in Lane)


class Router(Choosing):
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
        avoided: tuple[str, ...] = (),
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
            avoided: Instances that failed this task: not taken while another admitted one exists.
            cost: Slots the task takes.
            seed: Decides among near-equals, and who is of the canary's share.
            policy: How to choose; None: the pool's.
            new_session: It needs a session slot too.
            may_probe: It may show whether an open circuit can be closed.
            propose: The ring, for a session or a policy that goes by it.
            version: The version that the session began with: preferred, and no canary's business.
        """
        self.decisions += 1
        if self._freed:
            self.place_freed()
        policy = policy or self.policy
        static = self.filters.static(requirement)
        eligible, then = static.mask, 0
        dropped: Dropped = ()
        if avoided or requirement.region:
            eligible, dropped = self.prefer(eligible, avoided, requirement.region, policy)
        if self.probing and may_probe:
            probe = self._probe(eligible, cost)
            if probe is not None:
                return self.verdict(probe, "probe", seed, policy, static, [probe], dropped)
        if static.lanes != self.lanes:
            static.lanes, static.free = self.lanes, static.mask & self._masks[_FREE]
            static.not_free = self._not_free(static.mask) if static.free != static.mask else ()
        if eligible is static.mask:
            free, dropped = static.free, static.not_free
        else:
            free = eligible & self._masks[_FREE]
            dropped += self._not_free(eligible)
        by_match = policy.match_at_least and requirement.documents
        if self.canary.trials or (new_session and self.sessions_full) or by_match:
            eligible, then, dropped = self.narrow(eligible, dropped, new_session, seed, policy, requirement, version)
            free = eligible & self._masks[_FREE]
        others = free & (free - 1)  # more than one: who starts slowly may stand back
        for mask in self._in_order(free, then, seed) if then or (others and self.slow_start.cold) else (free,):
            if mask:
                chosen, looked, cause = self.choose(policy, requirement, mask, cost, seed, propose)
                if chosen is not None:
                    return self.verdict(chosen, cause, seed, policy, static, looked, dropped)
        found = (self._masks[_OVER] | self._masks[_FREE]) & (eligible | then)
        chosen, looked = self.least_loaded(found, cost, seed) if found else (None, [])
        if chosen is not None:
            return self.verdict(chosen, "overcommit", seed, policy, static, looked, dropped)
        cause = self._missing(eligible | then, dropped) if static.mask else "no_match"
        return self.verdict(None, cause, seed, policy, static, [], dropped)

    def _missing(self, eligible: int, dropped: Dropped) -> str:
        """What is missing: room, if any of those who could take it works at all; else what most of them are kept from
        work by."""
        if eligible & self.admitted():
            return "capacity"
        blocked = {reason: (eligible & mask).bit_count() for reason, mask in self._blocked.items() if eligible & mask}
        return max(blocked, key=blocked.__getitem__) if blocked else dropped[-1][0] if dropped else "capacity"

    def _in_order(self, free: int, then: int, seed: int) -> tuple[int, ...]:
        """Those with a free slot, in the order in which they are asked: who starts slowly stands back, but only for
        others (HLT-10); the second choice comes last."""
        cold = free & self.slow_start.stand_back(mix(seed, STEPS)) if self.slow_start.cold & free else 0
        return (free ^ cold, free if cold else 0, then & self._masks[_FREE])

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
        if len(looked) == 1 and policy is self.policy:
            one = looked[0]
            loads, known = [one.inflight + one.foreign], [self.main.known[one.bit]]
        else:
            loads, known = [one.inflight + one.foreign for one in looked], self.known(policy, looked)
        return Verdict(chosen, cause, seed, policy, static, self.filters.revision, looked, loads, known, dropped)

    def known(self, policy: Policy, looked: list[Instance]) -> list[tuple[float, ...]]:
        """The signals of some instances, in the order of the policy's weights, as they were last folded in."""
        if policy is self.policy:
            known = self.main.known
        else:
            index = self._indexes.get((policy.name, ""))
            if index is None or index.unscored:
                return [parts(policy, one, "", self.figures, self.now_ms)[2] for one in looked]
            known = index.known
        return [known[one.bit] for one in looked]

    # -- preferences and counts ---------------------------------------------------------------------------------------

    def prefer(self, eligible: int, avoided: tuple[str, ...], region: str, policy: Policy) -> tuple[int, Dropped]:
        """Avoids those that failed the task, and other regions, while there is somebody else."""
        dropped: Dropped = ()
        if region and "region" not in policy.weights:
            near = eligible & self.filters.having("region", region)
            if near & self._masks[_FREE]:
                dropped = (("region", (eligible & ~near).bit_count()),) if eligible != near else ()
                eligible = near
        if avoided:
            others = eligible ^ (eligible & self.filters.named(avoided))
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
            if instance is not None and instance.blocked_by == "circuit_open" and fits_in(instance, cost):
                return instance
        return None

    # -- single instances ---------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether any instance could take anything; one that drains may, of the sessions that it has."""
        self.place_freed()
        return bool(self._masks[_FREE] or self._masks[_OVER] or self.probing or "draining" in self._blocked)

    def matches(self, instance: Instance, requirement: Requirement) -> bool:
        """Whether this very instance could ever take a task with this requirement."""
        return bool(self.static_mask(requirement) >> instance.bit & 1)

    def has_slots(self, instance: Instance, cost: int) -> bool:
        """Whether this very instance has room for a task of this cost, by its slots alone."""
        held = instance.inflight + instance.foreign
        return held + cost <= max(int(instance.max_concurrency * self.overcommit), cost)

    def room(self, requirement: Requirement) -> tuple[int, int, float, int]:
        """What level 1 wants to know: (free slots, highest priority and best score among those that have one,
        instances that could ever take it). Slots of many are estimated from a few."""
        return self.room_of(self.static_mask(requirement))

    def room_of(self, eligible: int) -> tuple[int, int, float, int]:
        """The same for these instances, given as bits."""
        free = eligible & self._masks[_FREE]
        if not free:
            return 0, 0, 0.0, eligible.bit_count()
        seen = [one for position in sample(free, self.revision) if (one := self.instances[position]) is not None]
        slots = sum(one.max_concurrency - one.inflight - one.foreign for one in seen) * free.bit_count() // len(seen)
        band, best = self.main.best(free)
        return slots, band, best, eligible.bit_count()
