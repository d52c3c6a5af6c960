"""The part of OpsService that is about the nodes of a cluster: how each does, what it owns, draining, placing."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any, Final

from agentreach.v1 import cluster_pb2
from reach.core.node_state import NodeState, is_ready, problems_of, state_of
from reach.core.placement import SHARDS
from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.audit import audit
from reach.rpc.principal import Principal, principal_of
from reach.rpc.services import Services
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.runtime.steering import Steering
from reach.wire.answers import duration, timestamp
from reach.wire.requests import check_id

ANSWER_SECONDS: Final = 2.0
"""How long a node may take to say how it does; after that it is told as unreachable."""
CHECK_SECONDS: Final = 1.5
"""How long a node waits for the others that it is to check: less than it has itself."""
GET_NODE: Final = "/agentreach.v1.OpsService/GetNode"
_STATES: Final = {
    NodeState.STARTING: cluster_pb2.NODE_STATE_STARTING,
    NodeState.SERVING: cluster_pb2.NODE_STATE_SERVING,
    NodeState.IN_DOUBT: cluster_pb2.NODE_STATE_IN_DOUBT,
    NodeState.DRAINING: cluster_pb2.NODE_STATE_DRAINING,
    NodeState.DOOR: cluster_pb2.NODE_STATE_DOOR,
    NodeState.STOPPING: cluster_pb2.NODE_STATE_STOPPING,
    NodeState.REPLACED: cluster_pb2.NODE_STATE_REPLACED,
}


class Nodes:
    """See the contract.

    Args:
        services: Of this node.
        version: Of the program.
        store: What its store is.
    """

    def __init__(self, services: Services, version: str, store: str) -> None:
        self._services = services
        self._version = version
        self._store = store

    # -- looking ------------------------------------------------------------------------------------------------------

    async def get_node(self, request: cluster_pb2.GetNodeRequest) -> cluster_pb2.GetNodeResponse:
        """This node, as it sees itself, and whom it reaches if that is asked."""
        answer = cluster_pb2.GetNodeResponse(node=self.itself())
        if request.check_peers and self._services.peers is not None:
            checks = await asyncio.gather(*(self._check(peer) for peer in self._services.peers.owners.others()))
            answer.peers.extend(sorted(checks, key=lambda one: one.node_id))
        return answer

    def itself(self) -> cluster_pb2.Node:
        """This node."""
        services, standing = self._services, self._services.standing
        facts = standing.facts()
        node = cluster_pb2.Node(
            node_id=services.node_id,
            address=standing.address,
            version=self._version,
            weight=standing.weight,
            state=_STATES[state_of(facts)],
            drained=facts.drained,
            ready=is_ready(facts),
            problems=problems_of(facts),
            store=self._store,
            store_reachable=not facts.held and not facts.in_doubt,
            etcd_reachable=not facts.behind_ms,
            membership=facts.membership,
            uptime=duration(services.clock.now_ms() - services.reach.started_ms),
            now=timestamp(services.clock.wall_ms()),
            open_files_limit=max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        )
        for shard, epoch in standing.epochs().items():
            node.shards.add(shard=shard, epoch=epoch)
        if standing.steering is not None:
            self._fill_membership(node, standing.steering)
        return node

    def _fill_membership(self, node: cluster_pb2.Node, steering: Steering) -> None:
        cluster = steering.cluster
        node.leader = cluster.election.leader or ""
        node.term = cluster.election.term or 0
        if (leading_ms := steering.leader.leading_ms) is not None:
            node.leading_for.CopyFrom(duration(leading_ms))
        if (age_ms := cluster.membership.lease_age_ms) is not None:
            node.lease_age.CopyFrom(duration(age_ms))
            node.lease_ttl.CopyFrom(duration(cluster.membership.ttl_ms))

    async def get_cluster(
        self, request: cluster_pb2.GetClusterRequest, principal: Principal
    ) -> cluster_pb2.GetClusterResponse:
        """All nodes, as each says itself."""
        services, steering = self._services, self._services.standing.steering
        asked = cluster_pb2.GetNodeRequest(check_peers=request.check_peers)
        others = list(services.peers.owners.others()) if services.peers is not None else []
        found = await asyncio.gather(self.get_node(asked), *(self._ask(peer, asked, principal) for peer in others))
        answer = cluster_pb2.GetClusterResponse(name=services.standing.cluster_name)
        answer.nodes.extend(sorted((one.node for one in found), key=lambda one: one.node_id))
        if request.check_peers:
            for one in found:
                answer.peers[one.node.node_id].checks.extend(one.peers)
        wish: tuple[str, ...] = (services.node_id,) * SHARDS
        if steering is not None:
            answer.leader = steering.cluster.election.leader or ""
            wish = steering.cluster.placement.wish().nodes
            there = {one.node_id for one in answer.nodes}
            for name in sorted(steering.drained() - there):
                answer.nodes.add(node_id=name, drained=True, state=cluster_pb2.NODE_STATE_ABSENT)
        _fill_placement(answer, wish)
        return answer

    async def _ask(
        self, peer: Peer, request: cluster_pb2.GetNodeRequest, principal: Principal
    ) -> cluster_pb2.GetNodeResponse:
        """What another node says of itself, or what is known of it if it says nothing."""
        assert self._services.peers is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                data = await self._services.peers.bring(Elsewhere(peer), GET_NODE, request, principal)
            return cluster_pb2.GetNodeResponse.FromString(data)
        except ReachError as error:
            why = "its version does not tell" if error.reason is Reason.NOT_IMPLEMENTED else error.message
        except TimeoutError:
            why = f"it does not answer within {ANSWER_SECONDS:g} s"
        node = cluster_pb2.Node(
            node_id=peer.node_id, address=peer.address, state=cluster_pb2.NODE_STATE_UNREACHABLE, error=why
        )
        if (steering := self._services.standing.steering) is not None:
            info = steering.cluster.membership.nodes().get(peer.node_id)
            if info is not None:
                node.version, node.weight, node.store_reachable = info.version, info.weight, info.store_reachable
            node.drained = peer.node_id in steering.drained()
        return cluster_pb2.GetNodeResponse(node=node)

    async def _check(self, peer: Peer) -> cluster_pb2.PeerCheck:
        """Whether a node answers this one, at the address that it tells, and how its clock goes."""
        assert self._services.peers is not None
        check = cluster_pb2.PeerCheck(node_id=peer.node_id, address=peer.address)
        began, wall_ms = time.monotonic(), self._services.clock.wall_ms()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                request = cluster_pb2.GetNodeRequest()
                data = await self._services.peers.bring(Elsewhere(peer), GET_NODE, request, principal_of(None))
        except ReachError as error:
            check.error = error.message
            return check
        except TimeoutError:
            check.error = f"no answer within {CHECK_SECONDS:g} s"
            return check
        took_ms = (time.monotonic() - began) * 1_000
        there_ms = cluster_pb2.GetNodeResponse.FromString(data).node.now.ToMilliseconds()
        check.took.CopyFrom(duration(round(took_ms)))
        check.clock_ahead.FromMilliseconds(round(there_ms - wall_ms - took_ms / 2))
        return check

    # -- steering -----------------------------------------------------------------------------------------------------

    def _steering(self) -> Steering:
        principal, standing = principal_of(None), self._services.standing
        if standing.steering is None:
            message = "this server is alone (--cluster makes it one of several): there is nobody to share with"
            raise InvalidRequest(message, Reason.WRONG_STATE)
        if principal.tenant not in standing.operators:
            message = f"operators of tenant {principal.tenant!r} do not steer the nodes (cluster.operators)"
            raise InvalidRequest(message, Reason.PERMISSION_DENIED)
        return standing.steering

    async def drain(self, request: cluster_pb2.DrainNodeRequest, context: Any) -> cluster_pb2.DrainNodeResponse:
        """A node owns nothing any more, or its share again."""
        node_id = check_id("node_id", request.node_id, required=True)
        drained = await self._steering().drain(node_id, undo=request.undo)
        audit(principal_of(context), "DrainNode", node=node_id, undo=request.undo)
        return cluster_pb2.DrainNodeResponse(drained=sorted(drained))

    async def rebalance(self, context: Any) -> cluster_pb2.RebalanceResponse:
        """The leader places all shards now."""
        moved = await self._steering().rebalance()
        audit(principal_of(context), "Rebalance", moved=moved)
        return cluster_pb2.RebalanceResponse(moved=moved, leader=self._services.node_id)


def _fill_placement(answer: cluster_pb2.GetClusterResponse, wish: tuple[str, ...]) -> None:
    """Whose each shard should be, and whose it is: of several who say so, the one with the latest epoch."""
    owners: dict[int, tuple[int, str]] = {}
    for node in answer.nodes:
        for one in node.shards:
            owners[one.shard] = max(owners.get(one.shard, (0, "")), (one.epoch, node.node_id))
    for shard in range(SHARDS):
        epoch, owner = owners.get(shard, (0, ""))
        answer.placement.add(shard=shard, wish=wish[shard] if wish else "", owner=owner, epoch=epoch)
