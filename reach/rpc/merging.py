"""One answer made of those of several nodes."""

from __future__ import annotations

from typing import Final

from agentreach.v1 import registry_pb2
from reach.rpc.registry import PAGE, PAGE_BYTES, read_token, token_of

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
