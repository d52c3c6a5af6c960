"""A decision as it is told and stored: names and numbers, nothing that lives on (RTE-13)."""

from __future__ import annotations

from typing import NamedTuple

from reach.core.decision import Verdict, candidates, dropped
from reach.core.model import Task
from reach.core.policies import Policy


class Told(NamedTuple):
    """A candidate; one that is dropped has a reason."""

    instance_id: str
    score: float
    signals: dict[str, float]
    drop_reason: str = ""


class Record(NamedTuple):
    """Why an attempt is where it is."""

    policy: Policy
    """Its name, weights and way, as they were."""
    policy_hash: str
    revision: int
    """Of the pool's static attributes."""
    seed: int
    chosen: str
    """Empty if nobody was."""
    cause: str
    """See `Verdict.cause`."""
    moved_from: str
    candidates: tuple[Told, ...]
    """The chosen one first, then by score."""
    dropped: dict[str, int]
    """How many, by reason."""
    matched_by: str = ""
    """`classifier` if that is what matched the text of the task."""


LAST_LOOK = 0
"""Where a task that waits has the decision that gave it nobody, among those of its attempts."""


def records_of(task: Task) -> dict[int, Record]:
    """The decisions of a task by attempt, as far as they are in memory."""
    verdicts = {past.number: past.decision for past in task.history or ()}
    if task.decision is not None and task.decision.chosen is None:
        verdicts[LAST_LOOK] = task.decision
    elif task.attempt:
        verdicts.setdefault(task.attempt, task.decision)
    return {number: record_of(verdict) for number, verdict in verdicts.items() if verdict is not None}


def record_of(verdict: Verdict) -> Record:
    """A decision that is in memory, as it is told."""
    return Record(
        verdict.policy,
        verdict.policy.digest,
        verdict.revision,
        verdict.seed,
        verdict.chosen.instance_id if verdict.chosen is not None else "",
        verdict.cause,
        verdict.moved_from,
        tuple(Told(row.instance.instance_id, row.score, row.signals, row.drop_reason) for row in candidates(verdict)),
        dropped(verdict),
        verdict.static.matched_by,
    )
