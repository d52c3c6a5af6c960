"""Two tenants on one node, for the tests of all doors: its fixtures, and for each method of the contract what one
tenant may try with the ids of another. A module that says WITH_KEYS gets such a node.

A method that is in none of the tables below is a gap, and a test says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reach.node import Node
from reach.rpc.access import TABLE
from reach.store import keys as key_store
from tests.rpc.peers import AgentByHand, Metadata, Stubs, pb, running, unique

ALL = ("agent", "caller", "reader", "operator")
PACKAGE = "/agentreach.v1."


class Keys:
    """API keys made beside the running server, as `reach keys create` does."""

    def __init__(self, folder: Path) -> None:
        self.store = key_store.SqliteKeyStore(folder)

    def header(self, tenant: str, *scopes: str) -> Metadata:
        return (("authorization", f"Bearer {self.store.create(tenant, 'app', scopes or ALL)[1]}"),)

    def revoke(self, header: Metadata) -> None:
        self.store.revoke(key_id_of(header))


def key_id_of(header: Metadata) -> str:
    """The public part of a key."""
    return header[0][1].split("_")[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def keys(folder: Path) -> Iterator[Keys]:
    made = Keys(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_store, "_LOOK_EVERY_S", 0)  # the server sees a new key at once
        yield made
    made.store.close()


@asynccontextmanager
async def with_keys(folder: Path, **settings: Any) -> AsyncIterator[Node]:
    """A node that asks for keys."""
    async with running(folder, server__auth="keys", **settings) as made:
        yield made


class Ids(NamedTuple):
    """What may be somebody else's, or nobody's."""

    task_id: str
    instance_id: str
    agent_id: str
    key_id: str
    session_id: str

    def put(self, value: Any) -> Any:
        """A request with these ids in the places of their names."""
        if isinstance(value, dict):
            return {name: self.put(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.put(inner) for inner in value]
        return getattr(self, value[1:]) if isinstance(value, str) and value.startswith("$") else value

    def masked(self, text: str) -> str:
        """A text without what the asker knew before."""
        for name, value in self._asdict().items():
            text = text.replace(value, f"${name}")
        return text


NOBODYS = Ids("nobodys-task", "nobodys-instance", "nobodys-agent", "nobodyskeyid0", "nobodys-session")

_SESSION = {"key": {"app_id": "app", "user_id": "u", "session_id": "$session_id"}}
_FORGED = {"instance_id": "$instance_id", "boot_id": "b"}
_KEYS = ({"task_id": "$task_id", "attempt": 1}, {"task_id": "$task_id", "attempt": 1, "tenant": "acme"})
_OUTPUT = {"output": {"text": "x"}}


def _tasks(**more: Any) -> list[dict[str, Any]]:
    """Tasks that touch what may be another's."""
    selectors = [{"instance_id": "$instance_id"}, {"agent_id": "$agent_id"}]
    specs = [{"task_id": "t", "selector": one} for one in selectors]
    return [{"task": one, **more} for one in specs]


NAMING: dict[str, list[dict[str, Any]]] = {
    "RegistryService/Deregister": [{"instance_id": "$instance_id"}, {"instance_id": "$instance_id", "boot_id": "b"}],
    "RegistryService/Drain": [{"instance_id": "$instance_id"}, {"agent_id": "$agent_id"}],
    "RegistryService/GetAgent": [{"instance_id": "$instance_id"}],
    "HeartbeatService/Heartbeat": [{"beat": _FORGED}],
    "DispatchService/GetTask": [{"task_id": "$task_id"}, {"task_id": "$task_id", "view": "TASK_VIEW_FULL"}],
    "DispatchService/WaitForResult": [{"task_id": "$task_id", "timeout": "1s"}],
    "DispatchService/CancelTask": [{"task_id": "$task_id"}],
    "DispatchService/SendInput": [{"task_id": "$task_id", "payload": {"text": "yes"}}],
    "DispatchService/PreviewRoute": _tasks(),
    "ResultService/StreamResult": [{"task_id": "$task_id"}, {"task_id": "$task_id", "after_sequence": "1"}],
    "ResultService/ReportResult": [{"reporter": _FORGED, "result": {"key": key, **_OUTPUT}} for key in _KEYS],
    "ResultService/ReportEvents": [{"reporter": _FORGED, "progress": [{"key": key}]} for key in _KEYS],
    "ResultService/BeginEffect": [{"reporter": _FORGED, "key": key} for key in _KEYS],
    "ResultService/ExtendLease": [{"reporter": _FORGED, "key": key} for key in _KEYS],
    "SessionService/GetSession": [_SESSION],
    "SessionService/DeleteSession": [_SESSION],
    "OpsService/ExplainTask": [{"task_id": "$task_id"}],
    "OpsService/ListDecisions": [{"task_id": "$task_id"}, {"session": _SESSION["key"]}],
    "OpsService/RequeueDeadLetters": [{"task_ids": ["$task_id"], "request_id": "r"}],
    "OpsService/PurgeDeadLetters": [{"task_ids": ["$task_id"]}],
    "OpsService/RevokeKey": [{"key_id": "$key_id"}],
}
"""Methods that take an id of somebody, and how; `$name` is the place of an id. For what another has, the answer must be
the one for what nobody has."""

LISTS: dict[str, dict[str, Any]] = {
    "RegistryService/ListAgents": {},
    "RegistryService/WatchAgents": {},
    "DispatchService/ListTasks": {"view": "TASK_VIEW_FULL"},
    "SessionService/ListSessions": {},
    "OpsService/ListDecisions": {},
    "OpsService/ListDeadLetters": {},
    "OpsService/ListFailedWebhooks": {},
    "OpsService/ListKeys": {},
    "OpsService/GetServerInfo": {},
}
"""Methods that tell what there is: nothing of another may be in it."""

OWN: dict[str, str] = {
    "RegistryService/Register": "the id of an instance is its tenant's own: see the test of streams",
    "RegistryService/Adopt": "makes an agent of the caller's own",
    "HeartbeatService/StreamHeartbeats": "the same as Heartbeat, beat by beat",
    "AgentService/Attach": "see the test of streams",
    "DispatchService/Dispatch": "an id of a task is its tenant's own: see the test of lists",
    "DispatchService/Run": "as Dispatch and StreamResult",
    "DispatchService/DispatchStream": "see the test of streams",
    "ResultService/ReportResultStream": "as ReportResult and ReportEvents",
    "OpsService/WatchTasks": "see the test of watches",
    "OpsService/CreateKey": "makes a key of the caller's own tenant, whatever it says",
    "OpsService/GetNode": "of the node, not of tenants",
    "OpsService/GetCluster": "of nodes, not of tenants",
    "OpsService/DrainNode": "for tenants in cluster.operators",
    "OpsService/Rebalance": "for tenants in cluster.operators",
}
"""Methods that take no id of another, and why they are no way to him."""


def all_methods() -> set[str]:
    """Every method of the contract that has a row in the table of access."""
    return {path.removeprefix(PACKAGE) for path in TABLE if path.startswith(PACKAGE)}


class Belongings(NamedTuple):
    """What acme has: an agent, a key, and tasks with sessions: one runs, one ended, one is a dead letter."""

    agent: AgentByHand
    of: dict[str, Ids]
    header: Metadata


@asynccontextmanager
async def belongings(stubs: Stubs, keys: Keys) -> AsyncIterator[Belongings]:
    """Makes it all."""
    header = keys.header("acme")
    agent = AgentByHand(stubs, header)
    await agent.join(unique("acme-agent"), max_concurrency=9)
    of = {}
    for kind in ("running", "ended", "dead"):
        mine = Ids(unique(f"acme-{kind}"), agent.instance_id, agent.agent_id, key_id_of(header), unique("acme-session"))
        session = {"app_id": "app", "user_id": "u", "session_id": mine.session_id}
        spec = {
            "task_id": mine.task_id, "selector": {"agent_id": mine.agent_id}, "payload": {"text": "acme's secret"},
            "session": session, "retry": {"never": True},
        }  # fmt: skip
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec), metadata=header)
        offer = await agent.next("offers")
        await agent.accept(offer)
        if kind == "ended":
            await agent.finish(offer, "acme's secret")
        elif kind == "dead":
            bug = {
                "error_class": "ERROR_CLASS_INTERNAL",
                "reason": "ERROR_REASON_AGENT_CRASHED",
                "message": "acme's secret",
            }
            await agent.finish(offer, error=bug)
        of[kind] = mine
    try:
        yield Belongings(agent, of, header)
    finally:
        await agent.close()
