"""What nodes say to each other about who and where, and that there is no answer."""

from __future__ import annotations

from typing import Any

from agentreach.internal.v1 import peer_pb2
from reach.core.model import PoolKey
from reach.core.spread import TRIED, Placing
from reach.errors import Reason, Unavailable
from reach.rpc.principal import Principal
from reach.runtime.faults import fault_of
from reach.wire.answers import fill_error
from reach.wire.status import error_from_proto


class Unreachable(Exception):
    """A node cannot be asked now; whether it did what was asked is not known. Somebody else may own it soon."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


def identity_of(principal: Principal) -> peer_pb2.Identity:
    """A principal, for another node."""
    return peer_pb2.Identity(
        tenant=principal.tenant,
        app_id=principal.app_id,
        scopes=sorted(principal.scopes),
        key_id=principal.key_id,
        agent_types=sorted(principal.agent_types),
    )


def principal_from(identity: peer_pb2.Identity) -> Principal:
    """Somebody whom another node knows. Whether the key still holds, that node watches."""
    scopes, types = frozenset(identity.scopes), frozenset(identity.agent_types)
    return Principal(identity.tenant, identity.app_id, scopes, identity.key_id, agent_types=types)


def pool_key(name: peer_pb2.PoolName) -> PoolKey:
    """A pool by its name."""
    return PoolKey(name.tenant, name.agent_type, name.partition)


def pool_name(key: PoolKey | None) -> peer_pb2.PoolName | None:
    """The name of a pool."""
    if key is None:
        return None
    return peer_pb2.PoolName(tenant=key.tenant, agent_type=key.agent_type, partition=key.partition)


def spill_of(placing: Placing | None) -> peer_pb2.Spill | None:
    """How far a task has come that could go to several pools; None: it goes to one."""
    if placing is None or not placing.others:
        return None
    spill = peer_pb2.Spill()
    for tenant, agent_type, partition in placing.full:
        spill.full.add(tenant=tenant, agent_type=agent_type, partition=partition)
    if placing.fault is not None:
        fill_error(spill.refusal, placing.fault)
    return spill


def placing_from(message: Any, *, brought: bool) -> Placing | None:
    """Where another node has placed a task, or that it has no place for it (`ChannelData`, `CallRequest` and
    `CallResponse` say it alike). `brought`: that node chooses."""
    pool = pool_key(message.pool) if message.HasField("pool") else None
    if not message.HasField("spill"):
        return Placing(pool, brought) if pool is not None else None
    spill = message.spill
    fault = fault_of(error_from_proto(spill.refusal)) if spill.HasField("refusal") else None
    return Placing(pool, brought, brought, tuple(pool_key(name) for name in spill.full[:TRIED]), fault)


def unavailable(why: str) -> Unavailable:
    """What a client gets when the owner of what it asks for cannot be found."""
    message = f"the node that has it cannot be reached: {why}"
    return Unavailable(message, Reason.OWNER_UNAVAILABLE, retry_after_ms=500)
