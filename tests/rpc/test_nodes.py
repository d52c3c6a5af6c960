"""What nodes say of themselves and of each other, over real gRPC (CLU-1, API-1)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from reach.cluster.base import NodeInfo
from reach.cluster.leader import Leader
from reach.cluster.single import SingleCluster
from reach.core.placement import SHARDS
from reach.errors import InvalidRequest, Reason
from reach.rpc.principal import Principal
from reach.runtime.steering import Steering
from reach.store.base import StoreUnavailable
from tests.rpc.acting import acting_as
from tests.rpc.nodes import SECRET, Cluster, cluster, until
from tests.rpc.peers import TIMEOUT, Stubs, pb, refusal, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


async def test_CLU_1_any_node_tells_of_all(nodes):
    for name in nodes.nodes:
        found = await nodes.stubs(name).ops.GetCluster(pb.GetClusterRequest(), timeout=TIMEOUT)
        assert [(one.node_id, pb.NodeState.Name(one.state)) for one in found.nodes] == [
            (other, "NODE_STATE_SERVING") for other in ("one", "three", "two")
        ]
        assert all(one.ready and one.store == "memory" and one.open_files_limit for one in found.nodes)
        assert not found.peers
        assert [one.shard for one in found.placement] == list(range(SHARDS))


async def test_CLU_1_nodes_check_each_other_both_ways(nodes):
    found = await nodes.stubs("two").ops.GetCluster(pb.GetClusterRequest(check_peers=True), timeout=TIMEOUT)
    assert {name: [one.node_id for one in found.peers[name].checks] for name in found.peers} == {
        "one": ["three", "two"], "two": ["one", "three"], "three": ["one", "two"],
    }  # fmt: skip
    for checks in found.peers.values():
        for one in checks.checks:
            assert not one.error
            assert one.address
            assert abs(one.clock_ahead.ToMilliseconds()) <= 2 + one.took.ToMilliseconds() / 2


async def test_CLU_1_a_node_that_does_not_answer_is_told_as_such(tmp_path):
    async with cluster(tmp_path, "up", "down", "other", secrets={"other": SECRET + b"!"}) as made:
        await made["down"].down()
        found = await made.stubs("up").ops.GetCluster(pb.GetClusterRequest(check_peers=True), timeout=TIMEOUT)
        by_name = {one.node_id: one for one in found.nodes}
        for name, why in (("down", "refused"), ("other", "secret")):
            assert by_name[name].state == pb.NODE_STATE_UNREACHABLE
            assert why in by_name[name].error.lower()
            assert by_name[name].address == made.addresses[name].address
        assert by_name["up"].state == pb.NODE_STATE_SERVING
        assert {one.node_id: bool(one.error) for one in found.peers["up"].checks} == {"down": True, "other": True}


async def test_API_1_a_server_that_is_alone_is_a_cluster_of_one(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        found = await stubs.ops.GetCluster(pb.GetClusterRequest(check_peers=True), timeout=TIMEOUT)
        (one,) = found.nodes
        assert (one.node_id, one.state, len(one.shards), found.name) == (
            node.node_id, pb.NODE_STATE_SERVING, SHARDS, "",
        )  # fmt: skip
        assert {(one.owner, one.wish) for one in found.placement} == {(node.node_id, node.node_id)}
        for call in (
            stubs.ops.Rebalance(pb.RebalanceRequest()),
            stubs.ops.DrainNode(pb.DrainNodeRequest(node_id=node.node_id)),
        ):
            assert (await refusal(call))[:2] == ("FAILED_PRECONDITION", "WRONG_STATE")


async def test_GOV_1_only_operators_of_named_tenants_steer_the_nodes(nodes):
    node = nodes["one"]
    servicer, member = node._grpc.ops, SingleCluster()
    await member.membership.join(NodeInfo("one", "boot", "", 1))
    node.standing.steering = Steering(member, Leader(member, lambda: 0), "one")
    try:
        with acting_as(Principal("acme", "app", frozenset({"operator"}))):
            for act, request in ((servicer.DrainNode, pb.DrainNodeRequest(node_id="one")), (servicer.Rebalance, None)):
                with pytest.raises(InvalidRequest, match="do not steer") as refused:
                    await act(request, None)
                assert refused.value.reason is Reason.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError, match="nobody would be left"):
            await nodes.stubs("one").ops.DrainNode(pb.DrainNodeRequest(node_id="one"))
        with pytest.raises(grpc.aio.AioRpcError, match="there is no node 'nine'; there are one"):
            await nodes.stubs("one").ops.DrainNode(pb.DrainNodeRequest(node_id="nine", undo=True))
        assert (await refusal(nodes.stubs("one").ops.Rebalance(pb.RebalanceRequest())))[1] == "OWNER_UNAVAILABLE"
    finally:
        node.standing.steering = None


async def test_API_1_health_and_readyz_tell_the_truth_while_the_store_takes_nothing(tmp_path):
    async with running(tmp_path) as node, grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        told = []

        async def watch() -> None:
            request = health_pb2.HealthCheckRequest(service="agentreach.v1.DispatchService")
            async for answer in health.Watch(request):
                state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                told.append(state)

        watching = asyncio.create_task(watch())
        try:
            await until(lambda: told == ["SERVING"])
            node.host.committer.held = StoreUnavailable("away")
            await until(lambda: told == ["SERVING", "NOT_SERVING"])
            ready, checks = node.standing.ready()
            assert (ready, checks["store"]) == (False, "StoreUnavailable")
            assert node.standing.figures()["ready"] == 0
            node.host.committer.held = None
            await until(lambda: told[-1] == "SERVING")
            assert node.standing.ready() == (True, {"state": "serving", "intake": "open", "store": "ok"})
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
