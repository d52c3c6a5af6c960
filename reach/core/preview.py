"""Where a task would go, and why: every instance of a pool with its signals, its score, and why it is dropped (RTE-12).

The choice itself is the router's own; here the same masks are told instance by instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core.decision import Candidate, Verdict, candidate_of, match_of, task_signal
from reach.core.model import Instance, Requirement, Task
from reach.core.picking import bits
from reach.core.policies import OF_THE_TASK, SIGNALS, Policy, signal
from reach.core.session import PINNED_FULL, Pin

if TYPE_CHECKING:
    from reach.core.pool import Pool
    from reach.core.routing import Router


class Preview:
    """Where a task would go, and why."""

    __slots__ = ("dropped", "pinned", "rows", "verdict")

    def __init__(self, verdict: Verdict, rows: list[Candidate], dropped: dict[str, int], pinned: str) -> None:
        self.verdict = verdict
        self.rows = rows
        """Candidates first, by score; then the dropped ones."""
        self.dropped = dropped
        self.pinned = pinned
        """The full instance that it would wait for; empty if it would not."""


def preview(pool: Pool, task: Task, now_ms: int) -> Preview:
    """Where a task would go, by the code that would send it. Nothing is changed."""
    router = pool.router
    pin = pool.pins.look((task.tenant, task.session), now_ms) if task.session else None
    verdict = router.undisturbed(lambda: _decide(pool, task, pin, now_ms))
    waits = ""
    if verdict.cause == PINNED_FULL and pin is not None:
        waits = pin.instance_id
    rows: list[Candidate] = []
    dropped: dict[str, int] = {}
    by_pin = verdict.cause in ("pin", PINNED_FULL)
    version = pin.version if pin is not None else ""
    reasons = reasons_of(router, verdict, task.avoided, task.cost, bool(task.session) and not by_pin, version)
    for bit in bits(router.filters.all):
        instance = router.instances[bit]
        if instance is None:
            continue
        reason = "" if instance is verdict.chosen else reasons.get(bit, "")
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        known = router.known(verdict.policy, [instance])[0]
        row = candidate_of(verdict, instance, reason, known)
        for name in SIGNALS:
            if name not in row.signals:
                row.signals[name] = (
                    task_signal(name, task.requirement, instance)
                    if name in OF_THE_TASK
                    else signal(name, instance, task.requirement.method, router.figures, now_ms)
                )
        rows.append(row)
    rows.sort(key=lambda row: (bool(row.drop_reason), row.instance is not verdict.chosen, -row.instance.priority,
                               -row.score, row.instance.instance_id))  # fmt: skip
    return Preview(verdict, rows, dropped, waits)


def _decide(pool: Pool, task: Task, pin: Pin | None, now_ms: int) -> Verdict:
    router = pool.router
    if pin is not None:
        instance, waits_until_ms = pool.assignment.by_pin(task, pin, now_ms, now_ms)
        if instance is not None:
            policy, static = router.policy_of(task.policy), router.filters.static(task.requirement)
            if not waits_until_ms:
                return router.verdict(instance, "pin", pool.seed, policy, static, [instance])
            return router.verdict(None, PINNED_FULL, pool.seed, policy, static, [])
    return pool.assignment.decide(task, pin)


def reasons_of(
    router: Router, verdict: Verdict, avoided: tuple[str, ...], cost: int, new_session: bool = False, version: str = ""
) -> dict[int, str]:
    """Why each instance that is no candidate is none, by bit: the first filter of RTE-1 that drops it.

    Args:
        router: The pool's.
        verdict: The decision that is to be explained.
        avoided: Instances that failed the task.
        cost: Slots that it takes.
        new_session: It needs a session slot.
        version: The version that its session began with.
    """
    requirement, policy = verdict.static.requirement, verdict.policy
    reasons: dict[int, str] = {}
    left = router.filters.all
    for reason, passing in router.filters.stages(requirement):
        for bit in bits(left & ~passing):
            reasons[bit] = reason
        left &= passing
    near, _ = router.prefer(left, (), requirement.region, policy)
    untried, _ = router.prefer(left, avoided, requirement.region, policy)
    by_pin = verdict.cause in ("pin", PINNED_FULL)
    first, then, _ = router.narrow(untried, (), new_session, verdict.seed, policy, requirement, version)
    for bit in bits(left):
        instance = router.instances[bit]
        assert instance is not None
        held = instance.inflight + instance.foreign
        limit = int(instance.max_concurrency * router.overcommit)
        if not near >> bit & 1:
            reason = "region"
        elif instance.blocked_by:
            reason = instance.blocked_by
        elif not untried >> bit & 1:
            reason = "failed_before"
        elif new_session and router.sessions_full >> bit & 1:
            reason = "session_slots"
        elif held + cost > limit and (held or cost <= limit):
            reason = "capacity"
        elif _below(policy, requirement, instance):
            reason = "match"
        elif not by_pin and not (first | then) >> bit & 1:
            reason = "canary"
        else:
            continue
        reasons[bit] = reason
    return reasons


def _below(policy: Policy, requirement: Requirement, instance: Instance) -> bool:
    """Whether an instance fits the text of a task too little for the policy."""
    return bool(policy.match_at_least and requirement.documents) and (
        match_of(requirement, instance) < policy.match_at_least
    )
