"""Requests that are alike but for their ids and payloads, read once.

After a crash a hundred thousand tasks are read back whose requests ask for the same, in the same words. Parsing each
took a third of the time until the server served; walking over the outermost fields, to see that all but those which
nothing follows from are the same as in one that was parsed before, takes a quarter of it. A payload is not looked at.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, NamedTuple

from agentreach.v1 import payload_pb2, task_pb2
from reach.core.model import Requirement, Task
from reach.core.resolving import Selector

KEPT = 1_000
"""Shapes that are remembered."""
KEPT_BYTES = 1 << 10
"""Longest one, in bytes."""

_VARINT, _SIZED = 0, 2
"""Wire types; a request has no others on its outermost level."""
_NUMBERS: Final = {name: field.number for name, field in task_pb2.TaskSpec.DESCRIPTOR.fields_by_name.items()}
_ID: Final = _NUMBERS["task_id"] << 3 | _SIZED
_PAYLOAD: Final = _NUMBERS["payload"] << 3 | _SIZED
_MEDIA_TYPE: Final = payload_pb2.Payload.DESCRIPTOR.fields_by_name["media_type"].number << 3 | _SIZED
_CONTENT: Final = tuple(
    payload_pb2.Payload.DESCRIPTOR.fields_by_name[name].number << 3 | _SIZED for name in ("data", "text")
)
_CARRIED: Final = frozenset(
    _NUMBERS[name] << 3 | wire
    for name in (
        "attachments", "budget", "related_task_ids", "labels", "trace", "source", "protocol_version",
        "cancel_with_caller", "entities",
    )
    for wire in (_VARINT, _SIZED)
)  # fmt: skip
"""Fields that are checked when a request comes, and set nothing in its task."""


Parts = tuple[str, bytes]
"""The id of a request, and its shape: what its task follows from beside the id."""


def parts_of(spec: bytes) -> Parts | None:
    """Takes a stored request apart; None if it is written in an unusual way, and has to be parsed."""
    try:
        return _parts_of(spec)
    except (IndexError, UnicodeDecodeError):
        return None


def _parts_of(spec: bytes) -> Parts | None:
    at, end = 0, len(spec)
    shape, ids, payloads = b"", 0, 0
    task_id = media_type = None
    while at < end:
        start = at
        tag, size = spec[at], spec[at + 1]
        at += 2
        if tag >= 0x80 or size >= 0x80:
            tag, at = _varint(spec, start)
            size, at = _varint(spec, at)
        begin = at
        if tag & 7 == _SIZED:
            at += size
        elif tag & 7 != _VARINT:
            return None
        if tag == _ID:
            ids += 1
            task_id = spec[begin:at].decode()
        elif tag == _PAYLOAD:
            payloads += 1
            media_type = _media_type(spec, begin, at)
        elif tag not in _CARRIED:
            shape += spec[start:at]
    if task_id is None or ids > 1 or payloads > 1 or at != end or (payloads and media_type is None):
        return None
    return task_id, shape + media_type if media_type else shape


def _varint(spec: bytes, at: int) -> tuple[int, int]:
    """A number, and what follows it."""
    value = shift = 0
    while spec[at] >= 0x80:
        value |= (spec[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | spec[at] << shift, at + 1


def _media_type(spec: bytes, begin: int, end: int) -> bytes | None:
    """The media type of a payload, as a field: if it comes first, or there is nothing but the content. Else None."""
    if begin == end:
        return b""
    tag = spec[begin]
    size, at = _varint(spec, begin + 1)
    if tag == _MEDIA_TYPE:
        rest = _media_type(spec, at + size, end)
        return spec[begin : at + size] if rest == b"" else None
    return b"" if tag in _CONTENT and at + size == end else None


class _Shape(NamedTuple):
    requirement: Requirement
    selector: Selector
    values: tuple[Any, ...]


_SET: Final = (
    "priority", "fairness_key", "cost", "effects", "volatile", "session", "schedule_to_start_ms", "start_to_close_ms",
    "schedule_to_close_ms", "silence_ms", "start_delay_ms", "retry", "policy", "parent_task_id", "root_task_id",
    "announce",
)  # fmt: skip
"""All that reading a request sets in its task, beside its id, its content and its requirement."""
_values_of = attrgetter(*_SET)


class Shapes:
    """Shapes that were read, by tenant."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], _Shape] = {}

    def task(self, tenant: str, parts: Parts, spec: bytes) -> tuple[Task, Selector] | None:
        """The task of a request whose shape is known."""
        shape = self._known.get((tenant, parts[1]))
        if shape is None:
            return None
        task = Task(tenant, parts[0], spec, shape.requirement)
        (
            task.priority, task.fairness_key, task.cost, task.effects, task.volatile, task.session,
            task.schedule_to_start_ms, task.start_to_close_ms, task.schedule_to_close_ms, task.silence_ms,
            task.start_delay_ms, task.retry, task.policy, task.parent_task_id, task.root_task_id, task.announce,
        ) = shape.values  # fmt: skip
        return task, shape.selector

    def keep(self, parts: Parts, task: Task, selector: Selector) -> None:
        """Remembers the shape of a task that was just read, and has not been touched."""
        if len(parts[1]) > KEPT_BYTES:
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[task.tenant, parts[1]] = _Shape(task.requirement, selector, _values_of(task))
