"""The story of one task in lines for people: where it went, why, and what came of it (OBS-5, RTE-13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reach.core.decision_record import LAST_LOOK, Record
from reach.core.history import PastAttempt
from reach.core.model import Fault, Task, TaskState
from reach.errors import Reason

GONE = "the reasons were not kept"
"""A volatile task that has ended, or one that an earlier version took in."""
MANY_MOVES = 3
"""From so many moves on, it is the agents that should be looked at."""
_BY = {
    "score": "the best by score, or as good as the best",
    "ring": "proposed by the ring",
    "pin": "it has the session",
    "probe": "to see whether its open circuit can be closed",
    "overcommit": "the least loaded, for nobody had a free slot",
}


def story_of(task: Task, decisions: Mapping[int, Record]) -> list[str]:
    """What happened, line by line; `decisions` by attempt, and for a task that waits those of its last look at 0."""
    return list(_lines(task, decisions))


def _lines(task: Task, decisions: Mapping[int, Record]) -> Iterator[str]:
    kind = task.pool.key.agent_type if task.pool is not None else ""
    session = f" of session {task.session}" if task.session else ""
    yield f"accepted{f' by pool {kind}' if kind else ''} with priority {task.priority}{session}"
    history = task.history or []
    if history and history[0].number > 1:
        yield f"attempts 1 to {history[0].number - 1} are no longer kept"
    for past in history:
        yield _went(past.number, past.instance_id, decisions.get(past.number))
        if past.fault is not None or task.outcome is None or past.number < task.outcome.attempts:
            yield _ended(past)  # else the task ended with it, and the last line tells how
    if task.attempt and task.instance_id and task.attempt not in {past.number for past in history}:
        yield _went(task.attempt, task.instance_id, decisions.get(task.attempt))
    if task.outcome is None:
        yield from _now(task, decisions.get(LAST_LOOK))
        return
    outcome = task.outcome
    took = f"{_span(outcome.queued_ms)} waiting, {_span(outcome.ran_ms)} running"
    why = f": {_told(outcome.fault)}" if outcome.fault is not None else ""
    tries = f"{_count(outcome.attempts, 'attempt')} and {_count(outcome.transfers, 'move')}"
    yield f"ended {outcome.state.name} after {tries}, {took}{why}"
    if outcome.state is TaskState.FAILED and not outcome.transfers:
        yield "it never moved to another instance and failed: look at the request first"
    elif outcome.transfers >= MANY_MOVES:
        yield "it moved often: look at the agents first"
    if outcome.state is TaskState.DEAD_LETTERED:
        first = "look whether its effect happened; if not, " if _is_unknown(outcome.fault) else ""
        yield f"it is kept as a dead letter: {first}`reach dlq requeue {task.task_id}` tries it again"


def _now(task: Task, last_look: Record | None) -> Iterator[str]:
    if task.state is TaskState.PENDING:
        yield f"waits: {task.pending_reason or 'for its turn'}"
        if last_look is not None:
            yield f"the last look found nobody under {last_look.policy.name}{_counts(last_look)}"
    else:
        yield f"is {task.state.name}"
        if task.state is TaskState.WAITING:
            yield f"its agent asks something: `reach tasks show {task.task_id}` has it, `reach input` answers it"


def _is_unknown(fault: Fault | None) -> bool:
    return fault is not None and fault.reason is Reason.OUTCOME_UNKNOWN


def _went(number: int, instance_id: str, record: Record | None) -> str:
    if record is None:
        return f"attempt {number} went to {instance_id}; {GONE}"
    rows = record.candidates
    best = rows[0] if rows else None
    scored = f", score {best.score:.3f}" if best is not None and record.policy.weights else ""
    moved = f", moved there from {record.moved_from}" if record.moved_from else ""
    others = [f"{row.instance_id} {row.score:.3f}" for row in rows[1:]] if record.policy.weights else []
    beside = f"; beside it: {', '.join(others)}" if others else ""
    how = _BY.get(record.cause, record.cause)
    policy = record.policy.name
    if record.matched_by:
        policy += f", its text matched by the {record.matched_by}"
    return f"attempt {number} went to {instance_id}: {how} under {policy}{scored}{moved}{beside}{_counts(record)}"


def _counts(record: Record) -> str:
    counts = record.dropped
    return f"; dropped: {', '.join(f'{number} {reason}' for reason, number in counts.items())}" if counts else ""


def _ended(past: PastAttempt) -> str:
    took = past.ended_wall_ms - past.offered_wall_ms if past.ended_wall_ms and past.offered_wall_ms else None
    after = f" after {_span(took)}" if took is not None else ""
    return f"attempt {past.number} ended{after}: {_told(past.fault)}"


def _span(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms / 1_000:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _told(fault: Fault | None) -> str:
    return f"{fault.reason.name}: {fault.message}" if fault is not None else "without an outcome"
