"""The checker of several nodes: that of one, and what only several can get wrong (`ownership`, adoption)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.model import TaskKey
from reach.core.rows import FailureRow, Writes
from reach.errors import Reason
from reach.testing.sim.checker import Checker

if TYPE_CHECKING:
    from reach.testing.sim.nodes.clients import NodesAgent

LOST = (Reason.INSTANCE_LOST, Reason.INSTANCE_UNHEALTHY)
UNTROUBLED_S = 15.0
"""After so long an agent to which nothing has happened is what it seems to be."""
PATIENT_S = 1.5
"""An agent that has been away for less than this must not be given up: it has 5 s to open its stream anew, and may hear
that it is to do so 3.2 s late; 30 s if its node is gone (CLU-3)."""


class NodesChecker(Checker):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.agents: dict[str, NodesAgent] = {}

    def durable(self, writes: Writes, taken: list[int]) -> None:
        """See Checker."""
        for failure in writes.failures:
            keys = self.keys_of([failure])  # type: ignore[list-item]
            if keys and failure.reason in LOST and failure.number not in self.truth(keys[0]).failed:
                self._given_up(keys[0], failure)
        super().durable(writes, taken)
        for move in writes.moves:
            for key in self.keys_of([move]):  # type: ignore[list-item]
                known = self.truth(key)
                known.reserved = max(known.reserved, move.sequence)  # where the next owner goes on

    def _given_up(self, key: TaskKey, failure: FailureRow) -> None:
        """A node says that the agent of an attempt is gone."""
        instance = self.truth(key).attempts.get(failure.number, "")
        agent = self.agents.get(instance)
        if agent is None or agent.process.dead or agent.leaving or self.now() < agent.troubled_at + UNTROUBLED_S:
            return
        run, outcome = agent.running.get(key), agent.unacknowledged.get(key)
        works = (run is not None and run.attempt == failure.number) or (
            outcome is not None and outcome.attempt == failure.number
        )
        away = self.now() - agent.away_at if agent.away_at is not None else 0.0
        if works and away < PATIENT_S:
            message = (
                f"attempt {failure.number} at {instance} is given up; it works on it, and was away for {away:.1f} s"
            )
            self.violate("RUNNING_IS_ADOPTED", key, message)
