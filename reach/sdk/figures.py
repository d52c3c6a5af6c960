"""What an agent reports of itself with beats and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.core.instance_states import Availability
from reach.sdk.payloads import Fields

if TYPE_CHECKING:
    from reach.sdk.handlers import Handler

FAILURE_MEMORY_S: Final = 30.0
"""Failures in a row count no longer than this. After three in a row an agent gets no tasks (HLT-12), so without an end
it could never show that it works again."""
_METHODS: Final = 16
"""Handlers with figures of their own: a status has at most 2 KiB."""


def duration(seconds: float) -> Fields:
    """Seconds as the fields of a Duration."""
    whole = int(seconds)
    return {"seconds": whole, "nanos": int((seconds - whole) * 1e9)}


class Figures:
    """Counts of one agent. Times are of the monotonic clock."""

    __slots__ = (
        "availability",
        "failed_at",
        "failures",
        "inflight",
        "last_completion",
        "last_duration",
        "longest_task",
        "max_concurrency",
        "ready",
    )

    def __init__(self, max_concurrency: int) -> None:
        self.max_concurrency = max_concurrency
        self.inflight = 0
        self.failures = 0
        self.failed_at = 0.0
        self.last_completion: float | None = None
        self.last_duration = 0.0
        self.ready = True
        self.availability = Availability.READY
        self.longest_task: float | None = None

    def begun(self, handler: Handler | None) -> None:
        """An attempt begins."""
        self.inflight += 1
        if handler is not None:
            handler.inflight += 1

    def paused(self, handler: Handler | None) -> None:
        """An attempt waits for input and takes no slot; when it goes on, it has `begun` again."""
        self.inflight -= 1
        if handler is not None:
            handler.inflight -= 1

    def ended(self, handler: Handler | None, took: float, now: float, failed: bool | None) -> None:
        """An attempt ended. `failed`: by a fault of ours; None: it says nothing about us."""
        self.inflight -= 1
        self.last_completion = now
        self.last_duration = took
        if handler is not None:
            handler.inflight -= 1
            handler.latency += 0.2 * (took - handler.latency) if handler.latency else took
        if failed:
            self.failures += 1
            self.failed_at = now
        elif failed is False:
            self.failures = 0

    def fields(self, now: float, waiting: int, handlers: dict[str, Handler]) -> Fields:
        """The fields of AgentStatus."""
        if self.failures and now - self.failed_at > FAILURE_MEMORY_S:
            self.failures = 0
        fields: Fields = {
            "inflight": max(0, self.inflight),
            "queue_length": waiting,
            "max_concurrency": self.max_concurrency,
            "free_slots": max(0, self.max_concurrency - self.inflight),
            "consecutive_failure_count": self.failures,
            "ready": self.ready,
            "availability": int(self.availability),
        }
        if self.last_completion is not None:
            fields["last_task_duration"] = duration(self.last_duration)
            fields["last_completion_age"] = duration(max(0.0, now - self.last_completion))
        if self.longest_task is not None:
            fields["longest_task"] = duration(self.longest_task)
        if 1 < len(handlers) <= _METHODS:
            fields["methods"] = [
                {"name": handler.name, "inflight": handler.inflight, "latency": duration(handler.latency)}
                for handler in handlers.values()
            ]
        return fields
