"""What other nodes have of the sessions that live here: pins, and open tasks (SES-4, CLU-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import grpc

from agentreach.internal.v1 import peer_pb2
from reach.core.model import PoolKey
from reach.core.placement import shard_of
from reach.core.session import SessionName
from reach.errors import ReachError
from reach.rpc.peer_messages import Unreachable, unavailable
from reach.runtime.ownership import NOBODY
from reach.runtime.session_views import Parts, PinView

if TYPE_CHECKING:
    from reach.rpc.peers import Peers
    from reach.runtime.ownership import Peer
    from reach.runtime.session_views import SessionViews

SECONDS: Final = 5.0
"""How long a node may take."""


class FarSessions:
    """Asks all other nodes (`runtime.session_views.FarSessions`)."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def parts(self, names: Sequence[SessionName], *, forget: bool = False) -> Parts:
        """See FarSessions."""
        request = peer_pb2.TellSessionsRequest(forget=forget)
        for tenant, session in names:
            request.names.add(tenant=tenant, session=session)
        self._peers.check_whole()
        answers = await asyncio.gather(*(self._ask(peer, request) for peer in self._peers.owners.others()))
        found = Parts({}, set(), [])
        for answer in answers:
            found.lasts.append(answer.last_row)
            for part in answer.parts:
                name = (part.name.tenant, part.name.session)
                pins = [PinView(PoolKey(pin.owner, pin.pool), pin.instance_id, pin.handoffs) for pin in part.pins]
                found.pins.setdefault(name, []).extend(pins)
                if part.busy:
                    found.busy.add(name)
        return found

    async def pinned(self, name: SessionName, pools: Sequence[PoolKey]) -> frozenset[PoolKey]:
        """In which of these pools a session is pinned, as far as their owners say (`runtime.far_pins.Ask`)."""
        owners = {self._peers.owners.node_of(shard_of(pool)) for pool in pools} - {None, NOBODY}
        tenant, session = name
        request = peer_pb2.TellSessionsRequest(names=[peer_pb2.SessionName(tenant=tenant, session=session)])
        asked = (self._ask(owner, request) for owner in owners if owner is not None)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        parts = (part for answer in answers if not isinstance(answer, BaseException) for part in answer.parts)
        return frozenset(PoolKey(pin.owner, pin.pool) for part in parts for pin in part.pins).intersection(pools)

    async def busy(self, names: Sequence[SessionName]) -> set[SessionName]:
        """Which of these have open tasks elsewhere."""
        return (await self.parts(names)).busy

    async def _ask(self, peer: Peer, request: peer_pb2.TellSessionsRequest) -> peer_pb2.TellSessionsResponse:
        try:
            connection = self._peers.connection(peer)
        except Unreachable as failure:
            raise unavailable(f"node {peer.node_id!r}: {failure}") from None
        try:
            call = connection.stub.TellSessions(request, metadata=self._peers.proof(peer), timeout=SECONDS)
            answer: peer_pb2.TellSessionsResponse = await call
        except grpc.aio.AioRpcError as failure:
            error = self._peers.failed(connection, failure)
            raise error if isinstance(error, ReachError) else unavailable(str(error)) from None
        return answer


async def tell(views: SessionViews, request: peer_pb2.TellSessionsRequest) -> peer_pb2.TellSessionsResponse:
    """What this node has of sessions of another one."""
    names = [(one.tenant, one.session) for one in request.names]
    parts = await views.parts_here(names, forget=request.forget)
    answer = peer_pb2.TellSessionsResponse(last_row=parts.lasts[0])
    for name in parts.pins.keys() | parts.busy:
        part = answer.parts.add(busy=name in parts.busy)
        part.name.tenant, part.name.session = name
        for pin in parts.pins.get(name, ()):
            part.pins.add(
                pool=pin.pool.agent_type, owner=pin.pool.tenant, instance_id=pin.instance_id, handoffs=pin.handoffs
            )
    return answer
