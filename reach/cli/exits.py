"""Exit codes: each means one thing, whatever the command."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from reach.errors import ErrorClass, ReachError, Reason


class Exit(IntEnum):
    """What `reach` says to the shell."""

    OK = 0
    TASK_FAILED = 1
    WRONG_REQUEST = 2
    UNREACHABLE = 3
    TIMEOUT = 4
    DENIED = 5
    EXHAUSTED = 6
    INTERNAL = 7
    ATTENTION = 8
    INTERRUPTED = 130


MEANINGS: Final = {
    Exit.OK: "success",
    Exit.TASK_FAILED: "the task ended as FAILED, REJECTED, CANCELLED or DEAD_LETTERED",
    Exit.WRONG_REQUEST: "wrong usage, configuration or request (INVALID_REQUEST)",
    Exit.UNREACHABLE: "the server cannot be reached, or refuses work for now (UNAVAILABLE)",
    Exit.TIMEOUT: "it did not end in time; the task goes on (TIMEOUT)",
    Exit.DENIED: "no credentials, wrong ones, or not allowed",
    Exit.EXHAUSTED: "a limit is reached (RESOURCE_EXHAUSTED)",
    Exit.INTERNAL: "a fault of Agent-Reach (INTERNAL)",
    Exit.ATTENTION: "something needs an operator (doctor, cluster status)",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
}

_OF_CLASS: Final = {
    ErrorClass.INVALID_REQUEST: Exit.WRONG_REQUEST,
    ErrorClass.RESOURCE_EXHAUSTED: Exit.EXHAUSTED,
    ErrorClass.UNAVAILABLE: Exit.UNREACHABLE,
    ErrorClass.TIMEOUT: Exit.TIMEOUT,
    ErrorClass.INTERNAL: Exit.INTERNAL,
    ErrorClass.AGENT_ERROR: Exit.TASK_FAILED,
}
_OF_REASON: Final = {
    Reason.UNAUTHENTICATED: Exit.DENIED,
    Reason.PERMISSION_DENIED: Exit.DENIED,
    Reason.NOT_IMPLEMENTED: Exit.WRONG_REQUEST,
}
_ADVICE: Final = {
    Reason.UNAUTHENTICATED: "Give a key with --api-key or AGENT_REACH_API_KEY; `reach keys create` makes one.",
    Reason.PERMISSION_DENIED: "The key has not the scope for this; `reach keys list` shows what each key may do.",
    Reason.TASK_NOT_FOUND: "`reach tasks list` shows the tasks of this tenant.",
    Reason.SESSION_NOT_FOUND: "`reach sessions list` shows them; those without activity are forgotten (session.ttl).",
    Reason.AGENT_NOT_FOUND: "`reach agents list` shows the instances of this tenant.",
    Reason.NO_MATCHING_AGENT: "`reach agents list` shows what is registered, `reach route preview` who would take it.",
    Reason.NO_CAPABLE_AGENT: "`reach agents list` shows what is registered, `reach agents show` what each can do.",
    Reason.NO_TAGGED_AGENT: "`reach agents show` lists the tags of an instance.",
    Reason.NO_ROUTE: "The server's router.routes_file says what intents mean; `reach route check FILE` reads it.",
    Reason.UNKNOWN_SKILL: "The server's router.vocabulary_file lists the skills; add it there, or name another.",
    Reason.QUEUE_FULL: "Come back later, or add instances; `reach agents list` shows how full they are.",
    Reason.TASK_ID_REUSED: "Give another --task-id, or none, to send something else.",
}


def exit_of(error: ReachError) -> Exit:
    """The exit code for an error of a call."""
    return _OF_REASON.get(error.reason, _OF_CLASS[error.error_class])


def advice_for(error: ReachError, address: str) -> str:
    """What to do about an error; empty if there is nothing to say."""
    if error.reason is Reason.OWNER_UNAVAILABLE:
        return f"`reach serve` starts a server; --addr or AGENT_REACH_ADDR names another than {address}."
    advice = _ADVICE.get(error.reason, "")
    if not advice and error.retry_after_ms:
        advice = f"Try again in {error.retry_after_ms / 1000:g} s."
    return advice
