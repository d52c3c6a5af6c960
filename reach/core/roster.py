"""Who is in a pool, how much room each instance has, and how they score: what a decision has in hand (RTE-4).

Instances are bits of big integers. Each is in one lane by its room (out, free, over, full), and while it is free in one
bucket of each score index. A change of load or health is a few XORs; nothing is ever looked at as a whole.
"""

from __future__ import annotations

from enum import IntEnum

from reach.core.canary import Canaries
from reach.core.declared import Declared
from reach.core.filters import Filters
from reach.core.model import Instance, Profile, Requirement
from reach.core.picking import bits
from reach.core.policies import BALANCED, POLICIES, Figures, Policy
from reach.core.score_index import ScoreIndex
from reach.core.warmup import STEPS, SlowStart

OVERCOMMIT = 1.5
"""How much an instance may hold, in slots, relative to max_concurrency (RTE-8), rounded down."""
MAX_INDEXES = 8
"""Score indexes of a pool: one per policy and method in use. Beyond that, or while one is being made, candidates are
taken at random and scored on sight."""
AT_ONCE = 2_000
"""Instances that are scored at once for a new index; in larger pools it is made step by step."""


class Lane(IntEnum):
    """How much room an instance has."""

    OUT = 0
    """It takes no new work."""
    FREE = 1
    OVER = 2
    """Its slots are taken; it may be overfilled."""
    FULL = 3


_OUT, _FREE, _OVER, _FULL = (int(lane) for lane in Lane)


class Roster:
    """The instances of one pool, as routing sees them."""

    __slots__ = (
        "_band_of", "_blocked", "_free_bits", "_freed", "_indexes", "_masks", "_others", "_turns", "bands", "canary",
        "decisions", "declared", "figures", "filters", "instances", "judges_methods", "lanes", "main", "now_ms",
        "overcommit", "policies", "policy", "probing", "sessions_full", "slow_start",
    )  # fmt: skip

    def __init__(
        self,
        policy: Policy = BALANCED,
        overcommit: float = OVERCOMMIT,
        policies: dict[str, Policy] | None = None,
    ) -> None:
        self.policy = policy
        """Of tasks that name none."""
        self.policies = policies if policies is not None else dict(POLICIES)
        """All that tasks may name."""
        self.overcommit = overcommit
        self.instances: list[Instance | None] = []
        self.declared = Declared()
        self.filters = Filters()
        self.canary = Canaries(self.filters)
        self.figures = Figures()
        self.slow_start = SlowStart()
        """Who does not get a full share yet (HLT-10)."""
        self.now_ms = 0
        """When signals were last folded in."""
        self.judges_methods = False
        """Instances differ in what they are good at: tasks are judged by their method (RTE-14)."""
        self.probing = 0
        """Instances whose circuit is open and whose next probe is due."""
        self.sessions_full = 0
        """Instances that hold as many sessions as they may."""
        self.decisions = 0
        self.main = ScoreIndex(policy, "")
        self._indexes: dict[tuple[str, str], ScoreIndex] = {(policy.name, ""): self.main}
        self._others: list[ScoreIndex] = []
        self._masks = [0, 0, 0, 0]
        """Instances by lane."""
        self.lanes = 0
        """Grows whenever an instance changes its lane, or what blocks it."""
        self._blocked: dict[str, int] = {}
        """Those in lane OUT, by what blocks them."""
        self.bands: dict[int, int] = {}
        """Instances by priority (RTE-11)."""
        self._freed: dict[int, Instance] = {}
        """Those that have more room than they are placed by, by bit."""
        self._band_of: list[int] = []
        self._free_bits: list[int] = []
        self._turns: dict[tuple[str, Requirement], int] = {}
        """Whose turn it was last, by the name of the policy."""

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Grows with each change of the static attributes."""
        return self.filters.revision

    def add(self, instance: Instance) -> None:
        """Puts an instance in the index. It is routed to once `place` finds it admitted."""
        if self._free_bits:
            instance.bit = self._free_bits.pop()
            self.instances[instance.bit] = instance
        else:
            instance.bit = len(self.instances)
            self.instances.append(instance)
            self._band_of.append(-1)
        instance.lane = _OUT
        self._masks[_OUT] |= 1 << instance.bit
        self._block(instance.bit, instance.blocked_by or "starting")
        self.filters.add(instance)
        self.declared.add(instance.profile)
        self.canary.joined(instance)
        for index in self._indexes.values():
            index.grow(len(self.instances))
        self.rescore(instance)
        self.place(instance)

    def remove(self, instance: Instance) -> None:
        """Takes an instance out."""
        bit = instance.bit
        one = 1 << bit
        self.slow_start.place(bit, STEPS)
        self._masks[instance.lane] &= ~one
        for index in self._indexes.values():
            index.take_out(bit)
            index.stale.pop(bit, None)
            index.unscored &= ~one
        self._block(bit, "")
        self._band(bit, -1)
        self.probing &= ~one
        self.sessions_full &= ~one
        self.declared.drop(instance.profile)
        self.filters.remove(instance)
        self.canary.left(instance)
        self.instances[bit] = None
        self._free_bits.append(bit)
        instance.bit = -1
        instance.lane = _OUT

    def reprofile(self, instance: Instance, profile: Profile) -> None:
        """An instance registers something else, or its words mean something else now: it stays where it is."""
        before = instance.profile
        self.filters.remove(instance)
        self.declared.drop(before)
        self.declared.add(profile)
        instance.profile, instance.agent_id = profile, profile.agent_id
        self.filters.add(instance)
        if (before.agent_id, before.version) != (profile.agent_id, profile.version):
            self.canary.moved(instance, before)

    def _block(self, bit: int, reason: str) -> None:
        """Files an instance under what blocks it; under nothing if the reason is empty."""
        one = 1 << bit
        self.lanes += 1
        for known, mask in self._blocked.items():
            if mask & one:
                if known == reason:
                    return
                left = mask ^ one
                if left:
                    self._blocked[known] = left
                else:
                    del self._blocked[known]
                break
        if reason:
            self._blocked[reason] = self._blocked.get(reason, 0) | one

    def place(self, instance: Instance) -> None:
        """Puts an instance where its load and health say. To be called after each change of either."""
        if instance.bit < 0:
            return
        if instance.blocked_by:
            lane = _OUT
            self._block(instance.bit, instance.blocked_by)
        else:
            load = instance.inflight + instance.foreign
            if load < instance.max_concurrency:
                lane = _FREE
            else:
                lane = _OVER if load < int(instance.max_concurrency * self.overcommit) else _FULL
        if lane != instance.lane:
            one = 1 << instance.bit
            self.lanes += 1
            before, instance.lane = instance.lane, lane
            self._masks[before] ^= one
            self._masks[lane] ^= one
            if before == _FREE:
                self.main.take_out(instance.bit)
            elif before == _OUT:
                self._block(instance.bit, "")
        if lane == _FREE:
            self.main.put(instance)
        for index in self._others:
            index.stale[instance.bit] = None

    def freed(self, instance: Instance) -> None:
        """As `place`, for an instance that has slots back: it is placed once for all that come back until somebody
        looks who has room, for outcomes come many at a time."""
        self._freed[instance.bit] = instance

    def place_freed(self) -> None:
        """To be called at the end of each step; within one, whoever looks who has room calls it first."""
        if self._freed:
            freed, self._freed = self._freed, {}
            for instance in freed.values():
                self.place(instance)

    def may_probe(self, instance: Instance, yes: bool) -> None:
        """Whether the next task that fits may show if the open circuit of an instance can be closed."""
        if instance.bit >= 0:
            one = 1 << instance.bit
            self.probing = self.probing | one if yes else self.probing & ~one

    def holds_all_sessions(self, instance: Instance, yes: bool) -> bool:
        """Keeps whether an instance holds as many sessions as it may; True if that changed."""
        if instance.bit < 0 or bool(self.sessions_full >> instance.bit & 1) == yes:
            return False
        self.sessions_full ^= 1 << instance.bit
        return True

    def admitted(self) -> int:
        """Who takes new work, as soon as there is room."""
        return self._masks[_FREE] | self._masks[_OVER] | self._masks[_FULL]

    # -- scores -------------------------------------------------------------------------------------------------------

    def indexes(self) -> list[ScoreIndex]:
        """The indexes in use."""
        return list(self._indexes.values())

    def rescore(self, instance: Instance) -> None:
        """Folds the signals of an instance in, under each policy in use."""
        regrouped = self._band_of[instance.bit] != instance.priority
        if regrouped:
            self._band(instance.bit, instance.priority)
        figures, now_ms = self.figures, self.now_ms
        moved = self.main.rescore(instance, figures, now_ms) or regrouped
        for index in self._others:
            moved = index.rescore(instance, figures, now_ms) or moved
        if moved:
            self.place(instance)

    def _band(self, bit: int, priority: int) -> None:
        """Files an instance under its priority; under none if that is negative."""
        before, self._band_of[bit] = self._band_of[bit], priority
        if before >= 0:
            left = self.bands[before] & ~(1 << bit)
            if left:
                self.bands[before] = left
            else:
                del self.bands[before]
        if priority >= 0:
            self.bands[priority] = self.bands.get(priority, 0) | 1 << bit

    def index_for(self, policy: Policy, method: str) -> ScoreIndex | None:
        """The index for tasks of a method under a policy; None where there is none (yet)."""
        index = self._indexes.get((policy.name, method))
        if index is None:
            index = self._new_index(policy, method)
            if index is None:
                return None
        index.used = self.decisions
        if index is not self.main:
            if index.unscored:
                return None
            self._catch_up(index)
        return index

    def _catch_up(self, index: ScoreIndex) -> None:
        """Moves those that moved since the index was last asked."""
        if index.stale:
            for bit in index.stale:
                instance = self.instances[bit]
                if instance is not None and instance.lane == _FREE:
                    index.put(instance)
                else:
                    index.take_out(bit)
            index.stale.clear()

    def _new_index(self, policy: Policy, method: str) -> ScoreIndex | None:
        if len(self._indexes) >= MAX_INDEXES:
            oldest = min(self._others, key=lambda one: one.used)
            if self.decisions - oldest.used < len(self.instances) + MAX_INDEXES:
                return None  # all are in use: making one anew for each decision would cost more than it gives
            self._drop(oldest)
        index = ScoreIndex(policy, method)
        index.grow(len(self.instances))
        self._indexes[policy.name, method] = index
        self._others.append(index)
        index.unscored = self.filters.all
        if len(self.instances) <= AT_ONCE:
            self.score_some(index, AT_ONCE)
        return index

    def redefine(self, policies: dict[str, Policy], policy: Policy) -> None:
        """Takes other policies: `policy` for tasks that name none. What was scored by one that is gone is forgotten."""
        self.policies, self.policy = policies, policy
        for index in list(self._others):
            known = policies.get(index.policy.name)
            to_be_main = index.policy.name == policy.name != self.main.policy.name
            if known is None or known.digest != index.policy.digest or to_be_main:
                self._drop(index)
        if (self.main.policy.name, self.main.policy.digest) == (policy.name, policy.digest):
            return
        del self._indexes[self.main.policy.name, ""]
        self.main = self._indexes[policy.name, ""] = ScoreIndex(policy, "")
        self.main.grow(len(self.instances))
        for instance in self.instances:
            if instance is not None:
                self.main.rescore(instance, self.figures, self.now_ms)
                self.place(instance)

    def _drop(self, index: ScoreIndex) -> None:
        del self._indexes[index.policy.name, index.method]
        self._others.remove(index)

    def unscored(self) -> bool:
        """Whether an index is still being made."""
        return any(index.unscored for index in self._others)

    def score_more(self, most: int) -> None:
        """Goes on making indexes, by so many instances."""
        for index in self._others:
            if index.unscored and most > 0:
                most -= self.score_some(index, most)

    def score_some(self, index: ScoreIndex, most: int) -> int:
        """Goes on making one index; returns how many instances were scored."""
        count = 0
        for bit in bits(index.unscored):
            if count == most:
                break
            instance = self.instances[bit]
            if instance is not None:
                index.rescore(instance, self.figures, self.now_ms)
                index.stale[bit] = None
            count += 1
        return count
