"""The AgentRequest envelope: what an agent that is dialled over HTTP is asked, as flat JSON in snake_case, and back.

One object with all there is to know of one attempt; docs/protocol.md has the table. What is empty is left out.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from agentreach.v1 import attempt_pb2, payload_pb2, result_pb2
from reach.errors import InvalidRequest, Reason
from reach.wire.requests import PROTOCOL_VERSIONS
from reach.wire.status import bounded_text

REPORT_PATH: Final = "/events/report"
"""Where an agent reports to, at the HTTP door of any node, if it answered 202 or its connection broke."""
_LIMITS: Final = (
    ("timeout_ms", "start_to_close"),
    ("deadline_ms", "schedule_to_close"),
    ("silence_ms", "silence"),
    ("lease_ms", "lease"),
)
_FROM_SPEC: Final = (
    "session", "priority", "fairness_key", "cost_slots", "effects", "budget", "parent_task_id", "root_task_id",
    "related_task_ids", "labels", "source", "entities", "selector",
)  # fmt: skip
"""Fields of TaskSpec that are told as protobuf's JSON has them."""


def json_of(payload: payload_pb2.Payload) -> Any:
    """A payload as JSON: JSON as such, byte for byte, where it says so and is; bytes as `{"base64": …}`; else the
    text."""
    if payload.WhichOneof("content") == "data":
        return {"base64": b64encode(payload.data).decode()}
    if is_json(payload.media_type):
        try:
            msgspec.json.decode(payload.text)
        except (msgspec.DecodeError, RecursionError):
            pass  # it says so, but is not
        else:
            return msgspec.Raw(payload.text.encode())
    return payload.text


def payload_of(value: Any, media_type: str = "") -> payload_pb2.Payload:
    """JSON as a payload: a string is text, `{"base64": …}` is bytes, anything else is JSON.

    Raises:
        InvalidRequest: MALFORMED_MESSAGE: the base64 is none.
    """
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return payload_pb2.Payload(data=b64decode(value["base64"], validate=True), media_type=media_type)
        except ValueError:
            raise InvalidRequest("what is called base64 is none", Reason.MALFORMED_MESSAGE) from None
    if isinstance(value, str):
        if not is_json(media_type):
            return payload_pb2.Payload(text=value, media_type=media_type or "text/plain")
    elif not is_json(media_type):
        media_type = "application/json"
    return payload_pb2.Payload(text=msgspec.json.encode(value).decode(), media_type=media_type)


def is_json(media_type: str) -> bool:
    """Whether a media type is one of JSON."""
    kind = media_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def plain(message: Any) -> dict[str, Any]:
    """A message as JSON with the names of the contract."""
    told: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return told


def envelope_of(offer: attempt_pb2.Offer, who: result_pb2.Reporter) -> dict[str, Any]:
    """The envelope of an attempt; `who` is asked, and says so when it reports."""
    spec = offer.task
    told: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSIONS[-1],
        "task_id": spec.task_id,
        "attempt": offer.attempt,
        "fencing_token": offer.fencing_token,
        "method": spec.method or "default",
        "payload": json_of(spec.payload),
        "media_type": spec.payload.media_type or ("" if spec.payload.WhichOneof("content") == "data" else "text/plain"),
        "report": {"path": REPORT_PATH, "instance_id": who.instance_id, "boot_id": who.boot_id},
    }
    for name, field in _LIMITS:
        if offer.HasField(field):  # type: ignore[arg-type]
            told[name] = getattr(offer, field).ToMilliseconds()
    if offer.tenant:
        told["tenant"] = offer.tenant
    if offer.checkpoint:
        told["checkpoint"] = b64encode(offer.checkpoint).decode()
    if offer.effect_granted:
        told["effect_granted"] = True
    if offer.HasField("session_context"):
        told["session_context"] = plain(offer.session_context)
    if offer.inputs:
        told["inputs"] = [
            {"input_id": one.input_id, "question": one.question, "payload": json_of(one.payload),
             "media_type": one.payload.media_type}
            for one in offer.inputs
        ]  # fmt: skip
    if spec.attachments:
        told["attachments"] = [
            {"name": one.name, "payload": json_of(one.payload), "media_type": one.payload.media_type}
            for one in spec.attachments
        ]
    if spec.trace.traceparent:
        told["traceparent"] = spec.trace.traceparent
    rest = plain(spec)
    told.update((name, rest[name]) for name in _FROM_SPEC if name in rest)
    return told


def offer_from(body: bytes) -> attempt_pb2.Offer:
    """The attempt that an envelope says. What is not known is passed over: later versions say more.

    Raises:
        InvalidRequest: MALFORMED_MESSAGE or VERSION_NOT_SUPPORTED.
    """
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(f"the body is not JSON: {bounded_text(str(error), 256)}") from None
    if not isinstance(said, dict):
        raise _malformed("the body must be a JSON object")
    version = said.get("protocol_version", PROTOCOL_VERSIONS[-1])
    if version not in PROTOCOL_VERSIONS:
        text = f"protocol_version must be one of {', '.join(PROTOCOL_VERSIONS)}"
        raise InvalidRequest(text, Reason.VERSION_NOT_SUPPORTED)
    if "task_id" not in said:
        raise _malformed('the body has no task_id: it is an AgentRequest, {"task_id": …, "payload": …} and more')
    try:
        return _offer(said)
    except (json_format.Error, TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise _malformed(f"the body is no AgentRequest: {bounded_text(str(error), 256)}") from None


def _offer(said: dict[str, Any]) -> attempt_pb2.Offer:
    spec = {name: value for name, value in said.items() if name in _FROM_SPEC}
    fields: dict[str, Any] = {"task": {**spec, "task_id": said["task_id"], "method": said.get("method", "")}}
    fields["attempt"] = said.get("attempt", 1)
    for name in ("fencing_token", "tenant", "checkpoint", "effect_granted", "session_context"):
        if name in said:
            fields[name] = said[name]
    for name, field in _LIMITS:
        if name in said:
            fields[field] = f"{said[name] / 1_000:.3f}s"
    offer = attempt_pb2.Offer()
    json_format.ParseDict(fields, offer, ignore_unknown_fields=True, max_recursion_depth=100)
    if "payload" in said:
        offer.task.payload.CopyFrom(payload_of(said["payload"], said.get("media_type", "")))
    for one in said.get("attachments", ()):
        made = offer.task.attachments.add(name=one["name"])
        made.payload.CopyFrom(payload_of(one.get("payload", ""), one.get("media_type", "")))
    for one in said.get("inputs", ()):
        given = offer.inputs.add(input_id=one.get("input_id", ""), question=one.get("question", ""))
        given.payload.CopyFrom(payload_of(one.get("payload", ""), one.get("media_type", "")))
    if said.get("traceparent"):
        offer.task.trace.traceparent = said["traceparent"]
    offer.fencing_token = offer.fencing_token or offer.attempt
    return offer


def _malformed(message: str) -> InvalidRequest:
    return InvalidRequest(message, Reason.MALFORMED_MESSAGE)
