"""What the agents of a pool declare of their capabilities and methods, where a task or experience says nothing (REG-4).

The declaration of all of them together counts, the most careful one where they differ: what one of them does once and
for all must not run twice, whoever has it.
"""

from __future__ import annotations

from typing import NamedTuple

from reach.core.model import EffectKind, Profile, Requirement


class Defaults(NamedTuple):
    """Of one capability or method; zeros: nothing is declared."""

    latency_ms: int = 0
    """How long it usually takes."""
    effects: int = 0
    """An `EffectKind`."""
    cost: int = 0
    """Slots that a task takes."""


NOTHING = Defaults()


class Declared:
    """The declarations of one pool, by capability and by method."""

    __slots__ = ("_profiles", "any", "capabilities", "methods", "only")

    def __init__(self) -> None:
        self._profiles: dict[Profile, int] = {}
        self.any = False
        """Anything is declared."""
        self.capabilities: dict[str, Defaults] = {}
        """By canonical name; empty where nobody declares anything, as for most pools."""
        self.methods: dict[str, int] = {}
        """Usual times in ms."""
        self.only: Defaults = NOTHING
        """Of the one capability of a pool that has no other: tasks that name none are for it."""

    def add(self, profile: Profile) -> None:
        """An instance has this profile."""
        known = self._profiles.get(profile, 0)
        self._profiles[profile] = known + 1
        if not known:
            self._look()

    def drop(self, profile: Profile) -> None:
        """An instance has it no longer."""
        left = self._profiles.get(profile, 0) - 1
        if left > 0:
            self._profiles[profile] = left
        elif self._profiles.pop(profile, None) is not None:
            self._look()

    def _look(self) -> None:
        self.capabilities, self.methods = {}, {}
        names = set()
        for profile in self._profiles:
            for document in profile.documents:
                names.add(document.name)
                found = Defaults(document.latency_ms, document.effects, document.cost)
                if found != NOTHING:
                    before = self.capabilities.get(document.name, NOTHING)
                    self.capabilities[document.name] = Defaults(*map(max, before, found))
            for method, latency_ms in profile.latencies:
                self.methods[method] = max(self.methods.get(method, 0), latency_ms)
        self.any = bool(self.capabilities or self.methods)
        self.only = self.capabilities.get(names.pop(), NOTHING) if len(names) == 1 else NOTHING

    def of(self, requirement: Requirement) -> Defaults:
        """What is declared of what a task asks for."""
        if not requirement.capability:
            return self.only
        return self.capabilities.get(requirement.capability, NOTHING)

    def latency_ms(self, requirement: Requirement) -> int:
        """How long such a task usually takes, as declared; 0: nobody says."""
        return max(self.methods.get(requirement.method, 0), self.of(requirement).latency_ms)

    def effects(self, requirement: Requirement) -> EffectKind | None:
        """What running such a task twice would do, as declared."""
        effects = self.of(requirement).effects
        return EffectKind(effects) if effects else None
