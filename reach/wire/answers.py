"""From the core to the contract: events, results, tasks, decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from agentreach.v1 import error_pb2, event_pb2, payload_pb2, task_pb2
from reach.core.model import Content, Fault, Outcome, Task, TaskState
from reach.core.pieces import Delta, Gap, Kind, size_in_bytes
from reach.errors import Reason
from reach.wire.status import METADATA_ENTRIES, bounded_metadata, bounded_text

if TYPE_CHECKING:  # the SDK loads this, and needs none of them
    from reach.core.decision_record import Record
    from reach.core.dialogue import Question
    from reach.core.history import PastAttempt

MAX_UINT64 = (1 << 64) - 1


def duration(milliseconds: int) -> Duration:
    """Milliseconds as a `Duration`."""
    return Duration(seconds=milliseconds // 1_000, nanos=milliseconds % 1_000 * 1_000_000)


def timestamp(wall_ms: int) -> Timestamp:
    """Milliseconds since the epoch as a `Timestamp`."""
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


def fill_payload(payload: payload_pb2.Payload, media_type: str, content: Content | None) -> None:
    """Writes content as text or bytes, as it came."""
    if media_type:
        payload.media_type = media_type
    if isinstance(content, str):
        payload.text = content
    elif content is not None:
        payload.data = content


def content_of(payload: payload_pb2.Payload) -> tuple[str, Content]:
    """(media type, text or bytes)."""
    if payload.WhichOneof("content") == "data":
        return payload.media_type, payload.data
    return payload.media_type, payload.text


def fill_error(error: error_pb2.Error, fault: Fault) -> None:
    """Writes a fault."""
    error.error_class = int(fault.error_class)  # type: ignore[assignment]
    error.reason = int(fault.reason)  # type: ignore[assignment]
    error.message = bounded_text(fault.message)
    if fault.metadata:
        error.metadata.update(bounded_metadata(fault.metadata, METADATA_ENTRIES))
    error.retryable = fault.error_class in (2, 3, 4)
    if fault.retry_after_ms is not None:
        error.retry_after.CopyFrom(duration(fault.retry_after_ms))


def fill_result(result: task_pb2.Result, task: Task, outcome: Outcome) -> None:
    """Writes the one envelope of every answer. Hot: called for each task."""
    result.task_id = task.task_id
    result.state = outcome.state  # type: ignore[assignment]
    content = outcome.content
    if content is not None:
        output = result.output
        if isinstance(content, str):
            output.text = content
        else:
            output.data = content
        if outcome.media_type:
            output.media_type = outcome.media_type
    if outcome.fault is not None:
        fill_error(result.error, outcome.fault)
    result.agent_id = outcome.agent_id
    result.instance_id = outcome.instance_id
    result.attempts = outcome.attempts
    if outcome.transfers:
        result.transfers = outcome.transfers
    _set_duration(result.queued, outcome.queued_ms)
    _set_duration(result.ran, outcome.ran_ms)
    result.sequence = outcome.sequence
    if outcome.extra:
        _fill_extra(result, outcome.extra)


def _fill_extra(result: task_pb2.Result, extra: dict[str, Any]) -> None:
    if "confidence" in extra:
        result.confidence = extra["confidence"]
    result.conflict_hint = extra.get("conflict_hint", "")
    result.executed_intent = extra.get("executed_intent", "")
    result.usage.update(extra.get("usage", {}))


def _set_duration(field: Duration, milliseconds: int) -> None:
    if milliseconds >= 1_000:
        field.seconds = milliseconds // 1_000
    field.nanos = milliseconds % 1_000 * 1_000_000


def fill_delta(message: event_pb2.Delta, delta: Delta) -> None:
    """Writes a piece of an answer."""
    if delta.channel:
        message.channel = delta.channel
    message.mode = int(delta.mode)  # type: ignore[assignment]
    fill_payload(message.payload, delta.media_type, delta.content)


def fill_complete(message: event_pb2.TaskEvent, task: Task, outcome: Outcome) -> None:
    """Writes the last event of a task: what most readers hear and nothing else."""
    message.task_id = task.task_id
    message.sequence = outcome.sequence
    message.attempt = outcome.attempts
    time = message.time
    time.seconds, rest = divmod(outcome.ended_wall_ms, 1_000)
    time.nanos = rest * 1_000_000
    fill_result(message.complete, task, outcome)


def fill_event(message: event_pb2.TaskEvent, task: Task, event: tuple[int, int, int, int, Any]) -> None:
    """Writes one event of a task."""
    sequence, attempt, wall_ms, kind, data = event
    message.task_id = task.task_id
    message.sequence = sequence
    message.attempt = attempt
    message.time.seconds = wall_ms // 1_000
    message.time.nanos = wall_ms % 1_000 * 1_000_000
    if kind == Kind.DELTA:
        fill_delta(message.delta, data)
    elif kind == Kind.COMPLETE:
        fill_result(message.complete, task, data)
    else:
        _RARE[kind](message, data)


def _progress(message: event_pb2.TaskEvent, data: tuple[float | None, str]) -> None:
    message.progress.note = data[1]
    if data[0] is not None:
        message.progress.fraction = data[0]


def _gap(message: event_pb2.TaskEvent, data: Gap) -> None:
    message.gap.from_sequence = data.first
    message.gap.to_sequence = data.last
    for delta in data.snapshot:
        fill_delta(message.gap.snapshot.add(), delta)


def _started(message: event_pb2.TaskEvent, data: tuple[str, str]) -> None:
    message.started.instance_id, message.started.agent_id = data


def _handoff(message: event_pb2.TaskEvent, data: tuple[str, str]) -> None:
    message.handoff.from_instance_id, message.handoff.to_instance_id = data


def _attempt_reset(message: event_pb2.TaskEvent, keep: int) -> None:
    message.attempt_reset.SetInParent()
    message.attempt_reset.keep_up_to_sequence = keep


def _retrying(message: event_pb2.TaskEvent, data: Fault) -> None:
    message.retrying.reason = data.reason.name
    message.retrying.message = data.message


def fill_waiting(message: task_pb2.Waiting, question: Question) -> None:
    """Writes what an agent asks."""
    message.waiting_for = question.ask.kind  # type: ignore[assignment]
    message.question = question.ask.name
    fill_payload(message.prompt, question.ask.media_type, question.ask.content)
    message.until.CopyFrom(timestamp(question.until_wall_ms))


def _input_given(message: event_pb2.TaskEvent, data: tuple[str, str]) -> None:
    message.input_given.input_id, message.input_given.question = data


_RARE: dict[int, Any] = {
    Kind.ACCEPTED: lambda message, data: message.accepted.SetInParent(),
    Kind.STARTED: _started,
    Kind.PROGRESS: _progress,
    Kind.ATTEMPT_RESET: _attempt_reset,
    Kind.RESUMED: lambda message, data: setattr(message.resumed, "after_sequence", data),
    Kind.GAP: _gap,
    Kind.HANDOFF: _handoff,
    Kind.RETRYING: _retrying,
    Kind.WAITING: lambda message, data: fill_waiting(message.waiting, data),
    Kind.INPUT_GIVEN: _input_given,
}


def event_size(kind: int, data: Any) -> int:
    """About how many bytes an event takes in a frame."""
    if kind == Kind.DELTA:
        return _delta_size(data)
    if kind == Kind.COMPLETE:
        return outcome_size(data)
    if kind == Kind.GAP:
        return 96 + sum(map(_delta_size, data.snapshot))
    if kind == Kind.RETRYING:
        return 96 + len(data.message)
    if kind == Kind.PROGRESS:
        return 96 + len(data[1])
    if kind == Kind.WAITING:
        return 192 + size_in_bytes(data.ask.content)
    return 96


def _delta_size(delta: Delta) -> int:
    return 64 + len(delta.content) + len(delta.channel) + len(delta.media_type)


def outcome_size(outcome: Outcome) -> int:
    """About how many bytes the end of a task takes in a frame. What agents say beside their answer counts too: many
    small answers with long notes must not add up to a frame that nobody can receive."""
    size = 160 + len(outcome.media_type)
    if outcome.content is not None:
        size += len(outcome.content)
    if outcome.fault is not None:
        size += fault_size(outcome.fault)
    if outcome.extra:
        size += 16 * len(outcome.extra.get("usage", ())) + len(outcome.extra.get("conflict_hint", "")) + 512
    return size


def fault_size(fault: Fault) -> int:
    """About how many bytes a fault takes in a frame."""
    size = 64 + len(fault.message)
    if fault.metadata:
        size += sum(len(name) + len(value) for name, value in fault.metadata.items())
    return size


def fill_task(message: task_pb2.Task, task: Task, *, full: bool, decisions: Mapping[int, Record] | None = None) -> None:
    """Writes a task with all that is known of it: payloads if `full`; why each attempt went where it went, by its
    number, as far as it is given."""
    message.spec.ParseFromString(task.spec)
    if message.spec.webhook.url:
        message.spec.webhook.url = message.spec.webhook.url.partition("?")[0]  # a query may hold secrets
    if not full:
        message.spec.ClearField("payload")
        message.spec.ClearField("attachments")
    message.state = int(task.state)  # type: ignore[assignment]
    message.accepted_at.CopyFrom(timestamp(task.accepted_wall_ms))
    message.last_sequence = task.sequence
    if task.pool is not None:
        message.pool = task.pool.key.agent_type
    waker = task.pool.waker if task.pool is not None and task.outcome is None else None
    if waker is not None and waker.state:
        message.wake = waker.state.name.lower()
    if task.pending_reason and task.outcome is None:
        message.pending_reason = task.pending_reason
    fill_attempts(message, task, decisions or {})
    if task.state is TaskState.WAITING and task.dialogue is not None:
        fill_waiting(message.waiting, task.dialogue.question)
        message.waiting_for = message.waiting.waiting_for
        if not full:
            message.waiting.ClearField("prompt")
    if task.outcome is not None:
        fill_result(message.result, task, task.outcome)
        message.ended_at.CopyFrom(timestamp(task.outcome.ended_wall_ms))
        if not full:
            message.result.ClearField("output")


def fill_attempts(message: task_pb2.Task, task: Task, decisions: Mapping[int, Record]) -> None:
    """Writes the attempts of a task, with why each went where it went, as far as that is given."""
    before: Fault | None = None
    for past in task.history or ():
        attempt = message.attempts.add()
        _fill_attempt(attempt, past)
        if past.number in decisions:
            _fill_decision_of(attempt.decision, decisions[past.number], before)
        before = past.fault
    numbers = {past.number for past in task.history or ()}
    if task.attempt and task.attempt not in numbers and task.instance_id:
        current = message.attempts.add(number=task.attempt, fencing_token=task.attempt, instance_id=task.instance_id)
        if task.instance is not None:
            current.agent_id, current.generation = task.instance.agent_id, task.instance.generation
        elif task.outcome is not None:
            current.agent_id = task.outcome.agent_id
        current.handle = task.handle
        if task.attempt in decisions:
            _fill_decision_of(current.decision, decisions[task.attempt], before)
        offered = task.accepted_wall_ms + max(0, task.offered_ms - task.accepted_ms)
        current.offered_at.CopyFrom(timestamp(offered))
        if task.outcome is not None:
            current.ended_at.CopyFrom(timestamp(task.outcome.ended_wall_ms))


def fill_decision(message: task_pb2.Decision, record: Record) -> None:
    """Writes why a task went where it went."""
    message.policy, message.policy_hash = record.policy.name, record.policy_hash
    message.registry_revision = record.revision
    message.seed = record.seed & MAX_UINT64
    message.chosen_instance_id = record.chosen
    message.picked_by, message.matched_by = record.cause, record.matched_by
    message.dropped.update(record.dropped)
    for instance_id, score, signals, reason in record.candidates:
        candidate = message.candidates.add(instance_id=instance_id, score=score, drop_reason=reason)
        candidate.signals.update(signals)


def _fill_decision_of(message: task_pb2.Decision, record: Record, before: Fault | None) -> None:
    """Writes the decision behind an attempt; `before` is why the attempt before it failed."""
    fill_decision(message, record)
    if record.moved_from:
        message.cause = "spill"
    elif before is not None:
        lost = before.reason in (Reason.INSTANCE_LOST, Reason.INSTANCE_UNHEALTHY)
        message.cause = "failover" if lost else "retry"
    else:
        message.cause = "pin" if record.cause == "pin" else "new"


def _fill_attempt(message: task_pb2.Attempt, past: PastAttempt) -> None:
    message.number = message.fencing_token = past.number
    message.instance_id, message.agent_id, message.generation = past.instance_id, past.agent_id, past.generation
    if past.offered_wall_ms:
        message.offered_at.CopyFrom(timestamp(past.offered_wall_ms))
    if past.ended_wall_ms:
        message.ended_at.CopyFrom(timestamp(past.ended_wall_ms))
    if past.fault is not None:
        fill_error(message.error, past.fault)
