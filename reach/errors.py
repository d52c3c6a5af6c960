"""Every error of Agent-Reach, as a tree.

    ReachError
    ├── InvalidRequest      the request is wrong; never retried
    ├── ResourceExhausted   a limit is reached; retried a few times, elsewhere
    ├── Unavailable         an instance or node cannot be reached; failed over
    ├── Timeout             a time limit passed; retried a few times
    ├── Internal            a fault of ours or of an agent's code; alerted, not retried blindly
    └── AgentError          the agent answered that it cannot be done; told to the caller, never retried

Each class has a closed set of reasons (`Reason`), the same names as `ErrorReason` in the contract. This module knows
nothing of gRPC: `wire/status.py` holds the one table from reason to gRPC code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorClass(IntEnum):
    """The five classes of DLV-4 and the business failure; numbers as in the contract."""

    INVALID_REQUEST = 1
    RESOURCE_EXHAUSTED = 2
    UNAVAILABLE = 3
    TIMEOUT = 4
    INTERNAL = 5
    AGENT_ERROR = 6


class Reason(IntEnum):
    """Why something was refused or failed; numbers and names as `ErrorReason` in the contract."""

    INVALID_FIELD = 1
    MALFORMED_MESSAGE = 2
    PAYLOAD_TOO_LARGE = 3
    UNEXPECTED_FRAME = 4
    TASK_ID_REUSED = 5
    TASK_NOT_FOUND = 6
    AGENT_NOT_FOUND = 7
    SESSION_NOT_FOUND = 8
    NO_MATCHING_AGENT = 9
    UNKNOWN_SKILL = 10
    QUEUE_FULL = 11
    RATE_LIMITED = 12
    TOO_MANY_STREAMS = 13
    STORE_FULL = 14
    AGENT_BUSY = 15
    RESULT_TOO_LARGE = 16
    INSTANCE_LOST = 17
    INSTANCE_UNHEALTHY = 18
    AGENT_UNAVAILABLE = 19
    SHUTTING_DOWN = 20
    STORE_UNAVAILABLE = 21
    OWNER_UNAVAILABLE = 22
    SCHEDULE_TO_START = 23
    START_TO_CLOSE = 24
    SCHEDULE_TO_CLOSE = 25
    SILENCE = 26
    WAIT_EXPIRED = 27
    INTERNAL_FAULT = 28
    OUTCOME_UNKNOWN = 29
    PROTOCOL_VIOLATION = 30
    AGENT_FAILED = 31
    STALE_GENERATION = 32
    STALE_ATTEMPT = 33
    UNKNOWN_ATTEMPT = 34
    WRONG_STATE = 35
    UNAUTHENTICATED = 36
    PERMISSION_DENIED = 37
    VERSION_NOT_SUPPORTED = 38
    NOT_IMPLEMENTED = 39
    CANCELLED = 40
    SEQUENCE_OUT_OF_RANGE = 41
    AGENT_REJECTED = 42
    AGENT_CRASHED = 43
    NO_ROUTE = 50
    NO_CAPABLE_AGENT = 51
    NO_TAGGED_AGENT = 52
    NO_TEXT_MATCH = 53
    SCHEMA_MISMATCH = 54
    INPUT_ID_REUSED = 60
    INPUT_EXPIRED = 61
    PARENT_CANCELLED = 62
    BUDGET_SPENT = 63


class ReachError(Exception):
    """Base of all errors of this package.

    Attributes:
        error_class: One of the five classes, or AGENT_ERROR.
        reason: Why, from the closed set.
        retryable: Whether the same request may succeed later.
        retry_after_ms: When to come back at the earliest, or None.
        metadata: The variables of the message, for programs.
    """

    error_class: ClassVar[ErrorClass]
    default_reason: ClassVar[Reason]
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, reason: Reason | None = None, *, retry_after_ms: int | None = None, **metadata: str
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = self.default_reason if reason is None else reason
        self.retry_after_ms = retry_after_ms
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason.name}: {self.message})"


class InvalidRequest(ReachError):
    """The request is wrong; sending it again changes nothing."""

    error_class = ErrorClass.INVALID_REQUEST
    default_reason = Reason.INVALID_FIELD


class ResourceExhausted(ReachError):
    """A limit is reached; later, or elsewhere, it may work."""

    error_class = ErrorClass.RESOURCE_EXHAUSTED
    default_reason = Reason.AGENT_BUSY
    retryable = True


class Unavailable(ReachError):
    """Something cannot be reached or refuses work for now."""

    error_class = ErrorClass.UNAVAILABLE
    default_reason = Reason.AGENT_UNAVAILABLE
    retryable = True


class Timeout(ReachError):
    """A time limit passed."""

    error_class = ErrorClass.TIMEOUT
    default_reason = Reason.START_TO_CLOSE
    retryable = True


class Internal(ReachError):
    """A fault of ours, or an agent that broke."""

    error_class = ErrorClass.INTERNAL
    default_reason = Reason.INTERNAL_FAULT


class AgentError(ReachError):
    """The agent worked and answered that the task cannot be done."""

    error_class = ErrorClass.AGENT_ERROR
    default_reason = Reason.AGENT_FAILED


_CLASSES: dict[ErrorClass, type[ReachError]] = {
    kind.error_class: kind for kind in (InvalidRequest, ResourceExhausted, Unavailable, Timeout, Internal, AgentError)
}


def error_of(
    error_class: ErrorClass,
    reason: Reason,
    message: str,
    *,
    retry_after_ms: int | None = None,
    metadata: dict[str, str] | None = None,
) -> ReachError:
    """The error of a class, for those who have its parts from a message."""
    error = _CLASSES[error_class](message, reason, retry_after_ms=retry_after_ms)
    error.metadata = dict(metadata or {})
    return error
