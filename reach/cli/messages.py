"""Messages of the contract as plain values, for `--json` and for tables.

Names are those of the contract, so `protos/` explains them. Enums lose their prefix (`SUCCEEDED`), durations are
seconds, times are ISO 8601 in UTC, bytes are base64. What is not set is left out.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message

_ENUM: Final = 14
_BYTES: Final = 12
_MESSAGE: Final = 11
"""Numbers of the types of fields, as protobuf fixes them."""


def plain(message: Message) -> dict[str, Any]:
    """A message as a dict."""
    made: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            made[field.name] = {str(key): _value(inner, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            made[field.name] = [_value(field, item) for item in value]
        else:
            made[field.name] = _value(field, value)
    return made


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == _ENUM:
        return enum_name(field.enum_type, value)
    if field.type == _BYTES:
        return base64.b64encode(value).decode()
    if field.type != _MESSAGE:
        return value
    if field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
        return seconds(value)
    if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
        return value.ToJsonString()
    return plain(value)


def enum_name(enum: Any, number: int) -> str:
    """The name of a value without the prefix that all values of its enum share."""
    found = enum.values_by_number.get(number)
    if found is None:
        return str(number)
    first: str = enum.values_by_number[0].name
    return str(found.name).removeprefix(first.removesuffix("UNSPECIFIED"))


def name_of(message: Message, field: str) -> str:
    """The name of the value that an enum field has."""
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    return enum_name(descriptor.enum_type, getattr(message, field))


def seconds(duration: Duration) -> float:
    """A Duration in seconds."""
    return duration.seconds + round(duration.nanos / 1e9, 6)
