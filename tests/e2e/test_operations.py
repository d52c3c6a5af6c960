"""Operating three real nodes on etcd and PostgreSQL by `reach cluster`: two that own, and a door (CLU-1, CLU-4)."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from reach import Client, TaskState
from reach.cli.app import run
from reach.core.placement import SHARDS
from tests.e2e.nodes import Nodes as Equals
from tests.e2e.processes import AgentProcess, begins, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120)]


class Nodes(Equals):
    """Two that own, and a door."""

    def settle(self, seconds: float = 20.0) -> None:
        """Waits until the owners have their shares."""
        eventually(lambda: [self.owned(name) for name in "abc"] == [32, 32, 0], "each has its share", seconds)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("operations"))
    made.all["c"]._environment["AGENT_REACH_CLUSTER_WEIGHT"] = "0"
    routes = made.folder / "routes.yaml"
    routes.write_text("routes: []\n")
    made.all["a"]._environment["AGENT_REACH_ROUTER_ROUTES_FILE"] = str(routes)
    try:
        made.start()
        yield made
        for node in made.all.values():
            assert not node.tracebacks()
    finally:
        made.stop()


def reach(nodes: Nodes, name: str, *arguments: str) -> Any:
    """What a command says at a node, as JSON; its exit code is under `code`."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = run(["--addr", nodes.all[name].address, *arguments, "--json"])
    return {"code": code, **json.loads(out.getvalue())}


def states(nodes: Nodes, name: str) -> dict[str, tuple[str, int]]:
    """State and shards of each node, asked at this one."""
    found = reach(nodes, name, "cluster", "status")
    return {one["node_id"]: (one["state"], len(one.get("shards", ()))) for one in found["nodes"]}


def readyz(nodes: Nodes, name: str) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{nodes.all[name].admin_port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, json.load(answer)["checks"]
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["checks"]


def health(nodes: Nodes, name: str) -> str:
    """What gRPC health says."""
    with grpc.insecure_channel(nodes.all[name].address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        state = stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(state))


def metrics(nodes: Nodes, name: str) -> str:
    """What Prometheus reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{nodes.all[name].admin_port}/metrics", timeout=2) as answer:
        text: str = answer.read().decode()
    return text


def test_CLU_1_any_node_tells_how_all_do_what_they_own_and_who_leads(nodes: Nodes) -> None:
    half = {"a": ("SERVING", 32), "b": ("SERVING", 32), "c": ("DOOR", 0)}
    eventually(lambda: states(nodes, "a") == half, "each owner has its share")
    for name in nodes.all:
        assert states(nodes, name) == half
        assert readyz(nodes, name)[0] == 200
    found = reach(nodes, "c", "cluster", "status")
    assert found["well"]
    assert found["code"] == 0
    for one in found["nodes"]:
        assert one["address"] == nodes.all[one["node_id"]].address
        assert (one["store"], one["store_reachable"], one["etcd_reachable"], one["membership"]) == (
            "postgres", True, True, "member",
        )  # fmt: skip
        assert one["lease_age"] < one["lease_ttl"]
    leaders = [reach(nodes, name, "cluster", "leader") for name in nodes.all]
    assert len({(one["leader"], one["term"]) for one in leaders}) == 1
    assert all(one["leading_seconds"] > 0 for one in leaders)
    placement = reach(nodes, "b", "cluster", "placement")["placement"]
    assert len(placement) == SHARDS
    assert all(one["owner"] == one["wish"] != "c" and int(one["epoch"]) >= 1 for one in placement)


async def test_CLU_4_a_drained_node_gives_all_up_under_load_stays_a_door_over_its_restart_and_comes_back(
    nodes: Nodes, tmp_path: Path
) -> None:
    log = tmp_path / "agents.log"
    sent = 0
    with AgentProcess(nodes.all["c"].address, log) as agent:
        await asyncio.to_thread(agent.instance)
        draining = True

        async def work(name: str) -> None:
            nonlocal sent
            async with Client(nodes.all[name].address, reconnect_timeout=None) as client:
                while draining:
                    number = sent = sent + 1
                    result = await client.send("echo", f"{number}", agent_type="worker", task_id=f"t-{number}")
                    assert (result.state, result.text) == (TaskState.SUCCEEDED, f"{number}")

        async with asyncio.TaskGroup() as workers:
            for name in "abc":
                workers.create_task(work(name))
            answer = await asyncio.to_thread(reach, nodes, "c", "cluster", "drain", "a")
            assert answer == {"code": 0, "drained": ["a"]}
            wanted = {"a": ("DOOR", 0), "b": ("SERVING", 64), "c": ("DOOR", 0)}
            await asyncio.to_thread(eventually, lambda: states(nodes, "a") == wanted, "a has given all up")
            await asyncio.sleep(0.5)  # work goes on after it
            draining = False
    assert {task: len(lines) for task, lines in begins(log).items()} == {f"t-{one}": 1 for one in range(1, sent + 1)}
    refused = await asyncio.to_thread(reach, nodes, "a", "cluster", "drain", "b")
    assert (refused["code"], refused["error"]["reason"]) == (2, "WRONG_STATE")
    unknown = await asyncio.to_thread(reach, nodes, "a", "cluster", "drain", "z")
    assert "there are a, b, c" in unknown["error"]["message"]
    await asyncio.to_thread(nodes.all["a"].restart)
    await asyncio.to_thread(eventually, lambda: states(nodes, "b").get("a") == ("DOOR", 0), "a is back as a door")
    assert (await asyncio.to_thread(reach, nodes, "b", "cluster", "rebalance"))["moved"] == 0
    await asyncio.to_thread(reach, nodes, "b", "cluster", "drain", "a", "--undo")
    await asyncio.to_thread(
        eventually, lambda: [count for _, count in states(nodes, "c").values()] == [32, 32, 0], "a has its share again"
    )


def test_CLU_2_a_stopped_node_is_unreachable_and_one_without_etcd_says_so(nodes: Nodes) -> None:
    nodes.all["b"].signal(signal.SIGSTOP)
    try:
        found = reach(nodes, "c", "cluster", "status")
        assert found["code"] == 8
        (one,) = [one for one in found["nodes"] if one["node_id"] == "b"] or [{"state": "gone"}]
        assert one["state"] in ("UNREACHABLE", "gone")
    finally:
        nodes.all["b"].signal(signal.SIGCONT)
    nodes.settle()
    nodes.etcd.kill_all()
    try:
        eventually(lambda: "not heard" in readyz(nodes, "a")[1]["etcd"], "a notices that etcd is away")
        code, checks = readyz(nodes, "a")
        assert (code, checks["state"]) == (200, "serving"), "nothing moves and all goes on"
        eventually(lambda: readyz(nodes, "a")[1]["membership"] == "lost", "its lease lapses by its own clock")
        found = reach(nodes, "a", "cluster", "status")
        assert not found["well"]
        assert all(not one.get("etcd_reachable") for one in found["nodes"])
        assert sum(len(one.get("shards", ())) for one in found["nodes"]) == SHARDS
    finally:
        nodes.etcd.start_all()
    eventually(lambda: reach(nodes, "a", "cluster", "status")["well"], "all is well again")


def test_RTE_6_routes_that_change_at_one_node_hold_at_all_and_at_those_who_start(nodes: Nodes) -> None:
    def said(name: str) -> str:
        return json.dumps(reach(nodes, name, "route", "preview", "--intent", "hello.x"))

    assert all("NO_ROUTE" in said(name) for name in "abc")
    (nodes.folder / "routes.yaml").write_text("routes: [{intent_prefix: hello, require_capability: greet}]\n")
    eventually(lambda: not any("NO_ROUTE" in said(name) for name in "abc"), "all have the route")
    nodes.all["c"].restart()
    assert "NO_ROUTE" not in said("c")


def test_CLU_2_without_postgres_owners_say_that_they_are_in_doubt_and_go_on_by_themselves(nodes: Nodes) -> None:
    nodes.database.stop()
    try:
        doubt = ["IN_DOUBT", "IN_DOUBT", "DOOR"]
        eventually(lambda: [one[0] for one in states(nodes, "c").values()] == doubt, "who owns something is in doubt")
        for name in "ab":
            code, checks = readyz(nodes, name)
            assert (code, checks["state"], checks["owned"]) == (503, "in doubt", "in doubt")
            assert checks["etcd"] == "ok"
        eventually(lambda: health(nodes, "a") == "NOT_SERVING", "gRPC health says so too")
        wanted = ('alert_total{kind="in_doubt"} 1', "node_in_doubt 1", "node_ready 0")
        eventually(lambda: all(f"agentreach_{one}" in metrics(nodes, "a") for one in wanted), "metrics say so too")
        doctor = reach(nodes, "a", "doctor", "--journal", nodes.journal)
        assert {one["check"] for one in doctor["findings"] if one["level"] == "error"} >= {"postgres", "nodes"}
    finally:
        nodes.database.start()
    eventually(lambda: reach(nodes, "a", "cluster", "status")["well"], "all is well again")
    nodes.settle()


def test_API_6_the_doctor_finds_a_cluster_well_but_for_how_the_tests_keep_it(nodes: Nodes) -> None:
    stores = ("--journal", nodes.journal, "--cluster", "etcd://" + ",".join(nodes.etcd.endpoints))
    found = reach(nodes, "b", "doctor", *stores, "--cluster-secret", str(nodes.folder / "secret"))["findings"]
    told = {(one["check"], one["level"]) for one in found}
    assert {one["what"] for one in found if one["level"] == "error"} == {"fsync is off"}
    assert ("etcd", "ok") in told
    reached = [one["what"] for one in found if one["check"] == "peers"]
    assert len(reached) == 6
    assert all(" reaches " in one for one in reached)
