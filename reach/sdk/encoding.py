"""The messages that each task needs, written as bytes: a quarter of the time that building and serialising them takes.

A message is the concatenation of its fields, so parts may be made apart, kept, and joined. The numbers of the fields
come from the contract; everything that is seldom goes the usual way.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from agentreach.v1 import attach_pb2, attempt_pb2, dispatch_pb2, payload_pb2, task_pb2
from reach.sdk.payloads import payload_fields

LINK: Final = 1
"""Number of our link: one instance per stream."""


class _Varints(dict[int, bytes]):
    """Numbers as protobuf writes them: lengths, and integers that are not negative. The small ones are kept."""

    def __missing__(self, number: int) -> bytes:
        made = bytearray()
        while number > 127:
            made.append(number & 127 | 128)
            number >>= 7
        made.append(number)
        return bytes(made)


_VARINT: Final = _Varints()
_VARINT.update((number, _VARINT[number]) for number in range(2_048))


def _tag(message: type[Message], field: str, wire_type: int = 2) -> bytes:
    """What stands before a field, for a template: 2 is for all that has a length, 0 for integers."""
    return _VARINT[message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type].replace(b"%", b"%%")


_LENGTH_AND_CONTENT: Final = b"%b%b"
_INTEGER: Final = b"%b"
_DATA: Final = _tag(payload_pb2.Payload, "data") + _LENGTH_AND_CONTENT
_TEXT: Final = _tag(payload_pb2.Payload, "text") + _LENGTH_AND_CONTENT
_OUTPUT: Final = _tag(attempt_pb2.AttemptResult, "output") + _LENGTH_AND_CONTENT
_KEY: Final = (
    _tag(attempt_pb2.AttemptKey, "task_id")
    + _LENGTH_AND_CONTENT
    + _tag(attempt_pb2.AttemptKey, "attempt", 0)
    + _INTEGER
)
_TENANT: Final = _tag(attempt_pb2.AttemptKey, "tenant") + _LENGTH_AND_CONTENT
_RESULT: Final = (
    _tag(attempt_pb2.AttemptResult, "link", 0)
    + _VARINT[LINK]
    + _tag(attempt_pb2.AttemptResult, "key")
    + _LENGTH_AND_CONTENT
    + b"%b"  # the outcome
)
_RESULTS: Final = _tag(attach_pb2.AttachRequest, "results") + _LENGTH_AND_CONTENT
_SPEC: Final = (
    b"%b"  # the head
    + _tag(task_pb2.TaskSpec, "task_id")
    + _LENGTH_AND_CONTENT
    + _tag(task_pb2.TaskSpec, "payload")
    + _LENGTH_AND_CONTENT
)
_SUBMIT: Final = (
    _tag(dispatch_pb2.Submit, "reference", 0)
    + _INTEGER
    + _tag(dispatch_pb2.Submit, "interest", 0)
    + _INTEGER
    + _tag(dispatch_pb2.Submit, "task")
    + _LENGTH_AND_CONTENT
)
_SUBMITS: Final = _tag(dispatch_pb2.DispatchStreamRequest, "submits") + _LENGTH_AND_CONTENT


def payload_message(value: Any) -> tuple[bytes, int]:
    """A value as a Payload, and the size of its content. Raises InvalidRequest if it has no form, TypeError or
    ValueError if it has a part that cannot be sent."""
    kind = type(value)
    if kind is bytes:
        size = len(value)
        return _DATA % (_VARINT[size], value), size
    if kind is str:
        data = value.encode("utf-8", "replace")
        size = len(data)
        return _TEXT % (_VARINT[size], data), size
    fields, size = payload_fields(value)
    return payload_pb2.Payload(**fields).SerializeToString(), size


def output_outcome(value: Any) -> tuple[bytes, int]:
    """A value as the `output` of an AttemptResult, and the size of its content. Raises as `payload_message`."""
    payload, size = payload_message(value)
    return _OUTPUT % (_VARINT[len(payload)], payload), size


def result_item(key: tuple[str, str], attempt: int, outcome: bytes) -> bytes:
    """What became of an attempt, as an item. `key`: (tenant, task_id); `outcome`: all other fields of AttemptResult."""
    tenant, task_id = key
    data = task_id.encode()
    named = _KEY % (_VARINT[len(data)], data, _VARINT[attempt])
    if tenant:
        data = tenant.encode()
        named += _TENANT % (_VARINT[len(data)], data)
    result = _RESULT % (_VARINT[len(named)], named, outcome)
    return _RESULTS % (_VARINT[len(result)], result)


def submit_item(reference: int, interest: int, head: bytes, task_id: str, payload: bytes) -> bytes:
    """A task, as an item. `head`: all other fields of TaskSpec."""
    data = task_id.encode()
    spec = _SPEC % (head, _VARINT[len(data)], data, _VARINT[len(payload)], payload)
    submit = _SUBMIT % (_VARINT[reference], _VARINT[interest], _VARINT[len(spec)], spec)
    return _SUBMITS % (_VARINT[len(submit)], submit)
