"""Level 2: which instance of a pool takes a task (RTE-1).

Instances are bits of big integers. Each value of a static attribute has a mask of the instances that have it, and
each of 256 score buckets a mask of the instances in it, so a decision is a few ANDs whatever the size of the pool
(an idea of bitmap indexes: O'Neil, Quass, "Improved query performance with variant indexes", SIGMOD 1997). Blocked
and full instances are in no bucket. Of the best bucket at most 8 candidates are scored exactly, and chance, from a
seed, decides among near-equals.
"""

from __future__ import annotations

from collections.abc import Iterator

from reach.core.chance import mix
from reach.core.model import Instance, Requirement
from reach.core.policies import BALANCED, Policy, score, signals_of
from reach.core.warmup import STEPS, SlowStart

BUCKETS = 256
BUCKET = 1 / (BUCKETS - 1)
"""How far apart the scores of one bucket can be."""
LOOKED_AT = 8
OVERCOMMIT = 1.5
"""How much an instance may hold, in slots, relative to max_concurrency (RTE-8), rounded down."""

Stage = tuple[str, int]
"""(drop reason, mask of those that pass)"""


class Verdict:
    """Why an instance was chosen, or why none was: cheap to make, told in full by `explain`."""

    __slots__ = ("cause", "chosen", "eligible", "free", "score", "seed")

    def __init__(self, chosen: Instance | None, eligible: int, free: int, seed: int, best: float, cause: str) -> None:
        self.chosen = chosen
        self.eligible = eligible
        self.free = free
        self.seed = seed
        self.score = best
        self.cause = cause


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _sample(mask: int, seed: int) -> list[int]:
    """At most LOOKED_AT positions of set bits; which ones follows from the seed if there are more."""
    chosen: list[int] = []
    if mask.bit_count() <= LOOKED_AT:
        while mask:
            low = mask & -mask
            chosen.append(low.bit_length() - 1)
            mask ^= low
        return chosen
    width = mask.bit_length()
    for draw in range(LOOKED_AT):
        shift = mix(seed, draw) % width
        above = mask >> shift
        position = shift + (above & -above).bit_length() - 1 if above else (mask & -mask).bit_length() - 1
        chosen.append(position)
        mask ^= 1 << position
    return chosen


class Router:
    """The routing index of a pool."""

    __slots__ = (
        "_attributes", "_buckets", "_free", "_free_bits", "_occupied", "_overfull", "_static", "all", "instances",
        "overcommit", "policy", "revision", "slow_start",
    )  # fmt: skip

    def __init__(self, policy: Policy = BALANCED, overcommit: float = OVERCOMMIT) -> None:
        self.policy = policy
        self.overcommit = overcommit
        self.instances: list[Instance | None] = []
        self.all = 0
        self.revision = 0
        self.slow_start = SlowStart()
        """Who does not get a full share yet (HLT-10)."""
        self._free_bits: list[int] = []
        self._attributes: dict[tuple[str, str], int] = {}
        self._buckets = [0] * BUCKETS
        self._occupied = 0
        self._free = 0
        self._overfull = 0
        self._static: dict[Requirement, int] = {}

    # -- what there is ------------------------------------------------------------------------------------------------

    def add(self, instance: Instance) -> None:
        """Puts an instance in the index. It is routed to once `place` finds it admitted."""
        if self._free_bits:
            instance.bit = self._free_bits.pop()
            self.instances[instance.bit] = instance
        else:
            instance.bit = len(self.instances)
            self.instances.append(instance)
        bit = 1 << instance.bit
        self.all |= bit
        for attribute in _attributes_of(instance):
            self._attributes[attribute] = self._attributes.get(attribute, 0) | bit
        self._changed()

    def remove(self, instance: Instance) -> None:
        """Takes an instance out."""
        self._leave_bucket(instance)
        self.slow_start.place(instance.bit, STEPS)
        bit = 1 << instance.bit
        self.all &= ~bit
        for attribute in _attributes_of(instance):
            left = self._attributes[attribute] & ~bit
            if left:
                self._attributes[attribute] = left
            else:
                del self._attributes[attribute]
        self.instances[instance.bit] = None
        self._free_bits.append(instance.bit)
        instance.bit = -1
        self._changed()

    def _changed(self) -> None:
        self.revision += 1
        self._static.clear()

    def place(self, instance: Instance) -> None:
        """Puts an instance in the bucket of its score, or in none. To be called after each change of load or health."""
        if instance.blocked_by:
            if instance.bit >= 0:
                self._leave_bucket(instance)
            return
        if instance.inflight < instance.max_concurrency:
            number = int(score(self.policy, instance) * (BUCKETS - 1))
            if number != instance.bucket:
                self._leave_bucket(instance)
                instance.bucket = number
                self._buckets[number] |= 1 << instance.bit
                self._free |= 1 << instance.bit
                self._occupied |= 1 << number
            return
        self._leave_bucket(instance)
        if instance.inflight < int(instance.max_concurrency * self.overcommit):
            self._overfull |= 1 << instance.bit

    def _leave_bucket(self, instance: Instance) -> None:
        bit = 1 << instance.bit
        self._overfull &= ~bit
        if instance.bucket >= 0:
            left = self._buckets[instance.bucket] & ~bit
            self._buckets[instance.bucket] = left
            if not left:
                self._occupied &= ~(1 << instance.bucket)
            self._free &= ~bit
            instance.bucket = -1

    # -- deciding -----------------------------------------------------------------------------------------------------

    def static_mask(self, requirement: Requirement) -> int:
        """The instances that could ever take a task with this requirement."""
        mask = self._static.get(requirement)
        if mask is None:
            mask = self.all
            for _, passing in self._stages(requirement):
                mask &= passing
            if len(self._static) >= 10_000:
                self._static.clear()
            self._static[requirement] = mask
        return mask

    def _stages(self, requirement: Requirement) -> Iterator[Stage]:
        """The static filters in the order of RTE-1, each with its drop reason."""
        r = requirement
        for reason, values, default in (
            ("tenant", (r.tenant,), "*"),
            ("instance", (r.instance_id,), ""),
            ("agent", (r.agent_id,), ""),
            ("capability", (r.capability,), ""),
            ("capability_version", (f"{r.capability}\0{r.capability_version}",) if r.capability_version else (), ""),
            ("method", (r.method,), "*"),
            *(("tag", (tag,), "") for tag in r.required_tags),
            ("input", (r.input_media_type,), "*"),
            ("output", r.accepted_media_types, "*"),
            ("language", r.accepted_languages, "*"),
        ):
            if any(values):
                passing = 0
                for value in (*values, default) if default else values:
                    passing |= self._attributes.get((reason, value), 0)
                yield reason, passing

    def pick(self, requirement: Requirement, excluded: tuple[str, ...], cost: int, seed: int) -> Verdict:
        """Chooses an instance with a free slot, or, if no candidate has one, one that may be overfilled.

        Args:
            requirement: What it must have.
            excluded: Instances that failed this task: avoided while another admitted one exists.
            cost: Slots the task takes.
            seed: Decides among near-equals.
        """
        eligible = self.static_mask(requirement)
        if excluded:
            eligible = self._without(eligible, excluded)
        if self.slow_start.cold:
            others = eligible & ~self.slow_start.stand_back(mix(seed, STEPS))
            verdict = self._with_free_slot(others, cost, seed) if others != eligible else None
            if verdict is not None:
                return verdict
        verdict = self._with_free_slot(eligible, cost, seed)
        if verdict is not None:
            return verdict
        found = (self._overfull | self._free) & eligible
        if found:
            chosen, best = self._least_loaded(found, cost, seed)
            if chosen is not None:
                return Verdict(chosen, eligible, found, seed, best, "overcommit")
        return Verdict(None, eligible, 0, seed, 0.0, "capacity" if eligible else "no_match")

    def _with_free_slot(self, eligible: int, cost: int, seed: int) -> Verdict | None:
        """The best of those that need not be overfilled, if there is one."""
        occupied = self._occupied
        while occupied:
            number = occupied.bit_length() - 1
            found = self._buckets[number] & eligible
            if found:
                chosen, best = self._best(found, cost, seed)
                if chosen is not None:
                    return Verdict(chosen, eligible, found, seed, best, "score")
            occupied ^= 1 << number
        return None

    def _best(self, found: int, cost: int, seed: int) -> tuple[Instance | None, float]:
        if not found & (found - 1):
            alone = self.instances[found.bit_length() - 1]
            fits = alone is not None and (alone.inflight + cost <= alone.max_concurrency or not alone.inflight)
            return (alone, score(self.policy, alone)) if fits and alone is not None else (None, 0.0)
        fitting: list[Instance] = []
        for position in _sample(found, seed):
            instance = self.instances[position]
            if instance is not None and (instance.inflight + cost <= instance.max_concurrency or not instance.inflight):
                fitting.append(instance)
        if not fitting:
            return None, 0.0
        tie = self.policy.near_tie
        if tie < BUCKET:  # else all of a bucket are equals
            least = max(score(self.policy, one) for one in fitting) - tie
            fitting = [one for one in fitting if score(self.policy, one) >= least]
        chosen = fitting[mix(seed, LOOKED_AT) % len(fitting)]
        return chosen, score(self.policy, chosen)

    def _least_loaded(self, found: int, cost: int, seed: int) -> tuple[Instance | None, float]:
        best: Instance | None = None
        for position in _sample(found, seed):
            instance = self.instances[position]
            if instance is None or instance.inflight + cost > int(instance.max_concurrency * self.overcommit):
                continue
            if best is None or instance.inflight * best.max_concurrency < best.inflight * instance.max_concurrency:
                best = instance
        return best, 0.0

    def _without(self, eligible: int, excluded: tuple[str, ...]) -> int:
        mask = 0
        for instance_id in excluded:
            mask |= self._attributes.get(("instance", instance_id), 0)
        for position in bits(eligible & ~mask):
            instance = self.instances[position]
            if instance is not None and not instance.blocked_by:
                return eligible & ~mask
        return eligible

    def has_room(self) -> bool:
        """Whether any instance could take anything."""
        return bool(self._free or self._overfull)

    def matches(self, instance: Instance, requirement: Requirement) -> bool:
        """Whether this very instance could ever take a task with this requirement."""
        return bool(self.static_mask(requirement) >> instance.bit & 1)

    def fits(self, instance: Instance, requirement: Requirement, cost: int) -> bool:
        """Whether this very instance may take a task now (for pins)."""
        return not instance.blocked_by and self.matches(instance, requirement) and self.has_slots(instance, cost)

    def has_slots(self, instance: Instance, cost: int) -> bool:
        """Whether this very instance has room for a task of this cost, by its slots alone."""
        return instance.inflight + cost <= max(int(instance.max_concurrency * self.overcommit), cost)

    def free_count(self, requirement: Requirement) -> int:
        """How many instances with a free slot could take a task with this requirement."""
        return (self.static_mask(requirement) & self._free).bit_count()

    # -- explaining ---------------------------------------------------------------------------------------------------

    def explain(
        self, requirement: Requirement, excluded: tuple[str, ...], baseline_ms: float, now_ms: int
    ) -> tuple[list[tuple[Instance, float, dict[str, float], str]], dict[str, int]]:
        """Every instance with score, signals and drop reason (empty for candidates), and drop counts by reason."""
        reasons: dict[int, str] = {}
        left = self.all
        for reason, passing in self._stages(requirement):
            for position in bits(left & ~passing):
                reasons[position] = reason
            left &= passing
        allowed = self._without(left, excluded) if excluded else left
        rows: list[tuple[Instance, float, dict[str, float], str]] = []
        counts: dict[str, int] = {}
        for position in bits(self.all):
            instance = self.instances[position]
            if instance is None:
                continue
            reason = reasons.get(position, "")
            if not reason and instance.blocked_by:
                reason = instance.blocked_by
            elif not reason and not allowed >> position & 1:
                reason = "excluded"
            elif not reason and instance.inflight >= int(instance.max_concurrency * self.overcommit):
                reason = "capacity"
            if reason:
                counts[reason] = counts.get(reason, 0) + 1
            rows.append((instance, score(self.policy, instance), signals_of(instance, baseline_ms, now_ms), reason))
        rows.sort(key=lambda row: (bool(row[3]), -row[1]))
        return rows, counts


def _attributes_of(instance: Instance) -> Iterator[tuple[str, str]]:
    """What an instance can be found by. `*` stands for any value."""
    profile = instance.profile
    yield "instance", instance.instance_id
    yield "agent", profile.agent_id
    for name, version in dict.fromkeys(profile.capabilities):
        yield "capability_version", f"{name}\0{version}"
    for name in dict.fromkeys(name for name, _ in profile.capabilities):
        yield "capability", name
    for kind, values in (
        ("method", profile.methods),
        ("input", profile.input_media_types),
        ("output", profile.output_media_types),
        ("language", profile.languages),
    ):
        for value in dict.fromkeys(values) or ("*",):
            yield kind, value
    for tag in dict.fromkeys(profile.tags):
        yield "tag", tag
    for tenant in dict.fromkeys(profile.allowed_tenants):
        yield "tenant", tenant
