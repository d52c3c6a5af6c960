"""The health of an instance: by beats and by loss of its stream (HLT-1, HLT-6), as a table.

Evidence is of two kinds. *Certain*: the stream ended, the process was replaced: acts at once. *Suspicion*: missed
beats; three in a row take an instance out of routing, and any proof of life brings it back at once.
"""

from __future__ import annotations

from enum import IntEnum

from reach.core.model import Availability, Condition, Health, Instance

SUSPECT_BEATS = 1.5
"""A beat is missed when it is half an interval late."""
TIMEOUT_BEATS = 3
"""Heartbeat timeout, in intervals."""
OFFLINE_MS = 300_000
WAIT_UNHEALTHY_MS = 30_000
"""How long the attempts of a silent instance wait before they are given up (DLV-7)."""
HISTORY = 32


class Sign(IntEnum):
    """What bears on health."""

    PROOF = 0
    """A beat, an event, a result: it lives."""
    MISSED = 1
    TIMED_OUT = 2
    """Three beats in a row are missing."""
    GONE = 3
    """Silent for five minutes."""
    LOST = 4
    """Its stream ended or its process was replaced: certain."""


_H = Health

TRANSITIONS: dict[tuple[Health, Sign], Health] = {
    **{(state, Sign.PROOF): _H.HEALTHY for state in Health},
    **{(state, Sign.LOST): _H.OFFLINE for state in Health},
    **{(state, Sign.GONE): _H.OFFLINE for state in Health},
    (_H.STARTING, Sign.MISSED): _H.SUSPECT,
    (_H.HEALTHY, Sign.MISSED): _H.SUSPECT,
    (_H.SUSPECT, Sign.MISSED): _H.SUSPECT,
    (_H.UNHEALTHY, Sign.MISSED): _H.UNHEALTHY,
    (_H.OFFLINE, Sign.MISSED): _H.OFFLINE,
    (_H.STARTING, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.HEALTHY, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.SUSPECT, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.UNHEALTHY, Sign.TIMED_OUT): _H.UNHEALTHY,
    (_H.OFFLINE, Sign.TIMED_OUT): _H.OFFLINE,
}


def sign_of_silence(instance: Instance, now_ms: int) -> Sign | None:
    """What the silence of an instance means by now."""
    silent = now_ms - instance.beat_ms
    if silent >= OFFLINE_MS:
        return Sign.GONE
    if silent >= TIMEOUT_BEATS * instance.heartbeat_ms:
        return Sign.TIMED_OUT
    if silent >= SUSPECT_BEATS * instance.heartbeat_ms:
        return Sign.MISSED
    return None


def next_check_ms(instance: Instance, now_ms: int) -> int | None:
    """When silence would next mean something else; None if it cannot get worse."""
    interval = instance.heartbeat_ms
    for after in (int(SUSPECT_BEATS * interval), TIMEOUT_BEATS * interval, OFFLINE_MS):
        if instance.beat_ms + after > now_ms:
            return instance.beat_ms + after
    return None


def move(instance: Instance, sign: Sign, reason: str, now_ms: int, wall_ms: int) -> bool:
    """Applies a sign; True if the health changed. The change is kept in the instance's history."""
    state = TRANSITIONS[instance.health, sign]
    if state is instance.health:
        return False
    instance.health = state
    instance.health_since_ms = now_ms
    instance.history.append((wall_ms, state.name, reason))
    del instance.history[:-HISTORY]
    return True


def blocked_by(instance: Instance) -> str:
    """Why an instance takes no new work now; empty if it does. In the order of what an operator would fix first."""
    if instance.link is None:
        return "no_link"
    if instance.health is _H.UNHEALTHY:
        return "unhealthy"
    if instance.health is _H.OFFLINE:
        return "offline"
    if instance.health is _H.STARTING:
        return "starting"
    if instance.ready is False:
        return "not_ready"
    if instance.availability is Availability.DRAINING:
        return "draining"
    if instance.availability is Availability.UNAVAILABLE:
        return "unavailable"
    for condition in (Condition.DEAF, Condition.STALLED, Condition.SELF_REPORTED_FAILURES, Condition.CIRCUIT_OPEN):
        if condition in instance.conditions:
            return condition.name.lower()
    return ""
