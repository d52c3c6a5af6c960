"""What is wrong with JSON that protobuf refuses, in words of the JSON: its own words name its classes, and are repeated
for each level. Asked after a refusal only: it decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from agentreach.v1 import payload_pb2
from reach.wire.status import bounded_text

PAYLOAD: Final = payload_pb2.Payload.DESCRIPTOR.full_name
DURATION: Final = "google.protobuf.Duration"
DEPTH: Final = 20
"""Levels that are looked at: no message of the contract has more."""
_NAME: Final = 64
"""Bytes that are repeated of a name."""
_TEXT: Final = 512
_WHOLE: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_SECONDS: Final = re.compile(r"-?\d+(\.\d+)?s")
_PREFIX: Final = re.compile(r"Failed to parse (\w+) field: ")
_PLACE: Final = re.compile(r" at [A-Z]\w*(?:\.[\w\[\]]+)*\.?$")


def no_such_field(name: str, names: Iterable[str], where: str) -> str:
    """A field that is not known, and those that are."""
    known = list(names)
    short = bounded_text(name, _NAME)
    close = get_close_matches(short, known, 1)
    guess = f", perhaps {close[0]!r}" if close else ""
    return f"{where} has no field {short!r}{guess}: it has {', '.join(known)}"


def names_of(descriptor: Descriptor) -> list[str]:
    """The fields of a message, as JSON names them. A payload may be given as `json`, too."""
    return [*(["json"] if descriptor.full_name == PAYLOAD else []), *(field.json_name for field in descriptor.fields)]


def why(found: Any, descriptor: Descriptor, error: Exception) -> str:
    """Why an object is no such message: the first thing that is found, else what protobuf says."""
    return _first(found, descriptor, "", 0) or plain(error)


def plain(error: Exception) -> str:
    """What protobuf says, after the place."""
    said = str(error)
    steps = _PREFIX.findall(said)
    rest = _PLACE.sub("", _PREFIX.sub("", said).rstrip(".")).rstrip(".")
    return bounded_text(f"{'.'.join(steps)}: {rest}" if steps else rest, _TEXT)


def must_be(field: FieldDescriptor, error: Exception) -> str:
    """What a value of a query must be."""
    if field.enum_type is not None:
        return f"must be one of {values_of(field)}"
    if field.cpp_type in _WHOLE:
        return "must be a whole number"
    if field.message_type is not None and field.message_type.full_name == DURATION:
        return "must be a duration in seconds, such as 1.5s"
    return plain(error).rpartition(": ")[2]


def values_of(field: FieldDescriptor) -> str:
    """The values of an enumeration, as they may be given."""
    return ", ".join(one.name for one in field.enum_type.values if one.number) if field.enum_type is not None else ""


def _first(found: dict[str, Any], descriptor: Descriptor, path: str, depth: int) -> str:
    for name, value in found.items() if depth < DEPTH else ():
        field = descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)
        if field is None:
            return no_such_field(name, names_of(descriptor), path or "the request")
        told = _field(field, value, f"{path}.{name}" if path else name, depth)
        if told:
            return told
    return ""


def _field(field: FieldDescriptor, value: Any, here: str, depth: int) -> str:
    kind = field.message_type
    if value is None or (kind is not None and kind.GetOptions().map_entry):
        return ""
    if field.is_repeated and not isinstance(value, list):
        return f"{here} must be a list"
    for one in value if field.is_repeated else (value,):
        if field.enum_type is not None and isinstance(one, str) and one not in field.enum_type.values_by_name:
            return f"{here} is {bounded_text(one, _NAME)!r}: it must be one of {values_of(field)}"
        if kind is None:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not isinstance(one, str):
                return f"{here} must be text"
            if field.cpp_type in _WHOLE and isinstance(one, str) and not one.lstrip("-").isdecimal():
                return f"{here} must be a whole number"
            continue
        if kind.full_name == DURATION and not (isinstance(one, str) and _SECONDS.fullmatch(one)):
            return f'{here} must be a duration in seconds, as text: "1.5s"'
        if kind.full_name.startswith("google."):
            continue
        if not isinstance(one, dict):
            such = ', such as {"text": "hello"} or {"json": [1, 2]}' if kind.full_name == PAYLOAD else ""
            return f"{here} must be an object with {', '.join(names_of(kind))}{such}"
        told = _first(one, kind, here, depth + 1)
        if told:
            return told
    return ""
