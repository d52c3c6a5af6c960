"""Signs of life of a pool's instances: beats, traffic, probes, checks, and silence (HLT-1 … HLT-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core import health
from reach.core.at_hand import HEALTHY
from reach.core.conditions import clear, mark
from reach.core.effects import Noted, Turn
from reach.core.health import Sign
from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import Instance
from reach.core.reachability import PROBES, loss_rate, misses_in_a_row, probe_period_ms, round_trip_ms
from reach.core.signals import BEAT_WINDOW_MS

if TYPE_CHECKING:
    from reach.core.events import Beat, Checked, Probed
    from reach.core.pool import Pool

KEEP_OFFLINE_MS = 600_000
"""How long an instance that is gone stays in the registry."""
MAX_BEATS = 64
"""Beats of an instance that are remembered: twice what the fastest settable interval needs."""


class Vitals:
    """Watches over the instances of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    # -- evidence -----------------------------------------------------------------------------------------------------

    def beat(self, event: Beat, turn: Turn) -> None:
        """A beat: proof of life, and a status."""
        instance = event.instance
        if instance.bit < 0 or event.generation != instance.generation:
            return  # it has left, or another one is there; what it still says proves nothing
        before = instance.foreign, instance.max_concurrency, instance.availability
        self._heard(instance, turn)
        if event.status:
            self._take(instance, event.status, turn)
        if event.echoed:
            self.pool.conditions.hears(instance, event.sent, event.echoed, turn)
        if (
            before == (instance.foreign, instance.max_concurrency, instance.availability)
            and instance.health is Health.HEALTHY
            and not (instance.conditions or instance.blocked_by or instance.suspected or instance.missed_since_ms)
        ):  # nothing is odd and nothing new, as nearly always: it stays where it is
            instance.beat_ms = turn.now_ms
            self.pool.scores.changed(instance)
            return
        self.proven(instance, "beat", turn)

    def _heard(self, instance: Instance, turn: Turn) -> None:
        """It beats, or does what counts as a beat."""
        instance.beats.append(turn.now_ms)
        if len(instance.beats) > MAX_BEATS or instance.beats[0] < turn.now_ms - BEAT_WINDOW_MS:
            del instance.beats[0]
        instance.heard += 1
        if not instance.ready_ms:
            self.pool.conditions.readiness(instance, turn)
        if instance.running or instance.conditions:
            self.pool.conditions.stuck(instance, turn)

    def probed(self, event: Probed, turn: Turn) -> None:
        """A probe came back, or did not (HLT-3). What failed while we stood still ourselves proves nothing."""
        instance = event.instance
        if instance.bit < 0 or (not event.ok and turn.now_ms < self.pool.judge_from_ms):
            return
        instance.probes.append(max(0.0, event.rtt_ms) if event.ok else None)
        del instance.probes[:-PROBES]
        instance.probe_rtt_ms, instance.probe_loss = round_trip_ms(instance.probes), loss_rate(instance.probes)
        if event.ok:
            instance.probed_ms, instance.missed_since_ms = turn.now_ms, 0
            instance.probe_status = "ok"
            clear(instance, Condition.UNREACHABLE, "it answers probes again", turn)
        else:
            misses = misses_in_a_row(instance.probes)
            instance.missed_since_ms = instance.missed_since_ms or turn.now_ms
            instance.probe_status, instance.last_probe_error = "failing", event.error
            if misses >= self.pool.thresholds.periods.fail_threshold:
                instance.probe_status = "unreachable"
                mark(instance, Condition.UNREACHABLE, f"{misses} probes in a row failed: {event.error}", turn)
        if event.ok and instance.dialled:
            self._heard(instance, turn)
            self.proven(instance, "probe", turn)
        else:
            self._weigh(instance, "probe" if event.ok else "", turn)
            self.pool.scores.changed(instance)
            self.pool.admission.place(instance, turn)
        self.rescore(instance, turn.now_ms)
        periods = self.pool.thresholds.periods
        instance.probe_due_ms = turn.now_ms + probe_period_ms(instance.probes, instance.reach_score, periods)

    def forget_probes(self, instance: Instance, turn: Turn) -> None:
        """It is reached another way now: what probes showed before says nothing of that."""
        instance.probes.clear()
        instance.probe_rtt_ms, instance.probe_loss, instance.missed_since_ms = None, None, 0
        instance.probe_status, instance.last_probe_error = "none", ""
        instance.status.pop("check_error", None)
        clear(instance, Condition.UNREACHABLE, "it is reached another way", turn)

    def checked(self, event: Checked, turn: Turn) -> None:
        """An application check came back (HLT-4): alive but not ready is no new work."""
        instance = event.instance
        if instance.bit < 0 or (not event.ok and turn.now_ms < self.pool.judge_from_ms):
            return
        if not event.ok:
            instance.status["check_error"] = event.error
            self._weigh(instance, "", turn)
            self.pool.admission.place(instance, turn)
            return
        instance.status.pop("check_error", None)
        if event.worker_idle_share is not None:
            instance.status["worker_idle_share"] = event.worker_idle_share
        if event.status:
            self.apply_status(instance, event.status, turn)
        if instance.dialled:
            self._heard(instance, turn)
            self.proven(instance, "check", turn)
        else:
            self._weigh(instance, "check", turn)
            self.pool.admission.place(instance, turn)

    def apply_status(self, instance: Instance, status: dict[str, Any], turn: Turn) -> None:
        """Takes over what an instance reports of itself; what it does not say stays (REG-3)."""
        self._take(instance, status, turn)
        self.pool.admission.place(instance, turn)

    def _take(self, instance: Instance, status: dict[str, Any], turn: Turn) -> None:
        """As `apply_status`, for those who place the instance afterwards themselves."""
        instance.status.update(status)
        if "ready" in status and instance.ready is not status["ready"]:
            instance.ready = status["ready"]
            self.pool.conditions.readiness(instance, turn)
        if "max_concurrency" in status:
            slots = max(1, status["max_concurrency"])
            if slots > instance.max_concurrency:
                self.pool.slot_freed = True
            instance.max_concurrency = slots
        if "inflight" in status:
            foreign = max(0, status["inflight"] - instance.inflight)
            if foreign < instance.foreign:
                self.pool.slot_freed = True
            instance.foreign = foreign
            if instance.conditions and not instance.running:
                self.pool.conditions.idles(instance, turn)
        self.says(instance, status.get("availability"), status.get("availability_ttl", 0), turn)
        if instance.conditions or "loop_stalled" in status:
            self.pool.conditions.loop_stalls(instance, status.get("loop_stalled", 0), turn)
        if "consecutive_failure_count" in status:
            self.pool.conditions.failures(instance, status["consecutive_failure_count"], turn)

    def says(self, instance: Instance, said: Availability | None, ttl_ms: int, turn: Turn) -> None:
        """What it says of itself counts, as long as it says; but once it drains it drains: until an operator or a new
        process ends that."""
        if said is None or instance.availability is Availability.DRAINING:
            return
        instance.availability = said
        until = turn.now_ms + ttl_ms if ttl_ms else 0
        if until or instance.availability_until_ms:
            instance.availability_until_ms = until
            self.check(instance, turn)

    # -- what follows -------------------------------------------------------------------------------------------------

    def prove(self, instance: Instance, turn: Turn) -> None:
        """Traffic is proof of life too (HLT-2, HLT-7)."""
        instance.beat_ms = turn.now_ms
        if instance.health is not HEALTHY:
            self.proven(instance, "traffic", turn)

    def moved(self, instance: Instance, turn: Turn) -> None:
        """A task of the instance makes progress, or ends by its doing."""
        instance.moved_ms = turn.now_ms
        if instance.conditions:
            self.pool.conditions.moves(instance, turn)

    def proven(self, instance: Instance, why: str, turn: Turn) -> None:
        """It lives, by whatever proof of its own."""
        if instance.bit < 0:
            return  # it has left; what it still says proves nothing
        instance.beat_ms = turn.now_ms
        if instance.health is not Health.HEALTHY or instance.missed_since_ms:
            self._weigh(instance, why, turn)
        self.pool.scores.changed(instance)
        self.pool.admission.place(instance, turn)

    def _weigh(self, instance: Instance, proof: str, turn: Turn) -> None:
        """Weighs all that is known; `proof`: what has just shown that it lives, if anything has."""
        sign, evidence = health.judge(instance, turn.now_ms, self.pool.thresholds)
        if proof and sign is not Sign.GONE:
            sign, evidence = (Sign.PROOF, proof) if sign is None else (Sign.PARTLY, evidence)
        if sign is None or (sign is Sign.GONE and instance.health is Health.OFFLINE):
            return
        if health.move(instance, sign, evidence, turn.now_ms, turn.wall_ms):
            turn.sends.append(Noted("health", instance.health.name, instance=instance))
            self.pool.scores.changed(instance)
        quiet = not instance.dialled and sign in (Sign.MISSED, Sign.PARTLY) and instance.probed_ms > instance.beat_ms
        if quiet and turn.now_ms - instance.beat_ms >= health.tolerance_ms(instance, self.pool.thresholds):
            if "beats_gone" not in instance.told:  # HLT-8
                instance.told.add("beats_gone")
                turn.sends.append(Noted("beats_gone", evidence, instance=instance))
        elif sign is Sign.PROOF:
            instance.told.discard("beats_gone")
        self.check(instance, turn)

    def rescore(self, instance: Instance, now_ms: int) -> None:
        """Its ReachScore as of now (HLT-11)."""
        instance.reach_score = health.reach_score_of(instance, now_ms, self.pool.thresholds.weights)

    # -- time ---------------------------------------------------------------------------------------------------------

    def check(self, instance: Instance, turn: Turn) -> None:
        """Sets the instance's one timer: the next meaning of its silence or of a condition, or its removal."""
        if instance.bit < 0:
            return
        at = health.next_check_ms(instance, turn.now_ms, self.pool.thresholds)
        if instance.health is Health.OFFLINE:
            at = instance.health_since_ms + KEEP_OFFLINE_MS if instance.link is None else None
        else:
            soon = self.pool.conditions.next_ms(instance)
            if soon is not None:
                at = soon if at is None else min(at, soon)
        if at is not None:
            self.pool.wheel.arm(instance, max(at, turn.now_ms + 1))

    def due(self, instance: Instance, turn: Turn) -> None:
        """A timer of an instance."""
        suspect_ms = instance.beat_ms + int(health.SUSPECT_BEATS * instance.heartbeat_ms)
        if (
            turn.now_ms < suspect_ms
            and instance.health is Health.HEALTHY
            and not (instance.conditions or instance.missed_since_ms or instance.dialled)
            and not (instance.unready_ms or instance.reopened_ms or instance.availability_until_ms)
        ):
            self.pool.wheel.arm(instance, suspect_ms)  # it beats and nothing is odd, as nearly always
            return
        if instance.health is Health.OFFLINE:
            if instance.link is None and turn.now_ms >= instance.health_since_ms + KEEP_OFFLINE_MS:
                self.pool.fleet.remove(instance, turn)
                return
        else:
            self.pool.conditions.due(instance, turn)
            self._weigh(instance, "", turn)
            self.pool.scores.changed(instance)
            self.pool.admission.place(instance, turn)
        self.check(instance, turn)

    def forgive(self, turn: Turn) -> None:
        """We were stalled ourselves: nobody is judged by what we could not hear."""
        for instance in self.pool.instances.values():
            if instance.link is not None:
                instance.beat_ms = max(instance.beat_ms, turn.now_ms - instance.heartbeat_ms)
