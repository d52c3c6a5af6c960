"""Bugs of several nodes planted on purpose; each has to be found by the simulation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from reach.core import restore
from reach.core.stream import Reader
from reach.runtime import agents
from reach.runtime.claims import Claims
from reach.store import memory_shared
from reach.store.memory_shared import MemoryNode
from reach.testing.sim.nodes import faults
from reach.testing.sim.nodes.world import NodesWorld


def commits_that_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Whatever a node writes is kept, whoever has the shard by now."""
    patch.setattr(memory_shared, "shards_of", lambda writes: ())


def no_doubt(patch: pytest.MonkeyPatch) -> None:
    """A node that was paused or cut off goes on to speak for what it had."""
    patch.setattr(Claims, "is_in_doubt", lambda self: False)
    # Found sooner where nodes only stand still, and commits are slow: what was decided leaves after the pause.
    for name in ("node_dies", "node_dies_in_a_commit", "node_leaves", "etcd_is_away", "the_store_is_in_trouble"):
        patch.setattr(faults.Faults, name, faults.Faults.node_stands_still)
    patch.setattr(faults, "PAUSES_S", (6.0,))
    patch.setattr(NodesWorld, "commit_time", lambda self: self.random.choice((0.001, 0.8 if self.raging else 0.001)))


def claims_at_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    """Who claims a shard takes over the epoch of the owner before."""

    def claim(self: MemoryNode, shards: Collection[int]) -> dict[int, int]:
        claimed = {shard: max(1, self._shared.epochs.get(shard, 1)) for shard in sorted(shards)}
        self._shared.epochs.update(claimed)
        self._won(claimed)
        return claimed

    patch.setattr(MemoryNode, "claim", claim)


def attempts_that_are_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """What ran under another owner counts as lost."""
    patch.setattr(restore, "GRACE_MS", 0)


def moves_that_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """Who waits for the end of a task whose shard leaves hears nothing of that."""

    def let_go(reader: Reader) -> None:
        reader.sink = agents.DEAF

    patch.setattr("reach.runtime.moving.let_go", let_go)
    patch.setattr("reach.rpc.branches.Branches.moved", lambda self, shard: None)


PLANTED: dict[str, Any] = {
    "commits that are not fenced": commits_that_are_not_fenced,
    "no doubt": no_doubt,
    "claims at the same epoch": claims_at_the_same_epoch,
    "attempts that are not adopted": attempts_that_are_not_adopted,
    "moves that are not told": moves_that_are_not_told,
}
