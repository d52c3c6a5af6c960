"""What an agent that is dialled over HTTP says, in the words of AgentEndpointService; lenient in (GOV-5).

An answer is an envelope if it is a JSON object with one of `result`, `error`, `waiting` and `released`, and nothing
beside it but fields that belong to it; anything else is the answer itself. docs/protocol.md has the table.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from google.protobuf import json_format

from agentreach.v1 import agent_pb2, attempt_pb2, endpoint_pb2, error_pb2, event_pb2, payload_pb2, task_pb2
from reach.core.model import Fault
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.wire.agent_requests import is_json, payload_of
from reach.wire.status import bounded_text

RAW_BYTES: Final = 1_000
"""What is kept of an answer that cannot be read."""
OUTCOMES: Final = ("error", "result", "waiting", "released", "folded")
BESIDE: Final = frozenset(
    {
        *("protocol_version", "task_id", "attempt", "fencing_token", "status", "data", "media_type", "confidence"),
        *("conflict_hint", "usage", "executed_intent", "entities", "inferred", "agent_status", "agent_id"),
        *("instance_id", "boot_id", "attempts", "timings"),
    }
)
"""What an envelope may have beside its outcome; `data.agent_output` is the result in the envelope of DLV-12."""
GOING_ON: Final = frozenset(
    {
        *("accepted", "submitted", "created", "received", "scheduled", "pending", "queued", "waiting", "starting"),
        *("started", "running", "active", "working", "processing", "in_progress", "inprogress", "progress", "retrying"),
    }
)
"""Words of `status` that say that an attempt whose result is null has none yet."""
_ITEMS: Final = frozenset({*OUTCOMES, "accept", "delta", "progress", "checkpoint"})
_REASONS: Final = {
    ErrorClass.AGENT_ERROR: Reason.AGENT_FAILED,
    ErrorClass.INVALID_REQUEST: Reason.INVALID_FIELD,
    ErrorClass.RESOURCE_EXHAUSTED: Reason.AGENT_BUSY,
    ErrorClass.UNAVAILABLE: Reason.AGENT_UNAVAILABLE,
    ErrorClass.TIMEOUT: Reason.START_TO_CLOSE,
    ErrorClass.INTERNAL: Reason.AGENT_CRASHED,
}
_NAMES: Final = 64
_STATUS_FIELDS: Final = {field.name for field in agent_pb2.AgentStatus.DESCRIPTOR.fields}


class Unreadable(Exception):
    """An answer that cannot be taken.

    Attributes:
        fault: The clean `AGENT_ERROR` for the caller, with the raw text, bounded, in its metadata.
    """

    def __init__(self, problem: str, raw: bytes) -> None:
        super().__init__(problem)
        self.fault = unreadable(problem, raw)


def unreadable(problem: str, raw: bytes) -> Fault:
    """The failure of an agent whose answer cannot be taken."""
    return Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, f"the agent's answer {problem}", {"raw": raw_text(raw)})


def raw_text(raw: bytes) -> str:
    """What people are shown of bytes that came instead of an answer."""
    return bounded_text(raw[: 2 * RAW_BYTES].decode("utf-8", "replace"), RAW_BYTES)


def parse(body: bytes) -> Any:
    """JSON, strictly. Raises Unreadable with the place."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"is not JSON: {error}", body) from None
    except RecursionError:
        raise Unreadable("is nested too deeply", body) from None


def is_envelope(said: Any) -> bool:
    """Whether an answer speaks of the attempt, and is not the answer itself."""
    return isinstance(said, dict) and said.keys() <= {*OUTCOMES, *BESIDE} and _has_outcome(said)


def goes_on(said: Any) -> bool:
    """Whether what was answered to the question how an attempt is says that it has not ended. Many tell of a job that
    runs with all its fields, the result among them, and null."""
    if not isinstance(said, dict) or not isinstance(said.get("status"), str):
        return False
    if not is_envelope(said):
        return True
    said_nothing = all(said.get(name) is None for name in OUTCOMES) and not _has_output(said)
    return said_nothing and said["status"].strip().lower().replace("-", "_").replace(" ", "_") in GOING_ON


def _has_outcome(said: dict[str, Any]) -> bool:
    return any(said.get(name) is not None for name in OUTCOMES) or "result" in said or _has_output(said)


def _has_output(said: dict[str, Any]) -> bool:
    return isinstance(said.get("data"), dict) and "agent_output" in said["data"]


def whole_answer(body: bytes, media_type: str, takes_html: bool = False) -> attempt_pb2.AttemptResult:
    """The outcome that one body says.

    Args:
        body: All of it.
        media_type: As it was declared; empty: not at all.
        takes_html: Pages are what this agent answers with, so that one is not taken for an error page.

    Raises:
        Unreadable: It cannot be taken.
    """
    kind = media_type.partition(";")[0].strip().lower()
    if not body.strip():
        raise Unreadable("is empty", body)
    if not kind:
        return _undeclared(body)
    if is_json(kind):
        said = parse(body)
        if is_envelope(said):
            return outcome_of(said, body)
        return attempt_pb2.AttemptResult(output=payload_pb2.Payload(text=body.decode(), media_type=media_type))
    if kind == "text/html" and not takes_html:
        raise Unreadable("is an HTML page, which it did not register as something it answers with", body)
    if kind.startswith("text/"):
        return attempt_pb2.AttemptResult(output=payload_pb2.Payload(text=text_of(body, media_type), media_type=kind))
    return attempt_pb2.AttemptResult(output=payload_pb2.Payload(data=body, media_type=media_type))


def _undeclared(body: bytes) -> attempt_pb2.AttemptResult:
    """It does not say what it is: JSON if it is an object or a list, else text, else bytes."""
    if body.lstrip()[:1] in b"{[":
        try:
            said = parse(body)
        except Unreadable:
            pass  # text that begins like JSON
        else:
            if is_envelope(said):
                return outcome_of(said, body)
            payload = payload_pb2.Payload(text=body.decode(), media_type="application/json")
            return attempt_pb2.AttemptResult(output=payload)
    try:
        return attempt_pb2.AttemptResult(output=payload_pb2.Payload(text=body.decode(), media_type="text/plain"))
    except UnicodeDecodeError:
        return attempt_pb2.AttemptResult(output=payload_pb2.Payload(data=body))


def text_of(body: bytes, media_type: str) -> str:
    """A text in the charset that it declares, UTF-8 if none. Raises Unreadable."""
    charset = "utf-8"
    for part in media_type.split(";")[1:]:
        name, _, value = part.strip().partition("=")
        if name.lower() == "charset":
            charset = value.strip("\"' ").lower()
    if charset not in ("utf-8", "utf8", "us-ascii", "iso-8859-1", "latin-1", "windows-1252"):
        raise Unreadable(f"has the charset {bounded_text(charset, 32)!r}, which is not taken", body)
    try:
        return body.decode(charset)
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not {charset} at byte {error.start}", body) from None


def outcome_of(said: dict[str, Any], raw: bytes) -> attempt_pb2.AttemptResult:
    """The outcome that an envelope says. Raises Unreadable."""
    result = attempt_pb2.AttemptResult()
    name_in(result.key, said)
    if said.get("error") is not None:
        result.error.CopyFrom(error_of(said["error"]))
    elif said.get("waiting") is not None:
        result.waiting.CopyFrom(_waiting(said["waiting"], raw))
    elif said.get("released") is not None:
        result.released.reason = bounded_text(str(said["released"]), 1_024)
    elif said.get("folded") is not None:
        result.folded.last_attempt_sequence = _count(said["folded"])
    else:
        value = said["result"] if "result" in said else said.get("data", {}).get("agent_output")
        result.output.CopyFrom(_payload(value, said, raw))
    _fill_beside(result, said)
    return result


def _fill_beside(result: attempt_pb2.AttemptResult, said: dict[str, Any]) -> None:
    confidence = said.get("confidence")
    if isinstance(confidence, int | float) and not isinstance(confidence, bool):
        result.confidence = confidence
    for name in ("conflict_hint", "executed_intent"):
        if isinstance(said.get(name), str):
            setattr(result, name, said[name])
    for name, value in _pairs(said.get("usage")):
        if isinstance(value, int | float) and not isinstance(value, bool):
            result.usage[name] = float(value)
    for field in ("entities", "inferred"):
        for name, value in _pairs(said.get(field)):
            getattr(result, field)[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(said.get("agent_status"), dict):
        result.status.CopyFrom(status_from(said["agent_status"]))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 63 else 0


def _pairs(value: Any) -> list[tuple[str, Any]]:
    return list(value.items())[:_NAMES] if isinstance(value, dict) else []


def name_in(key: attempt_pb2.AttemptKey, said: dict[str, Any]) -> None:
    """Which attempt it speaks of, if it says so."""
    if isinstance(said.get("task_id"), str):
        key.task_id = said["task_id"]
    attempt = said.get("attempt")
    if isinstance(attempt, int) and 0 < attempt < 1 << 32:
        key.attempt = attempt


def _payload(value: Any, said: dict[str, Any], raw: bytes) -> payload_pb2.Payload:
    media_type = said.get("media_type")
    try:
        return payload_of(value, media_type if isinstance(media_type, str) else "")
    except (InvalidRequest, ValueError) as error:
        raise Unreadable(f"cannot be taken: {error}", raw) from None


def error_of(said: Any) -> error_pb2.Error:
    """An error in words, or as an object: `message`, `error_class`, `reason`, `retryable`, `retry_after_ms`,
    `metadata`; names with or without their prefix, in any case. What is not known makes it the agent's own failure."""
    if not isinstance(said, dict):
        text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
        said = {"message": text}
    kind = _word(ErrorClass, said.get("error_class", said.get("class")), "ERROR_CLASS_")
    reason = _word(Reason, said.get("reason"), "ERROR_REASON_")
    if kind is None:
        kind = ErrorClass.UNAVAILABLE if said.get("retryable") is True else ErrorClass.AGENT_ERROR
    message = next((said[one] for one in ("message", "detail", "title") if isinstance(said.get(one), str)), "")
    error = error_pb2.Error(error_class=int(kind), reason=int(reason or _REASONS[kind]))  # type: ignore[arg-type]
    error.message = bounded_text(message) or "the agent gave no reason"
    after = said.get("retry_after_ms")
    if isinstance(after, int) and 0 <= after < 1 << 40:
        error.retry_after.FromMilliseconds(after)
    for name, value in _pairs(said.get("metadata")):
        error.metadata[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return error


def _word(words: Any, value: Any, prefix: str) -> Any:
    if not isinstance(value, str):
        return None
    return words.__members__.get(value.strip().upper().removeprefix(prefix))


def _waiting(said: Any, raw: bytes) -> task_pb2.Waiting:
    if not isinstance(said, dict):
        said = {"prompt": said}
    waiting = task_pb2.Waiting(prompt=_payload(said.get("prompt", ""), said, raw))
    if isinstance(said.get("question"), str):
        waiting.question = said["question"]
    kind = said.get("waiting_for")
    if isinstance(kind, str):
        name = f"WAITING_FOR_{kind.strip().upper().removeprefix('WAITING_FOR_')}"
        waiting.waiting_for = task_pb2.WaitingFor.Value(name) if name in task_pb2.WaitingFor.keys() else 0  # type: ignore[assignment]  # noqa: SIM118
    timeout = said.get("timeout_ms")
    if isinstance(timeout, int) and 0 < timeout < 1 << 40:
        waiting.timeout.FromMilliseconds(timeout)
    return waiting


def status_from(said: dict[str, Any]) -> agent_pb2.AgentStatus:
    """What an instance says of itself: fields of AgentStatus, durations also as `…_ms`, `current_load` for `inflight`.
    What is not known, or is none, is left out."""
    status = agent_pb2.AgentStatus()
    for name, value in said.items():
        field, given = name, value
        if name == "current_load":
            field = "inflight"
        elif name.endswith("_ms") and isinstance(value, int | float) and not isinstance(value, bool):
            field, given = name[:-3], f"{value / 1_000:.3f}s"
        elif name == "availability" and isinstance(value, str):
            given = f"AVAILABILITY_{value.upper().removeprefix('AVAILABILITY_')}"
        if field in _STATUS_FIELDS:
            try:
                json_format.ParseDict({field: given}, status, ignore_unknown_fields=True)
            except (json_format.Error, ValueError, TypeError, AttributeError, OverflowError):
                status.ClearField(field)  # type: ignore[arg-type]
    return status


# -- streams ----------------------------------------------------------------------------------------------------------


def item_of(said: dict[str, Any], raw: bytes) -> endpoint_pb2.ExecuteResponse | None:
    """One item of a stream: `{"delta": …}`, `{"progress": …}`, or an envelope. None: it says nothing of the attempt.

    Raises:
        Unreadable: It cannot be taken.
    """
    response = endpoint_pb2.ExecuteResponse()
    if said.get("accept") is not None:
        name_in(response.accept.key, said)
        response.accept.SetInParent()
    if said.get("delta") is not None:
        delta = response.deltas.add()
        name_in(delta.key, said)
        delta.delta.CopyFrom(_delta(said, raw))
        delta.attempt_sequence = _count(said.get("attempt_sequence"))
    if said.get("progress") is not None or said.get("checkpoint") is not None:
        _progress(response.progress.add(), said, raw)
    if _has_outcome(said):
        response.result.CopyFrom(outcome_of(said, raw))
    return response if response.ByteSize() else None


def _delta(said: dict[str, Any], raw: bytes) -> event_pb2.Delta:
    delta = event_pb2.Delta(payload=_payload(said["delta"], said, raw), mode=event_pb2.DELTA_MODE_APPEND)
    if isinstance(said.get("channel"), str):
        delta.channel = said["channel"]
    if str(said.get("mode", "")).lower() == "replace":
        delta.mode = event_pb2.DELTA_MODE_REPLACE
    return delta


def _progress(message: attempt_pb2.AttemptProgress, said: dict[str, Any], raw: bytes) -> None:
    name_in(message.key, said)
    value = said.get("progress")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"fraction": value}
    elif isinstance(value, str):
        value = {"note": value}
    message.progress.SetInParent()
    if isinstance(value, dict):
        fraction, note = value.get("fraction"), value.get("note")
        if isinstance(fraction, int | float) and not isinstance(fraction, bool):
            message.progress.fraction = min(1.0, max(0.0, float(fraction)))
        if isinstance(note, str):
            message.progress.note = note
    if isinstance(said.get("checkpoint"), str):
        message.checkpoint = _bytes_of(said["checkpoint"], raw)
    if isinstance(said.get("agent_status"), dict):
        message.status.CopyFrom(status_from(said["agent_status"]))


def _bytes_of(text: str, raw: bytes) -> bytes:
    try:
        return payload_of({"base64": text}).data
    except InvalidRequest:
        raise Unreadable("has a checkpoint that is not base64", raw) from None


def of_event(event: str, data: str) -> endpoint_pb2.ExecuteResponse | None:
    """One server-sent event. Its name says what its data is; without one the data is an item, or a piece of text.

    Raises:
        Unreadable: It cannot be taken.
    """
    raw = data.encode(errors="replace")
    kind = {"complete": "result", "chunk": "delta", "token": "delta"}.get(event, event)
    if kind in ("", "message"):
        said = _object(raw)
        if said is not None and (said.keys() & _ITEMS or _has_output(said)):
            return item_of(said, raw)
        return item_of({"delta": data}, raw) if data else None
    if kind not in (*OUTCOMES, "accept", "delta", "progress"):
        return None  # heartbeats, and what later versions say
    said = _object(raw)
    if said is not None and (kind in said or is_envelope(said)):
        return item_of(said, raw)
    return item_of({kind: _value(data)}, raw)


def _object(raw: bytes) -> dict[str, Any] | None:
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _value(data: str) -> Any:
    """Data as JSON if it is, else the text."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return data
