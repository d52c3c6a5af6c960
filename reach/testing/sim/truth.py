"""The checker's record of one task, and what a caller learns of its end."""

from __future__ import annotations

from typing import Any, NamedTuple

from reach.core.model import Outcome
from reach.core.rows import OutcomeRow

Ending = tuple[int, Any, int, int, str]
"""What a caller learns of an end: (state, content, reason, attempts, instance)."""


class Violation(NamedTuple):
    """Something that must never happen has happened."""

    name: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class TaskTruth:
    """What is known of one task."""

    __slots__ = (
        "accepted", "acted", "attempts", "checkpoint", "effects", "faded", "failed", "given", "numbers", "offered",
        "outcome", "past", "pool", "reborn", "reserved", "row", "said", "spec", "told", "told_at", "volatile",
    )  # fmt: skip

    def __init__(self) -> None:
        self.volatile = False
        self.spec = b""
        """The request that counts: the one that is written down."""
        self.accepted = False
        """Somebody was told that it is accepted."""
        self.row = 0
        self.pool = ""
        """The type of agents that its row says it is with."""
        self.attempts: dict[int, str] = {}
        """Durable attempts: number -> instance."""
        self.failed: set[int] = set()
        self.outcome: OutcomeRow | None = None
        self.effects: set[int] = set()
        self.checkpoint: bytes | None = None
        self.reserved = 0
        self.offered: dict[int, str] = {}
        self.given: set[int] = set()
        """Attempts whose effect the server has granted."""
        self.acted: list[tuple[int, str]] = []
        self.said: dict[tuple[int, str], set[Any]] = {}
        """(attempt, instance) -> the answers that were given there."""
        self.told: Ending | None = None
        self.told_at: float | None = None
        """When somebody first heard of its end: a caller, or the agent whose answer was taken."""
        self.faded: tuple[Ending | None, float | None] = None, None
        """The end before, and when it was told, of what is volatile: a server that stood still may still know it."""
        self.numbers: dict[int, Any] = {}
        """What was told under each number."""
        self.reborn = False
        """It was or may have been forgotten: it is volatile, or was removed."""
        self.past: TaskTruth | None = None
        """The task that had this id before, and was removed."""

    def forget(self) -> None:
        """It is volatile, and nobody has to know of it any more: under the same id it begins anew."""
        self.faded = self.told, self.told_at
        self.offered, self.given, self.told, self.told_at, self.reborn = {}, set(), None, None, True


def ending_of(outcome: Outcome) -> Ending:
    """What a caller learns of an end."""
    reason = int(outcome.fault.reason) if outcome.fault is not None else 0
    return int(outcome.state), outcome.content, reason, outcome.attempts, outcome.instance_id


def ending_of_row(row: OutcomeRow) -> Ending:
    """The same from the journal."""
    return int(row.state), row.content, int(row.reason), row.attempts, row.instance_id
