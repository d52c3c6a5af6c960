"""What statuses and headers of HTTP mean that an agent answers with: the end of an attempt, health, readiness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

import msgspec

from agentreach.v1 import agent_pb2, attempt_pb2, endpoint_pb2
from reach.core.model import Fault
from reach.errors import ErrorClass, Reason
from reach.wire.agent_answers import error_of, is_envelope, name_in, raw_text, status_from
from reach.wire.agents import HANDLE_BYTES, fault_from_proto
from reach.wire.statuses import STATUS_BYTES

HEALTH_PATH: Final = "/healthz"
"""Where health is asked, if the registration names no path."""
STATUS_HEADER: Final = "agentreach-status"
READY_HEADER: Final = "agentreach-ready"
BOOT_HEADER: Final = "agentreach-boot-id"
RUNNING_HEADER: Final = "agentreach-running"
"""Of our question how an agent is: the attempts that we believe to run there, if it can be joined again."""
HEADER_BYTES: Final = 6 << 10
NOT_READY: Final = frozenset(
    {"loading", "starting", "warming", "initializing", "not_ready", "not ready", "unavailable"}
)
"""Words of `status` in a health document that say that it takes no work yet."""
RETRY_AFTER_DIGITS: Final = 6
RUNNING: Final = 4_096
"""Attempts that a health document may name."""

_E, _R = ErrorClass, Reason
_MEANINGS: Final[dict[int, tuple[ErrorClass, Reason, str, bool]]] = {
    400: (_E.INVALID_REQUEST, _R.INVALID_FIELD, "the agent takes no such task", False),
    401: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "the agent refused our credentials", True),
    403: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "the agent refused our credentials", True),
    404: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "there is nothing at this path", True),
    405: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "this path takes no POST", True),
    406: (_E.INVALID_REQUEST, _R.INVALID_FIELD, "the agent takes no such task", False),
    408: (_E.TIMEOUT, _R.START_TO_CLOSE, "the agent ran out of time", False),
    413: (_E.INVALID_REQUEST, _R.INVALID_FIELD, "the task is too large for the agent", False),
    415: (_E.INVALID_REQUEST, _R.INVALID_FIELD, "the agent takes no such task", False),
    422: (_E.INVALID_REQUEST, _R.INVALID_FIELD, "the agent takes no such task", False),
    425: (_E.RESOURCE_EXHAUSTED, _R.AGENT_BUSY, "the agent is full", True),
    429: (_E.RESOURCE_EXHAUSTED, _R.AGENT_BUSY, "the agent is full", True),
    501: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "the agent does not serve this", True),
    502: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "what is before the agent cannot reach it", False),
    503: (_E.UNAVAILABLE, _R.AGENT_UNAVAILABLE, "the agent takes no work now", False),
    504: (_E.TIMEOUT, _R.START_TO_CLOSE, "what is before the agent gave up waiting", False),
}
"""(class, reason, in words, whether it certainly has not begun), by status. A bare 503 is also what proxies say of a
connection that broke, so it says nothing of what has begun."""


def said_in(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name in small letters; the last of each."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def fault_of_status(status: int, headers: Mapping[str, str], body: bytes) -> tuple[Fault, bool]:
    """What a status means that is no answer, and whether the attempt has certainly not begun. An agent that says its
    error in the body is believed."""
    said = _error_in(body)
    after = retry_after_s(headers)
    error_class, reason, what, unbegun = _meaning(status, after is not None)
    metadata = {"http_status": str(status)}
    if said is not None:
        fault = fault_from_proto(error_of(said))
        spoke = isinstance(said, dict) and {"error_class", "class", "reason", "retryable"} & said.keys()
        if not spoke and status not in (404, 405):  # it has words, and the status has the class
            fault.error_class, fault.reason = error_class, reason
        fault.metadata = {**(fault.metadata or {}), **metadata}
        # What agents of theirs say of a path that they do not have is no word of this one.
        unbegun = unbegun and fault.error_class is error_class
    else:
        raw = raw_text(body)
        if raw:
            metadata["raw"] = raw
        fault = Fault(error_class, reason, f"{what} (HTTP {status})", metadata)
    if after is not None and fault.retry_after_ms is None:
        fault.retry_after_ms = after * 1_000
    return fault, unbegun


def _meaning(status: int, comes_back: bool) -> tuple[ErrorClass, Reason, str, bool]:
    if status == 503 and comes_back:  # it says when: it is alive, and full
        return _E.RESOURCE_EXHAUSTED, _R.AGENT_BUSY, "the agent is full", True
    found = _MEANINGS.get(status)
    if found is not None:
        return found
    if 300 <= status < 400:
        return (
            _E.UNAVAILABLE,
            _R.AGENT_UNAVAILABLE,
            "the agent sends us elsewhere: redirects are not followed",
            True,
        )
    if 400 <= status < 500:
        return _E.AGENT_ERROR, _R.AGENT_FAILED, "the agent failed", False
    return _E.INTERNAL, _R.AGENT_CRASHED, "the agent broke", False


def _error_in(body: bytes) -> Any:
    """The `error` of an envelope, or a problem document; None if there is none."""
    if body.lstrip()[:1] != b"{":
        return None
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if is_envelope(said) and said.get("error") is not None:
        return said["error"]
    if isinstance(said, dict) and said.keys() & {"title", "detail"} and isinstance(said.get("status"), int):
        return said
    return None


def retry_after_s(headers: Mapping[str, str]) -> int | None:
    """Seconds of a Retry-After header; dates are not read: clocks differ."""
    value = headers.get("retry-after", "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) <= RETRY_AFTER_DIGITS else None


def warm_status(headers: Mapping[str, str]) -> agent_pb2.AgentStatus | None:
    """How the agent is, as an answer says beside what it says (HLT-2); None if it does not."""
    text, ready = headers.get(STATUS_HEADER, ""), _truth(headers.get(READY_HEADER))
    said: Any = {}
    if text and len(text) <= STATUS_BYTES:
        try:
            said = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            said = {}
    status = status_from(said if isinstance(said, dict) else {})
    if ready is not None:
        status.ready = ready
    return status if status.ByteSize() else None


def _truth(value: str | None) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get((value or "").strip().lower())


class Health(NamedTuple):
    """What a health document says."""

    answer: endpoint_pb2.CheckResponse
    ready: bool
    """False if it says that it takes no work yet."""
    knows: bool
    """It names what it runs."""


def read_health(status: int, headers: Mapping[str, str], body: bytes) -> Health:
    """Health of an agent that answered: whatever it says, it is alive. 503 and other 5xx, and a document with `ready`,
    `model_loaded` or a `status` that says so, mean that it takes no work now."""
    answer = endpoint_pb2.CheckResponse(boot_id=headers.get(BOOT_HEADER, "")[:256])
    warm = warm_status(headers)
    said = _document(body) if status < 500 or status == 503 else {}
    answer.status.CopyFrom(status_from({**said, **_inner(said)}))
    if warm is not None:
        answer.status.MergeFrom(warm)
    if isinstance(said.get("boot_id"), str):
        answer.boot_id = said["boot_id"][:256]
    idle = said.get("worker_idle_share")
    if isinstance(idle, int | float) and not isinstance(idle, bool) and 0 <= idle <= 1:
        answer.worker_idle_share = idle
    knows = isinstance(said.get("running"), list)
    if knows:
        for one in said["running"][:RUNNING]:
            key = attempt_pb2.AttemptKey()
            if isinstance(one, dict):
                name_in(key, one)
            if key.task_id and key.attempt:
                key.tenant = one["tenant"] if isinstance(one.get("tenant"), str) else ""
                answer.running.append(key)
    ready = _ready(said, answer.status) and status < 500
    if not ready or answer.status.HasField("ready") or {"ready", "model_loaded", "status"} & said.keys():
        answer.status.ready = ready
    return Health(answer, ready, knows)


def _inner(said: dict[str, Any]) -> dict[str, Any]:
    inner = said.get("agent_status")
    return inner if isinstance(inner, dict) else {}


def _ready(said: dict[str, Any], status: agent_pb2.AgentStatus) -> bool:
    if status.HasField("ready"):
        return status.ready
    if isinstance(said.get("model_loaded"), bool):
        loaded: bool = said["model_loaded"]
        return loaded
    word = said.get("status")
    return not (isinstance(word, str) and word.strip().lower() in NOT_READY)


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def believed_text(running: Iterable[tuple[str, str, int]], tenant: str) -> str:
    """Attempts in a header, as many as have room; `tenant`, the agent's own, is left out."""
    names, size = [], 0
    for owner, task_id, attempt in running:
        name = f"{quote('' if owner == tenant else owner, safe='')}/{quote(task_id, safe='')}/{attempt}"
        size += len(name) + 1
        if size > HEADER_BYTES:
            break
        names.append(name)
    return ",".join(names)


def believed_in(text: str) -> list[tuple[str, str, int]]:
    """(tenant, task_id, attempt) of a header; what cannot be read is left out."""
    found = []
    for name in text.split(","):
        parts = name.strip().split("/")
        if len(parts) == 3 and parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 10:
            found.append((unquote(parts[0]), unquote(parts[1]), int(parts[2])))
    return found


def handle_from(endpoint_url: str, headers: Mapping[str, str], body: bytes) -> str:
    """Where an attempt that was accepted (202) can be asked about: `Location`, or `status_url` of the body, as path and
    query; empty if nowhere. Only at the agent's own origin: else an agent could have us call anybody."""
    said = headers.get("location", "") or _document(body).get("status_url", "")
    if not isinstance(said, str) or not said.strip() or len(said) > HANDLE_BYTES:
        return ""
    try:
        base, there = urlsplit(endpoint_url), urlsplit(urljoin(endpoint_url, said.strip()))
        same = _origin(base) == _origin(there)
    except ValueError:
        return ""
    path = (there.path or "/") + (f"?{there.query}" if there.query else "")
    return path if same and path.isascii() and path.isprintable() and " " not in path else ""


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    scheme = url.scheme.lower()
    return scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(scheme)
