"""The paths that users of such layers know (API-2): flat JSON in snake_case, translated to the calls that `/v1` makes,
and one envelope for what becomes of a task (DLV-12). Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agentreach.v1 import agent_pb2, payload_pb2, task_pb2
from reach.core.joining import NO_BOOT_ID
from reach.errors import InvalidRequest, Reason
from reach.http.api import Api, Asked, Heard
from reach.http.messages import field_named, fill, parsed, request_of
from reach.http.routes import ROWS, Row
from reach.http.wrong import no_such_field
from reach.wire.requests import PROTOCOL_VERSIONS

_SELECTOR: Final = (
    "agent_id", "agent_type", "capability", "capability_version", "intent", "text", "instance_id", "preferred_tags",
)  # fmt: skip
_BY_METHOD: Final = {row.rpc: row for row in ROWS}


class Known(NamedTuple):
    """One path."""

    verb: str
    path: str
    rpcs: tuple[str, ...]
    """What it may become; the first where nothing else is said."""
    says: str
    ask: Callable[[Heard], tuple[str, dict[str, Any]]]
    """The method, and its request as JSON."""
    tell: Callable[[Any], dict[str, Any]]
    """What is told of the answer."""


# -- what is asked ----------------------------------------------------------------------------------------------------


def _dispatch(heard: Heard) -> tuple[str, dict[str, Any]]:
    spec = parsed(heard.body)
    selector: dict[str, Any] = {name: spec.pop(name) for name in _SELECTOR if name in spec}
    if "tags" in spec:
        selector["required_tags"] = spec.pop("tags")
    request: dict[str, Any] = {}
    if "wait_ms" in spec:
        request["wait"] = _milliseconds("wait_ms", spec.pop("wait_ms"))
    if "timeout_ms" in spec:
        spec["timeouts"] = {"start_to_close": _milliseconds("timeout_ms", spec.pop("timeout_ms"))}
    if "payload" in spec:
        spec["payload"] = _payload(spec["payload"])
    if heard.headers.get("idempotency-key"):
        spec.setdefault("task_id", heard.headers["idempotency-key"])
    _known_only(spec, task_pb2.TaskSpec.DESCRIPTOR, (*_SELECTOR, "tags", "payload", "wait_ms", "timeout_ms"))
    said = spec.pop("selector", None)
    both = {**said, **selector} if isinstance(said, dict) else said or selector
    return "DispatchService/Dispatch", {**request, "task": {**spec, "selector": both}}


def _task(heard: Heard) -> tuple[str, dict[str, Any]]:
    return "DispatchService/GetTask", {"task_id": heard.given["task_id"]}


def _register(heard: Heard) -> tuple[str, dict[str, Any]]:
    fields = parsed(heard.body)
    capabilities = fields.get("capabilities")
    if isinstance(capabilities, list):
        fields["capabilities"] = [{"name": one} if isinstance(one, str) else one for one in capabilities]
    if "endpoint" in fields:
        url = fields.pop("endpoint")
        fields["endpoints"] = [{"url": url} if isinstance(url, str) else url]
    _known_only(fields, agent_pb2.Registration.DESCRIPTOR, ("endpoint",))
    fields.setdefault("boot_id", NO_BOOT_ID)
    if not fields.get("instance_id") and fields["boot_id"] == NO_BOOT_ID:
        fields["instance_id"] = _instance_at(fields)
    return "RegistryService/Register", {"registration": fields}


def _known_only(fields: dict[str, Any], descriptor: Descriptor, more: tuple[str, ...]) -> None:
    """Refuses what is neither a field of the message nor one of these, in the words of this path."""
    for name in fields:
        if field_named(descriptor, name) is None:
            names = dict.fromkeys([*more, *descriptor.fields_by_name])
            raise InvalidRequest(no_such_field(name, names, "the body"), Reason.MALFORMED_MESSAGE)


def _instance_at(fields: dict[str, Any]) -> str:
    """The instance that an agent is which says neither that nor its process: the one at its address, or each restart
    would leave one more behind that looks alive. Nothing if it has no address."""
    for one in fields.get("endpoints") or ():
        url = one.get("url") if isinstance(one, dict) else None
        place = url.partition("://")[2].partition("/")[0] if isinstance(url, str) else ""
        if place:
            return f"{fields.get('agent_id', '')}@{place}"
    return ""


def _offline(heard: Heard) -> tuple[str, dict[str, Any]]:
    fields = parsed(heard.body)
    if not fields.get("instance_id"):
        return "RegistryService/Drain", fields
    fields.pop("agent_id", None)  # the instance says it all
    return "RegistryService/Deregister", fields


def _report(heard: Heard) -> tuple[str, dict[str, Any]]:
    fields = parsed(heard.body)
    said = {name: fields.pop(name) for name in ("progress", "delta", "result", "error") if name in fields}
    reporter = {"instance_id": fields.pop("instance_id", ""), "boot_id": fields.pop("boot_id", NO_BOOT_ID)}
    key = {"task_id": fields.pop("task_id", ""), "attempt": fields.pop("attempt", 1)}
    sequence = fields.pop("attempt_sequence", 0)
    if fields:
        raise InvalidRequest(f"{min(fields)!r} is not known here", Reason.MALFORMED_MESSAGE)
    if len(said) != 1:
        raise InvalidRequest("say one of progress, delta, result and error", Reason.MALFORMED_MESSAGE)
    ((kind, value),) = said.items()
    if kind == "progress":
        event: dict[str, Any] = {"progress": [{"key": key, "progress": value}]}
    elif kind == "delta":
        delta = {"payload": _payload(value), "mode": "DELTA_MODE_APPEND"}
        event = {"deltas": [{"key": key, "attempt_sequence": sequence, "delta": delta}]}
    else:
        event = {"result": {"key": key, **({"output": _payload(value)} if kind == "result" else _failure(value))}}
    method = "ResultService/ReportResult" if "result" in event else "ResultService/ReportEvents"
    return method, {"reporter": reporter, **event}


def _failure(value: Any) -> dict[str, Any]:
    """An agent says that it cannot be done: in words, or as an error of the contract."""
    said = {"message": value} if isinstance(value, str) else value
    kind = {"error_class": "ERROR_CLASS_AGENT_ERROR", "reason": "ERROR_REASON_AGENT_FAILED"}
    return {"error": {**kind, **said} if isinstance(said, dict) else said}


def _agents(heard: Heard) -> tuple[str, dict[str, Any]]:
    return "RegistryService/ListAgents", {}


def _payload(value: Any) -> dict[str, Any]:
    """Any JSON; a string is plain text."""
    return {"text": value, "media_type": "text/plain"} if isinstance(value, str) else {"json": value}


def _milliseconds(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise InvalidRequest(f"{name} is a number of milliseconds", Reason.INVALID_FIELD, field=name)
    return f"{value / 1_000:.6f}s"


# -- what is told -----------------------------------------------------------------------------------------------------


def envelope(task_id: str, state: int, result: Any) -> dict[str, Any]:
    """What there is to say of a task, the same for every agent (DLV-12); `result` is None before it ended."""
    told: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSIONS[-1],
        "task_id": task_id,
        "status": _word(task_pb2.TaskState.Name(state), "TASK_STATE_"),  # type: ignore[arg-type]
        "data": {"agent_output": None},
        "executed_intent": "",
        "agent_id": "",
        "instance_id": "",
        "attempts": 0,
        "timings": {"queued_ms": 0, "ran_ms": 0},
        "error": None,
    }
    if result is None:
        return told
    if result.HasField("output"):
        told["data"]["agent_output"] = _content(result.output)
    if result.HasField("error"):
        told["error"] = _plain(result.error)
    for name in ("executed_intent", "agent_id", "instance_id", "attempts"):
        told[name] = getattr(result, name)
    told["timings"] = {"queued_ms": result.queued.ToMilliseconds(), "ran_ms": result.ran.ToMilliseconds()}
    return told


def _told_dispatch(answer: Any) -> dict[str, Any]:
    told = envelope(answer.task_id, answer.state, answer.result if answer.HasField("result") else None)
    return {**told, "deduplicated": answer.deduplicated, "warnings": list(answer.warnings)}


def _told_task(answer: Any) -> dict[str, Any]:
    task = answer.task
    result = task.result if task.HasField("result") else None
    return {**envelope(task.spec.task_id, task.state, result), "pending_reason": task.pending_reason}


def _told_agents(answer: Any) -> dict[str, Any]:
    return {"agents": [row_of(one) for one in answer.agents], "next_page_token": answer.next_page_token}


def row_of(agent: agent_pb2.Agent) -> dict[str, Any]:
    """One instance as a row (REG-9). `last_heartbeat` is how many seconds ago it was; nothing: never."""
    said = agent.registration
    used, most = agent.inflight, agent.max_concurrency
    return {
        "instance_id": said.instance_id,
        "agent_id": said.agent_id,
        "agent_type": said.agent_type,
        "version": said.version,
        "tags": list(said.tags),
        "capabilities": [one.name for one in said.capabilities],
        "reach_score": agent.reach_score if agent.HasField("reach_score") else None,
        "probe_status": agent.probe_status,
        "last_heartbeat": agent.last_heartbeat_age.ToMilliseconds() / 1_000
        if agent.HasField("last_heartbeat_age")
        else None,
        "last_probe_error": agent.last_probe_error,
        "load": agent.load,
        "slots": {"used": used, "free": max(0, most - used), "max": most},
        "health": _word(agent_pb2.Health.Name(agent.health), "HEALTH_"),
        "availability": _word(agent_pb2.Availability.Name(agent.availability), "AVAILABILITY_"),
        "conditions": [_word(agent_pb2.ConditionType.Name(one.type), "CONDITION_TYPE_") for one in agent.conditions],
        "blocked_by": agent.blocked_by,
    }


def _content(payload: payload_pb2.Payload) -> Any:
    """What an agent answered: JSON as such where it says so and it is; bytes as `{"base64": …}`."""
    if payload.WhichOneof("content") == "data":
        return {"base64": json_format.MessageToDict(payload)["data"]}
    kind = payload.media_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return msgspec.json.decode(payload.text)
        except (msgspec.DecodeError, RecursionError):
            pass  # it says so, but is not
    return payload.text


def _plain(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix)


_REGISTER: Final = ("RegistryService/Register",)
KNOWN: Final = (
    Known("POST", "/task/dispatch", ("DispatchService/Dispatch",), "Give a task", _dispatch, _told_dispatch),
    Known("GET", "/task/{task_id}", ("DispatchService/GetTask",), "What became of a task", _task, _told_task),
    Known("POST", "/agent/register", _REGISTER, "Register an instance", _register, _plain),
    Known("POST", "/registry/register", _REGISTER, "Register an instance", _register, _plain),
    Known(
        "POST", "/agent/offline", ("RegistryService/Deregister", "RegistryService/Drain"),
        "Take an instance away, or give an agent no more work", _offline, _plain,
    ),
    Known(
        "POST", "/events/report", ("ResultService/ReportEvents", "ResultService/ReportResult"),
        "An agent reports progress, a piece, a result or an error", _report, _plain,
    ),
    Known("GET", "/api/v1/agents", ("RegistryService/ListAgents",), "Instances as rows", _agents, _told_agents),
)  # fmt: skip
"""All of them."""


class _Path:
    """One known path, served."""

    def __init__(self, api: Api, known: Known) -> None:
        self._api = api
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = {name: str(value) for name, value in scope.get("path_params", {}).items()}
        await self._api.respond(scope, receive, send, self._ask, given)

    def _ask(self, heard: Heard) -> Asked:
        rpc, fields = self._known.ask(heard)
        row: Row = _BY_METHOD[rpc]
        request = request_of(row, fields)
        fill(row, request, {}, heard.query, "", "")
        return Asked(row.method, request, lambda answer: msgspec.json.encode(self._known.tell(answer)))


def known_routes(api: Api) -> list[BaseRoute]:
    """The paths, as an application has them."""
    return [Route(known.path, _Path(api, known), methods=[known.verb]) for known in KNOWN]
