"""Draining an instance (REG-7): no new sessions at once, old ones until a deadline, then hand-off.

What runs is finished in any case. Only an operator's drain has a deadline; an instance that publishes DRAINING of its
own takes nothing from then on, for it knows why.
"""

from __future__ import annotations

from reach.core import health
from reach.core.instance_states import Availability, Condition, Health
from reach.core.model import Instance

_BLOCKING = frozenset(
    {
        Condition.NOT_READY,
        Condition.STALLED,
        Condition.DEAF,
        Condition.SELF_REPORTED_FAILURES,
        Condition.CIRCUIT_OPEN,
    }
)


def begin(instance: Instance, deadline_ms: int, now_ms: int, wall_ms: int) -> None:
    """An operator drains it. Asked again, the later word on the deadline counts."""
    instance.availability = Availability.DRAINING
    instance.availability_until_ms = 0
    instance.drain_until_ms = now_ms + deadline_ms
    health.note(instance, "DRAINING", f"drained; its sessions may stay for {deadline_ms} ms", wall_ms)


def undo(instance: Instance, wall_ms: int) -> None:
    """An operator lets it work again."""
    if instance.availability is Availability.DRAINING:
        health.note(instance, "READY", "the drain was undone", wall_ms)
    instance.availability = Availability.READY
    instance.availability_until_ms = instance.drain_until_ms = 0


def keeps_sessions(instance: Instance, now_ms: int) -> bool:
    """Whether an instance that takes nothing new may still have the tasks of sessions that it has: draining is all that
    is held against it, and the deadline has not come."""
    return (
        instance.blocked_by == "draining"
        and now_ms < instance.drain_until_ms
        and (instance.health is Health.HEALTHY or instance.health is Health.SUSPECT)
        and _BLOCKING.isdisjoint(instance.conditions)
    )


def serves_sessions(instance: Instance, now_ms: int) -> bool:
    """Whether an instance may have the tasks of sessions that it has."""
    return not instance.blocked_by or keeps_sessions(instance, now_ms)
