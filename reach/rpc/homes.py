"""Sessions over nodes, on the links that nodes have: contexts are asked for, turns are brought (SES-3, CLU-1).

What is asked on a link that breaks, or of a node that loses the session's shard meanwhile, is answered as lost: whoever
asked finds the new home and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentreach.internal.v1 import peer_pb2
from reach.core.homes import Accepted
from reach.core.placement import shard_of_session
from reach.core.rows import OutboxDone
from reach.core.session import TURN, SessionName
from reach.rpc.peer_messages import Unreachable
from reach.runtime.homeward import Brought, Told
from reach.wire.batcher import Batcher

if TYPE_CHECKING:
    from reach.rpc.peers import Peers
    from reach.rpc.services import Services
    from reach.runtime.host import Host
    from reach.runtime.ownership import Peer

log = logging.getLogger(__name__)

ASKED: Final = 100_000
"""Questions that are open on one link."""


class _Open(NamedTuple):
    """A question that is not answered."""

    shard: int
    """Of the session."""
    answer: Callable[[Any], None]
    none: Any
    """The answer when there is none."""
    more: bool = False
    """It is heard first, and kept later."""


class HomeCalls:
    """What is asked on one link."""

    __slots__ = ("_last", "_open", "_out")

    def __init__(self, out: Batcher) -> None:
        self._out = out
        self._open: dict[int, _Open] = {}
        self._last = 0

    def ask(self, kind: str, fields: dict[str, Any], question: _Open) -> None:
        """Asks. Raises Unreachable if too much is asked already."""
        if len(self._open) >= ASKED:
            raise Unreachable("it does not answer what it is asked already")
        self._last += 1
        self._open[self._last] = question
        request = peer_pb2.LinkRequest()
        getattr(request, kind).add(number=self._last, **fields)
        self._out.put(request.SerializeToString())

    def received(self, frame: peer_pb2.LinkResponse) -> None:
        """Answers came."""
        for context in frame.contexts:
            question = self._open.pop(context.number, None)
            if question is not None:
                question.answer(context.context if context.HasField("context") else None)
        for turn in frame.turns:
            state = Told(turn.state)
            question = self._open.get(turn.number)
            if question is not None:
                if state is not Told.HEARD or not question.more:
                    del self._open[turn.number]
                question.answer(state)

    def moved(self, shard: int) -> None:
        """A shard has another owner."""
        for number in [number for number, one in self._open.items() if one.shard == shard]:
            self._lose(self._open.pop(number))

    def broken(self) -> None:
        """The link is no more."""
        open_, self._open = self._open, {}
        for question in open_.values():
            self._lose(question)

    @staticmethod
    def _lose(question: _Open) -> None:
        try:
            question.answer(question.none)
        except Exception:
            log.exception("a question about a session was lost; please report this")


class FarHomes:
    """The homes on other nodes (`runtime.homeward.FarHomes`)."""

    def __init__(self, peers: Peers, host: Host) -> None:
        self._peers = peers
        self._clock = host.clock
        self._loop = asyncio.get_running_loop()

    def context(self, peer: Peer, name: SessionName, accepted: Accepted, ttl_ms: int | None,
                told: Callable[[bytes | None], None]) -> None:  # fmt: skip
        """See FarHomes."""
        fields = self._fields(name, accepted, ttl_ms)
        self._ask(peer, "contexts", fields, _Open(shard_of_session(name), told, None))

    def turn(self, peer: Peer, turn: Brought, told: Callable[[Told], None]) -> None:
        """See FarHomes."""
        fields = self._fields(turn.name, turn.accepted, turn.ttl_ms)
        fields |= {"task_id": turn.task_id, "content": turn.content}
        if turn.fact is not None:
            fields |= {"shard": turn.fact.shard, "key": turn.fact.key}
        question = _Open(shard_of_session(turn.name), told, Told.LOST, more=turn.fact is not None)
        self._ask(peer, "turns", fields, question)

    def _fields(self, name: SessionName, accepted: Accepted, ttl_ms: int | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"tenant": name[0], "session": name[1], "row": max(0, accepted.row)}
        if accepted.at_ms:
            fields["accepted_ago_ms"] = max(0, self._clock.now_ms() - accepted.at_ms)
        if ttl_ms is not None:
            fields["ttl_ms"] = ttl_ms
        return fields

    def _ask(self, peer: Peer, kind: str, fields: dict[str, Any], question: _Open) -> None:
        try:
            self._peers.tunnel(peer).homes.ask(kind, fields, question)
        except Unreachable:
            self._loop.call_soon(question.answer, question.none)


class HomeDesk:
    """Answers what other nodes ask of the homes here.

    Args:
        services: Of this node.
        out: Where answers go.
    """

    def __init__(self, services: Services, out: Batcher) -> None:
        self._host = services.host
        self._out = out

    def received(self, frame: peer_pb2.LinkRequest) -> None:
        """Questions came."""
        answer = peer_pb2.LinkResponse()
        for ask in frame.contexts:
            told = answer.contexts.add(number=ask.number)
            context = self._context(ask)
            if context is not None:
                told.context = context
        for turn in frame.turns:
            answer.turns.add(number=turn.number, state=self._taken_in(turn))
        self._out.put(answer.SerializeToString())

    def _serves(self, name: SessionName) -> bool:
        """Whether a session lives here, for certain."""
        host = self._host
        return host.owners.node_of(shard_of_session(name)) is None and not host.committer.doubt()

    def _accepted(self, ask: Any) -> Accepted:
        ago = ask.accepted_ago_ms if ask.HasField("accepted_ago_ms") else None
        return Accepted(ask.row, 0 if ago is None else self._host.clock.now_ms() - ago)

    def _context(self, ask: peer_pb2.ContextAsk) -> bytes | None:
        name = (ask.tenant, ask.session)
        if not self._serves(name):
            return None
        ttl_ms = ask.ttl_ms if ask.HasField("ttl_ms") else None
        try:
            return self._host.sessions.opened(name, self._accepted(ask), ttl_ms)
        except Exception:
            log.exception("what is known of a session cannot be told; please report this")
            return b""

    def _taken_in(self, turn: peer_pb2.TurnBrought) -> peer_pb2.TurnState.ValueType:
        name = (turn.tenant, turn.session)
        if not self._serves(name):
            return peer_pb2.TURN_STATE_LOST
        sessions, fact = self._host.sessions, None
        if turn.key:
            fact = OutboxDone(turn.shard, TURN, turn.session, turn.key, shard_of_session(name))
        ttl_ms = turn.ttl_ms if turn.HasField("ttl_ms") else None
        sessions.take_in(Brought(name, turn.task_id, self._accepted(turn), ttl_ms, turn.content, fact))
        if fact is not None:
            sessions.keep(fact, lambda kept: self._say_kept(turn.number, kept=kept))
        return peer_pb2.TURN_STATE_HEARD

    def _say_kept(self, number: int, *, kept: bool) -> None:
        answer = peer_pb2.LinkResponse()
        answer.turns.add(number=number, state=peer_pb2.TURN_STATE_KEPT if kept else peer_pb2.TURN_STATE_LOST)
        self._out.put(answer.SerializeToString())
