"""One attempt that runs in an agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reach.sdk.outcomes import Key
from reach.sdk.payloads import Fields

if TYPE_CHECKING:
    from reach.sdk.flow import Flow
    from reach.sdk.handlers import Handler


class Attempt:
    """One attempt that runs here."""

    __slots__ = ("accepted", "begun", "cancelled", "effects", "ended", "flow", "handler", "map_key", "number", "runner",
                 "silent")  # fmt: skip

    def __init__(self, map_key: Key, number: int, begun: float, handler: Handler | None) -> None:
        self.map_key = map_key
        self.number = number
        self.begun = begun
        self.handler = handler
        self.accepted = True
        """It has begun, or begins at once; False while it waits for a thread."""
        self.cancelled = False
        self.silent = False
        """Nobody wants to hear how it ended."""
        self.ended = False
        self.runner: asyncio.Task[None] | None = None
        self.flow: Flow | None = None
        self.effects: dict[str, asyncio.Future[None]] | None = None

    @property
    def key(self) -> Fields:
        """The fields of its AttemptKey."""
        tenant, task_id = self.map_key
        return {"task_id": task_id, "attempt": self.number, "tenant": tenant}
