"""PeerService: what this node does for clients of other nodes. It trusts whoever knows the secret of the cluster."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from agentreach.internal.v1 import peer_pb2, peer_pb2_grpc
from reach.errors import InvalidRequest, Reason
from reach.rpc import far_tasks, peer_version
from reach.rpc.access import TABLE
from reach.rpc.far_sessions import tell
from reach.rpc.link_end import LinkEnd
from reach.rpc.peer_messages import placing_from, pool_name, principal_from, spill_of, unavailable
from reach.rpc.peer_secret import KEY
from reach.rpc.peers import Peers
from reach.rpc.pings import Pings
from reach.rpc.principal import set_principal
from reach.rpc.proxy import MERGED, placed_in
from reach.rpc.services import Services
from reach.runtime.elsewhere import Elsewhere
from reach.telemetry.tracing import set_current_trace

log = logging.getLogger(__name__)

SENT = frozenset({KEY, peer_version.KEY})


class Behaviour(NamedTuple):
    """A method of the contract, as its servicer has it."""

    act: Callable[[Any, Any], Any]
    request: Any
    """The class of its message."""
    response: Any
    """The descriptor of what it answers with."""
    streams: bool
    """It answers with several messages."""


def behaviours(servicers: Mapping[FileDescriptor, Any]) -> dict[str, Behaviour]:
    """All methods with one request, by full name."""
    return {
        f"/{service.full_name}/{method.name}": Behaviour(
            getattr(servicer, method.name),
            GetMessageClass(method.input_type),
            method.output_type,
            method.server_streaming,
        )
        for descriptor, servicer in servicers.items()
        for service in descriptor.services_by_name.values()
        for method in service.methods
        if not method.client_streaming
    }


class _Context:
    """What a servicer may ask of a call that another node brought."""

    def __init__(self, context: Any) -> None:
        self.time_remaining = context.time_remaining


class PeerServicer(peer_pb2_grpc.PeerServiceServicer):
    """See the module."""

    def __init__(self, services: Services, peers: Peers, methods: Mapping[str, Behaviour], pings: Pings) -> None:
        self._services = services
        self._pings = pings
        self._peers = peers
        self._methods = methods

    def _check(self, context: Any) -> str:
        """The node that calls. Raises InvalidRequest."""
        sent = {key: str(value) for key, value in context.invocation_metadata() or () if key in SENT}
        if KEY not in sent:
            raise InvalidRequest("this is for nodes of this cluster", Reason.UNAUTHENTICATED)
        node_id = self._peers.secret.check(sent[KEY])
        peer_version.check(sent.get(peer_version.KEY, ""))
        return node_id

    async def Link(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """See the contract."""
        node_id = self._check(context)
        await LinkEnd(self._services, self._peers, self._pings, node_id).serve(context)

    async def Call(self, request: peer_pb2.CallRequest, context: Any) -> AsyncIterator[peer_pb2.CallResponse]:
        """See the contract."""
        self._check(context)
        behaviour, access = self._methods.get(request.method), TABLE.get(request.method)
        if behaviour is None or access is None:
            raise InvalidRequest("there is no such method", Reason.NOT_IMPLEMENTED)
        principal = principal_from(request.identity)
        if access.scopes.isdisjoint(principal.scopes):
            raise InvalidRequest("this call needs other scopes", Reason.PERMISSION_DENIED)
        set_principal(principal)
        set_current_trace(self._services.tracing.accept(request.traceparent))
        placing = placing_from(request, brought=True)
        if request.method in MERGED and not self._services.host.is_whole():
            raise unavailable("shards are on their way to this node: its part would lack what they hold")
        try:
            message = behaviour.request.FromString(request.request)
        except DecodeError:
            raise InvalidRequest("the message could not be decoded", Reason.MALFORMED_MESSAGE) from None
        try:
            with placed_in(placing):
                if behaviour.streams:
                    async with aclosing(behaviour.act(message, _Context(context))) as answers:
                        async for answer in answers:
                            yield peer_pb2.CallResponse(message=answer.SerializeToString())
                else:
                    answer = await behaviour.act(message, _Context(context))
                    yield peer_pb2.CallResponse(message=answer.SerializeToString())
        except Elsewhere as where:
            spill = spill_of(where.placing)
            yield peer_pb2.CallResponse(misplaced=True, pool=pool_name(where.pool), spill=spill)

    async def TellSessions(self, request: peer_pb2.TellSessionsRequest, context: Any) -> peer_pb2.TellSessionsResponse:
        """See the contract."""
        self._check(context)
        return await tell(self._services.reach.sessions, request)

    async def TellTasks(self, request: peer_pb2.TellTasksRequest, context: Any) -> peer_pb2.TellTasksResponse:
        """See the contract."""
        self._check(context)
        return await far_tasks.tell(self._services.reach.tasks, request)

    async def Locate(self, request: peer_pb2.LocateRequest, context: Any) -> peer_pb2.LocateResponse:
        """See the contract."""
        self._check(context)
        host = self._services.host
        task = host.tasks.get((request.tenant, request.task_id))
        if request.came and task is None:
            host.departures.look()
        return peer_pb2.LocateResponse(here=task is not None)
