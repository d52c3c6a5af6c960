"""What is removed of tasks that ended, by age, number, size or an operator's wish: what must be true of it (DLV-10,
DLV-12), and the knobs that make a short history see it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from reach.core.model import TaskKey, TaskState
from reach.runtime import retention
from reach.runtime.retention import END_OF_TIME, Keep
from reach.testing.sim.loop import WALL_EPOCH_MS

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

SHORT: Final = (
    Keep(),
    Keep(results_ms=5_000),
    Keep(results_ms=15_000, dead_letters_ms=20_000),
    Keep(dead_letters=1),
    Keep(total_bytes=100, dead_letters=3),
)
"""Of these, `LEAST_MS` still holds, unless its knob is turned."""


def keep_of(random: Random) -> Keep:
    """How much the node of a history keeps."""
    return random.choice(SHORT)


class KeepingTruth:
    """What was removed. Belongs to a `Checker`.

    An id is free again once its task is removed: whoever brings it then brings a new task. What is known of the one
    before stays `past` of the new one, for memory may answer for it a little longer.
    """

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.keep: Keep | None = None
        """What the node was told to keep; None: nothing is removed by itself."""
        self.clock_leaps = False
        """The wall clock may leap: then nobody can say what is old."""
        self._asked: set[TaskKey] = set()
        self._asked_all: set[str] = set()

    def purge_asked(self, tenant: str, task_id: str = "") -> None:
        """An operator asks to remove a dead letter; all of a tenant, if none is named."""
        if task_id:
            self._asked.add((tenant, task_id))
        else:
            self._asked_all.add(tenant)

    def purged(self, key: TaskKey, row: int) -> None:
        """The server says that a dead letter, which had this row, is removed."""
        if self._checker.truth(key).row == row:
            self._checker.violate("PURGED_IS_GONE", key, "it is said to be removed, and is still written down")

    def removed(self, row: int, *, before_ms: int | None) -> None:
        """The journal removes a task: one that ended before a time, or (None) one that was named."""
        key = self._checker.forget_row(row)
        if key is None:
            return
        known = self._checker.truth(key).past
        assert known is not None
        dead = known.outcome is not None and known.outcome.state == TaskState.DEAD_LETTERED
        if known.outcome is None:
            self._checker.violate("OPEN_IS_KEPT", key, "it is removed and has not ended")
        elif before_ms is not None:
            self._by_itself(key, dead, known.outcome.ended_wall_ms, before_ms)
        elif not dead or not (key in self._asked or key[0] in self._asked_all):
            self._checker.violate("ONLY_WHAT_WAS_ASKED_IS_PURGED", key, f"it is purged, and is {known.outcome.state}")

    def _by_itself(self, key: TaskKey, dead: bool, ended_wall_ms: int, before_ms: int) -> None:
        keep = self.keep
        if keep is None:
            self._checker.violate("RESULTS_ARE_KEPT", key, "it is removed, and nobody asked for that")
            return
        if self.clock_leaps or (dead and before_ms == END_OF_TIME):
            return
        least_ms = retention.LEAST_MS
        if keep.total_bytes > 1 << 20:
            least_ms = max(least_ms, keep.results_ms) if not dead else keep.dead_letters_ms
        age_ms = WALL_EPOCH_MS + 1_000 * self._checker.now() - ended_wall_ms
        if age_ms < least_ms - 1:
            message = f"it ended {age_ms:.0f} ms ago and is removed; it is to be kept for {least_ms} ms"
            self._checker.violate("RESULTS_ARE_KEPT", key, message)

    def purge_of_dead(self, most: int, before_ms: int) -> None:
        """The journal is about to remove dead letters, however young (`END_OF_TIME`): up to so many."""
        if before_ms != END_OF_TIME or self.keep is None or self._asked or self._asked_all:
            return  # one that an operator removes just now may have been counted
        dead = [one for one in self._checker.tasks.values()
                if one.outcome is not None and one.outcome.state == TaskState.DEAD_LETTERED]  # fmt: skip
        going = min(most, len(dead))
        if going and len(dead) - going < self.keep.dead_letters:
            message = f"{going} of {len(dead)} dead letters go, and {self.keep.dead_letters} may stay"
            self._checker.violate("RESULTS_ARE_KEPT", None, message)
