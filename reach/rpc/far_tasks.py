"""How tasks of a list stand that go on at other nodes (DLV-12, CLU-1): each owner is asked once for a page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import task_pb2
from reach.rpc.peer_messages import Unreachable
from reach.runtime.ownership import NOBODY, Peer
from reach.wire.answers import fill_task
from reach.wire.pages import PAGE_BYTES

if TYPE_CHECKING:
    from reach.rpc.peers import Peers
    from reach.runtime.task_views import TaskViews

SECONDS: Final = 1.0
"""How long a node may take. What it does not tell is shown as the journal has it, so nobody waits for long."""


class FarTasks(NamedTuple):
    """What other nodes tell."""

    tasks: dict[str, task_pb2.Task]
    """By id, without specs."""
    lost: list[str]
    """Nodes that did not answer."""


async def ask(peers: Peers, tenant: str, tasks: Mapping[Peer, Sequence[str]], *, full: bool) -> FarTasks:
    """Asks owners how their tasks stand.

    Args:
        peers: The other nodes.
        tenant: Whose tasks.
        tasks: Which, by owner.
        full: With payloads.
    """
    owners = [peer for peer in tasks if peer != NOBODY]
    asked = (_ask(peers, peer, peer_pb2.TellTasksRequest(tenant=tenant, task_ids=tasks[peer], full=full))
             for peer in owners)  # fmt: skip
    found = FarTasks({}, [])
    for peer, told in zip(owners, await asyncio.gather(*asked), strict=True):
        if told is None:
            found.lost.append(peer.node_id)
        else:
            found.tasks.update((task.spec.task_id, task) for task in told.tasks)
    return found


async def _ask(peers: Peers, peer: Peer, request: peer_pb2.TellTasksRequest) -> peer_pb2.TellTasksResponse | None:
    """What a node answers; None: nothing."""
    try:
        connection = peers.connection(peer)
    except Unreachable:
        return None
    try:
        call = connection.stub.TellTasks(request, metadata=peers.proof(peer), timeout=SECONDS)
        answer: peer_pb2.TellTasksResponse = await call
    except grpc.aio.AioRpcError as failure:
        if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
            return peer_pb2.TellTasksResponse()  # it is of a version that does not tell
        peers.failed(connection, failure)
        return None
    return answer


async def tell(views: TaskViews, request: peer_pb2.TellTasksRequest) -> peer_pb2.TellTasksResponse:
    """What this node answers."""
    answer, size = peer_pb2.TellTasksResponse(), 0
    for task in await views.here(request.tenant, request.task_ids):
        message = answer.tasks.add()
        fill_task(message, task, full=request.full)
        message.spec.Clear()
        message.spec.task_id = task.task_id
        size += message.ByteSize()
        if size > PAGE_BYTES:
            break
    return answer
