"""What must be true of shards: one owner for each epoch, and nobody else writes or speaks for them.

Made of what the journal did and of what left the nodes; it never asks a node what it believes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from reach.core.model import TaskKey
from reach.core.placement import SHARDS
from reach.core.rows import Writes
from reach.runtime.claims import SURE_MS

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

Owner = tuple[str, str]
"""(node, process)"""
CONVERGE_S = 4.0
"""How soon each shard has one living owner, once all is healed: the TTL of leases, and 2 s (CLU-2)."""
MOVES_S = 2.0
"""How long a shard that moves may seem to have two owners, or none: as long as the former one may not know."""
SPREAD_S = 8.0
"""How soon each node has its share: arrivals settle for 3 s at most."""
LATE_S = SURE_MS / 1_000 + 0.02
"""How long a node may speak for a shard after it was last told, having asked before, that it owns it."""


class OwnershipTruth:
    """Who owns what, by the claims that the journal took."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._owners: dict[int, Owner] = {}
        self._epochs: dict[int, int] = {}
        self._by_epoch: dict[tuple[int, int], Owner] = {}
        self._shards: dict[TaskKey, int] = {}
        self._rows: dict[int, TaskKey] = {}
        self._lost_at: dict[tuple[Owner, int], float] = {}

    # -- the journal --------------------------------------------------------------------------------------------------

    def claimed(self, node: str, boot: str, claimed: dict[int, int]) -> None:
        """The journal took a claim."""
        owner, now = (node, boot), self._checker.now()
        for shard, epoch in claimed.items():
            if epoch <= self._epochs.get(shard, 0):
                message = f"shard {shard} is claimed by {node} at epoch {epoch}, after {self._epochs[shard]}"
                self._checker.violate("EPOCHS_GROW", None, message)
            first = self._by_epoch.setdefault((shard, epoch), owner)
            if first != owner:
                message = f"shard {shard} at epoch {epoch} is owned by {first} and by {owner}"
                self._checker.violate("ONE_OWNER_PER_EPOCH", None, message)
            before = self._owners.get(shard)
            if before is not None and before != owner:
                self._lost_at[before, shard] = now
            self._owners[shard], self._epochs[shard] = owner, epoch

    def writes(self, node: str, boot: str, shards: Iterable[int]) -> None:
        """The journal keeps rows for these shards."""
        for shard in shards:
            owner = self._owners.get(shard)
            if owner != (node, boot):
                message = f"{node} ({boot}) writes for shard {shard}, which is {owner}'s at {self._epochs.get(shard)}"
                self._checker.violate("OWNERS_WRITE", None, message)

    def moved(self, writes: Writes, taken: Collection[int]) -> None:
        """Tasks come to shards."""
        for task in writes.tasks:
            if task.row not in taken:
                key = (task.tenant, task.task_id)
                self._rows[task.row], self._shards[key] = key, task.shard
        for move in writes.moves:
            if (found := self._rows.get(move.row)) is not None:
                self._shards[found] = move.to_shard

    # -- what nodes say -----------------------------------------------------------------------------------------------

    def is_former(self, node: str, boot: str, shard: int) -> bool:
        """Whether a node has lost this shard to another."""
        owner = self._owners.get(shard)
        return owner is not None and owner != (node, boot)

    def speaks(self, node: str, boot: str, shard: int, key: TaskKey, what: str) -> None:
        """A node offers, grants or answers for a shard."""
        if not self.is_former(node, boot, shard):
            return
        lost = self._lost_at.get(((node, boot), shard))
        late = self._checker.now() - lost if lost is not None else -1.0
        if lost is None or late > LATE_S:
            message = f"{node} {what} for shard {shard}, which {self._owners[shard][0]} took {late:.3f} s ago"
            self._checker.violate("WHO_DOUBTS_IS_SILENT", key, message)

    # -- after all is healed ------------------------------------------------------------------------------------------

    def unsettled(self, served: dict[Owner, frozenset[int]]) -> dict[int, str]:
        """What is wrong with each shard: it has not one living owner, which serves it and which the journal knows."""
        found = {}
        for shard in range(SHARDS):
            by = [owner for owner, shards in served.items() if shard in shards]
            if len(by) != 1:
                found[shard] = f"is served by {by or 'nobody'}"
            elif self._owners.get(shard) != by[0]:
                found[shard] = f"is served by {by[0]}, and the journal says {self._owners.get(shard)}"
        return found

    def converged(self, unsettled: dict[int, str]) -> None:
        """All was healed `CONVERGE_S` ago. `unsettled`: what was wrong all the time since, while shards may move."""
        for shard, wrong in unsettled.items():
            message = f"shard {shard} {wrong}, {CONVERGE_S:g} s after all was healed"
            self._checker.violate("OWNERSHIP_CONVERGES", None, message)
            return

    def spread(self, served: dict[Owner, frozenset[int]]) -> None:
        """All was healed `SPREAD_S` ago: each of the living has its share, no more."""
        share, rest = divmod(SHARDS, len(served))
        for owner, shards in served.items():
            if not share <= len(shards) <= share + (rest > 0):
                sizes = {one[0]: len(owned) for one, owned in served.items()}
                self._checker.violate("SHARDS_ARE_SPREAD", None, f"{owner[0]} has its share not: {sizes}")
                return
