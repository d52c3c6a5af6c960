"""What operators do with the nodes of a cluster: drain one, have the shards placed now (`reach cluster`)."""

from __future__ import annotations

from typing import Protocol

from reach.cluster.base import Cluster, ClusterError, ClusterUnavailable, NotLeading
from reach.cluster.drained import drained, set_drained
from reach.errors import InvalidRequest, Reason, Unavailable
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer


class Leading(Protocol):
    """A candidate for placing shards (`cluster.leader.Leader`)."""

    @property
    def leading_ms(self) -> int | None:
        """How long it has led; None: it does not."""

    async def place_now(self) -> int:
        """Places; returns how many shards go to another node. Raises NotLeading, ClusterUnavailable."""


class Steering:
    """See the module.

    Args:
        cluster: The nodes.
        leader: This node's candidate for placing shards.
        node_id: This node.
    """

    def __init__(self, cluster: Cluster, leader: Leading, node_id: str) -> None:
        self.cluster = cluster
        self.leader = leader
        self._node_id = node_id

    def drained(self) -> frozenset[str]:
        """Nodes that are to own nothing, by an operator's wish."""
        return drained(self.cluster.registry)

    async def drain(self, node_id: str, *, undo: bool = False) -> frozenset[str]:
        """Has a node own nothing, until that is undone; returns all that are drained.

        Raises:
            InvalidRequest: There is no such node, or nobody could take what it owns.
            Unavailable: etcd cannot be asked.
        """
        nodes = self.cluster.membership.nodes()
        known = nodes.keys() | self.drained()
        if node_id not in known:
            message = f"there is no node {node_id!r}; there are {', '.join(sorted(nodes)) or 'none'}"
            raise InvalidRequest(message, field="node_id")
        owning = {name for name, info in nodes.items() if info.weight > 0}
        try:
            return await set_drained(self.cluster.registry, node_id, undo=undo, required=owning)
        except ValueError as error:
            raise InvalidRequest(str(error), Reason.WRONG_STATE) from None
        except ClusterError as error:
            raise _unavailable(error) from None

    async def rebalance(self) -> int:
        """Has the shards placed now; returns how many go to another node.

        Raises:
            Elsewhere: Another node leads.
            Unavailable: Nobody leads, or etcd cannot be asked.
        """
        try:
            return await self.leader.place_now()
        except NotLeading:
            name = self.cluster.election.leader or ""
            info = self.cluster.membership.nodes().get(name)
            if info is None or name == self._node_id:
                raise Unavailable("nobody leads just now", Reason.OWNER_UNAVAILABLE, retry_after_ms=500) from None
            raise Elsewhere(Peer(name, info.peer_address)) from None
        except ClusterUnavailable as error:
            raise _unavailable(error) from None


def _unavailable(error: ClusterError) -> Unavailable:
    return Unavailable(f"etcd does not do it: {error}", Reason.OWNER_UNAVAILABLE, retry_after_ms=1_000)
