"""`reach doctor` and `reach cluster` against a server that is alone, and what the doctor says of nodes and agents."""

from collections.abc import Callable
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, cluster_pb2, task_pb2
from reach.cli import doctor_fleet as fleet
from reach.doctor.findings import Level, worst_of
from reach.testing.server import LocalServer
from tests.cli.conftest import Command, EchoAgent


def node(name: str, state: str = "SERVING", **fields: Any) -> cluster_pb2.Node:
    number = cluster_pb2.NodeState.Value(f"NODE_STATE_{state}")
    return cluster_pb2.Node(node_id=name, state=number, version="1.0", ready=state == "SERVING", **fields)


def cluster(*nodes: cluster_pb2.Node, leader: str = "a", owner: str = "a") -> cluster_pb2.GetClusterResponse:
    found = cluster_pb2.GetClusterResponse(name="main", nodes=nodes, leader=leader)
    found.placement.add(shard=0, wish="a", owner=owner)
    return found


def told(findings: Any, level: Level) -> list[str]:
    return [one.what for one in findings if one.level is level]


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (cluster(node("a"), node("b")), Level.OK, "a is serving"),
        (cluster(node("a"), node("b", "IN_DOUBT")), Level.ERROR, "b is in doubt"),
        (cluster(node("a"), node("b", "UNREACHABLE", error="refused")), Level.ERROR, "b is unreachable: refused"),
        (cluster(node("a"), node("b", "DOOR")), Level.OK, "b is door"),
        (cluster(node("a"), node("b", "ABSENT", drained=True)), Level.WARNING, "b is drained, and not there"),
        (cluster(node("a", problems=["its lease may have lapsed"])), Level.ERROR, "a: its lease may have lapsed"),
        (cluster(node("a", open_files_limit=256)), Level.WARNING, "node a may have 256 files open"),
        (cluster(node("a"), leader=""), Level.ERROR, "nobody leads"),
        (cluster(node("a"), owner=""), Level.ERROR, "1 of 1 shards"),
    ],
)
def test_CLU_1_what_the_doctor_says_of_nodes(found: Any, level: Level, text: str) -> None:
    findings = list(fleet.nodes(found))
    assert worst_of(findings) is level
    assert text in " ".join(told(findings, level))


def test_CLU_1_what_the_doctor_says_of_versions_peers_and_clocks() -> None:
    found = cluster(node("a"), node("b"))
    found.nodes[1].version = "1.1"
    assert "versions 1.0 and 1.1" in told(fleet.nodes(found), Level.WARNING)[0]
    found.nodes.add(node_id="c", version="1.2", state=cluster_pb2.NODE_STATE_SERVING)
    assert "versions 1.0, 1.1, 1.2" in told(fleet.nodes(found), Level.ERROR)[0]
    check = cluster().peers["a"].checks.add(node_id="b", address="b:1", error="node 'b' does not take our secret")
    found = cluster(node("a"))
    found.peers["a"].checks.append(check)
    (bad,) = [one for one in fleet.nodes(found) if one.level is Level.ERROR]
    assert "a does not reach b at b:1" in bad.what
    assert "secret_file" in bad.todo
    check.error = ""
    check.took.FromMilliseconds(4)
    for ahead_ms, level in ((1_002, Level.OK), (-9_000, Level.WARNING)):
        check.clock_ahead.FromMilliseconds(ahead_ms)
        found.peers["a"].checks[0].CopyFrom(check)
        assert worst_of(fleet.nodes(found)) is level


def test_HLT_8_agents_that_beat_and_take_nothing_and_queues_that_nobody_takes_are_told() -> None:
    one = agent_pb2.Agent(blocked_by="stalled")
    one.registration.instance_id, one.registration.agent_type = "x1", "x"
    one.last_heartbeat_age.FromMilliseconds(900)
    full = agent_pb2.Agent(blocked_by="capacity")
    (found, count) = fleet.agents([one, full])
    assert (found.level, found.what) == (Level.WARNING, "x1 beats but takes nothing: stalled")
    assert count.what == "0 instances take work"
    tasks = [task_pb2.Task(pool="x", pending_reason="stalled")] * 3
    (queue,) = fleet.waiting(tasks, [one])
    assert queue.what == "3 tasks wait for 'x', where no instance is ready (stalled)"
    one.blocked_by = ""
    assert list(fleet.waiting(tasks, [one])) == []


@pytest.mark.e2e
def test_API_6_a_server_that_is_alone_is_well_until_a_task_waits_for_nobody(
    on: Command, server: LocalServer, echo_agents: Callable[..., EchoAgent]
) -> None:
    echo_agents("echo")
    status = on("cluster", "status", "--json")
    assert (status.code, status.data["well"], status.data["nodes"][0]["state"]) == (0, True, "SERVING")
    assert "sqlite ok" in on("cluster", "status").out
    assert "alone" in on("cluster", "leader").out
    assert len(on("cluster", "placement", "--json").data["placement"]) == 64
    assert (on("cluster", "drain", "x").code, on("cluster", "rebalance").code) == (2, 2)
    local = ("doctor", "--config", str(_config(server)))
    ran = on(*local, "--json")
    assert [one for one in ran.data["findings"] if one["level"] == "error"] == []
    assert ran.code == 0
    assert on("dispatch", "--type", "nobody", "--task-id", "waits", "--no-wait", "hello").code == 0
    ran = on(*local)
    assert ran.code == 8
    assert "a task waits" in ran.out.splitlines()[0]
    assert ran.out.splitlines()[-1].startswith("1 errors, ")
    assert "cannot reach Agent-Reach at 127.0.0.1:1" in on("--addr", "127.0.0.1:1", "doctor", "--json").out


def _config(server: LocalServer) -> Any:
    file = server.folder / "reach.yaml"
    ports = f"server:\n  port: {server.port}\n  admin_port: {server.admin_port}\n"
    file.write_text(f"{ports}storage:\n  path: {server.folder}\n")
    return file
