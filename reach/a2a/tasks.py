"""Messages of A2A as tasks, and tasks as A2A shows them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from a2a.types import a2a_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from agentreach.v1 import task_pb2
from reach.errors import InvalidRequest, Reason
from reach.wire.a2a.parts import parts_of, parts_of_task, plain, split_payloads
from reach.wire.a2a.states import a2a_state
from reach.wire.a2a.words import CURSOR, DISPATCH, RouteTo
from reach.wire.requests import ATTACHMENTS, ID_BYTES

ANSWER: Final = "answer"
"""The artifact that the main channel, and the output, of a task are."""
NOBODY: Final = "-"
"""The user of a session whose caller names none."""
MESSAGE_LABEL: Final = "a2a.message_id"
ROUTE_LABEL: Final = "a2a.route"
LABELS: Final = 32
"""Entries of a request's metadata that become labels."""
TEXT_LENGTH: Final = 4_000
"""Characters of a message that are matched with what agents say they can do."""


class Asker(NamedTuple):
    """For whom a task is made, and where it goes."""

    app_id: str
    route: RouteTo


def digest_of(*words: str) -> str:
    """A name for several words together, of 32 characters."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]


def input_id_of(message_id: str) -> str:
    """What a message is called as an answer to a question."""
    return message_id if len(message_id.encode()) <= ID_BYTES else f"a2a-{digest_of(message_id)}"


def spec_of(request: a2a_pb2.SendMessageRequest, asker: Asker) -> task_pb2.TaskSpec:
    """The task that a message asks for. The same message of the same caller on the same route is the same task; another
    one is another task, though it has the same id, for there are callers who give each the same.

    Raises:
        InvalidRequest: parts or options that are none.
    """
    message, configuration = request.message, request.configuration
    content = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
    name = digest_of(asker.app_id, asker.route.token, message.message_id, content)
    payload, attachments = split_payloads(message.parts, most=ATTACHMENTS)
    selector = asker.route.selector(_text_of(message))
    # "text", which old callers send, is no media type: they mean that they show what comes.
    selector.accepted_media_types.extend(one for one in configuration.accepted_output_modes if "/" in one)
    spec = task_pb2.TaskSpec(
        task_id=f"a2a-{name}",
        selector=selector,
        payload=payload,
        attachments=attachments,
        related_task_ids=message.reference_task_ids,
        source="a2a",
        session=task_pb2.SessionKey(
            app_id=asker.app_id, user_id=NOBODY, session_id=message.context_id or f"ctx-{name}"
        ),
    )
    for key, value in list(request.metadata.fields.items())[:LABELS]:
        if value.HasField("string_value") and max(len(key.encode()), len(value.string_value.encode())) <= ID_BYTES:
            spec.labels[key] = value.string_value
    spec.labels[MESSAGE_LABEL] = input_id_of(message.message_id)
    spec.labels[ROUTE_LABEL] = asker.route.token[:ID_BYTES]
    if DISPATCH in message.metadata.fields:
        _take_options(spec, plain(message.metadata.fields[DISPATCH]))
    return spec


def _text_of(message: a2a_pb2.Message) -> str:
    return "\n".join(part.text for part in message.parts if part.text)[:TEXT_LENGTH]


_EFFECTS: Final = {
    "none": task_pb2.EFFECTS_NONE,
    "idempotent": task_pb2.EFFECTS_IDEMPOTENT,
    "irreversible": task_pb2.EFFECTS_IRREVERSIBLE,
}


def _take_options(spec: task_pb2.TaskSpec, options: Any) -> None:
    """The extension `dispatch/v1`: how the task is to be dispatched. What it does not know is passed over."""
    try:
        for name in ("required_tags", "preferred_tags"):
            getattr(spec.selector, name).extend(options.get(name, ()))
        if "priority" in options:
            spec.priority = int(options["priority"])
        if "deadline_ms" in options:
            milliseconds = int(options["deadline_ms"])
            limit = Duration(seconds=milliseconds // 1_000, nanos=milliseconds % 1_000 * 1_000_000)
            spec.timeouts.schedule_to_close.CopyFrom(limit)
        if "effects" in options:
            spec.effects = _EFFECTS[options["effects"]]
        for name in ("method", "policy"):
            setattr(spec, name, options.get(name, ""))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise InvalidRequest(
            f"metadata[{DISPATCH}] has what none of its options may be", Reason.INVALID_FIELD, field="message.metadata"
        ) from None


def context_of(task: task_pb2.Task) -> str:
    """The conversation that a task belongs to; a task without one is one by itself."""
    return task.spec.session.session_id or task.spec.task_id


def state_of(task: task_pb2.Task) -> int:
    """A task's state, as A2A calls it."""
    begun = len(task.attempts) > 1 or (bool(task.attempts) and task.state == task_pb2.TASK_STATE_PENDING)
    return a2a_state(task.state, task.waiting_for, begun=begun)


def since(task: task_pb2.Task) -> Timestamp:
    """Since when a task is as it is, as well as we know."""
    if task.HasField("ended_at"):
        return task.ended_at
    if task.attempts and task.attempts[-1].HasField("offered_at"):
        return task.attempts[-1].offered_at
    return task.accepted_at


def task_of(task: task_pb2.Task, history: int | None = None, *, artifacts: bool = True) -> a2a_pb2.Task:
    """A task as A2A shows it.

    Args:
        task: With its payloads, or without if neither history nor artifacts are wanted.
        history: How many messages of it; None: all.
        artifacts: Whether with what came of it.
    """
    spec = task.spec
    shown = a2a_pb2.Task(id=spec.task_id, context_id=context_of(task))
    shown.status.state = state_of(task)  # type: ignore[assignment]
    shown.status.timestamp.CopyFrom(since(task))
    if task.state == task_pb2.TASK_STATE_WAITING and task.HasField("waiting"):
        shown.status.message.CopyFrom(said_by_agent(shown, task.last_sequence, parts_of(task.waiting.prompt)))
    if task.HasField("result"):
        shown.metadata.update(facts_of(task.result))
        if task.result.error.message:
            text = a2a_pb2.Part(text=task.result.error.message)
            shown.status.message.CopyFrom(said_by_agent(shown, task.result.sequence, [text]))
        if artifacts and task.result.output.WhichOneof("content"):
            parts = parts_of(task.result.output)
            shown.artifacts.append(a2a_pb2.Artifact(artifact_id=ANSWER, parts=parts))
    shown.metadata.update(cursor(task.last_sequence, len(task.attempts)))
    if history != 0:
        shown.history.append(_asked(task))
    return shown


def _asked(task: task_pb2.Task) -> a2a_pb2.Message:
    spec = task.spec
    return a2a_pb2.Message(
        message_id=spec.labels.get(MESSAGE_LABEL, spec.task_id),
        context_id=context_of(task),
        task_id=spec.task_id,
        role=a2a_pb2.ROLE_USER,
        parts=parts_of_task(spec.payload, spec.attachments),
        reference_task_ids=spec.related_task_ids,
    )


def said_by_agent(task: a2a_pb2.Task, sequence: int, parts: Iterable[a2a_pb2.Part]) -> a2a_pb2.Message:
    """What is said about how a task stands."""
    return a2a_pb2.Message(
        message_id=f"{task.id}.{sequence}",
        context_id=task.context_id,
        task_id=task.id,
        role=a2a_pb2.ROLE_AGENT,
        parts=parts,
    )


def cursor(sequence: int, attempt: int) -> dict[str, Any]:
    """The extension `stream-cursor/v1`: where in the task's events this stands."""
    return {CURSOR: {"seq": sequence, "attempt": attempt}}


def facts_of(result: task_pb2.Result) -> dict[str, Any]:
    """What A2A has no field for, of how a task ended."""
    facts: dict[str, Any] = {"attempts": result.attempts, "transfers": result.transfers}
    if result.HasField("error"):
        error = result.error
        facts["reason"] = _reason(error.reason)
        facts["retryable"] = error.retryable
    if result.state == task_pb2.TASK_STATE_DEAD_LETTERED:
        facts["dead_letter_id"] = result.task_id
    if result.HasField("confidence") and math.isfinite(result.confidence):  # JSON has no word for others
        facts["confidence"] = result.confidence
    return facts


def _reason(number: int) -> str:
    try:
        return Reason(number).name
    except ValueError:
        return str(number)


def struct_of(fields: dict[str, Any]) -> Struct:
    """Fields as metadata."""
    made = Struct()
    made.update(fields)
    return made
