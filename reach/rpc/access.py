"""Who may call which method, and which calls share a limit: one row per method of the contract.

Whatever is not in the table is refused, also to those who may do everything: a new method is closed until somebody
thought about it. A test compares the table with the descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SCOPES: Final = frozenset({"agent", "caller", "reader", "operator"})


class Admission(StrEnum):
    """Calls that share a limit. What keeps agents alive, and lets operators look, never waits for the others (A11)."""

    CONTROL = "control"
    """Beats, reports of agents, registration, health, operations: short, or few."""
    STREAMS = "streams"
    """Calls that stay open: attached agents, readers, watchers, waiting calls."""
    SUBMITS = "submits"
    """Short calls of callers."""
    PEERS = "peers"
    """Calls of other nodes, which have let in whom they speak for."""


class Access(NamedTuple):
    """One row: any one of the scopes opens the method; none at all means that it is open to everybody."""

    scopes: frozenset[str]
    admission: Admission


_AGENT: Final = frozenset({"agent"})
_AGENT_OR_OPERATOR: Final = frozenset({"agent", "operator"})
_CALLER: Final = frozenset({"caller"})
_CALLER_OR_OPERATOR: Final = frozenset({"caller", "operator"})
_CALLER_OR_LOOKER: Final = frozenset({"caller", "reader", "operator"})
_LOOKER: Final = frozenset({"reader", "operator"})
_OPERATOR: Final = frozenset({"operator"})
_EVERYBODY: Final[frozenset[str]] = frozenset()

_CONTROL, _STREAMS, _SUBMITS = Admission.CONTROL, Admission.STREAMS, Admission.SUBMITS

_OURS: Final[Mapping[str, Mapping[str, Access]]] = {
    "RegistryService": {
        "Register": Access(_AGENT, _CONTROL),
        "Adopt": Access(_AGENT_OR_OPERATOR, _CONTROL),
        "Deregister": Access(_AGENT_OR_OPERATOR, _CONTROL),
        "Drain": Access(_AGENT_OR_OPERATOR, _CONTROL),
        "GetAgent": Access(_LOOKER, _CONTROL),
        "ListAgents": Access(_LOOKER, _CONTROL),
        "WatchAgents": Access(_LOOKER, _STREAMS),
    },
    "HeartbeatService": {
        "Heartbeat": Access(_AGENT, _CONTROL),
        "StreamHeartbeats": Access(_AGENT, _CONTROL),
    },
    "AgentService": {
        "Attach": Access(_AGENT, _STREAMS),
    },
    "DispatchService": {
        "Dispatch": Access(_CALLER, _SUBMITS),
        "Run": Access(_CALLER, _STREAMS),
        "DispatchStream": Access(_CALLER, _STREAMS),
        "GetTask": Access(_CALLER_OR_LOOKER, _SUBMITS),
        "ListTasks": Access(_CALLER_OR_LOOKER, _SUBMITS),
        "WaitForResult": Access(_CALLER_OR_LOOKER, _STREAMS),
        "CancelTask": Access(_CALLER_OR_OPERATOR, _SUBMITS),
        "SendInput": Access(_CALLER, _SUBMITS),
        "PreviewRoute": Access(_CALLER_OR_LOOKER, _SUBMITS),
    },
    "ResultService": {
        "StreamResult": Access(_CALLER_OR_LOOKER, _STREAMS),
        "ReportResult": Access(_AGENT, _CONTROL),
        "ReportResultStream": Access(_AGENT, _STREAMS),
        "ReportEvents": Access(_AGENT, _CONTROL),
        "BeginEffect": Access(_AGENT, _CONTROL),
        "ExtendLease": Access(_AGENT, _CONTROL),
    },
    "SessionService": {
        "GetSession": Access(_LOOKER, _CONTROL),
        "ListSessions": Access(_LOOKER, _CONTROL),
        "DeleteSession": Access(_OPERATOR, _CONTROL),
    },
    "OpsService": {
        "GetServerInfo": Access(_LOOKER, _CONTROL),
        "WatchTasks": Access(_LOOKER, _STREAMS),
        "ExplainTask": Access(_LOOKER, _CONTROL),
        "ListDecisions": Access(_LOOKER, _CONTROL),
        "ListDeadLetters": Access(_LOOKER, _CONTROL),
        "RequeueDeadLetters": Access(_OPERATOR, _CONTROL),
        "PurgeDeadLetters": Access(_OPERATOR, _CONTROL),
        "ListFailedWebhooks": Access(_LOOKER, _CONTROL),
        "CreateKey": Access(_OPERATOR, _CONTROL),
        "ListKeys": Access(_OPERATOR, _CONTROL),
        "RevokeKey": Access(_OPERATOR, _CONTROL),
        "GetNode": Access(_LOOKER, _CONTROL),
        "GetCluster": Access(_LOOKER, _CONTROL),
        "DrainNode": Access(_OPERATOR, _CONTROL),
        "Rebalance": Access(_OPERATOR, _CONTROL),
    },
}

_STANDARD: Final[dict[str, Access]] = {
    # Open, and says nothing but whether we serve.
    "/grpc.health.v1.Health/Check": Access(_EVERYBODY, _CONTROL),
    "/grpc.health.v1.Health/List": Access(_EVERYBODY, _CONTROL),
    "/grpc.health.v1.Health/Watch": Access(_EVERYBODY, _STREAMS),
    # Without authentication everybody is an operator, so that grpcurl works out of the box.
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Access(_OPERATOR, _STREAMS),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Access(_OPERATOR, _STREAMS),
}

TABLE: Final[Mapping[str, Access]] = {
    f"/agentreach.v1.{service}/{method}": access
    for service, methods in _OURS.items()
    for method, access in methods.items()
} | _STANDARD
"""Access by the full name of the method."""

OF_PEERS: Final[Mapping[str, Access]] = {
    f"/agentreach.internal.v1.PeerService/{method}": Access(_EVERYBODY, Admission.PEERS)
    for method in ("Link", "Call", "Locate", "TellSessions", "TellTasks")
}
"""Methods of other nodes, on a node that has any. The servicer itself checks that it is one (`peer_secret`)."""

CARDS: Final = Access(_CALLER_OR_LOOKER, _CONTROL)
"""Who may read what agents there are from their cards, which say what can be asked of whom and not how they do."""
