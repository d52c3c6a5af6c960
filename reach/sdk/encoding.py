"""What the SDK says of each task, written as bytes (see `wire.encoding`)."""

from __future__ import annotations

from typing import Any, Final

from agentreach.v1 import attach_pb2, attempt_pb2, dispatch_pb2, payload_pb2, task_pb2
from reach.sdk.payloads import payload_fields
from reach.wire.encoding import DATA, TEXT, VARINT, attempt_key, plain_tag

LINK: Final = 1
"""Number of our link: one instance per stream."""


_OUTPUT: Final = plain_tag(attempt_pb2.AttemptResult, "output")
_DATA: Final = plain_tag(payload_pb2.Payload, "data")
_TEXT: Final = plain_tag(payload_pb2.Payload, "text")
_LINK_AND_KEY: Final = (
    plain_tag(attempt_pb2.AttemptResult, "link", 0) + VARINT[LINK] + plain_tag(attempt_pb2.AttemptResult, "key")
)
_ACCEPTED_KEY: Final = (
    plain_tag(attempt_pb2.AttemptAccept, "link", 0) + VARINT[LINK] + plain_tag(attempt_pb2.AttemptAccept, "key")
)
_ACCEPTS: Final = plain_tag(attach_pb2.AttachRequest, "accepts")
_RESULTS: Final = plain_tag(attach_pb2.AttachRequest, "results")
_TASK_ID: Final = plain_tag(task_pb2.TaskSpec, "task_id")
_PAYLOAD: Final = plain_tag(task_pb2.TaskSpec, "payload")
_SUBMIT: Final = (
    plain_tag(dispatch_pb2.Submit, "interest", 0)
    + b"%b"
    + plain_tag(dispatch_pb2.Submit, "reference", 0)
    + b"%b"
    + plain_tag(dispatch_pb2.Submit, "task")
    + b"%b"
)
_SUBMITS: Final = plain_tag(dispatch_pb2.DispatchStreamRequest, "submits")


def payload_message(value: Any) -> tuple[bytes, int]:
    """A value as a Payload, and the size of its content. Raises InvalidRequest if it has no form, TypeError or
    ValueError if it has a part that cannot be sent."""
    kind = type(value)
    if kind is bytes:
        size = len(value)
        return DATA % (VARINT[size], value), size
    if kind is str:
        data = value.encode("utf-8", "replace")
        size = len(data)
        return TEXT % (VARINT[size], data), size
    fields, size = payload_fields(value)
    return payload_pb2.Payload(**fields).SerializeToString(), size


def output_outcome(value: Any) -> tuple[bytes, int]:
    """A value as the `output` of an AttemptResult, and the size of its content. Raises as `payload_message`."""
    kind = type(value)
    if kind is bytes:
        named, data = _DATA, value
    elif kind is str:
        named, data = _TEXT, value.encode("utf-8", "replace")
    else:
        payload, size = payload_message(value)
        return b"".join((_OUTPUT, VARINT[len(payload)], payload)), size
    size = len(data)
    length = VARINT[size]
    return b"".join((_OUTPUT, VARINT[len(named) + len(length) + size], named, length, data)), size


def result_item(key: tuple[str, str], attempt: int, outcome: bytes) -> bytes:
    """What became of an attempt, as an item. `key`: (tenant, task_id); `outcome`: all other fields of AttemptResult."""
    named = attempt_key(*key, attempt)
    length = VARINT[len(named)]
    size = len(_LINK_AND_KEY) + len(length) + len(named) + len(outcome)
    return b"".join((_RESULTS, VARINT[size], _LINK_AND_KEY, length, named, outcome))


def accept_item(key: tuple[str, str], attempt: int) -> bytes:
    """An attempt runs, as an item. `key`: (tenant, task_id)."""
    named = attempt_key(*key, attempt)
    length = VARINT[len(named)]
    return b"".join((_ACCEPTS, VARINT[len(_ACCEPTED_KEY) + len(length) + len(named)], _ACCEPTED_KEY, length, named))


def submit_item(reference: int, interest: int, head: bytes, task_id: str, payload: bytes) -> bytes:
    """A task, as an item. `head`: all other fields of TaskSpec."""
    data = task_id.encode()
    named = b"".join((_TASK_ID, VARINT[len(data)], data, _PAYLOAD, VARINT[len(payload)]))
    size = len(head) + len(named) + len(payload)
    begins = _SUBMIT % (VARINT[interest], VARINT[reference], VARINT[size])
    return b"".join((_SUBMITS, VARINT[len(begins) + size], begins, head, named, payload))  # the payload: copied once
