"""Signs of life of a pool's instances, and what they mean for routing (HLT)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core import health
from reach.core.effects import Noted, Turn
from reach.core.health import Sign
from reach.core.model import Availability, Condition, Health, Instance
from reach.core.signals import BEAT_WINDOW_MS

if TYPE_CHECKING:
    from reach.core.events import Beat
    from reach.core.pool import Pool

LOOP_STALLED = "loop stalled"
"""Evidence: what an agent says of itself while a handler blocks its loop."""
KEEP_OFFLINE_MS = 600_000
"""How long an instance that is gone stays in the registry."""
MAX_BEATS = 64
"""Beats of an instance that are remembered: twice what the fastest settable interval needs."""


class Vitals:
    """Watches over the instances of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def beat(self, event: Beat, turn: Turn) -> None:
        """A beat: proof of life, and a status."""
        instance = event.instance
        instance.beats.append(turn.now_ms)
        if len(instance.beats) > MAX_BEATS or instance.beats[0] < turn.now_ms - BEAT_WINDOW_MS:
            del instance.beats[0]
        if event.status:
            self.apply_status(instance, event.status, turn)
        self.proven(instance, "beat", turn)

    def apply_status(self, instance: Instance, status: dict[str, Any], turn: Turn) -> None:
        """Takes over what an instance reports of itself; what it does not say stays (REG-3)."""
        instance.status.update(status)
        if "ready" in status:
            instance.ready = status["ready"]
        if "max_concurrency" in status:
            slots = max(1, status["max_concurrency"])
            if slots > instance.max_concurrency:
                self.pool.slot_freed = True
            instance.max_concurrency = slots
        self.says(instance, status.get("availability"))
        if instance.conditions or "loop_stalled" in status:
            self._stalls(instance, status.get("loop_stalled", 0), turn)
        self.place(instance)

    def _stalls(self, instance: Instance, stalled_ms: int, turn: Turn) -> None:
        """It beats, but the loop of its handlers is blocked: nothing new until it runs again (case B1)."""
        instance.status.pop("loop_stalled", None)
        if stalled_ms:
            _, since = instance.conditions.get(Condition.STALLED, ("", turn.now_ms - stalled_ms))
            instance.conditions[Condition.STALLED] = (f"{LOOP_STALLED} for {stalled_ms} ms", since)
        elif instance.conditions.get(Condition.STALLED, ("", 0))[0].startswith(LOOP_STALLED):
            del instance.conditions[Condition.STALLED]

    def says(self, instance: Instance, said: Availability | None) -> None:
        """What it says of itself counts, but once it drains it drains: until an operator or a new process ends that."""
        if said is not None and instance.availability is not Availability.DRAINING:
            instance.availability = said

    def prove(self, instance: Instance, turn: Turn) -> None:
        """Traffic is proof of life too (HLT-2, HLT-7)."""
        instance.beat_ms = turn.now_ms
        if instance.health is not Health.HEALTHY:
            self.proven(instance, "traffic", turn)

    def proven(self, instance: Instance, why: str, turn: Turn) -> None:
        """It lives, by whatever proof."""
        if instance.bit < 0:
            return  # it has left; what it still says proves nothing
        instance.beat_ms = turn.now_ms
        if health.move(instance, Sign.PROOF, why, turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", "HEALTHY", instance=instance))
            self.check(instance, turn)
        self.pool.scores.changed(instance)
        self.place(instance)

    def place(self, instance: Instance) -> None:
        """Routing follows from state: call it after every change."""
        before = instance.blocked_by
        instance.blocked_by = health.blocked_by(instance)
        self.pool.router.place(instance)
        if bool(before) != bool(instance.blocked_by):
            self.pool.slot_freed = True  # also when it is blocked now: who avoided another one may go there after all

    def check(self, instance: Instance, turn: Turn) -> None:
        """Sets the instance's one timer: the next meaning of its silence, or its removal."""
        at = health.next_check_ms(instance, turn.now_ms)
        if instance.health is Health.OFFLINE:
            at = instance.health_since_ms + KEEP_OFFLINE_MS if instance.link is None else None
        if at is not None:
            self.pool.wheel.arm(instance, at)

    def due(self, instance: Instance, turn: Turn) -> None:
        """A timer of an instance."""
        if instance.health is Health.OFFLINE:
            if instance.link is None and turn.now_ms >= instance.health_since_ms + KEEP_OFFLINE_MS:
                self.pool.fleet.remove(instance, turn)
                return
        else:
            sign = health.sign_of_silence(instance, turn.now_ms)
            silent = turn.now_ms - instance.beat_ms
            if sign is not None and health.move(instance, sign, f"silent for {silent} ms", turn.now_ms, turn.wall_ms):
                turn.sends.append(Noted("health", instance.health.name, instance=instance))
                self.pool.scores.changed(instance)
                self.place(instance)
        self.check(instance, turn)

    def forgive(self, turn: Turn) -> None:
        """We were stalled ourselves: nobody is judged by what we could not hear."""
        for instance in self.pool.instances.values():
            if instance.link is not None:
                instance.beat_ms = max(instance.beat_ms, turn.now_ms - instance.heartbeat_ms)
