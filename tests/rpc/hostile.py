"""Hostile input, made from the descriptors: messages with odd values in every field, and bytes that are no messages."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import contract_text

KIB, MIB = 1 << 10, 1 << 20
NAMES = (
    "", "a", "é", "x" * 256, "x" * 257, "é" * 128 + "x", "y" * 64 * KIB, "../../etc/passwd", "a\0b", "two\nlines",
    "\x1b[31mred", "\x7f", "\u2028", "~", "%s", "'; drop table task; --", "{}", "🙂", "-1", "1",
)  # fmt: skip
"""Ids and texts: too long by a byte, with controls, paths, and what other languages would run."""
BYTES = (b"", b"\0", b"\xff\xfe", b"x" * 4 * KIB, bytes(range(256)))
DOUBLES = (0.0, -0.0, 0.5, 1.0, -1.0, 1.0000001, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
SECONDS = (0, 1, -1, 60, 3_155_760_000, -3_155_760_000, 315_576_000_000, 1 << 62, -(1 << 62), (1 << 63) - 1)
"""For durations and times: negative ones, hundred years, the limits of protobuf and of the field."""
NANOS = (0, 1, -1, 999_999_999, 1_000_000_000, -(1 << 31), (1 << 31) - 1)

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for service in contract_text.services()
    if service.name != "AgentEndpointService"  # served by agents
    for method in service.methods
}


def values_of(field: FieldDescriptor) -> tuple[Any, ...]:
    """Odd values of a field that is no message."""
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return (*numbers, -1, max(numbers) + 1, 1_000_000, (1 << 31) - 1)
    if field.cpp_type in _BITS:
        least, most = _BITS[field.cpp_type]
        owner = field.containing_type
        if owner is not None and owner.full_name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
            return SECONDS if field.name == "seconds" else NANOS
        return (0, 1, 2, 9, 10, 100, 101, 1_001, 100_001, least, most)
    kinds: dict[int, tuple[Any, ...]] = {
        FieldDescriptor.CPPTYPE_BOOL: (True, False),
        FieldDescriptor.CPPTYPE_DOUBLE: DOUBLES,
        FieldDescriptor.CPPTYPE_FLOAT: DOUBLES,
    }
    if field.cpp_type in kinds:
        return kinds[field.cpp_type]
    return BYTES if field.type == FieldDescriptor.TYPE_BYTES else NAMES


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map: repeated entries that Python shows as a mapping."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


@st.composite
def fields_of(draw: st.DrawFn, descriptor: Descriptor, depth: int = 4) -> dict[str, Any]:
    """Fields of a message, each there or not, as a dict that its class takes."""
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and is_map(field):
            value = field.message_type.fields_by_name["value"]
            fields[field.name] = draw(
                st.dictionaries(st.sampled_from(NAMES), st.sampled_from(values_of(value)), max_size=3)
            )
            continue
        if field.message_type is not None:
            if depth == 0:
                continue
            one: st.SearchStrategy[Any] = fields_of(field.message_type, depth - 1)
        else:
            one = st.sampled_from(values_of(field))
        fields[field.name] = draw(st.lists(one, max_size=2)) if field.is_repeated else draw(one)
    return fields


def odd_messages(descriptor: Descriptor, count: int, seed: int) -> list[bytes]:
    """So many messages of one kind, always the same ones for a seed."""
    found: list[bytes] = []
    kind = GetMessageClass(descriptor)

    def keep(fields: dict[str, Any]) -> None:
        found.append(kind(**fields).SerializeToString())

    collect = given(fields_of(descriptor))(keep)
    collect._hypothesis_internal_use_seed = seed  # type: ignore[attr-defined]
    settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(collect)()
    return found


def each_odd_value(descriptor: Descriptor, valid: Any, depth: int = 3) -> Iterator[tuple[str, bytes]]:
    """`valid` with one field after the other set to each of its odd values: (what was changed, the message)."""
    for path, field in _paths(descriptor, depth):
        for value in values_of(field):
            message = type(valid)()
            message.CopyFrom(valid)
            target = message
            for step in path:
                inner = getattr(target, step.name)
                target = inner.add() if step.is_repeated else inner
            if field.is_repeated:
                getattr(target, field.name).append(value)
            else:
                setattr(target, field.name, value)
            name = ".".join([*(step.name for step in path), field.name])
            yield f"{name} = {repr(value)[:40]}", message.SerializeToString()


def _paths(descriptor: Descriptor, depth: int) -> Iterator[tuple[list[FieldDescriptor], FieldDescriptor]]:
    for field in descriptor.fields:
        if is_map(field):
            continue
        if field.message_type is None:
            yield [], field
        elif depth:
            for path, inner in _paths(field.message_type, depth - 1):
                yield [field, *path], inner


def broken_bytes(chance: random.Random, valid: bytes) -> bytes:
    """No message, or one that was damaged on its way."""
    way = chance.randrange(8)
    if way == 0:
        return chance.randbytes(chance.randrange(1, 200))
    if way == 1:
        return valid[: chance.randrange(len(valid) + 1)]
    if way == 2:
        return valid + chance.randbytes(chance.randrange(1, 20))
    if way == 3:  # a wrong wire type for a field that there is
        return bytes([chance.randrange(1, 16) << 3 | chance.choice((0, 1, 2, 3, 5, 6, 7))]) + chance.randbytes(9)
    if way == 4:  # a huge varint, as a length or as a value
        return bytes([chance.randrange(1, 16) << 3 | chance.choice((0, 2))]) + b"\xff" * chance.randrange(5, 12)
    if way == 5:  # deep nesting: over the limit of 100
        deep = b""
        for _ in range(chance.choice((50, 99, 101, 300))):
            deep = b"\x0a" + _varint(len(deep)) + deep
        return deep
    if way == 6:  # unknown fields, and text that is not UTF-8
        return b"\xfa\x3f\x04abcd" + valid + b"\x0a\x03\xff\xfe\xfd"
    damaged = bytearray(valid or b"\x0a\x00")
    for _ in range(chance.randrange(1, 6)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
