"""What the journal keeps of the end of a task: its outcome, and what others are to hear of it."""

from __future__ import annotations

from reach.core.effects import Turn
from reach.core.model import Outcome, Task
from reach.core.rows import OutboxRow, OutcomeRow


def outcome_row(task: Task, shard: int, outcome: Outcome) -> OutcomeRow:
    """An outcome as the journal keeps it."""
    fault = outcome.fault
    return OutcomeRow(
        task.row,
        shard,
        outcome.state,
        outcome.ended_wall_ms,
        outcome.sequence,
        outcome.agent_id,
        outcome.instance_id,
        outcome.attempts,
        outcome.transfers,
        outcome.queued_ms,
        outcome.ran_ms,
        outcome.media_type,
        outcome.content,
        0 if fault is None else int(fault.error_class),
        0 if fault is None else int(fault.reason),
        "" if fault is None else fault.message,
        None if fault is None else fault.metadata,
        outcome.extra,
    )


def announce(task: Task, shard: int, turn: Turn) -> None:
    """Makes the end of a task a fact for all who are to hear of it. It is committed with the outcome, so nobody hears
    of what a crash could undo, and nothing that ended is kept from anybody. A task that the journal refused has no row:
    it never was."""
    if task.row <= 0:
        return
    for kind, lane in task.announce:
        turn.writes.outbox.append(
            OutboxRow(shard, kind, lane, str(task.row), task.row, task.tenant, task.task_id, turn.wall_ms, b"")
        )
