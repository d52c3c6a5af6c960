"""Which gRPC code a caller gets, and how errors travel: the one table from reason to code.

An error of ours leaves the server in one of two shapes, and both come back as the same `ReachError`:

- as the end of a call: a gRPC status whose details hold `google.rpc.ErrorInfo` (the reason's name, domain `agentreach`,
  the class and the variables of the message) and, where waiting helps, `google.rpc.RetryInfo`;
- as an item of a stream or a field of a task: `agentreach.v1.Error`.

Texts come from agents and callers, so they are bounded and cleaned here: a lone surrogate or an escape sequence in an
agent's message must break neither a later reader nor a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from agentreach.v1 import error_pb2
from reach.errors import ErrorClass, ReachError, Reason, error_of
from reach.wire.handshakes import advice

DOMAIN: Final = "agentreach"
DETAILS_KEY: Final = "grpc-status-details-bin"

MESSAGE_LIMIT: Final = 4096
"""Bytes of UTF-8 in the message of an `agentreach.v1.Error`."""

STATUS_MESSAGE_LIMIT: Final = 1024
"""Bytes of UTF-8 in the message of a gRPC status. It travels twice in the trailers, once percent-encoded (three times
as long), and the C core begins to refuse trailers at 8 KiB: an error that is too long would arrive as another error."""

METADATA_ENTRIES: Final = 16
_METADATA_KEY_LIMIT: Final = 64
_METADATA_VALUE_LIMIT: Final = 1024
_STATUS_METADATA_ENTRIES: Final = 8
_STATUS_METADATA_VALUE_LIMIT: Final = 128
_RETRY_LIMIT_MS: Final = 24 * 3_600_000

# All of C0 but tab and newline, DEL, C1, and surrogates, which UTF-8 does not have.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MARK: Final = "… [cut]"


class Row(NamedTuple):
    """What a reason means on the wire."""

    code: grpc.StatusCode
    error_class: ErrorClass
    """The class it has unless the error says another one."""
    retry_after_ms: int | None = None
    """Sent as RetryInfo if the error itself names no time; None: waiting alone does not help."""


_C: Final = grpc.StatusCode
_BAD: Final = ErrorClass.INVALID_REQUEST
_FULL: Final = ErrorClass.RESOURCE_EXHAUSTED
_GONE: Final = ErrorClass.UNAVAILABLE
_LATE: Final = ErrorClass.TIMEOUT
_FAULT: Final = ErrorClass.INTERNAL
_AGENT: Final = ErrorClass.AGENT_ERROR

TABLE: Final[Mapping[Reason, Row]] = {
    Reason.INVALID_FIELD: Row(_C.INVALID_ARGUMENT, _BAD),
    Reason.MALFORMED_MESSAGE: Row(_C.INVALID_ARGUMENT, _BAD),
    Reason.PAYLOAD_TOO_LARGE: Row(_C.INVALID_ARGUMENT, _BAD),
    Reason.UNEXPECTED_FRAME: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.TASK_ID_REUSED: Row(_C.ALREADY_EXISTS, _BAD),
    Reason.TASK_NOT_FOUND: Row(_C.NOT_FOUND, _BAD),
    Reason.AGENT_NOT_FOUND: Row(_C.NOT_FOUND, _BAD),
    Reason.SESSION_NOT_FOUND: Row(_C.NOT_FOUND, _BAD),
    Reason.NO_MATCHING_AGENT: Row(_C.NOT_FOUND, _BAD),
    Reason.UNKNOWN_SKILL: Row(_C.INVALID_ARGUMENT, _BAD),
    Reason.QUEUE_FULL: Row(_C.RESOURCE_EXHAUSTED, _FULL, 1_000),
    Reason.RATE_LIMITED: Row(_C.RESOURCE_EXHAUSTED, _FULL, 1_000),
    Reason.TOO_MANY_STREAMS: Row(_C.RESOURCE_EXHAUSTED, _FULL, 1_000),
    Reason.STORE_FULL: Row(_C.RESOURCE_EXHAUSTED, _FULL, 10_000),
    Reason.AGENT_BUSY: Row(_C.RESOURCE_EXHAUSTED, _FULL),
    Reason.RESULT_TOO_LARGE: Row(_C.RESOURCE_EXHAUSTED, _FULL),
    Reason.INSTANCE_LOST: Row(_C.UNAVAILABLE, _GONE),
    Reason.INSTANCE_UNHEALTHY: Row(_C.UNAVAILABLE, _GONE),
    Reason.AGENT_UNAVAILABLE: Row(_C.UNAVAILABLE, _GONE),
    Reason.SHUTTING_DOWN: Row(_C.UNAVAILABLE, _GONE, 1_000),
    Reason.STORE_UNAVAILABLE: Row(_C.UNAVAILABLE, _GONE, 1_000),
    Reason.OWNER_UNAVAILABLE: Row(_C.UNAVAILABLE, _GONE, 500),
    Reason.SCHEDULE_TO_START: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.START_TO_CLOSE: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.SCHEDULE_TO_CLOSE: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.SILENCE: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.WAIT_EXPIRED: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.INTERNAL_FAULT: Row(_C.INTERNAL, _FAULT),
    Reason.OUTCOME_UNKNOWN: Row(_C.INTERNAL, _FAULT),
    Reason.PROTOCOL_VIOLATION: Row(_C.INTERNAL, _FAULT),
    # With this and AGENT_REJECTED the task ends and no call fails; a code is here for a call with nothing else to give.
    Reason.AGENT_FAILED: Row(_C.FAILED_PRECONDITION, _AGENT),
    Reason.STALE_GENERATION: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.STALE_ATTEMPT: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.UNKNOWN_ATTEMPT: Row(_C.NOT_FOUND, _BAD),
    Reason.WRONG_STATE: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.UNAUTHENTICATED: Row(_C.UNAUTHENTICATED, _BAD),
    Reason.PERMISSION_DENIED: Row(_C.PERMISSION_DENIED, _BAD),
    Reason.VERSION_NOT_SUPPORTED: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.NOT_IMPLEMENTED: Row(_C.UNIMPLEMENTED, _BAD),
    Reason.CANCELLED: Row(_C.CANCELLED, _BAD),
    Reason.SEQUENCE_OUT_OF_RANGE: Row(_C.OUT_OF_RANGE, _BAD),
    Reason.AGENT_REJECTED: Row(_C.FAILED_PRECONDITION, _AGENT),
    Reason.AGENT_CRASHED: Row(_C.INTERNAL, _FAULT),
    Reason.NO_ROUTE: Row(_C.NOT_FOUND, _BAD),
    Reason.NO_CAPABLE_AGENT: Row(_C.NOT_FOUND, _BAD),
    Reason.NO_TAGGED_AGENT: Row(_C.NOT_FOUND, _BAD),
    Reason.NO_TEXT_MATCH: Row(_C.NOT_FOUND, _BAD),
    Reason.SCHEMA_MISMATCH: Row(_C.INVALID_ARGUMENT, _BAD),
    Reason.INPUT_ID_REUSED: Row(_C.ALREADY_EXISTS, _BAD),
    Reason.INPUT_EXPIRED: Row(_C.DEADLINE_EXCEEDED, _LATE),
    Reason.PARENT_CANCELLED: Row(_C.FAILED_PRECONDITION, _BAD),
    Reason.BUDGET_SPENT: Row(_C.FAILED_PRECONDITION, _BAD),
}
"""Every reason, in the order of the contract; `error.proto` says the same in its comments and a test compares them."""

_REASON_OF_CODE: Final[Mapping[grpc.StatusCode, Reason]] = {
    _C.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    _C.FAILED_PRECONDITION: Reason.WRONG_STATE,
    _C.ALREADY_EXISTS: Reason.TASK_ID_REUSED,
    _C.NOT_FOUND: Reason.TASK_NOT_FOUND,
    _C.RESOURCE_EXHAUSTED: Reason.RATE_LIMITED,
    _C.UNAVAILABLE: Reason.OWNER_UNAVAILABLE,
    _C.ABORTED: Reason.OWNER_UNAVAILABLE,
    _C.DEADLINE_EXCEEDED: Reason.WAIT_EXPIRED,
    _C.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    _C.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    _C.UNIMPLEMENTED: Reason.NOT_IMPLEMENTED,
    _C.CANCELLED: Reason.CANCELLED,
    _C.OUT_OF_RANGE: Reason.SEQUENCE_OUT_OF_RANGE,
}
"""For a status without our details: a proxy's, or the C core's own. All other codes are INTERNAL_FAULT."""


def bounded_text(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text with control characters (but tab and newline) and lone surrogates replaced, cut with a mark if it is
    over `limit` bytes of UTF-8."""
    short = _UNPRINTABLE.sub(_REPLACEMENT, text[: limit + 2].replace("\r\n", "\n"))
    encoded = short.encode()
    if len(encoded) <= limit and len(text) <= limit + 2:
        return short
    return encoded[: limit - len(_MARK.encode())].decode(errors="ignore") + _MARK


def status_of(error: ReachError) -> grpc.Status:
    """The gRPC status that ends a call with this error."""
    row = TABLE[error.reason]
    message = bounded_text(error.message, STATUS_MESSAGE_LIMIT).replace("\n", " ").replace("\t", " ")
    status = status_pb2.Status(code=_number_of(row.code), message=message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN)
    for key, value in bounded_metadata(error.metadata, _STATUS_METADATA_ENTRIES, _STATUS_METADATA_VALUE_LIMIT).items():
        info.metadata[key] = value
    info.metadata["class"] = error.error_class.name
    info.metadata["retryable"] = "true" if error.retryable else "false"
    status.details.add().Pack(info)
    retry_after_ms = retry_after_of(error)
    if retry_after_ms is not None:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=_duration(retry_after_ms)))
    return rpc_status.to_status(status)


def is_answer(failure: grpc.aio.AioRpcError) -> bool:
    """Whether a call failed by a word of the server, and not on its way there or back."""
    return any(key == DETAILS_KEY for key, _ in failure.trailing_metadata() or ())


def error_from_rpc(failure: grpc.aio.AioRpcError) -> ReachError:
    """The error that ended a call, for clients. Without our details the code alone decides."""
    message = failure.details() or failure.code().name
    for key, value in failure.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            error = _error_from_details(value, message)
            if error is not None:
                return error
    reason = _REASON_OF_CODE.get(failure.code(), Reason.INTERNAL_FAULT)
    # Two that gRPC itself makes can be told only by their text.
    if failure.code() is _C.RESOURCE_EXHAUSTED and "larger than max" in message:
        reason = Reason.PAYLOAD_TOO_LARGE
    elif failure.code() is _C.INTERNAL and message.startswith("Internal error from Core"):
        # A write met the end of its stream, and the client lost what the server said (grpc/grpc#36066): ask again.
        reason = Reason.OWNER_UNAVAILABLE
    elif failure.code() is _C.UNAVAILABLE and (what_to_do := advice(message)):
        message = f"{what_to_do} ({message})"
    return error_of(TABLE[reason].error_class, reason, bounded_text(message))


def error_to_proto(error: ReachError) -> error_pb2.Error:
    """The error as an item of a stream or a field of a task."""
    message = error_pb2.Error(
        error_class=_proto_class(error.error_class),
        reason=_proto_reason(error.reason),
        message=bounded_text(error.message),
        metadata=bounded_metadata(error.metadata, METADATA_ENTRIES, _METADATA_VALUE_LIMIT),
        retryable=error.retryable,
    )
    retry_after_ms = retry_after_of(error)
    if retry_after_ms is not None:
        message.retry_after.CopyFrom(_duration(retry_after_ms))
    return message


def error_from_proto(message: error_pb2.Error) -> ReachError:
    """The error that a peer reported. Peers may be newer, or write by hand: a reason that is not known here becomes the
    plain one of its class, a class that is missing is the reason's."""
    reason = _REASONS.get(message.reason)
    error_class = _CLASSES.get(message.error_class)
    if error_class is None:
        error_class = TABLE[reason].error_class if reason is not None else ErrorClass.INTERNAL
    retry_after_ms = _milliseconds(message.retry_after) if message.HasField("retry_after") else None
    error = _error(error_class, reason, bounded_text(message.message), retry_after_ms, dict(message.metadata))
    if reason is None and message.reason:
        error.metadata["unknown_reason"] = str(message.reason)
    return error


def _error_from_details(data: bytes, message: str) -> ReachError | None:
    info = error_details_pb2.ErrorInfo()
    retry_after_ms = None
    try:
        for detail in status_pb2.Status.FromString(data).details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                retry_after_ms = _milliseconds(retry.retry_delay)
    except DecodeError:
        return None
    if info.domain != DOMAIN:
        return None
    metadata = dict(info.metadata)
    metadata.pop("retryable", None)
    reason = Reason.__members__.get(info.reason)
    error_class = ErrorClass.__members__.get(metadata.pop("class", ""))
    if error_class is None:
        error_class = TABLE[reason].error_class if reason is not None else ErrorClass.INTERNAL
    error = _error(error_class, reason, bounded_text(message), retry_after_ms, metadata)
    if reason is None:
        error.metadata["unknown_reason"] = bounded_text(info.reason, _METADATA_KEY_LIMIT)
    return error


def _error(
    error_class: ErrorClass,
    reason: Reason | None,
    message: str,
    retry_after_ms: int | None,
    metadata: Mapping[str, str],
) -> ReachError:
    """Builds the error; its metadata is set afterwards, because its keys are a peer's and must not become arguments."""
    known = reason if reason is not None else _DEFAULT_REASONS[error_class]
    error = error_of(error_class, known, message, retry_after_ms=retry_after_ms)
    error.metadata = bounded_metadata(metadata, METADATA_ENTRIES, _METADATA_VALUE_LIMIT)
    return error


_REASONS: Final[Mapping[int, Reason]] = {int(reason): reason for reason in Reason}
_CLASSES: Final[Mapping[int, ErrorClass]] = {int(error_class): error_class for error_class in ErrorClass}
_DEFAULT_REASONS: Final[Mapping[ErrorClass, Reason]] = {
    _BAD: Reason.INVALID_FIELD,
    _FULL: Reason.AGENT_BUSY,
    _GONE: Reason.AGENT_UNAVAILABLE,
    _LATE: Reason.START_TO_CLOSE,
    _FAULT: Reason.INTERNAL_FAULT,
    _AGENT: Reason.AGENT_FAILED,
}


def bounded_metadata(
    metadata: Mapping[str, str], entries: int, value_limit: int = _METADATA_VALUE_LIMIT
) -> dict[str, str]:
    """The first entries, with names and values as `bounded_text` leaves them."""
    return {
        bounded_text(key, _METADATA_KEY_LIMIT): bounded_text(str(value), value_limit)
        for key, value in islice(metadata.items(), entries)
    }


def retry_after_of(error: ReachError) -> int | None:
    return error.retry_after_ms if error.retry_after_ms is not None else TABLE[error.reason].retry_after_ms


def _duration(milliseconds: int) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(min(max(milliseconds, 0), _RETRY_LIMIT_MS))
    return duration


def _milliseconds(duration: Duration) -> int:
    """Read by hand: `ToMilliseconds` raises on what a peer may well send."""
    return min(max(duration.seconds * 1000 + duration.nanos // 1_000_000, 0), _RETRY_LIMIT_MS)


def _number_of(code: grpc.StatusCode) -> int:
    number, _ = code.value
    return int(number)


def _proto_class(error_class: ErrorClass) -> error_pb2.ErrorClass.ValueType:
    return cast("error_pb2.ErrorClass.ValueType", int(error_class))


def _proto_reason(reason: Reason) -> error_pb2.ErrorReason.ValueType:
    return cast("error_pb2.ErrorReason.ValueType", int(reason))
