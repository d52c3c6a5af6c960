"""Which shard holds what: the same on every node, for ever."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from reach.core.model import PoolKey
from reach.core.session import SessionName

SHARDS = 64
KEPT = 16_384
"""Sessions whose shard is remembered: it is asked for several times per task."""


def shard_of(key: PoolKey) -> int:
    """The shard of a pool."""
    return _shard(f"{key.tenant}\0{key.agent_type}\0{key.partition}")


@lru_cache(KEPT)
def shard_of_session(name: SessionName) -> int:
    """The shard of a session's context; its pins are with the pools."""
    return _shard(f"session\0{name[0]}\0{name[1]}")


def _shard(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % SHARDS
