"""Contents: A2A's parts as payloads and attachments, and the other way round.

A text or data part is a text payload (data as JSON), a raw part is bytes, a URL is a `text/uri-list` (RFC 2483).
Several parts that must be one payload are their texts below each other if they are all text, else a document
`{"parts": […]}` of the media type `application/a2a+json`, which becomes parts again. Metadata of parts goes along only
in that document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from agentreach.v1 import payload_pb2
from reach.errors import InvalidRequest, Reason

PARTS: Final = "application/a2a+json"
"""A payload that is parts."""
URIS: Final = "text/uri-list"
TEXT: Final = "text/plain"
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
BETWEEN_TEXTS: Final = "\n\n"
_EXACT: Final = 1 << 53
"""Largest whole number of which a double knows its neighbours."""
MOST_PARTS: Final = 64
"""Parts of one message or artifact."""


def payload_of(part: a2a_pb2.Part) -> payload_pb2.Payload:
    """One part as a payload.

    Raises:
        InvalidRequest: data that is no JSON (NaN, an infinity), or a part without content.
    """
    kind = part.WhichOneof("content")
    if kind == "text":
        return payload_pb2.Payload(media_type=part.media_type, text=part.text)
    if kind == "data":
        return payload_pb2.Payload(media_type=part.media_type or JSON, text=_json_of(part.data))
    if kind == "raw":
        return payload_pb2.Payload(media_type=part.media_type, data=part.raw)
    if kind == "url":
        return payload_pb2.Payload(media_type=URIS, text=part.url)
    raise InvalidRequest("a part has neither text nor data, raw or url", Reason.INVALID_FIELD, field="parts")


def one_payload(parts: Sequence[a2a_pb2.Part]) -> payload_pb2.Payload:
    """All parts as one payload; nothing is an empty payload. Raises InvalidRequest as `payload_of`."""
    _check_count(parts)
    if len(parts) == 1:
        return payload_of(parts[0])
    if all(part.WhichOneof("content") == "text" and _is_plain(part.media_type) for part in parts):
        return payload_pb2.Payload(text=BETWEEN_TEXTS.join(part.text for part in parts))
    document = {"parts": [_dict_of(part) for part in parts]}
    return payload_pb2.Payload(media_type=PARTS, text=json.dumps(document, ensure_ascii=False))


def split_payloads(
    parts: Sequence[a2a_pb2.Part], *, most: int
) -> tuple[payload_pb2.Payload, list[payload_pb2.Attachment]]:
    """Parts as an agent likes them best: plain texts together (else the first part) are the payload, each other part
    is an attachment, under its filename if no other has it. More than so many attachments: all is one payload.

    Raises:
        InvalidRequest: as `payload_of`.
    """
    _check_count(parts)
    texts = [part for part in parts if part.WhichOneof("content") == "text" and _is_plain(part.media_type)]
    texts = [part for part in texts if not part.filename] or texts[:1] or list(parts[:1])
    rest = [part for part in parts if not any(part is text for text in texts)]
    if len(rest) > most:
        return one_payload(parts), []
    attachments: list[payload_pb2.Attachment] = []
    names: set[str] = set()
    for number, part in enumerate(rest, 1):
        name = part.filename if part.filename and part.filename not in names else f"part-{number}"
        names.add(name)
        attachments.append(payload_pb2.Attachment(name=name, payload=payload_of(part)))
    return one_payload(texts), attachments


def part_of(payload: payload_pb2.Payload, filename: str = "") -> a2a_pb2.Part:
    """A payload as one part. JSON that cannot be said as data stays text."""
    part = a2a_pb2.Part(filename=filename)
    media_type = payload.media_type
    if payload.WhichOneof("content") == "data":
        part.raw, part.media_type = payload.data, media_type or BYTES
        return part
    if is_json(media_type):
        value = _value_of(payload.text)
        if value is not None:
            part.data.CopyFrom(value)
            part.media_type = media_type
            return part
    if media_type == URIS and payload.text and not any(one.isspace() for one in payload.text.strip()):
        part.url = payload.text.strip()
        return part
    part.text, part.media_type = payload.text, media_type or TEXT
    return part


def parts_of(payload: payload_pb2.Payload) -> list[a2a_pb2.Part]:
    """A payload as parts: one, or those that it was made of."""
    if payload.media_type == PARTS and payload.WhichOneof("content") == "text":
        message = a2a_pb2.Message()
        try:
            document = json.loads(payload.text)
            json_format.ParseDict({"parts": document["parts"]}, message)
        except (json_format.ParseError, ValueError, TypeError, KeyError, RecursionError):
            return [part_of(payload)]
        if message.parts and all(part.WhichOneof("content") for part in message.parts):
            return list(message.parts)
    return [part_of(payload)]


def parts_of_task(
    payload: payload_pb2.Payload, attachments: Iterable[payload_pb2.Attachment] = ()
) -> list[a2a_pb2.Part]:
    """What a task says, as the parts of a message: the payload, then each attachment under its name."""
    found = parts_of(payload)
    found += [part_of(one.payload, one.name) for one in attachments]
    return found


def media_type_of(part: a2a_pb2.Part) -> str:
    """The media type of a part, also where it does not say."""
    kind = part.WhichOneof("content")
    return part.media_type or {"text": TEXT, "data": JSON, "url": URIS}.get(kind or "", BYTES)


def is_json(media_type: str) -> bool:
    """Whether content of a media type is JSON."""
    essence = media_type.partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def _is_plain(media_type: str) -> bool:
    return media_type in ("", TEXT)


def _check_count(parts: Sequence[Any]) -> None:
    if len(parts) > MOST_PARTS:
        raise InvalidRequest(f"parts: at most {MOST_PARTS} are taken", Reason.INVALID_FIELD, field="parts")


def _json_of(value: Value) -> str:
    try:
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise _no_json() from None


def _dict_of(part: a2a_pb2.Part) -> Any:
    try:
        return json_format.MessageToDict(part)
    except (ValueError, json_format.SerializeToJsonError):
        raise _no_json() from None


def _no_json() -> InvalidRequest:
    return InvalidRequest("a data part has what JSON cannot say", Reason.INVALID_FIELD, field="parts")


def plain(value: Value) -> Any:
    """A value as Python has it; whole numbers as such. protobuf lets nothing in that is nested more than 100 deep."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _EXACT else number
    if kind == "struct_value":
        return {name: plain(field) for name, field in value.struct_value.fields.items()}
    if kind == "list_value":
        return [plain(one) for one in value.list_value.values]
    return getattr(value, kind) if kind in ("string_value", "bool_value") else None


def _value_of(text: str) -> Value | None:
    """JSON as data; None if it is none, is too deep, or would come out as something else (whole numbers over 2^53)."""
    value = Value()
    try:
        json_format.ParseDict(json.loads(text, parse_int=_exact, parse_float=_finite, parse_constant=_exact), value)
    except (json_format.ParseError, ValueError, TypeError, RecursionError):
        return None
    return value if _depth_fits(value) else None


def _exact(digits: str) -> int:
    """A whole number that data can say."""
    number = int(digits)
    if abs(number) > _EXACT:
        raise ValueError(digits)
    return number


def _finite(digits: str) -> float:
    """A number that JSON can say again: 1e999 is none."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def _depth_fits(value: Value) -> bool:
    """Whether others can read it: protobuf refuses what is nested more than 100 deep."""
    try:
        Value.FromString(value.SerializeToString())
    except DecodeError:
        return False
    return True
