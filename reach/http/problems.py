"""Errors as `application/problem+json` (RFC 9457): with the reason and class of the error, and whether to try again."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from reach.errors import InvalidRequest, ReachError, Reason
from reach.telemetry.tracing import current_trace_id
from reach.wire.status import METADATA_ENTRIES, TABLE, bounded_metadata, bounded_text, retry_after_of

MEDIA_TYPE: Final = "application/problem+json"
HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
TRACE_KEY: Final = "x-trace-id"
_NO_TRACE: Final = "0" * 32

_STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_OWN: Final[Mapping[Reason, int]] = {Reason.PAYLOAD_TOO_LARGE: 413, Reason.STORE_FULL: 507}


def status_of(reason: Reason) -> int:
    """The HTTP status of an error: by its gRPC code, but for what HTTP has a better word for."""
    return _OWN.get(reason) or _STATUS_OF_CODE[TABLE[reason].code.name]


def document(error: ReachError, status: int = 0, trace_id: str = "") -> dict[str, object]:
    """The problem, as JSON."""
    status = status or status_of(error.reason)
    known = status in HTTPStatus._value2member_map_
    fields: dict[str, object] = {
        "type": f"urn:agentreach:reason:{error.reason.name}",
        "title": HTTPStatus(status).phrase if known else "Client Closed Request",
        "status": status,
        "detail": bounded_text(error.message),
        "reason": error.reason.name,
        "class": error.error_class.name,
        "retryable": error.retryable,
        "metadata": bounded_metadata(error.metadata, METADATA_ENTRIES),
    }
    wait_ms = retry_after_of(error)
    if wait_ms is not None:
        fields["retryAfterMs"] = wait_ms
    if trace_id:
        fields["traceId"] = trace_id
    return fields


def problem(
    error: ReachError, status: int = 0, trace_id: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """The answer to a call that failed.

    Args:
        error: Why.
        status: Where HTTP has a word of its own for what went wrong; 0: by the reason.
        trace_id: Of the call; empty if it never had one.
        headers: More headers.
    """
    fields = document(error, status, trace_id)
    sent = {**HEADERS, **(headers or {})}
    wait_ms = retry_after_of(error)
    if wait_ms is not None:
        sent["retry-after"] = str(max(1, -(-wait_ms // 1_000)))
    if error.reason is Reason.UNAUTHENTICATED:
        sent["www-authenticate"] = "Bearer"
    if trace_id:
        sent[TRACE_KEY] = trace_id
    return Response(msgspec.json.encode(fields), int(str(fields["status"])), sent, MEDIA_TYPE)


def trace_of_call() -> str:
    """The trace of the call that is being made here; empty if it never had one."""
    trace_id = current_trace_id()
    return "" if trace_id == _NO_TRACE else trace_id


def no_such_path() -> Response:
    """404: nothing is there, whoever asks."""
    return problem(InvalidRequest("there is no such path; /docs shows those that are", Reason.NOT_IMPLEMENTED), 404)


def wrong_verb(verbs: tuple[str, ...]) -> Response:
    """405: the path is one, but not with this verb."""
    allowed = ", ".join(sorted(set(verbs)))
    error = InvalidRequest(f"this path takes {allowed}", Reason.NOT_IMPLEMENTED)
    return problem(error, 405, headers={"allow": allowed})
