"""The health of an instance, as a table (HLT-1, HLT-6 … HLT-8): what each source of evidence says, and what follows.

Evidence is of two kinds. *Certain*: the stream ended, the process was replaced, it says that it is not ready: acts at
once. *Suspicion*: missed beats and failed probes. One miss makes an instance SUSPECT, which still works; three in a
row make it UNHEALTHY, but only if no other source has fresh evidence of its life. Any proof of life brings it back.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import Instance
from reach.core.reachability import (
    PERIODS,
    WEIGHTS,
    ProbePeriods,
    ReachWeights,
    misses_in_a_row,
    reach_score,
)

SUSPECT_BEATS = 1.5
"""A beat is missed when it is half an interval late."""
TIMEOUT_BEATS = 3
"""Heartbeat timeout, in intervals."""
OFFLINE_MS = 300_000
WAIT_UNHEALTHY_MS = 30_000
"""How long the attempts of a silent instance wait before they are given up (DLV-7)."""
LONGEST_FACTOR = 1.5
"""How long a BUSY instance may be silent, in the longest task that it declared (HLT-7)."""
HISTORY = 32


class Thresholds(NamedTuple):
    """When what is held against an instance counts. One for all pools of a node."""

    unhealthy_beats: int = TIMEOUT_BEATS
    """Beats missed in a row that make an instance UNHEALTHY."""
    offline_ms: int = OFFLINE_MS
    """Silence after which an instance is given up; also how long one that has never been ready may take to start."""
    periods: ProbePeriods = PERIODS
    weights: ReachWeights = WEIGHTS
    ready_beats: int = 2
    """Beats after which an instance that never says whether it is ready is taken for ready (HLT-10)."""
    unready_ms: int = 300_000
    """Not ready for this long: an alert."""
    slow_start_ms: int = 30_000
    """Length of the slow start; 0: none."""
    stall_factor: float = 2.0
    """Nothing completed for this many usual task times: STALLED (HLT-8)."""
    stall_floor_ms: int = 1_000
    """… but never before this: a shorter pause means nothing."""
    self_failures: int = 3
    """Failures in a row by its own report that bar an instance (HLT-12)."""
    panic_share: float = 0.5
    """If suspicion would exclude a larger share of a pool than this, it is ignored (HLT-13)."""


THRESHOLDS = Thresholds()


class Sign(IntEnum):
    """What bears on health."""

    PROOF = 0
    """A beat, an event, a result, and nothing against it: it lives."""
    PARTLY = 1
    """A proof of life, while another source still misses it."""
    READY = 2
    """It can take work, for the first time."""
    MISSED = 3
    """A beat or a probe is missing."""
    TIMED_OUT = 4
    """Three in a row are missing, and no other source has heard of it."""
    GONE = 5
    """Silent for five minutes."""
    LOST = 6
    """Its stream ended or its process was replaced: certain."""


_H = Health

TRANSITIONS: dict[tuple[Health, Sign], Health] = {
    **{(state, Sign.PROOF): _H.HEALTHY for state in Health},
    **{(state, Sign.PARTLY): _H.SUSPECT for state in Health},
    **{(state, Sign.READY): _H.HEALTHY for state in Health},
    **{(state, Sign.LOST): _H.OFFLINE for state in Health},
    **{(state, Sign.GONE): _H.OFFLINE for state in Health},
    # A start has a limit of its own: what has never been ready may be silent until it is given up (case B9).
    (_H.STARTING, Sign.PROOF): _H.STARTING,
    (_H.STARTING, Sign.PARTLY): _H.STARTING,
    (_H.STARTING, Sign.MISSED): _H.STARTING,
    (_H.STARTING, Sign.TIMED_OUT): _H.STARTING,
    (_H.HEALTHY, Sign.MISSED): _H.SUSPECT,
    (_H.SUSPECT, Sign.MISSED): _H.SUSPECT,
    (_H.UNHEALTHY, Sign.MISSED): _H.UNHEALTHY,
    (_H.OFFLINE, Sign.MISSED): _H.OFFLINE,
    (_H.HEALTHY, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.SUSPECT, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.UNHEALTHY, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.OFFLINE, Sign.TIMED_OUT): _H.OFFLINE,
}


def tolerance_ms(instance: Instance, thresholds: Thresholds = THRESHOLDS) -> int:
    """How long an instance may be silent before three beats are missing; longer while it is BUSY with a long task."""
    tolerance = thresholds.unhealthy_beats * instance.heartbeat_ms
    if instance.availability is Availability.BUSY:
        tolerance = max(tolerance, int(LONGEST_FACTOR * instance.status.get("longest_task", 0)))
    return tolerance


def offline_after_ms(instance: Instance, thresholds: Thresholds = THRESHOLDS) -> int:
    """After how much silence an instance is given up: never while it may be silent, for it beats slowly or is BUSY."""
    tolerance = tolerance_ms(instance, thresholds)
    return thresholds.offline_ms if thresholds.offline_ms > tolerance else tolerance + WAIT_UNHEALTHY_MS


def judge(instance: Instance, now_ms: int, thresholds: Thresholds = THRESHOLDS) -> tuple[Sign | None, str]:
    """What all sources together say by now, and the evidence; None if they have nothing against the instance.

    An agent that we call owes us no beats: it is judged by its probes, and `beat_ms` is its last answer.
    """
    silent = now_ms - instance.beat_ms
    misses = misses_in_a_row(instance.probes) if instance.missed_since_ms else 0
    failed = f"{misses} probes in a row failed: {instance.last_probe_error}" if misses else ""
    if instance.dialled:
        heard = instance.beat_ms > instance.missed_since_ms
        if misses and not heard and now_ms - instance.missed_since_ms >= thresholds.offline_ms:
            return Sign.GONE, failed
    else:
        heard = silent < SUSPECT_BEATS * instance.heartbeat_ms
        answers = not misses and instance.probed_ms > instance.beat_ms  # since the beats ceased
        answers = answers and now_ms - instance.probed_ms < tolerance_ms(instance, thresholds)
        quiet = f"silent for {silent} ms"
        if silent >= offline_after_ms(instance, thresholds) and not answers:
            return Sign.GONE, quiet
        if silent >= tolerance_ms(instance, thresholds):
            return (Sign.MISSED, f"{quiet}, but it answers probes") if answers else (Sign.TIMED_OUT, quiet)
        if not heard and not misses:
            return Sign.MISSED, quiet
    if misses >= thresholds.periods.fail_threshold and not heard:
        return Sign.TIMED_OUT, failed
    if misses:
        return Sign.MISSED, failed
    if "check_error" in instance.status:
        return Sign.MISSED, f"its check failed: {instance.status['check_error']}"
    return None, ""


def next_check_ms(instance: Instance, now_ms: int, thresholds: Thresholds = THRESHOLDS) -> int | None:
    """When silence would next mean something else; None if it cannot get worse."""
    suspect, timeout = int(SUSPECT_BEATS * instance.heartbeat_ms), tolerance_ms(instance, thresholds)
    times = [instance.beat_ms + after for after in (suspect, timeout, offline_after_ms(instance, thresholds))]
    if instance.missed_since_ms:
        times.append(instance.missed_since_ms + thresholds.offline_ms)
    elif instance.probed_ms > instance.beat_ms:
        times.append(instance.probed_ms + timeout)
    return min((at for at in times if at > now_ms), default=None)


def reach_score_of(instance: Instance, now_ms: int, weights: ReachWeights = WEIGHTS) -> float | None:
    """The ReachScore of an instance as of now (HLT-11); None before there is evidence of its life."""
    if not instance.beat_ms:
        return None
    age_ms = now_ms - instance.beat_ms
    return reach_score(age_ms, instance.heartbeat_ms, instance.probe_rtt_ms, instance.probe_loss, weights)


def move(instance: Instance, sign: Sign, reason: str, now_ms: int, wall_ms: int) -> bool:
    """Applies a sign; True if the health changed. The change is kept in the instance's history."""
    state = TRANSITIONS[instance.health, sign]
    if state is instance.health:
        return False
    instance.health = state
    instance.health_since_ms = now_ms
    note(instance, state.name, reason, wall_ms)
    return True


def note(instance: Instance, state: str, reason: str, wall_ms: int) -> None:
    """Keeps a change in the instance's history."""
    instance.history.append((wall_ms, state, reason))
    del instance.history[:-HISTORY]


def barred_by(instance: Instance) -> str:
    """The certain reason why an instance takes no new work; empty if there is none. What an operator would fix first
    comes first."""
    if instance.link is None:
        return "no_link"
    if instance.health is _H.OFFLINE:
        return "offline"
    if instance.availability is Availability.DRAINING:
        return "draining"
    if instance.availability is Availability.UNAVAILABLE:
        return "unavailable"
    if Condition.NOT_READY in instance.conditions:
        return "not_ready"
    if instance.health is _H.STARTING:
        return "starting"
    for condition in (Condition.DEAF, Condition.SELF_REPORTED_FAILURES):
        if condition in instance.conditions:
            return condition.name.lower()
    return ""


def suspected_by(instance: Instance) -> str:
    """The suspicion that takes an instance out of routing, unless too many are suspected; empty if there is none."""
    if instance.health is _H.UNHEALTHY:
        return "unhealthy"
    for condition in (Condition.STALLED, Condition.CIRCUIT_OPEN):
        if condition in instance.conditions:
            return condition.name.lower()
    return ""


def blocked_by(instance: Instance, panic: bool = False) -> str:
    """Why an instance takes no new work now; empty if it does."""
    return barred_by(instance) or ("" if panic else suspected_by(instance))
