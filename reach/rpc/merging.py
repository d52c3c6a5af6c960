"""One answer made of those of several nodes."""

from __future__ import annotations

from typing import Final

from agentreach.v1 import ops_pb2, registry_pb2, session_pb2
from reach.rpc import session
from reach.rpc.registry import PAGE, PAGE_BYTES, read_token, token_of
from reach.runtime.session_views import Place
from reach.wire.requests import session_name

UNKNOWN_OWNER: Final = "f" * 12
"""In a token, in place of the owner of an instance: behind all that have the same id."""


def merged_drains(request: registry_pb2.DrainRequest, answers: list[bytes]) -> registry_pb2.DrainResponse:
    """All instances that are drained."""
    parts = map(registry_pb2.DrainResponse.FromString, answers)
    return registry_pb2.DrainResponse(instance_ids=sorted(one for part in parts for one in part.instance_ids))


def merged_agents(request: registry_pb2.ListAgentsRequest, answers: list[bytes]) -> registry_pb2.ListAgentsResponse:
    """A page of agents, by id. Behind the last one of a node that has more, nothing is known yet."""
    parts = [registry_pb2.ListAgentsResponse.FromString(answer) for answer in answers]
    known_to = min((read_token(part.next_page_token)[0] for part in parts if part.next_page_token), default=None)
    rows = sorted((one for part in parts for one in part.agents), key=lambda one: one.registration.instance_id)
    if known_to is not None:
        rows = [one for one in rows if one.registration.instance_id <= known_to]
    answer = registry_pb2.ListAgentsResponse()
    size, last = 0, ""
    for one in rows:
        full = len(answer.agents) >= (request.page_size or PAGE) or size > PAGE_BYTES
        if full and one.registration.instance_id != last:  # those of one id are told together
            known_to = last
            break
        answer.agents.append(one)
        size += one.ByteSize()
        last = one.registration.instance_id
    if known_to is not None:
        answer.next_page_token = token_of((known_to, UNKNOWN_OWNER))
    return answer


def merged_sessions(request: session_pb2.ListSessionsRequest, answers: list[bytes]) -> session_pb2.ListSessionsResponse:
    """A page of sessions, those that were used last first. Behind the last one of a node that has more, nothing is
    known yet."""
    parts = [session_pb2.ListSessionsResponse.FromString(answer) for answer in answers]
    ends = [session.read_place(part.next_page_token) for part in parts if part.next_page_token]
    known_to = max((end for end in ends if end is not None), default=None)
    rows = sorted(((_place(one), one) for part in parts for one in part.sessions), key=lambda row: row[0], reverse=True)
    known = [row for row in rows if known_to is None or row[0] >= known_to]
    size = request.page_size or session.PAGE
    answer = session_pb2.ListSessionsResponse()
    answer.sessions.extend(one for _, one in known[:size])
    if len(known) > size:
        known_to = known[size - 1][0]
    if known_to is not None:
        answer.next_page_token = session.token_of(known_to)
    return answer


def _place(one: session_pb2.Session) -> Place:
    return one.last_used_at.ToMilliseconds(), session_name(one.key)


def add_info(answer: ops_pb2.GetServerInfoResponse, other: bytes) -> None:
    """Counts what another node has."""
    part = ops_pb2.GetServerInfoResponse.FromString(other)
    answer.agents += part.agents
    answer.open_tasks += part.open_tasks
