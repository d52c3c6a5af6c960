"""What goes into a task and comes out of it: Python values as payloads, and payloads as Python values.

The rules are the same for tasks, answers and pieces of answers: `str` is text, `bytes` is binary, anything JSON can say
(dict, list, tuple, number, bool) is JSON text, `None` is empty. `Answer` says the media type and more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from agentreach.v1 import payload_pb2
from reach.errors import InvalidRequest, Reason

PAYLOAD_LIMIT: Final = 4 << 20
"""Bytes, until the server says another limit in its welcome."""
JSON_MEDIA_TYPE: Final = "application/json"
NOTE_LIMIT: Final = 1024
"""Bytes of a progress note."""

Fields = dict[str, Any]
"""Fields of a message, as its constructor takes them: nested dicts, of which protobuf makes the messages by itself
(half the time of building each by hand)."""


@dataclass(slots=True)
class Answer:
    """An answer with more than its data.

    Attributes:
        data: The content: text, bytes, anything JSON can say, or None.
        media_type: IANA media type; empty: by the kind of data.
        confidence: 0 to 1, as the agent thinks.
        conflict_hint: What else could be true.
        usage: Figures such as tokens used.
        executed_intent: The intent that was executed, if another than asked.
        entities: Names and values that the user said, to be kept with the session.
        inferred: Names and values that you made of it, to be kept apart from those.
    """

    data: Any = None
    media_type: str = ""
    confidence: float | None = None
    conflict_hint: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    executed_intent: str = ""
    entities: Mapping[str, str] = field(default_factory=dict)
    inferred: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Delta:
    """A piece of an answer that a generator yields, where plain text does not say enough.

    Attributes:
        channel: Several texts may grow side by side; empty is the main one, which becomes the result.
        data: The piece: text, bytes, or anything JSON can say.
        mode: `append` to what is there, or `replace` it.
        media_type: IANA media type; empty: by the kind of data.
    """

    channel: str = ""
    data: Any = ""
    mode: str = "append"
    media_type: str = ""


@dataclass(slots=True)
class Progress:
    """A sign of life that a generator yields: how far it is (0 to 1, None if unknown) and a note for people."""

    fraction: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.fraction is not None:
            self.fraction = min(max(float(self.fraction), 0.0), 1.0) if self.fraction == self.fraction else None
        self.note = str(self.note)


def clean_text(text: str) -> str:
    """The text with lone surrogates replaced, which UTF-8 does not have: models and file names bring them (case G3)."""
    return text.encode("utf-8", "replace").decode()


def payload_fields(value: Any, media_type: str = "") -> tuple[Fields, int]:
    """A value as the fields of a Payload, and its size in bytes. Raises InvalidRequest if it has no form."""
    if isinstance(value, str):
        if value.isascii():
            size = len(value)
        else:
            encoded = value.encode("utf-8", "replace")
            size = len(encoded)
            value = encoded.decode()
        fields = {"text": value}
    elif value is None:
        fields, size = {}, 0
    elif isinstance(value, bytes):
        fields, size = {"data": value}, len(value)
    elif isinstance(value, bytearray | memoryview):
        fields = {"data": bytes(value)}
        size = len(fields["data"])
    elif isinstance(value, Answer):
        return payload_fields(value.data, media_type or value.media_type)
    else:
        fields, size = payload_fields(json_text(value))
        media_type = media_type or JSON_MEDIA_TYPE
    if media_type:
        fields["media_type"] = media_type
    return fields, size


def json_text(value: Any) -> str:
    """A value as JSON. Raises InvalidRequest if JSON cannot say it (NaN and Infinity included)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"a payload must be text, bytes, None or what JSON can say; {type(value).__name__} is not: {error}"
        ) from error


def checked_size(size: int, limit: int, what: str) -> None:
    """Raises InvalidRequest (PAYLOAD_TOO_LARGE) if `size` is over the limit: a message over it would end the stream."""
    if size > limit:
        raise InvalidRequest(
            f"{what} has {size} bytes; this server takes at most {limit}",
            Reason.PAYLOAD_TOO_LARGE,
            size=str(size),
            limit=str(limit),
        )


def is_json(media_type: str) -> bool:
    """Whether the media type is JSON or something written in it."""
    essence = media_type.partition(";")[0].strip().lower()
    return essence == JSON_MEDIA_TYPE or essence.endswith("+json")


def payload_bytes(payload: payload_pb2.Payload) -> bytes:
    """The content as bytes; text as UTF-8."""
    return payload.data or payload.text.encode()


def payload_text(payload: payload_pb2.Payload) -> str:
    """The content as text; bytes that are not UTF-8 are replaced."""
    return payload.data.decode(errors="replace") if payload.WhichOneof("content") == "data" else payload.text


def payload_media_type(payload: payload_pb2.Payload) -> str:
    """The media type, also where it is left out."""
    if payload.media_type:
        return payload.media_type
    return "application/octet-stream" if payload.WhichOneof("content") == "data" else "text/plain"


def parse_json(payload: payload_pb2.Payload) -> Any:
    """The content read as JSON. Raises InvalidRequest with the position of what is wrong."""
    kind = payload.WhichOneof("content")
    if kind is None:
        raise InvalidRequest("the payload is empty, not JSON")
    try:
        text = payload.text if kind == "text" else payload.data.decode()
        return json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the payload is not JSON: not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON: {error}") from error


def payload_value(payload: payload_pb2.Payload) -> Any:
    """The content as the Python value that fits its media type: str for text, parsed JSON, bytes, None if empty."""
    kind = payload.WhichOneof("content")
    if kind is None:
        return None
    if is_json(payload.media_type):
        return parse_json(payload)
    if kind == "text":
        return payload.text
    if payload.media_type.startswith("text/"):
        return payload.data.decode(errors="replace")
    return payload.data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
