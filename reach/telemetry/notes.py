"""What operators hear of the runtime: counters always, spans for recorded traces, log lines for what is rare."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reach.core.effects import Noted
from reach.core.model import Instance, Task, TaskState
from reach.errors import Reason
from reach.telemetry.logs import RepeatedLogger
from reach.telemetry.metrics import ALERTS, Metrics
from reach.telemetry.tracing import Tracing

log = logging.getLogger("reach.runtime")
_repeated = RepeatedLogger(log)

_OUTCOMES = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
    TaskState.REJECTED: "rejected",
    TaskState.DEAD_LETTERED: "dead_lettered",
}
_ATTEMPTS = {
    Reason.INSTANCE_LOST.name: "lost",
    Reason.INSTANCE_UNHEALTHY.name: "lost",
    Reason.START_TO_CLOSE.name: "expired",
    Reason.SILENCE.name: "expired",
}


HEALTH_LINES = 20
"""Changes of health that are logged in one second; a fleet that flaps must not make its server write lines only."""


class TelemetryNotes:
    """The host's `Notes`. Called on the loop; `ended` is called for each task and does next to nothing."""

    def __init__(self, metrics: Metrics, tracing: Tracing, intent_of: Callable[[bytes], str]) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self._intent_of = intent_of
        """The intent that a request names; empty if none."""
        self.watchers: Callable[[Instance], None] | None = None
        """Who hears that something rare happened to an instance (`runtime.watching`)."""
        self._second = 0
        self._lines = 0

    def ended(self, task: Task) -> None:
        """A task ended."""
        outcome = task.outcome
        assert outcome is not None
        name = _OUTCOMES[outcome.state]
        metrics = self.metrics
        metrics.deliveries[name] += 1
        metrics.durations.of(task.requirement.capability).observe((outcome.queued_ms + outcome.ran_ms) / 1_000)
        if outcome.transfers:
            metrics.transferred(outcome.transfers)
        if outcome.extra and (executed := outcome.extra.get("executed_intent")):
            asked = self._intent_of(task.spec)
            if asked and asked != executed:
                metrics.mismatched()
        if task.trace:
            reason = outcome.fault.reason.name if outcome.fault is not None else ""
            self.tracing.attempt_ended(task.key, task.attempt, name, reason)
            self.tracing.dispatch_ended(task.key, name, reason)

    def began(self, task: Task) -> str:
        """An attempt of a recorded trace is offered."""
        return self.tracing.attempt_started(task.key, task.attempt, task.trace)

    def committed(self, rows: int, ms: float) -> None:
        """A group commit is done."""
        self.metrics.committed(rows, ms)

    def noted(self, note: Noted) -> None:
        """A retry, a dead letter, a gap, a change of health, an instance that came, drains or went."""
        if note.instance is not None and self.watchers is not None:
            self.watchers(note.instance)
        if note.kind == "retry":
            self.metrics.retried(Reason[note.reason])
            if note.task is not None and note.task.trace:
                outcome = _ATTEMPTS.get(note.reason, "failed")
                self.tracing.attempt_ended(note.task.key, note.task.attempt, outcome, note.reason)
        elif note.kind == "dead_letter":
            self.metrics.dead_lettered(Reason[note.reason])
            tenant, task_id = (note.task.tenant, note.task.task_id) if note.task is not None else ("", "")
            _repeated.error(f"dead_letter:{note.reason}", "a task was given up", reason=note.reason,
                            tenant=tenant, task=task_id)  # fmt: skip
        elif note.kind == "gap":
            self.metrics.gapped()
        elif note.kind in ALERTS:
            self.metrics.alerted(note.kind)
            who = note.instance.instance_id if note.instance is not None else ""
            _repeated.warning(f"{note.kind}:{who}", "an instance needs attention" if who else "a pool needs attention",
                              kind=note.kind, instance=who, evidence=note.reason)  # fmt: skip
        elif note.kind == "canary_promoted":
            log.info("a canary gets all new work", extra={"evidence": note.reason})
        elif note.kind == "health" and note.instance is not None:
            self._health_changed(note.instance, note.reason)

    def _health_changed(self, instance: Instance, state: str) -> None:
        second = int(time.monotonic())
        left_out = max(0, self._lines - HEALTH_LINES) if second != self._second else 0
        if second != self._second:
            self._second, self._lines = second, 0
            if left_out:
                log.warning("more instances changed their health than are logged", extra={"suppressed": left_out})
        self._lines += 1
        if self._lines > HEALTH_LINES:
            return
        why = instance.history[-1][2] if instance.history else ""
        level = logging.INFO if state == "HEALTHY" else logging.WARNING
        log.log(level, "an instance changed its health",
                extra={"instance": instance.instance_id, "health": state, "why": why})  # fmt: skip
