"""What an agent says of an attempt, as JSON over HTTP: the other way round than `agent_answers`; strict out."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from agentreach.v1 import attempt_pb2, endpoint_pb2, error_pb2, event_pb2, task_pb2
from reach.wire.agent_requests import json_of

ERROR_STATUS = {
    error_pb2.ERROR_CLASS_INVALID_REQUEST: 400,
    error_pb2.ERROR_CLASS_RESOURCE_EXHAUSTED: 429,
    error_pb2.ERROR_CLASS_UNAVAILABLE: 503,
    error_pb2.ERROR_CLASS_TIMEOUT: 504,
    error_pb2.ERROR_CLASS_INTERNAL: 500,
}
"""The HTTP status of an answer that is an error; a failure of the task itself is 422."""


def items_of(response: endpoint_pb2.ExecuteResponse) -> list[tuple[str, dict[str, Any]]]:
    """(name of the event, its data) of all that a response says, in order."""
    items: list[tuple[str, dict[str, Any]]] = []
    if response.HasField("accept"):
        items.append(("accept", {"accept": {}}))
    items += [("delta", _delta(one)) for one in response.deltas]
    items += [("progress", _progress(one)) for one in response.progress]
    if response.HasField("result"):
        said = result_json(response.result)
        items.append((next(iter(said)), said))
    return items


def _delta(message: attempt_pb2.AttemptDelta) -> dict[str, Any]:
    payload = message.delta.payload
    told: dict[str, Any] = {"delta": json_of(payload), "attempt_sequence": message.attempt_sequence}
    if payload.media_type:
        told["media_type"] = payload.media_type
    if message.delta.channel:
        told["channel"] = message.delta.channel
    if message.delta.mode == event_pb2.DELTA_MODE_REPLACE:
        told["mode"] = "replace"
    return told


def _progress(message: attempt_pb2.AttemptProgress) -> dict[str, Any]:
    progress: dict[str, Any] = {}
    if message.progress.HasField("fraction"):
        progress["fraction"] = message.progress.fraction
    if message.progress.note:
        progress["note"] = message.progress.note
    told: dict[str, Any] = {"progress": progress}
    if message.HasField("checkpoint"):
        told["checkpoint"] = b64encode(message.checkpoint).decode()
    return told


def result_json(result: attempt_pb2.AttemptResult) -> dict[str, Any]:
    """The envelope of an outcome; its first name says which."""
    kind = result.WhichOneof("outcome")
    told: dict[str, Any]
    if kind == "error":
        told = {"error": error_json(result.error)}
    elif kind == "folded":
        told = {"folded": result.folded.last_attempt_sequence}
    elif kind == "waiting":
        told = {"waiting": _waiting(result.waiting)}
    elif kind == "released":
        told = {"released": result.released.reason}
    else:
        told = {"result": json_of(result.output)}
        if result.output.media_type:
            told["media_type"] = result.output.media_type
    if result.HasField("confidence"):
        told["confidence"] = result.confidence
    for name in ("conflict_hint", "executed_intent"):
        if getattr(result, name):
            told[name] = getattr(result, name)
    for name in ("usage", "entities", "inferred"):
        if getattr(result, name):
            told[name] = dict(getattr(result, name))
    return told


def error_json(error: error_pb2.Error) -> dict[str, Any]:
    """An error, with the names of the contract."""
    told: dict[str, Any] = {
        "message": error.message,
        "error_class": error_pb2.ErrorClass.Name(error.error_class),
        "reason": error_pb2.ErrorReason.Name(error.reason),
        "retryable": error.retryable,
    }
    if error.HasField("retry_after"):
        told["retry_after_ms"] = error.retry_after.ToMilliseconds()
    if error.metadata:
        told["metadata"] = dict(error.metadata)
    return told


def _waiting(waiting: task_pb2.Waiting) -> dict[str, Any]:
    told: dict[str, Any] = {"prompt": json_of(waiting.prompt), "question": waiting.question}
    if waiting.prompt.media_type:
        told["media_type"] = waiting.prompt.media_type
    if waiting.waiting_for:
        told["waiting_for"] = task_pb2.WaitingFor.Name(waiting.waiting_for)
    if waiting.HasField("timeout"):
        told["timeout_ms"] = waiting.timeout.ToMilliseconds()
    return told
