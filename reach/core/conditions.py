"""Circumstances of an instance that bear on routing: each with its evidence, its place in the history, and an alert.

How health and conditions go together: health says whether an instance lives, conditions say what is wrong with one that
does: not ready, stuck, deaf, failing by its own report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import health, warmup
from reach.core.at_hand import STALLED
from reach.core.effects import AskReopen, DropLink, Noted, Turn
from reach.core.health import Sign
from reach.core.instance_states import Availability, Condition
from reach.core.model import Instance
from reach.core.signals import NEUTRAL_LATENCY_MS, mean_latency

if TYPE_CHECKING:
    from reach.core.pool import Pool

LOOP_STALLED = "loop stalled"
"""Evidence: what an agent says of itself while a handler blocks its loop."""
EARLY_BEAT = 0.8
"""A beat that comes sooner than this share of the interval after the one before is an early one."""
LOOKED_AT = 64
"""Running tasks of an instance that are asked for their usual time."""

_ALERTS = frozenset(
    {
        Condition.UNREACHABLE,
        Condition.STALLED,
        Condition.DEAF,
        Condition.SELF_REPORTED_FAILURES,
        Condition.CIRCUIT_OPEN,
    }
)
"""Conditions that operators are told of."""


def mark(instance: Instance, condition: Condition, evidence: str, turn: Turn, since_ms: int | None = None) -> None:
    """The condition holds. Told and kept once; later evidence replaces the former."""
    held = instance.conditions.get(condition)
    if held is not None:
        instance.conditions[condition] = (evidence, held[1])
        return
    instance.conditions[condition] = (evidence, turn.now_ms if since_ms is None else since_ms)
    health.note(instance, condition.name, evidence, turn.wall_ms)
    if condition in _ALERTS:
        turn.sends.append(Noted(condition.name.lower(), evidence, instance=instance))


def clear(instance: Instance, condition: Condition, why: str, turn: Turn) -> bool:
    """The condition no longer holds; False if it did not hold."""
    if instance.conditions.pop(condition, None) is None:
        return False
    health.note(instance, f"{condition.name} over", why, turn.wall_ms)
    return True


class Conditions:
    """Finds out the conditions of the instances of one pool. Callers place the instance afterwards."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    # -- ready --------------------------------------------------------------------------------------------------------

    def readiness(self, instance: Instance, turn: Turn) -> None:
        """Whether it can take work at all (HLT-10): it says so, or, if it never says, it has beaten twice."""
        beats = self.pool.thresholds.ready_beats
        ready = instance.ready if instance.ready is not None else instance.heard >= beats
        if ready:
            if not instance.ready_ms:
                self._ready(instance, turn)
                self.pool.vitals.check(instance, turn)
            return
        if not instance.unready_ms:
            instance.unready_ms, instance.ready_ms = turn.now_ms, 0
        said = "it says that it is not ready" if instance.ready is False else (
            f"it does not say that it is ready, and {instance.heard} of {beats} beats have come")  # fmt: skip
        mark(instance, Condition.NOT_READY, said, turn)
        if clear(instance, Condition.WARMING, "it is not ready", turn):
            self.pool.router.slow_start.place(instance.bit, warmup.STEPS)
        self.pool.vitals.check(instance, turn)

    def _ready(self, instance: Instance, turn: Turn) -> None:
        instance.ready_ms, instance.unready_ms = turn.now_ms, 0
        instance.told.discard("unready")
        clear(instance, Condition.NOT_READY, "it is ready", turn)
        if health.move(instance, Sign.READY, "it is ready", turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", instance.health.name, instance=instance))
        if self.pool.thresholds.slow_start_ms and "restored" not in instance.told:
            mark(instance, Condition.WARMING, "it became ready", turn)
            self.warm(instance, turn)

    def unready_for_long(self, instance: Instance, turn: Turn) -> None:
        """It has not become ready: an alert, once."""
        if instance.unready_ms and "unready" not in instance.told:
            instance.told.add("unready")
            evidence = instance.conditions.get(Condition.NOT_READY, ("", 0))[0]
            turn.sends.append(Noted("unready", evidence, instance=instance))

    def warm(self, instance: Instance, turn: Turn) -> None:
        """Its slow start goes on."""
        length = self.pool.thresholds.slow_start_ms
        step = warmup.step_at(turn.now_ms - instance.ready_ms, length) if length else warmup.STEPS
        instance.ramp = step / warmup.STEPS
        self.pool.router.slow_start.place(instance.bit, step)
        if step == warmup.STEPS:
            clear(instance, Condition.WARMING, "its slow start is over", turn)

    def next_ms(self, instance: Instance) -> int | None:
        """When a condition may change without anything happening."""
        limits = self.pool.thresholds
        times = []
        if Condition.WARMING in instance.conditions:
            step = round(instance.ramp * warmup.STEPS) + 1
            times.append(instance.ready_ms + warmup.step_begins_ms(step, limits.slow_start_ms))
        if instance.unready_ms and "unready" not in instance.told:
            times.append(instance.unready_ms + limits.unready_ms)
        if instance.reopened_ms:
            times.append(instance.reopened_ms + 2 * instance.heartbeat_ms)
        if instance.availability_until_ms:
            times.append(instance.availability_until_ms)
        return min(times, default=None)

    def due(self, instance: Instance, turn: Turn) -> None:
        """A timer of the instance: whatever of these is due."""
        now, limits = turn.now_ms, self.pool.thresholds
        if Condition.WARMING in instance.conditions:
            self.warm(instance, turn)
        if instance.unready_ms and now >= instance.unready_ms + limits.unready_ms:
            self.unready_for_long(instance, turn)
        if instance.reopened_ms and now >= instance.reopened_ms + 2 * instance.heartbeat_ms:
            self._drop(instance, turn)
        if instance.availability_until_ms and now >= instance.availability_until_ms:
            instance.availability_until_ms = 0
            if instance.availability is not Availability.DRAINING:
                instance.availability = Availability.READY

    # -- stuck --------------------------------------------------------------------------------------------------------

    def loop_stalls(self, instance: Instance, stalled_ms: int, turn: Turn) -> None:
        """It beats, but the loop of its handlers is blocked: nothing new until it runs again (case B1)."""
        instance.status.pop("loop_stalled", None)
        if stalled_ms:
            since = turn.now_ms - stalled_ms
            mark(instance, Condition.STALLED, f"{LOOP_STALLED} for {stalled_ms} ms", turn, since)
        elif instance.conditions.get(Condition.STALLED, ("", 0))[0].startswith(LOOP_STALLED):
            clear(instance, Condition.STALLED, "its loop runs again", turn)

    def usual_ms(self, instance: Instance, now_ms: int) -> float:
        """How long the tasks that it runs usually take: the longest of their methods; 10 s if nobody knows."""
        usual = 0.0
        for count, task in enumerate(instance.running.values()):
            if count == LOOKED_AT:
                break
            usual = max(usual, mean_latency(instance.methods, task.requirement.method, now_ms))
        return usual or instance.latency_ms or self.pool.scores.baseline_ms or NEUTRAL_LATENCY_MS

    def stuck(self, instance: Instance, turn: Turn) -> None:
        """It gives a sign of life: but does its work go on (HLT-8)? Progress counts as much as a completion."""
        limits = self.pool.thresholds
        still = turn.now_ms - instance.moved_ms
        if not instance.running:
            if "inflight" not in instance.status:
                self.idles(instance, turn)
            return
        if still < limits.stall_floor_ms:
            return
        usual = self.usual_ms(instance, turn.now_ms)
        limit = max(limits.stall_factor * usual, limits.stall_floor_ms)
        if instance.availability is Availability.BUSY:
            limit = max(limit, health.LONGEST_FACTOR * instance.status.get("longest_task", 0))
        if still >= limit:
            said = f"{len(instance.running)} tasks running, nothing completed and no progress for {still} ms"
            mark(instance, Condition.STALLED, f"{said}; usual is {usual:.0f} ms", turn)

    def idles(self, instance: Instance, turn: Turn) -> None:
        """It gives a sign of life and has none of our attempts: what it was stuck with was taken from it. Once it runs
        nothing, by what it says itself if it says, it may work again; if it is stuck still, its next task tells."""
        stalled = instance.conditions.get(Condition.STALLED)
        if stalled is not None and not stalled[0].startswith(LOOP_STALLED) and not instance.inflight + instance.foreign:
            clear(instance, Condition.STALLED, "it runs nothing any more", turn)

    def moves(self, instance: Instance, turn: Turn) -> None:
        """One of its tasks made progress or ended by its doing, while something is held against it."""
        stalled = instance.conditions.get(STALLED)
        if stalled is not None and not stalled[0].startswith(LOOP_STALLED):
            clear(instance, Condition.STALLED, "its work goes on", turn)
            self.pool.admission.place(instance, turn)

    # -- failing ------------------------------------------------------------------------------------------------------

    def failures(self, instance: Instance, count: int, turn: Turn) -> None:
        """Failures in a row, as it reports them (HLT-12)."""
        if count >= self.pool.thresholds.self_failures:
            mark(instance, Condition.SELF_REPORTED_FAILURES, f"it reports {count} failures in a row", turn)
        else:
            clear(instance, Condition.SELF_REPORTED_FAILURES, f"it reports {count} failures in a row", turn)

    # -- deaf ---------------------------------------------------------------------------------------------------------

    def hears(self, instance: Instance, sent: int, echoed: int, turn: Turn) -> None:
        """Its beat says which frame it had last (HLT-9): one that we sent two beats ago must be among them. Beats that
        come early, because something changed, are no measure of time."""
        older, newer, at_ms = instance.frame_marks
        if turn.now_ms - at_ms < EARLY_BEAT * instance.heartbeat_ms:
            return
        instance.frame_marks = (newer, sent, turn.now_ms)
        if echoed >= older:
            if clear(instance, Condition.DEAF, f"frame {echoed} has arrived", turn):
                instance.reopened_ms = 0
            return
        if Condition.DEAF not in instance.conditions:
            instance.reopened_ms = turn.now_ms
            turn.sends.append(AskReopen(instance.link))
        evidence = f"frame {older} was sent two beats ago; the last that arrived is {echoed}"
        mark(instance, Condition.DEAF, evidence, turn)
        self.pool.vitals.check(instance, turn)

    def attached(self, instance: Instance, turn: Turn) -> None:
        """It opened a new stream."""
        instance.frame_marks, instance.reopened_ms = (0, 0, 0), 0
        clear(instance, Condition.DEAF, "it opened a new stream", turn)

    def _drop(self, instance: Instance, turn: Turn) -> None:
        """Asked to open its stream anew, it did not: we end it, and its work waits the usual time for its return."""
        instance.reopened_ms = 0
        if Condition.DEAF in instance.conditions and instance.link is not None:
            turn.sends.append(DropLink(instance.link))
