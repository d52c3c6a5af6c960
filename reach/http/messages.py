"""From HTTP to the messages of the contract and back: protobuf's own JSON mapping, with two kindnesses.

A payload may be given as `{"json": …}`, which becomes its text; values in a query may leave out the prefix of an enum
("PENDING") and the `s` of a duration. Answers are the mapping as it is, with lists that are empty shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from reach.errors import InvalidRequest, Reason
from reach.http import wrong
from reach.http.routes import Row
from reach.http.wrong import DURATION, PAYLOAD
from reach.wire.status import bounded_text

PARAMETERS: Final = 256
"""Values in a query at most."""
_TIMES: Final = {
    DURATION: (-315_576_000_000, 315_576_000_000),
    "google.protobuf.Timestamp": (-62_135_596_800, 253_402_300_799),
}
"""The seconds that JSON can say, of both kinds of time."""
_SECONDS: Final = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?")
_TROUBLE: Final = (json_format.Error, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""What a hostile document may raise: all of it is the sender's doing."""


def read_body(row: Row, body: bytes) -> Any:
    """The request that a body says; an empty body is an empty request.

    Raises:
        InvalidRequest: MALFORMED_MESSAGE, with the place.
    """
    return request_of(row, parsed(body))


def parsed(body: bytes) -> dict[str, Any]:
    """A body as an object; an empty one as an empty object. Raises InvalidRequest as `read_body` does."""
    if not body.strip():
        return {}
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _malformed(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise _malformed("the body is nested too deeply") from None
    if not isinstance(found, dict):
        raise _malformed("the body must be a JSON object")
    return found


def request_of(row: Row, found: dict[str, Any]) -> Any:
    """The request that an object says; it may be changed. Raises InvalidRequest as `read_body` does."""
    message = row.request()
    try:
        _texts(found, message.DESCRIPTOR)
        json_format.ParseDict(found, message, max_recursion_depth=100)
    except _TROUBLE as error:
        too_deep = isinstance(error, RecursionError)
        said = "it is nested too deeply" if too_deep else wrong.why(found, message.DESCRIPTOR, error)
        raise _malformed(f"this is no {message.DESCRIPTOR.name}: {said}") from None
    return message


def fill(
    row: Row, message: Any, given: Mapping[str, str], query: Iterable[tuple[str, str]], key: str, last: str
) -> None:
    """Fills a request from a path, a query and headers.

    Args:
        row: What is asked.
        message: The request, as its body says it.
        given: Fields that the path fills.
        query: Names and values.
        key: The header `Idempotency-Key`.
        last: The header `Last-Event-ID`.

    Raises:
        InvalidRequest: INVALID_FIELD with the name.
    """
    descriptor = message.DESCRIPTOR
    for name, value in given.items():
        said = _value(message, name)
        if said not in ("", value):
            raise _invalid(name, "is another one in the path than in the body")
        if not said:
            _set(message, _path(descriptor, name, ""), [value], name)
    several: dict[str, list[str]] = {}
    for count, (name, value) in enumerate(query):
        if count >= PARAMETERS:
            raise _invalid(name, f"is one of more than {PARAMETERS} parameters")
        several.setdefault(name, []).append(value)
    for name, values in several.items():
        fields = _path(descriptor, name, row.flat)
        if ".".join(fields) in given:
            raise _invalid(name, "is part of the path")
        _set(message, fields, values, name)
    if key and row.key and not _value(message, row.key):
        _set(message, _path(descriptor, row.key, ""), [key], "Idempotency-Key")
    if last and row.resume and not _value(message, row.resume):
        _set(message, _path(descriptor, row.resume, ""), [last], "Last-Event-ID")


def encode(message: Any) -> bytes:
    """A message as JSON."""
    try:
        fields = json_format.MessageToDict(message)
    except (json_format.Error, ValueError):
        sayable = type(message)()
        sayable.CopyFrom(message)
        _say_times(sayable)
        fields = json_format.MessageToDict(sayable)
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated and not _is_map(field):
            fields.setdefault(field.json_name, [])
    return msgspec.json.encode(fields)


def _say_times(message: Any) -> None:
    """Makes durations and times what JSON can say. Over gRPC a caller may have given one with nanoseconds of over a
    second, and it is kept as it came: his list of tasks must not fail for it."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"].message_type
            several = value.values() if inner is not None else ()
        else:
            several = value if field.is_repeated else (value,)
        for one in several:
            limits = _TIMES.get(one.DESCRIPTOR.full_name)
            if limits is None:
                _say_times(one)
                continue
            nanos = min(max(one.seconds * 10**9 + one.nanos, limits[0] * 10**9), limits[1] * 10**9)
            seconds = nanos // 10**9
            if one.DESCRIPTOR.full_name == DURATION and nanos < 0:
                seconds = -(-nanos // 10**9)  # both parts of a duration have its sign
            one.seconds, one.nanos = seconds, nanos - seconds * 10**9


def field_named(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    """A field by its name in the contract or in JSON."""
    found: FieldDescriptor | None = descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _texts(found: dict[str, Any], descriptor: Descriptor) -> None:
    """Turns each `json` of a payload into its text."""
    for name, value in found.items():
        field = field_named(descriptor, name)
        if field is None or field.message_type is None or _is_map(field):
            continue
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                continue
            if field.message_type.full_name != PAYLOAD:
                _texts(one, field.message_type)
            elif "json" in one:
                if not one.keys().isdisjoint({"text", "data"}):
                    raise _malformed("a payload has one of `json`, `text` and `data`")
                one["text"] = msgspec.json.encode(one.pop("json")).decode()
                if not one.get("mediaType") and not one.get("media_type"):
                    one["mediaType"] = "application/json"


def _path(descriptor: Descriptor, name: str, flat: str) -> list[str]:
    """The fields on the way to a value, by their names in the contract. A map ends it: what follows is a key."""
    if not name:
        raise _invalid("a parameter", "has no name")
    if flat and field_named(descriptor, name.partition(".")[0]) is None:
        name = f"{flat}.{name}"
    fields: list[str] = []
    rest = name
    here: Descriptor | None = descriptor
    while rest:
        step, _, rest = rest.partition(".")
        field = field_named(here, step) if here is not None else None
        if field is None:
            raise _invalid(name.removeprefix(f"{flat}.") if flat else name, "is no parameter of this path")
        fields.append(field.name)
        if _is_map(field):
            return [*fields, rest]
        here = field.message_type
    return fields


def _set(message: Any, fields: list[str], values: list[str], name: str) -> None:
    """Sets one value, or the values of a list."""
    here, leaf = message.DESCRIPTOR, None
    for step in fields:
        if leaf is not None and _is_map(leaf):
            leaf = leaf.message_type.fields_by_name["value"]
            break
        leaf = here.fields_by_name[step]
        here = leaf.message_type
    assert leaf is not None
    one: Any = [_converted(leaf, value) for value in values]
    if not leaf.is_repeated:
        if len(one) > 1:
            raise _invalid(name, "is given more than once")
        (one,) = one
    for step in reversed(fields):
        one = {step: one}
    try:
        json_format.ParseDict(one, message)
    except _TROUBLE as error:
        raise _invalid(name, wrong.must_be(leaf, error)) from None


def _converted(leaf: FieldDescriptor, value: str) -> Any:
    """A value of a query as JSON has it."""
    if leaf.enum_type is not None:
        if value.lstrip("-").isdigit():
            return int(value)
        prefix = leaf.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        return value.upper() if value.upper().startswith(prefix) else prefix + value.upper()
    if leaf.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), value)
    if leaf.message_type is not None and leaf.message_type.full_name == DURATION and _SECONDS.fullmatch(value):
        return f"{value}s"
    return value


def _value(message: Any, path: str) -> str:
    """What is set; nothing for what is not."""
    for step in path.split("."):
        message = getattr(message, step)
    return str(message) if message else ""


def _malformed(message: str) -> InvalidRequest:
    return InvalidRequest(message, Reason.MALFORMED_MESSAGE)


def _invalid(name: str, what: str) -> InvalidRequest:
    short = bounded_text(name, 128)
    return InvalidRequest(f"{short} {what}", Reason.INVALID_FIELD, field=short)
