"""What nodes tell each other of the room in their pools, so that level 1 can choose among pools elsewhere (CLU-5)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from reach.core.model import Instance, Profile
from reach.core.spread import Room

PROFILES = 64
"""Profiles that the summary of one pool tells of; the rest of a pool with more is not seen from elsewhere."""


class ProfileRoom(NamedTuple):
    """Free room of the instances with one profile."""

    slots: int
    priority: int
    """Highest among those that have a slot."""
    best: float
    """Best score among those."""
    instances: int


class PoolRoom(NamedTuple):
    """Free room of one pool."""

    queued: int
    """Tasks that wait."""
    full: bool
    """No other one could wait."""
    profiles: dict[bytes, ProfileRoom]
    """By the digest of the profile."""


NOTHING_KNOWN = PoolRoom(0, False, {})
"""Of a pool that nobody has told of yet."""


@lru_cache(10_000)
def digest_of(profile: Profile) -> bytes:
    """Names a profile, the same on all nodes."""
    documents = tuple(document.digest for document in profile.documents)
    return blake2b(repr((*profile[:-2], documents, profile.latencies)).encode(), digest_size=8).digest()


def masks_of(instances: Iterable[Instance]) -> dict[bytes, int]:
    """Which instances have which profile, as bits, by digest."""
    bits: dict[Profile, bytearray] = {}
    for one in instances:
        if one.bit < 0:
            continue
        mask = bits.get(one.profile)
        if mask is None:
            if len(bits) >= PROFILES:
                continue
            mask = bits[one.profile] = bytearray()
        at = one.bit >> 3
        if at >= len(mask):
            mask.extend(bytes(at + 1 - len(mask)))
        mask[at] |= 1 << (one.bit & 7)
    return {digest_of(profile): int.from_bytes(mask, "little") for profile, mask in bits.items()}


def room_for(pool: PoolRoom, digests: Iterable[bytes], *, near: bool) -> Room:
    """The room of a pool elsewhere for what these profiles could take.

    Args:
        pool: What its owner told of it.
        digests: The profiles.
        near: Whether the pool is in the region that is asked for.
    """
    slots, priority, best, instances = 0, 0, 0.0, 0
    for digest in digests:
        room = pool.profiles.get(digest)
        instances += room.instances if room is not None else 1
        if room is None or room.slots <= 0 or pool.full:
            continue
        slots += room.slots
        if room.priority > priority:
            priority, best = room.priority, room.best
        elif room.priority == priority:
            best = max(best, room.best)
    return Room(slots, priority, best, pool.queued, max(1, instances), near)
