"""What is kept of the attempts of a task that are over."""

from __future__ import annotations

from typing import Any

from reach.core.model import Fault


class PastAttempt:
    """One delivery that is over, for the history of a task."""

    __slots__ = ("agent_id", "decision", "ended_wall_ms", "fault", "generation", "instance_id", "number",
                 "offered_wall_ms")  # fmt: skip

    def __init__(
        self,
        number: int,
        instance_id: str,
        agent_id: str,
        generation: int,
        offered_wall_ms: int,
        ended_wall_ms: int,
        fault: Fault | None,
        decision: Any = None,
    ) -> None:
        self.number = number
        self.instance_id = instance_id
        self.agent_id = agent_id
        self.generation = generation
        self.offered_wall_ms = offered_wall_ms
        self.ended_wall_ms = ended_wall_ms
        self.fault = fault
        self.decision = decision
        """Why it was there (a `Verdict`); None if that is no longer known."""
