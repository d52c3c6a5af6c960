"""Which shard holds what: the same on every node, for ever. And which node should own which shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from reach.core.model import PoolKey
from reach.core.session import SessionName

SHARDS = 64
KEPT = 16_384
"""Pools, and sessions, whose shard is remembered: it is asked for several times per task."""


@lru_cache(KEPT)
def shard_of(key: PoolKey) -> int:
    """The shard of a pool."""
    return _shard(f"{key.tenant}\0{key.agent_type}\0{key.partition}")


@lru_cache(KEPT)
def shard_of_session(name: SessionName) -> int:
    """The shard of a session's context; its pins are with the pools."""
    return _shard(f"session\0{name[0]}\0{name[1]}")


def _shard(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % SHARDS


def place(weights: Mapping[str, int], current: Sequence[str] = ()) -> tuple[str, ...]:
    """Which node should own which shard: node id by shard, "" where nobody can.

    Capped highest random weight, incremental. Each node gets SHARDS × weight / total, rounded down or up. A node keeps
    what it has up to that, giving up first what it has the lowest score for; what is free goes to the node with the
    highest score among those with room. So a node that joins equals moves ⌊64 / N⌋ shards, one that leaves only its
    own, and nothing moves when nothing changed. Weight 0 or less owns nothing. Equal arguments, equal answer, on every
    machine.
    """
    allowed = {node: weight for node, weight in weights.items() if weight > 0}
    held = {node: [shard for shard in range(min(SHARDS, len(current))) if current[shard] == node] for node in allowed}
    room = _quotas(allowed, {node: len(shards) for node, shards in held.items()})
    placed = [""] * SHARDS
    for node, shards in held.items():
        for shard in sorted(shards, key=lambda shard: _score(node, shard), reverse=True)[: room[node]]:
            placed[shard] = node
        room[node] = max(0, room[node] - len(shards))
    free = [shard for shard in range(SHARDS) if not placed[shard]]
    hopes = sorted(
        ((_score(node, shard), node, shard) for node in allowed if room[node] for shard in free), reverse=True
    )
    for _, node, shard in hopes:
        if not placed[shard] and room[node]:
            placed[shard] = node
            room[node] -= 1
    return tuple(placed)


def _quotas(weights: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """How many shards each may own.

    The fair share rounded down, and one more for those that would lose one otherwise, then by name.
    """
    total = sum(weights.values())
    quotas = {node: SHARDS * weight // total for node, weight in weights.items()}
    rest = SHARDS - sum(quotas.values())
    uneven = [node for node, weight in weights.items() if SHARDS * weight % total]
    uneven.sort(key=lambda node: (held[node] <= quotas[node], -_score(node, SHARDS), node))
    for node in uneven[:rest]:
        quotas[node] += 1
    return quotas


def _score(node: str, shard: int) -> int:
    return int.from_bytes(blake2b(f"{node}\0{shard}".encode(), digest_size=8).digest(), "big")


class Candidate(NamedTuple):
    """What the leader weighs of a node."""

    weight: int
    store_reachable: bool = True


def wish_for(nodes: Mapping[str, Candidate], current: Sequence[str]) -> tuple[str, ...]:
    """The leader's wish.

    A node without the journal owns nothing while another has it; if nobody can own anything, the wish stays.
    """
    weights = {node: one.weight for node, one in nodes.items() if one.weight > 0}
    reaching = {node: weight for node, weight in weights.items() if nodes[node].store_reachable}
    if not weights:
        return tuple(current)
    return place(reaching or weights, current)
