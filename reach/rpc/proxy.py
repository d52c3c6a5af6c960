"""Calls that another node has to do: made here again as soon as it turns out, at most one hop away (CLU-1).

The call runs here first, for this node reads, checks and places what it is asked for. If it is not at home here, the
same message goes to the owner. When the owner says that it is not at home there either, or does not answer, ownership
is about to change: the call runs here again after a while, and finds the new owner, or this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any, Final

from agentreach.internal.v1 import peer_pb2
from agentreach.v1 import result_pb2
from reach.core.spread import Placing
from reach.errors import InvalidRequest, Reason, Unavailable
from reach.rpc.merged_watches import AgentMerge, TaskMerge
from reach.rpc.merging import add_info, merged_agents, merged_drains, merged_sessions
from reach.rpc.peer_messages import Unreachable, identity_of, pool_name, spill_of, unavailable
from reach.rpc.peers import Peers
from reach.rpc.principal import principal_of
from reach.rpc.watches import FanIn, Merge, StartAnew
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import Peer
from reach.telemetry.tracing import current_trace

PATIENCE_S: Final = 5.0
"""How long a call waits for an owner that can be reached and has a place for it: longer than it takes to move the
shards of a node that died (CLU-3), or that was asked to stop. Never longer than the call itself."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5

MERGED: Final[Mapping[str, tuple[Callable[[Any], bool], Callable[[Any, list[bytes]], Any]]]] = {
    "/agentreach.v1.RegistryService/ListAgents": (lambda request: True, merged_agents),
    "/agentreach.v1.RegistryService/Drain": (lambda request: not request.instance_id, merged_drains),
    "/agentreach.v1.SessionService/ListSessions": (lambda request: True, merged_sessions),
}
"""Calls that each node answers for its part: whether a request is one, and what makes one answer of several."""

STREAM_RESULT: Final = "/agentreach.v1.ResultService/StreamResult"
EVENTS: Final = frozenset({STREAM_RESULT, "/agentreach.v1.DispatchService/Run"})
"""Streams of the events of one task: their frames are the same on the wire."""
WATCHES: Final[Mapping[str, Callable[[Any, str, list[str]], Merge]]] = {
    "/agentreach.v1.OpsService/WatchTasks": TaskMerge,
    "/agentreach.v1.RegistryService/WatchAgents": AgentMerge,
}
"""The same for streams."""
INFO: Final = "/agentreach.v1.OpsService/GetServerInfo"
"""Told of all nodes that answer at once: it is also how one asks whether a node is there."""
INFO_SECONDS: Final = 1.0

_placed: Final[ContextVar[Placing | None]] = ContextVar("reach_placed", default=None)
placed: Final = _placed.get
"""Where the call which is being handled was brought to, and where it was before; None if all is to be chosen."""


@contextmanager
def placed_in(placing: Placing | None) -> Iterator[None]:
    """Handles a call whose pool is chosen, or is not to be one that was full."""
    token = _placed.set(placing)
    try:
        yield
    finally:
        _placed.reset(token)


def is_full(failure: Exception) -> bool:
    """Whether the pool that was chosen is full, and the next one is to be."""
    return isinstance(failure, Elsewhere) and failure.pool is None and failure.placing is not None


class _Turns:
    """How often, and until when, a call is tried."""

    def __init__(self, context: Any) -> None:
        self._loop = asyncio.get_running_loop()
        left = context.time_remaining()
        patience = PATIENCE_S if left is None else min(PATIENCE_S, max(0.0, left - 0.1))
        self._until = self._loop.time() + patience
        self._pause_s = FIRST_PAUSE_S
        self._led_on = False

    async def next(self, failure: Elsewhere | Unreachable | Unavailable) -> None:
        """Waits for the next try. Raises Unavailable if there is none."""
        if is_full(failure):
            return  # there is another pool; how many were tried, it says itself
        if isinstance(failure, Elsewhere) and failure.pool is not None and not self._led_on:
            self._led_on = True
            return  # it says where to go
        if self._loop.time() + self._pause_s > self._until:
            raise unavailable("it is changing hands" if isinstance(failure, Elsewhere) else str(failure))
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)


class Proxy:
    """Wraps the behaviour of methods so that what is not at home here is done where it is.

    Args:
        peers: The other nodes.
        stream_result: The behaviour of StreamResult on this node.
    """

    def __init__(self, peers: Peers, stream_result: Callable[..., Any]) -> None:
        self._peers = peers
        self._stream_result = stream_result

    def unary(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """For methods with one request and one response. What changes hands while it waits is asked for again."""

        async def anywhere(request: Any, context: Any) -> Any:
            turns: _Turns | None = None
            placing: Placing | None = None
            while True:
                try:
                    with placed_in(placing):
                        return await behaviour(request, context)
                except Elsewhere as found:
                    where = found
                except Unavailable as error:
                    if error.reason is not Reason.OWNER_UNAVAILABLE:
                        raise
                    turns = turns or _Turns(context)
                    placing = None
                    await turns.next(Unreachable(error.message))
                    continue
                turns = turns or _Turns(context)
                try:
                    async with aclosing(self._ask(method, request, context, where)) as answers:
                        async for answer in answers:
                            return answer
                    raise unavailable("there was no answer")
                except (Elsewhere, Unreachable) as failed:
                    failure = failed
                placing = failure.placing if isinstance(failure, Elsewhere) else None
                await turns.next(failure)

        async def anybody(request: Any, context: Any) -> Any:
            try:
                return await anywhere(request, context)
            except InvalidRequest as error:
                if error.reason is not Reason.AGENT_NOT_FOUND:
                    raise
                return await self._who_knows(method, request, context, error)

        if method == INFO:
            return self._info(method, behaviour)
        return self._everywhere(method, behaviour, anybody) if method in MERGED else anybody

    async def _who_knows(self, method: str, request: Any, context: Any, unknown: InvalidRequest) -> Any:
        """About an instance that this node does not know: the others may, for they hear of each other's a moment
        late."""
        lacking: Exception | None = None
        for peer in self._peers.owners.others():
            try:
                async with aclosing(self._ask(method, request, context, Elsewhere(peer))) as answers:
                    async for answer in answers:
                        return answer
            except InvalidRequest as error:
                if error.reason is not Reason.AGENT_NOT_FOUND:
                    raise
            except Elsewhere:
                pass  # it only knows whose it was
            except Unreachable as failure:
                lacking = failure
        if lacking is not None:
            raise unavailable(str(lacking)) from None
        raise unknown

    def _info(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """What this node is, and what all that answer have together."""

        async def info(request: Any, context: Any) -> Any:
            answer = await behaviour(request, context)
            peers = list(self._peers.owners.others())
            asked = (asyncio.wait_for(self._there(method, one, request, context), INFO_SECONDS) for one in peers)
            for peer, part in zip(peers, await asyncio.gather(*asked, return_exceptions=True), strict=True):
                if isinstance(part, bytes):
                    add_info(answer, part)
                else:
                    answer.lost_nodes.append(peer.node_id)
            return answer

        return info

    def _everywhere(
        self, method: str, behaviour: Callable[..., Any], anywhere: Callable[..., Any]
    ) -> Callable[..., Any]:
        """For what each node has its part of. A part that is missing is told, not left out."""
        applies, merge = MERGED[method]

        async def everywhere(request: Any, context: Any) -> Any:
            if not applies(request):
                return await anywhere(request, context)
            turns = _Turns(context)
            while True:
                try:
                    return merge(request, await self._parts(method, behaviour, request, context))
                except Unavailable as error:
                    if error.reason is not Reason.OWNER_UNAVAILABLE:
                        raise
                    await turns.next(error)

        return everywhere

    async def _parts(self, method: str, behaviour: Callable[..., Any], request: Any, context: Any) -> list[bytes]:
        """What each node answers."""
        self._peers.check_whole()
        asked = [self._here(behaviour, request, context)]
        asked += [self._there(method, peer, request, context) for peer in self._peers.owners.others()]
        parts: list[bytes] = []
        lacking = None
        for part in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(part, InvalidRequest) and part.reason is Reason.AGENT_NOT_FOUND:
                lacking = part
            elif isinstance(part, BaseException):
                raise part
            else:
                parts.append(part)
        if lacking is not None and not parts:
            raise lacking
        return parts

    @staticmethod
    async def _here(behaviour: Callable[..., Any], request: Any, context: Any) -> bytes:
        answer: bytes = (await behaviour(request, context)).SerializeToString()
        return answer

    async def _there(self, method: str, peer: Peer, request: Any, context: Any) -> bytes:
        try:
            async with aclosing(self._ask(method, request, context, Elsewhere(peer))) as answers:
                async for answer in answers:
                    return answer
        except Elsewhere:
            raise unavailable(f"node {peer.node_id!r} has no place for it") from None
        except Unreachable as failure:
            raise unavailable(str(failure)) from None
        raise unavailable("there was no answer")

    def streaming(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """For methods with one request and many responses. A stream of events whose task changes hands goes on behind
        what it has said; any other one breaks."""
        if method in WATCHES:
            return self._watch(method, behaviour)

        async def anywhere(request: Any, context: Any) -> AsyncIterator[Any]:
            turns, placing = _Turns(context), None
            said: Any = None
            name, act, where = method, behaviour, None
            responses: AsyncGenerator[Any, None]
            while True:
                responses = act(request, context) if where is None else self._ask(name, request, context, where)
                try:
                    with placed_in(placing):  # the steps of a generator run in the context of whoever asks for them
                        async with aclosing(responses):
                            async for said in responses:
                                own = act is behaviour or isinstance(said, bytes)
                                yield said if own else said.SerializeToString()
                    return
                except (Elsewhere, Unreachable) as failed:
                    failure = failed
                except Unavailable as error:
                    if error.reason is not Reason.OWNER_UNAVAILABLE:
                        raise
                    failure = Unreachable(error.message)
                if said is not None:
                    request = self._rest(method, said, failure)
                    name, act, said, turns = STREAM_RESULT, self._stream_result, None, _Turns(context)
                if where is None and isinstance(failure, Elsewhere):
                    where = failure
                    continue
                where, placing = None, failure.placing if isinstance(failure, Elsewhere) else None
                await turns.next(failure)

        return anywhere

    def _rest(self, method: str, said: Any, failure: Exception) -> result_pb2.StreamResultRequest:
        """What asks for the events behind a frame. Raises Unavailable for what cannot be taken up again."""
        if method not in EVENTS:
            raise unavailable(str(failure)) from None
        frame = result_pb2.StreamResultResponse.FromString(said) if isinstance(said, bytes) else said
        last = frame.events[-1]
        return result_pb2.StreamResultRequest(task_id=last.task_id, after_sequence=last.sequence)

    def _watch(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        """For what each node tells of its part, for as long as somebody listens."""
        peers = self._peers

        async def everywhere(request: Any, context: Any) -> AsyncIterator[Any]:
            while True:
                merge = WATCHES[method](request, peers.services.node_id, [one.node_id for one in peers.owners.others()])
                fan = FanIn(
                    peers.owners,
                    lambda asked: behaviour(asked, context),
                    lambda asked, where: self._ask(method, asked, context, where),
                    merge,
                )
                try:
                    async with aclosing(fan.messages()) as messages:
                        async for message in messages:
                            yield message
                except StartAnew:
                    request = type(request)(filter=request.filter)

        return everywhere

    def _ask(self, method: str, request: Any, context: Any, where: Elsewhere) -> AsyncGenerator[bytes, None]:
        trace, principal = current_trace(), principal_of(context)
        call = peer_pb2.CallRequest(
            method=method,
            identity=identity_of(principal),
            traceparent=trace.traceparent,
            pool=pool_name(where.pool),
            spill=spill_of(where.placing),
            request=request.SerializeToString(),
        )
        return self._peers.call(where.peer, call, context.time_remaining(), principal)
