"""Errors: which of A2A's errors a reason of ours is, and which of ours an A2A agent's error is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from a2a.utils import errors as a2a

from reach.errors import AgentError, InvalidRequest, ReachError, Reason, ResourceExhausted, Timeout, Unavailable
from reach.wire.status import DOMAIN, METADATA_ENTRIES, bounded_metadata, retry_after_of

THEIR_DOMAIN: Final = "a2a-protocol.org"
"""`ErrorInfo.domain` of the errors that A2A defines; those of ours have our own (`wire/status.py`)."""
_TYPES: Final = "type.googleapis.com/google.rpc."

THEIR_NAME: Final[Mapping[Reason, type[a2a.A2AError]]] = {
    Reason.TASK_NOT_FOUND: a2a.TaskNotFoundError,
    Reason.WRONG_STATE: a2a.UnsupportedOperationError,
    Reason.NOT_IMPLEMENTED: a2a.UnsupportedOperationError,
    Reason.VERSION_NOT_SUPPORTED: a2a.VersionNotSupportedError,
    Reason.INVALID_FIELD: a2a.InvalidParamsError,
    Reason.MALFORMED_MESSAGE: a2a.InvalidParamsError,
    Reason.PAYLOAD_TOO_LARGE: a2a.InvalidParamsError,
    Reason.SCHEMA_MISMATCH: a2a.InvalidParamsError,
    Reason.INPUT_ID_REUSED: a2a.InvalidParamsError,
    Reason.TASK_ID_REUSED: a2a.InvalidParamsError,
    Reason.PROTOCOL_VIOLATION: a2a.InvalidAgentResponseError,
}
"""Reasons that A2A has a word for. All others keep ours, with our domain."""


def a2a_error(error: ReachError) -> a2a.A2AError | None:
    """An error of ours as A2A says it; None where it has no word for it."""
    kind = THEIR_NAME.get(error.reason)
    if kind is None:
        return None
    if kind is a2a.InvalidParamsError:
        field = error.metadata.get("field", "")
        return kind(error.message, {"errors": [{"field": field, "message": error.message}]} if field else None)
    return kind(error.message)


def details_of(error: ReachError) -> list[dict[str, Any]]:
    """What A2A's JSON says of an error of ours: the reason, in our domain, and when to come back."""
    metadata = bounded_metadata(error.metadata, METADATA_ENTRIES)
    info = {"@type": f"{_TYPES}ErrorInfo", "reason": error.reason.name, "domain": DOMAIN, "metadata": metadata}
    wait_ms = retry_after_of(error)
    if wait_ms is None:
        return [info]
    return [info, {"@type": f"{_TYPES}RetryInfo", "retryDelay": f"{wait_ms / 1_000:g}s"}]


_OURS: Final[Mapping[str, tuple[type[ReachError], Reason]]] = {
    # What the agent does not know any more cannot be gone on with there: another attempt may, elsewhere.
    "TASK_NOT_FOUND": (Unavailable, Reason.INSTANCE_LOST),
    "TASK_NOT_CANCELABLE": (InvalidRequest, Reason.WRONG_STATE),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (AgentError, Reason.AGENT_FAILED),
    "UNSUPPORTED_OPERATION": (AgentError, Reason.AGENT_FAILED),
    "CONTENT_TYPE_NOT_SUPPORTED": (AgentError, Reason.AGENT_REJECTED),
    "INVALID_AGENT_RESPONSE": (AgentError, Reason.AGENT_FAILED),
    "EXTENSION_SUPPORT_REQUIRED": (AgentError, Reason.AGENT_REJECTED),
    "VERSION_NOT_SUPPORTED": (AgentError, Reason.AGENT_REJECTED),
    "INVALID_PARAMS": (AgentError, Reason.AGENT_REJECTED),
    "INVALID_REQUEST": (AgentError, Reason.AGENT_REJECTED),
    "METHOD_NOT_FOUND": (AgentError, Reason.AGENT_REJECTED),
    "INTERNAL_ERROR": (AgentError, Reason.AGENT_FAILED),
    "RATE_LIMITED": (ResourceExhausted, Reason.AGENT_BUSY),
    "QUEUE_FULL": (ResourceExhausted, Reason.AGENT_BUSY),
    "TIMEOUT": (Timeout, Reason.START_TO_CLOSE),
}


def our_error(reason: str, message: str) -> ReachError:
    """What an A2A agent's error means for the attempt there; one that nobody knows is the agent's failure.

    Args:
        reason: As `ErrorInfo.reason` says it.
        message: The agent's text, for people.
    """
    kind, ours = _OURS.get(reason, (AgentError, Reason.AGENT_FAILED))
    return kind(message, ours, a2a_reason=reason) if reason else kind(message, ours)
