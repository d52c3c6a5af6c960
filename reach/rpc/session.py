"""SessionService: what is known of conversations, and how to forget one."""

from __future__ import annotations

import re
from typing import Any, Final

from agentreach.v1 import session_pb2, session_pb2_grpc
from reach.core.placement import shard_of_session
from reach.rpc.principal import principal_of
from reach.rpc.services import Services
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.session_views import Place, SessionView
from reach.wire.answers import timestamp
from reach.wire.requests import check_id, invalid, session_name, session_part
from reach.wire.sessions import session_message

PAGE = 100
MAX_PAGE = 1_000
_USED: Final = re.compile(r"-?[0-9]{1,18}")
"""When a session was used last, in a token."""


class SessionServicer(session_pb2_grpc.SessionServiceServicer):
    """See the contract."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sessions = services.reach.sessions

    async def GetSession(self, request: session_pb2.GetSessionRequest, context: Any) -> session_pb2.GetSessionResponse:
        """See the contract."""
        tenant = principal_of(context).tenant
        session = session_name(request.key)
        self._check_here(tenant, session)
        view = await self._sessions.get(tenant, session)
        return session_pb2.GetSessionResponse(session=self._message(tenant, view, full=True))

    async def ListSessions(
        self, request: session_pb2.ListSessionsRequest, context: Any
    ) -> session_pb2.ListSessionsResponse:
        """See the contract."""
        size = request.page_size or PAGE
        if size > MAX_PAGE:
            raise invalid("page_size", f"must be 1 … {MAX_PAGE}")
        if request.user_id and not request.app_id:
            raise invalid("user_id", "needs app_id: two applications may have users of one name")
        parts = [session_part(name, getattr(request, name)) for name in ("app_id", "user_id") if getattr(request, name)]
        prefix = "".join(f"{part}:" for part in parts)
        tenant = principal_of(context).tenant
        views, place = await self._sessions.page(tenant, prefix, size, read_place(request.page_token))
        answer = session_pb2.ListSessionsResponse()
        answer.sessions.extend(self._message(tenant, view, full=False) for view in views)
        if place is not None:
            answer.next_page_token = token_of(place)
        return answer

    async def DeleteSession(
        self, request: session_pb2.DeleteSessionRequest, context: Any
    ) -> session_pb2.DeleteSessionResponse:
        """See the contract."""
        session = session_name(request.key)
        self._check_here(principal_of(context).tenant, session)
        await self._services.reach.patience.over()
        self._check_here(principal_of(context).tenant, session)
        self._services.reach.check_store()
        await self._sessions.delete(principal_of(context).tenant, session)
        return session_pb2.DeleteSessionResponse()

    def _check_here(self, tenant: str, session: str) -> None:
        """Raises Elsewhere for a session whose context another node keeps."""
        peer = self._services.host.owners.node_of(shard_of_session((tenant, session)))
        if peer is not None:
            raise Elsewhere(peer)

    def _message(self, tenant: str, view: SessionView, *, full: bool) -> session_pb2.Session:
        message = session_message(view.context, self._services.clock.now_ms(), full=full)
        message.last_used_at.CopyFrom(timestamp(view.used_wall_ms))
        for pin in sorted(view.pins):
            message.pins.add(
                pool=pin.pool.agent_type,
                instance_id=pin.instance_id,
                handoffs=pin.handoffs,
                owner=pin.pool.tenant if pin.pool.tenant != tenant else "",
            )
        return message


def token_of(place: Place) -> str:
    """Where a page ends, for the next one."""
    return f"{place[0]} {place[1]}"


def read_place(token: str) -> Place | None:
    """Where the page begins that a token names."""
    if not token:
        return None
    used, _, session = check_id("page_token", token, most=4 << 10).partition(" ")
    if not session or not _USED.fullmatch(used):
        raise invalid("page_token", "is none of ours: begin without one")
    return int(used), session
