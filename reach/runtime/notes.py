"""Who is told what operators should know: the seam between the runtime and telemetry."""

from __future__ import annotations

from typing import Protocol

from reach.core import effects as fx
from reach.core.model import Task


class Notes(Protocol):
    """Who hears of what operators should know: counters, logs, alerts."""

    def noted(self, note: fx.Noted) -> None:
        """A retry, a dead letter, a change of health."""

    def ended(self, task: Task) -> None:
        """A task ended. Called for each task: must cost next to nothing."""

    def began(self, task: Task) -> str:
        """An attempt of a task whose trace is recorded is offered; returns the traceparent for the agent."""

    def committed(self, rows: int, ms: float) -> None:
        """A group commit is done."""
