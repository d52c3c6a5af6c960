"""Which node owns which shard, as far as this node knows: asked by all that is to be done for a shard.

How ownership is won, confirmed and lost is decided elsewhere; here is what the rest of a node sees of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol


class Peer(NamedTuple):
    """Another node."""

    node_id: str
    address: str
    """Where it serves gRPC: `host:port`."""


NOBODY: Final = Peer("", "")
"""Stands for the owner of a shard that has none just now, as far as this node knows: it cannot be reached."""

Moved = Callable[[int], None]
"""Hears that a shard has another owner; called on the loop, after `node_of` answers with the new one."""


class Owners(Protocol):
    """Who owns the shards."""

    def node_of(self, shard: int) -> Peer | None:
        """The node that owns a shard; None: this one. Costs no more than a look-up."""

    def others(self) -> Sequence[Peer]:
        """All other nodes that are there, whether they own anything or not."""

    def hands_over(self, node_id: str) -> bool:
        """Whether another node is there and gives up in peace what it is to own no more: all that have something there
        are told so by it, behind everything else."""

    def watch(self, moved: Moved) -> None:
        """Has `moved` called for each shard whose owner changes, from now on."""


class AllOurs:
    """A node that is alone."""

    def node_of(self, shard: int) -> Peer | None:
        """See Owners."""
        return None

    def others(self) -> Sequence[Peer]:
        """See Owners."""
        return ()

    def hands_over(self, node_id: str) -> bool:
        """See Owners."""
        return False

    def watch(self, moved: Moved) -> None:
        """See Owners. Nothing ever moves."""


class Static:
    """Owners as somebody says: for tests, and for tools that look at a cluster from outside.

    Args:
        here: The id of this node.
        nodes: The ids of all nodes, and where they serve.
    """

    def __init__(self, here: str, nodes: dict[str, Peer]) -> None:
        self._here = here
        self._nodes = nodes
        self._owners: dict[int, str] = {}
        self._watchers: list[Moved] = []

    def give(self, shard: int, node_id: str) -> None:
        """A shard has this owner from now on; none, if there is no such node."""
        before = self._owners.get(shard)
        self._owners[shard] = node_id
        if before != node_id:
            for moved in self._watchers:
                moved(shard)

    def node_of(self, shard: int) -> Peer | None:
        """See Owners. What nobody was given has no owner."""
        owner = self._owners.get(shard, "")
        return None if owner == self._here else self._nodes.get(owner, NOBODY)

    def others(self) -> Sequence[Peer]:
        """See Owners."""
        return [peer for node_id, peer in self._nodes.items() if node_id != self._here]

    def hands_over(self, node_id: str) -> bool:
        """See Owners. What somebody says has happened."""
        return False

    def watch(self, moved: Moved) -> None:
        """See Owners."""
        self._watchers.append(moved)
