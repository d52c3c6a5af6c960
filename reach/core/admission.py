"""Who takes new work, and the panic threshold (HLT-13): suspicion never empties a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import health
from reach.core.effects import Noted, Turn
from reach.core.model import Instance

if TYPE_CHECKING:
    from reach.core.events import WakeAnswered
    from reach.core.pool import Pool


class Admission:
    """The instances of one pool that nothing certain bars, and those among them that are suspected."""

    __slots__ = ("_members", "_suspects", "panic", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._members: set[int] = set()
        self._suspects: dict[int, Instance] = {}
        self.panic = False
        """So many are suspected that suspicion is ignored."""

    def place(self, instance: Instance, turn: Turn) -> None:
        """Routing follows from state: to be called after every change."""
        if instance.bit < 0:
            return
        before = instance.blocked_by
        barred = health.barred_by(instance)
        suspected = "" if barred else health.suspected_by(instance)
        if not barred and not suspected and not before and not instance.suspected:  # as nearly always
            self.pool.router.place(instance)
            return
        key = id(instance)
        instance.suspected = suspected
        if barred:
            self._members.discard(key)
        else:
            self._members.add(key)
            if self.pool.waker is not None:
                self.pool.waker.resumed(turn)
        if suspected:
            self._suspects[key] = instance
        else:
            self._suspects.pop(key, None)
        self._admit(instance, barred)
        self._look(turn)

    def anybody(self) -> bool:
        """Whether any instance takes new work, but for its slots."""
        return bool(self._members)  # suspicion never excludes all of them

    def wake_answered(self, event: WakeAnswered, turn: Turn) -> None:
        """The wake hook of the pool is done."""
        if self.pool.waker is not None:
            self.pool.waker.answered(event, turn)

    def leave(self, instance: Instance, turn: Turn) -> None:
        """The instance is no longer in the pool."""
        self._members.discard(id(instance))
        self._suspects.pop(id(instance), None)
        self._look(turn)

    def _admit(self, instance: Instance, barred: str) -> None:
        before = instance.blocked_by
        instance.blocked_by = barred or ("" if self.panic else instance.suspected)
        self.pool.router.place(instance)
        if before != instance.blocked_by or barred == "draining":
            # Also when it is blocked now: who avoided another one may go there after all; and what else is held against
            # one that drains bears on its sessions.
            self.pool.slot_freed = True

    def _look(self, turn: Turn) -> None:
        share = self.pool.thresholds.panic_share
        panic = len(self._suspects) > share * len(self._members)
        if panic is self.panic:
            return
        self.panic = panic
        said = f"{len(self._suspects)} of {len(self._members)} instances are suspected"
        turn.sends.append(Noted("panic" if panic else "panic_over", said))
        for one in self._suspects.values():
            self._admit(one, "")
