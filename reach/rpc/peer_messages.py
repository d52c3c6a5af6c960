"""What nodes say to each other about who and where, and that there is no answer."""

from __future__ import annotations

from agentreach.internal.v1 import peer_pb2
from reach.core.model import PoolKey
from reach.errors import Reason, Unavailable
from reach.rpc.principal import Principal


class Unreachable(Exception):
    """A node cannot be asked now; whether it did what was asked is not known. Somebody else may own it soon."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


def identity_of(principal: Principal) -> peer_pb2.Identity:
    """A principal, for another node."""
    return peer_pb2.Identity(
        tenant=principal.tenant, app_id=principal.app_id, scopes=sorted(principal.scopes), key_id=principal.key_id
    )


def principal_from(identity: peer_pb2.Identity) -> Principal:
    """Somebody whom another node knows. Whether the key still holds, that node watches."""
    return Principal(identity.tenant, identity.app_id, frozenset(identity.scopes), identity.key_id)


def pool_key(name: peer_pb2.PoolName) -> PoolKey:
    """A pool by its name."""
    return PoolKey(name.tenant, name.agent_type, name.partition)


def pool_name(key: PoolKey | None) -> peer_pb2.PoolName | None:
    """The name of a pool."""
    if key is None:
        return None
    return peer_pb2.PoolName(tenant=key.tenant, agent_type=key.agent_type, partition=key.partition)


def unavailable(why: str) -> Unavailable:
    """What a client gets when the owner of what it asks for cannot be found."""
    message = f"the node that has it cannot be reached: {why}"
    return Unavailable(message, Reason.OWNER_UNAVAILABLE, retry_after_ms=500)
