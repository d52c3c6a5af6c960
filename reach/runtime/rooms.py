"""The room of pools, told to other nodes and heard from them (CLU-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reach.core.model import PoolKey, Requirement
from reach.core.placement import shard_of
from reach.core.resolving import Selector
from reach.core.rooms import NOTHING_KNOWN, PoolRoom, ProfileRoom, digest_of, masks_of, room_for
from reach.core.spread import Room

if TYPE_CHECKING:
    from reach.core.pool import Pool
    from reach.runtime.host import Host

LOOKED_AT: Final = 1_000
"""Pools that are looked at in one go."""
HEARD: Final = 100_000
"""Pools of others that are remembered."""
FOUND_FULL_MS: Final = 1_000
"""How long a pool is taken for full that was found so, unless its owner tells of it: what is told is at most so old."""


class Rooms:
    """What this node tells of its pools, and knows of those of others."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.told: dict[PoolKey, PoolRoom] = {}
        """Our pools, as they were told last."""
        self._heard: dict[PoolKey, PoolRoom] = {}
        self._full: dict[PoolKey, tuple[int, PoolRoom]] = {}
        """Pools that were found full: until when that is believed, and what is."""
        self._masks: dict[PoolKey, tuple[int, dict[bytes, int]]] = {}
        self._left: list[Pool] = []

    # -- ours ---------------------------------------------------------------------------------------------------------

    def changes(self) -> list[tuple[PoolKey, PoolRoom]]:
        """What has changed since the last time, of some pools at a time; a pool that is gone has no profiles."""
        host = self._host
        if not self._left:
            self._left = host.pools()
            for key in [key for key in self.told if host.pool_if_any(key) is None]:
                del self.told[key]
                self._masks.pop(key, None)
        looked, self._left = self._left[:LOOKED_AT], self._left[LOOKED_AT:]
        changed = []
        for pool in looked:
            if not pool.instances and pool.key not in self.told:
                continue
            room = self._room_of(pool)
            if self.told.get(pool.key) != room:
                self.told[pool.key] = room
                changed.append((pool.key, room))
        return changed

    def _room_of(self, pool: Pool) -> PoolRoom:
        revision = self._host.directory.revision
        kept, masks = self._masks.get(pool.key, (-1, {}))
        if kept != revision:
            masks = masks_of(pool.instances.values())
            self._masks[pool.key] = revision, masks
        rooms = {digest: ProfileRoom(*pool.router.room_of(mask)) for digest, mask in masks.items()}
        return PoolRoom(len(pool.queue), not pool.queue.has_room(0), rooms)

    # -- theirs -------------------------------------------------------------------------------------------------------

    def heard(self, key: PoolKey, room: PoolRoom) -> None:
        """The owner of a pool has told of it."""
        if key in self._heard or len(self._heard) < HEARD:
            self._heard[key] = room
        self._full.pop(key, None)

    def found_full(self, key: PoolKey) -> None:
        """A pool elsewhere did not take a task: what its owner told of it is old."""
        if key in self._full or len(self._full) < HEARD:
            believed = self._heard.get(key, NOTHING_KNOWN)._replace(full=True)
            self._full[key] = self._host.clock.now_ms() + FOUND_FULL_MS, believed

    def said(self, key: PoolKey) -> PoolRoom:
        """What is known of a pool elsewhere: another object as soon as that is something else."""
        if self._full and (found := self._full.get(key)) is not None:
            until_ms, room = found
            if self._host.clock.now_ms() < until_ms:
                return room
            del self._full[key]
        return self._heard.get(key, NOTHING_KNOWN)

    def is_here(self, key: PoolKey) -> bool:
        """Whether a pool is this node's."""
        return self._host.owners.node_of(shard_of(key)) is None

    def room(self, key: PoolKey, tenant: str, selector: Selector, requirement: Requirement) -> Room:
        """The room of a pool elsewhere for one requirement."""
        directory = self._host.directory
        digests = [digest_of(profile) for profile in directory.passing(tenant, key, selector, requirement)]
        near = not requirement.region or directory.in_region(key, requirement.region)
        return room_for(self.said(key), digests, near=near)
