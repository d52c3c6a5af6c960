"""Which path is which method of the contract: the one table of the JSON door, and of its description (openapi.py).

A path names fields of the request in braces. Fields that are neither in the path nor in the body may be query
parameters: by their names, with dots between the levels. A test walks all methods of the contract: each has a row here,
or a reason why it has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from agentreach.v1 import dispatch_pb2, heartbeat_pb2, ops_pb2, registry_pb2, result_pb2, session_pb2

PREFIX: Final = "/v1"


class Row(NamedTuple):
    """One path with one verb."""

    verb: str
    path: str
    """Behind the prefix."""
    rpc: str
    """Service and method."""
    says: str
    """What it does, in a few words."""
    key: str = ""
    """The field that a header `Idempotency-Key` fills where the request does not."""
    flat: str = ""
    """A message whose fields are query parameters by their own names."""
    resume: str = ""
    """Of a stream: the field that `Last-Event-ID` fills."""

    @property
    def method(self) -> str:
        """Full name of the method."""
        return f"/agentreach.v1.{self.rpc}"

    @property
    def streams(self) -> bool:
        """It answers with a stream of events."""
        return descriptor_of(self.rpc).server_streaming

    @property
    def request(self) -> Any:
        """The class of the request."""
        return GetMessageClass(descriptor_of(self.rpc).input_type)

    @property
    def steps(self) -> tuple[str, ...]:
        """The path, step by step."""
        return tuple(self.path.strip("/").split("/"))

    @property
    def shown(self) -> str:
        """The path as it is described: readers of OpenAPI trip over names with dots."""
        return re.sub(r"\{[^}]*\.", "{", self.path)

    @property
    def filled(self) -> tuple[str, ...]:
        """The fields that the path fills."""
        return tuple(step[1:-1] for step in self.steps if step.startswith("{"))

    @property
    def has_body(self) -> bool:
        """Whether the request comes as a body."""
        return self.verb == "POST"


_TASK: Final = "task.task_id"
_SESSION: Final = "/sessions/{key.app_id}/{key.user_id}/{key.session_id}"

ROWS: Final = (
    Row("POST", "/tasks", "DispatchService/Dispatch", "Give a task; with `wait`, also wait for its result", key=_TASK),
    Row("GET", "/tasks", "DispatchService/ListTasks", "Tasks, latest first", flat="filter"),
    Row("GET", "/tasks/{task_id}", "DispatchService/GetTask", "One task"),
    Row("GET", "/tasks/{task_id}/result", "DispatchService/WaitForResult", "Wait until a task ends"),
    Row("GET", "/tasks/{task_id}/events", "ResultService/StreamResult", "Follow a task", resume="after_sequence"),
    Row("GET", "/tasks/{task_id}/explanation", "OpsService/ExplainTask", "The whole story of one task"),
    Row("GET", "/tasks/{task_id}/decisions", "OpsService/ListDecisions", "Why its attempts went where they went"),
    Row("POST", "/tasks/{task_id}/cancel", "DispatchService/CancelTask", "Cancel a task and its children"),
    Row("POST", "/tasks/{task_id}/input", "DispatchService/SendInput", "Answer what a task asks", key="input_id"),
    Row("POST", "/run", "DispatchService/Run", "Give a task and follow it", key=_TASK),
    Row("POST", "/routes/preview", "DispatchService/PreviewRoute", "Where a task would go"),
    Row("POST", "/agents", "RegistryService/Register", "Register an instance, or update it"),
    Row("POST", "/adoptions", "RegistryService/Adopt", "An A2A agent becomes a member of the fleet, by its card"),
    Row("GET", "/agents", "RegistryService/ListAgents", "Instances, by id", flat="filter"),
    Row("GET", "/agents/{instance_id}", "RegistryService/GetAgent", "One instance"),
    Row("DELETE", "/agents/{instance_id}", "RegistryService/Deregister", "Remove an instance"),
    Row("POST", "/agents/{instance_id}/drain", "RegistryService/Drain", "No new work for an instance"),
    Row("POST", "/agents/{beat.instance_id}/heartbeat", "HeartbeatService/Heartbeat", "One beat of an instance"),
    Row("POST", "/drains", "RegistryService/Drain", "No new work for all instances of an agent"),
    Row("POST", "/attempts/result", "ResultService/ReportResult", "An agent reports how an attempt ended"),
    Row("POST", "/attempts/events", "ResultService/ReportEvents", "An agent reports deltas and progress"),
    Row("POST", "/attempts/effect", "ResultService/BeginEffect", "An agent asks for leave to act"),
    Row("POST", "/attempts/lease", "ResultService/ExtendLease", "An agent says that work goes on"),
    Row("GET", "/sessions", "SessionService/ListSessions", "Sessions, latest first"),
    Row("GET", _SESSION, "SessionService/GetSession", "One session"),
    Row("DELETE", _SESSION, "SessionService/DeleteSession", "Forget a session"),
    Row("GET", "/watch/agents", "RegistryService/WatchAgents", "Agents as they change", flat="filter", resume="cursor"),
    Row("GET", "/watch/tasks", "OpsService/WatchTasks", "Tasks as they change, from now on"),
    Row("GET", "/decisions", "OpsService/ListDecisions", "Why attempts went where they went, latest task first"),
    Row("GET", "/dead-letters", "OpsService/ListDeadLetters", "Dead letters, latest first"),
    Row("POST", "/dead-letters/requeue", "OpsService/RequeueDeadLetters", "Try dead letters again", key="request_id"),
    Row("POST", "/dead-letters/purge", "OpsService/PurgeDeadLetters", "Remove dead letters for good"),
    Row("GET", "/failed-webhooks", "OpsService/ListFailedWebhooks", "Webhooks that were given up"),
    Row("POST", "/keys", "OpsService/CreateKey", "Make an API key"),
    Row("GET", "/keys", "OpsService/ListKeys", "API keys, without their secrets"),
    Row("DELETE", "/keys/{key_id}", "OpsService/RevokeKey", "End an API key"),
    Row("GET", "/server", "OpsService/GetServerInfo", "What the server is and how it does"),
    Row("GET", "/node", "OpsService/GetNode", "What this node says of itself"),
    Row("GET", "/cluster", "OpsService/GetCluster", "All nodes of the cluster"),
    Row("POST", "/cluster/nodes/{node_id}/drain", "OpsService/DrainNode", "A node gives away what it owns"),
    Row("POST", "/cluster/rebalance", "OpsService/Rebalance", "Each node gets its fair share now"),
)
"""All paths."""

UNROUTED: Final[Mapping[str, str]] = {
    "AgentService/Attach": "the agent's own stream, both ways; over HTTP agents register, beat and report call by call",
    "DispatchService/DispatchStream": "many tasks on one stream, both ways; over HTTP `/v1/ws` has many calls",
    "HeartbeatService/StreamHeartbeats": "many beats on one stream, both ways; over HTTP one beat is one call",
    "ResultService/ReportResultStream": "a stream of requests; over HTTP deltas are reported call by call",
}
"""Methods without a path, and why."""

_SERVICES: Final = {
    service.name: service
    for module in (dispatch_pb2, heartbeat_pb2, ops_pb2, registry_pb2, result_pb2, session_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}


@lru_cache(maxsize=256)
def descriptor_of(rpc: str) -> MethodDescriptor:
    """The descriptor of "DispatchService/Dispatch"."""
    service, _, method = rpc.partition("/")
    found: MethodDescriptor = _SERVICES[service].methods_by_name[method]
    return found


class Found(NamedTuple):
    """What a path leads to."""

    row: Row | None
    """None: not with this verb, or not at all."""
    given: dict[str, str]
    """Fields that the path fills."""
    verbs: tuple[str, ...]
    """What may be done with the path; empty: there is none."""


def find(verb: str, steps: list[str]) -> Found:
    """What a path behind the prefix leads to; its steps are decoded."""
    verbs = []
    for row in _BY_LENGTH.get(len(steps), ()):
        if all(step.startswith("{") or step == asked for step, asked in zip(row.steps, steps, strict=True)):
            if row.verb == verb:
                given = {
                    step[1:-1]: asked for step, asked in zip(row.steps, steps, strict=True) if step.startswith("{")
                }
                return Found(row, given, ())
            verbs.append(row.verb)
    return Found(None, {}, tuple(verbs))


_BY_LENGTH: Final[dict[int, list[Row]]] = {}
for _row in sorted(ROWS, key=lambda row: len(row.filled)):  # words before fields
    _BY_LENGTH.setdefault(len(_row.steps), []).append(_row)
