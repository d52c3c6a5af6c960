"""Canaries: a version that grew gets a small share until it has shown that it is no worse (RTE-9, REG-10).

A trial is of one version of one agent, against all its versions that are not on trial. It ends by figures of the same
minutes: promoted, then all new work prefers it; or rolled back, then it gets none while an older version lives.
Sessions keep the version they began with, because a pin never asks here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from enum import IntEnum

from reach.core.chance import fraction
from reach.core.filters import Filters
from reach.core.model import Instance, Profile

SHARE = 0.05
"""Of new sessions and tasks, while the trial lasts."""
TASKS = 50
"""How many of each side must have ended before they are compared."""
OLD_TASKS_AT_LEAST = 20
"""How many of the old side are needed to call a canary worse before it has had its 50."""
ERROR_MARGIN = 0.02
"""Error rates closer than this are equal: one failure in 50 tells nothing."""
P95_MARGIN = 1.2
"""A p95 within this factor is equal: the p95 of 50 tasks is itself only known to about that."""
KEPT = 1_000
"""Durations kept of each side, the latest."""
MAX_TRIALS = 32
"""Trials of one pool; one more replaces the oldest."""
DRAW = 64
"""Number of the draw within a decision's seed, apart from those that break ties."""

Version = tuple[tuple[int, int | str], ...]


class Stage(IntEnum):
    """Where a trial stands."""

    TRIAL = 0
    PROMOTED = 1
    ROLLED_BACK = 2


class Side:
    """How the tasks of one side went since the trial began."""

    __slots__ = ("durations_ms", "failed", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.failed = 0
        self.durations_ms: deque[int] = deque(maxlen=KEPT)

    def add(self, good: bool, duration_ms: int) -> None:
        """A task ended."""
        self.tasks += 1
        if good:
            self.durations_ms.append(duration_ms)
        else:
            self.failed += 1

    @property
    def error_rate(self) -> float:
        """Failures per task."""
        return self.failed / self.tasks if self.tasks else 0.0

    @property
    def p95_ms(self) -> float:
        """The duration that 95 % of the good tasks stay within; 0 if there is none."""
        ordered = sorted(self.durations_ms)
        return float(ordered[-(-len(ordered) * 95 // 100) - 1]) if ordered else 0.0


class Trial:
    """A new version against the old ones."""

    __slots__ = ("agent_id", "new", "new_mask", "old", "old_mask", "revision", "stage", "version")

    def __init__(self, agent_id: str, version: str) -> None:
        self.agent_id = agent_id
        self.version = version
        self.stage = Stage.TRIAL
        self.new, self.old = Side(), Side()
        self.new_mask = self.old_mask = 0
        self.revision = -1

    def verdict(self) -> Stage:
        """What the figures say by now."""
        new, old = self.new, self.old
        allowed = old.error_rate + ERROR_MARGIN
        if old.tasks >= OLD_TASKS_AT_LEAST and new.failed > max(1.0, allowed * max(new.tasks, TASKS)):
            return Stage.ROLLED_BACK  # though all that are still missing went well
        if new.tasks < TASKS or old.tasks < TASKS:
            return Stage.TRIAL
        if old.durations_ms and new.durations_ms and new.p95_ms > old.p95_ms * P95_MARGIN:
            return Stage.ROLLED_BACK
        return Stage.PROMOTED

    def evidence(self) -> str:
        """The figures, for people."""
        new, old = self.new, self.old
        return (
            f"version {self.version} of {self.agent_id}: errors {new.error_rate:.1%} against {old.error_rate:.1%}, "
            f"p95 {new.p95_ms:.0f} ms against {old.p95_ms:.0f} ms, over {new.tasks} and {old.tasks} tasks"
        )


class Canaries:
    """The trials of one pool."""

    __slots__ = ("_filters", "_versions", "changed", "share", "trials")

    def __init__(self, filters: Filters, share: float = SHARE) -> None:
        self._filters = filters
        self.share = share
        self.trials: dict[tuple[str, str], Trial] = {}
        self.changed: set[tuple[str, str]] = set()
        """(agent_id, version) of trials that began, ended or were given up, and that is not written yet."""
        self._versions: dict[str, dict[str, int]] = {}
        """Instances by agent and version."""

    def joined(self, instance: Instance) -> None:
        """An instance is there. If its version is higher than all that are trusted, and one of these is there too, it
        is on trial from now on."""
        agent_id, version = instance.profile.agent_id, instance.profile.version
        counts = self._versions.setdefault(agent_id, {})
        fresh = version not in counts
        counts[version] = counts.get(version, 0) + 1
        if not version or not fresh or self.share >= 1:
            return
        self._settle(agent_id, version)
        if (agent_id, version) in self.trials:
            return
        trusted = [one for one in counts if one != version and (agent_id, one) not in self.trials]
        trusted += [trial.version for trial in self._of(agent_id) if trial.stage is Stage.PROMOTED]
        if trusted and all(version_key(version) > version_key(one) for one in trusted):
            if len(self.trials) >= MAX_TRIALS:
                self._give_up(next(iter(self.trials)))
            self.trials[agent_id, version] = Trial(agent_id, version)
            self.changed.add((agent_id, version))

    def _give_up(self, key: tuple[str, str]) -> None:
        del self.trials[key]
        self.changed.add(key)

    def standing(self, instance: Instance) -> int:
        """What is kept of the trial of an instance's version: 1 + its stage; 0 if there is none. Figures are not."""
        trial = self.trials.get((instance.profile.agent_id, instance.profile.version))
        return 0 if trial is None else 1 + trial.stage

    def take_changed(self) -> set[tuple[str, str]]:
        """What is to be written."""
        changed, self.changed = self.changed, set()
        return changed

    def restore(self, standings: Mapping[tuple[str, str], int]) -> None:
        """After a restart, with all instances there: exactly these trials, by (agent_id, version). What was decided
        stays so; what was not is weighed anew."""
        self.trials.clear()
        for (agent_id, version), standing in standings.items():
            if standing and len(self.trials) < MAX_TRIALS:
                trial = self.trials[agent_id, version] = Trial(agent_id, version)
                trial.stage = Stage(standing - 1)
        self.changed.clear()

    def moved(self, instance: Instance, before: Profile) -> None:
        """An instance goes on as another version, or as another agent."""
        self._left(before.agent_id, before.version)
        self.joined(instance)

    def left(self, instance: Instance) -> None:
        """An instance is gone."""
        self._left(instance.profile.agent_id, instance.profile.version)

    def _left(self, agent_id: str, version: str) -> None:
        counts = self._versions.get(agent_id, {})
        counts[version] = counts.get(version, 0) - 1
        if counts[version] <= 0:
            del counts[version]
        if not counts:
            self._versions.pop(agent_id, None)
            for trial in self._of(agent_id):
                self._give_up((agent_id, trial.version))

    def _of(self, agent_id: str) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.agent_id == agent_id]

    def _settle(self, agent_id: str, joining: str) -> None:
        """Versions that took over because no older one was left are trusted, before an older one comes back; but never
        those that were rolled back: that the old process restarts makes them no better."""
        counts = self._versions[agent_id]
        others = [one for one in counts if one != joining and (agent_id, one) not in self.trials]
        if not others and (agent_id, joining) not in self.trials:
            for trial in self._of(agent_id):
                if trial.version in counts and trial.stage is not Stage.ROLLED_BACK:
                    self._give_up((agent_id, trial.version))

    def _refresh(self, trial: Trial) -> None:
        filters = self._filters
        trial.revision = filters.revision
        agent_id = trial.agent_id
        trial.new_mask = filters.having("version", f"{agent_id}\0{trial.version}")
        trial.old_mask = filters.having("agent", agent_id)
        for other in self._of(agent_id):
            if other is trial or other.stage is not Stage.PROMOTED:
                trial.old_mask &= ~filters.having("version", f"{agent_id}\0{other.version}")

    def split(self, eligible: int, admitted: int, seed: int) -> tuple[int, int]:
        """(who may take a new task, who if none of these has room), by the share and by what trials have shown.

        Args:
            eligible: Who could take it.
            admitted: Who takes new work at all: while no older version is among them, a canary is no canary.
            seed: Of the decision.
        """
        first, then = eligible, 0
        for number, trial in enumerate(self.trials.values()):
            if trial.revision != self._filters.revision:
                self._refresh(trial)
            new = first & trial.new_mask
            if not new or not eligible & trial.old_mask & admitted:
                continue
            if trial.stage is Stage.PROMOTED:
                then |= first & trial.old_mask
                first ^= first & trial.old_mask
            elif trial.stage is Stage.TRIAL and fraction(seed, DRAW + number) < self.share:
                then |= first ^ new
                first = new
            else:
                first ^= new
        return first, then

    def record(self, instance: Instance, good: bool, duration_ms: int) -> Trial | None:
        """A task of an instance ended; the trial that this decided, if any."""
        profile = instance.profile
        trial = self.trials.get((profile.agent_id, profile.version))
        if trial is None:
            for other in self._of(profile.agent_id):
                if other.stage is Stage.TRIAL:
                    other.old.add(good, duration_ms)
                    if self._decided(other):
                        return other
            return None
        if trial.stage is not Stage.TRIAL:
            return None
        trial.new.add(good, duration_ms)
        return trial if self._decided(trial) else None

    def _decided(self, trial: Trial) -> bool:
        trial.stage = trial.verdict()
        if trial.stage is Stage.TRIAL:
            return False
        self.changed.add((trial.agent_id, trial.version))
        for other in self._of(trial.agent_id):
            other.revision = -1  # who counts as old has changed
            superseded = trial.stage is Stage.PROMOTED and other.stage is not Stage.ROLLED_BACK
            if other is not trial and superseded and version_key(other.version) < version_key(trial.version):
                self._give_up((trial.agent_id, other.version))
        return True


def version_key(version: str) -> Version:
    """What a version is compared by: its numbers as numbers, so that 1.10 is higher than 1.9."""
    pieces = re.findall(r"[0-9]+|[A-Za-z]+", version)[:16]
    return tuple([(1, int(piece[:18])) if piece.isdecimal() else (0, piece) for piece in pieces])
