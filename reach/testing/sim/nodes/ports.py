"""What clients say, as they say it on the wire, and back: between the modelled callers and agents, which speak in items
(`sim.callers`, `sim.agents`), and the real streams of the node that they have come to.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from agentreach.v1 import agent_pb2, attach_pb2, attempt_pb2, dispatch_pb2
from reach.core.model import EffectKind, Fault
from reach.errors import ReachError
from reach.runtime.faults import fault_of
from reach.testing.sim.link import Frame, ServerEnd, Stream
from reach.wire.answers import fill_error, fill_payload
from reach.wire.requests import session_name
from reach.wire.status import error_from_proto

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from reach.testing.sim.nodes.node import Node

AGENTS_TENANT = "acme"
LINK = 1


class Port(ServerEnd):
    """One stream of a client at a node: the context of a call (`grpc.aio.ServicerContext`), served by real code."""

    def __init__(self, node: Node, serve: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
        self.node = node
        self.stream: Stream | None = None
        self._frames: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._task = node.process.create_task(self._run(serve), name="client's stream")

    async def _run(self, serve: Callable[[Port], Coroutine[Any, Any, None]]) -> None:
        try:
            await serve(self)
        except ReachError as error:
            self.node.tell("ends a stream: {}", error.message)
        except Exception as error:  # noqa: BLE001 - as the interceptor, which would hide it
            self.node.checker.violate("NOTHING_RAISES", None, f"a stream ends: {error!r}")
        finally:
            self._end()

    def _end(self) -> None:
        self.node.ports.pop(self, None)
        if not self._over and self.stream is not None:
            self._over = True
            self.stream.down.put(("over",))

    # -- up -----------------------------------------------------------------------------------------------------------

    def heard(self, items: Frame) -> None:
        """Items of the client arrive. Those of one turn share a frame, as long as that does not change their order."""
        self._frames.extend(self.frames_of(items))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @abstractmethod
    def frames_of(self, items: Frame) -> list[Any]:
        """The frames that these items are on the wire."""

    async def read(self) -> Any:
        """See ServicerContext."""
        while not self._frames:
            self._waiter = self.node.process.create_future()
            await self._waiter
        return self._frames.popleft()

    def lost(self) -> None:
        """The client is gone, as far as its connection says."""
        if not self._over:
            self._over = True
            self.node.ports.pop(self, None)
            self._task.cancel()

    # -- down ---------------------------------------------------------------------------------------------------------

    async def write(self, frame: bytes) -> None:
        """See ServicerContext."""
        if self.stream is not None and not self._over:
            for item in self.items_of(frame):
                self.stream.down.put(item)

    @abstractmethod
    def items_of(self, frame: bytes) -> list[tuple[Any, ...]]:
        """What a frame says."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        """See ServicerContext."""
        raise AssertionError(details)


def _framed(make: Callable[[], Any], order: Sequence[str], said: Iterable[tuple[str, Any]]) -> list[Any]:
    """Messages in as few frames as keep their order, as a frame is read kind by kind."""
    frames: list[Any] = []
    at = len(order)
    for kind, message in said:
        place = order.index(kind)
        if place < at or not frames:
            frames.append(make())
        at = place
        getattr(frames[-1], kind).append(message)
    return frames


_UP = ("hellos", "beats", "accepts", "deltas", "progress", "results", "effects", "handoffs", "goodbyes")


class AgentPort(Port):
    """An agent's stream, with one link."""

    def frames_of(self, items: Frame) -> list[Any]:
        """See Port."""
        return _framed(attach_pb2.AttachRequest, _UP, map(_said, items))

    def items_of(self, frame: bytes) -> list[tuple[Any, ...]]:
        """See Port."""
        said = attach_pb2.AttachResponse.FromString(frame)
        items: list[tuple[Any, ...]] = [("frame", said.sequence)]
        for link in said.links:
            unknown, replay = ([_key_of(key, 3) for key in keys] for keys in (link.unknown, link.replay))
            items.append(("welcome", link.generation, unknown, replay, link.heartbeat_interval.ToMilliseconds()))
        for refusal in said.refusals:
            fault = fault_of(error_from_proto(refusal.error))
            if refusal.closed:
                items.append(("closed", fault))
            elif refusal.HasField("key"):
                items.append(("refuse", *_key_of(refusal.key), fault))
        for offer in said.offers:
            tenant = offer.tenant or AGENTS_TENANT
            if offer.task.HasField("session"):
                items.append(("session", tenant, session_name(offer.task.session)))
            kind = EffectKind(offer.task.effects) if offer.task.effects else None
            items.append(("offer", (tenant, offer.task.task_id), offer.attempt, kind, None))
        items += [("stop", *_key_of(one.key)) for one in said.cancels]
        items += [("acknowledge", *_key_of(one)) for one in said.acknowledgements]
        items += [("credit", *_key_of(one.key), one.bytes) for one in said.credits]
        for grant in said.grants:
            refused = fault_of(error_from_proto(grant.refusal)) if grant.HasField("refusal") else None
            items.append(("grant", *_key_of(grant.key), refused))
        items += [("drain",) for _ in said.drains]
        items += [("input", *_key_of(one.key), one.question) for one in said.inputs]
        items += [("handoff", one.tenant or AGENTS_TENANT, session_name(one.session)) for one in said.handoffs]
        if said.resync:
            items.append(("resync",))
        if said.reopen:
            items.append(("reopen",))
        return items


def _key_of(key: attempt_pb2.AttemptKey, flat: int = 0) -> tuple[Any, ...]:
    tenant = key.tenant or AGENTS_TENANT
    return (tenant, key.task_id, key.attempt) if flat else ((tenant, key.task_id), key.attempt)


def _key(key: tuple[str, str], attempt: int) -> attempt_pb2.AttemptKey:
    tenant = "" if key[0] == AGENTS_TENANT else key[0]
    return attempt_pb2.AttemptKey(task_id=key[1], attempt=attempt, tenant=tenant)


def _said(item: tuple[Any, ...]) -> tuple[str, Any]:
    """One item of an agent: where it is in a frame, and what."""
    kind, *rest = item
    if kind == "hello":
        hello = attach_pb2.Hello(link=LINK, number=rest[3])
        hello.registration.ParseFromString(rest[1].registration)
        _available(hello.status, rest[4])
        hello.registration.boot_id = rest[1].boot_id
        for tenant, task_id, attempt, last in rest[2]:
            hello.running.add(key=_key((tenant, task_id), attempt), last_attempt_sequence=last)
        return "hellos", hello
    if kind == "beat":
        beat = attach_pb2.LinkBeat(link=LINK, last_frame=rest[1])
        _available(beat.status, rest[0])
        return "beats", beat
    if kind == "goodbye":
        return "goodbyes", attach_pb2.Goodbye(link=LINK)
    key = _key(rest[0], rest[1])
    if kind == "accept":
        return "accepts", attempt_pb2.AttemptAccept(link=LINK, key=key)
    if kind == "delta":
        message = attempt_pb2.AttemptDelta(link=LINK, key=key, attempt_sequence=rest[2])
        message.delta.mode = int(rest[3].mode)  # type: ignore[assignment]
        fill_payload(message.delta.payload, rest[3].media_type, rest[3].content)
        return "deltas", message
    if kind == "progress":
        progress = attempt_pb2.AttemptProgress(link=LINK, key=key, checkpoint=rest[4])
        progress.progress.note = rest[3]
        if rest[2] is not None:
            progress.progress.fraction = rest[2]
        return "progress", progress
    if kind == "effect":
        return "effects", attach_pb2.EffectRequest(link=LINK, key=key, effect="pay")
    return "results", _result(key, rest[2], rest[3])


def _available(said: agent_pb2.AgentStatus, status: dict[str, Any]) -> None:
    if "availability" in status:
        said.availability = int(status["availability"])  # type: ignore[assignment]


def _result(key: attempt_pb2.AttemptKey, how: str, what: Any) -> attempt_pb2.AttemptResult:
    result = attempt_pb2.AttemptResult(link=LINK, key=key)
    if how == "output":
        fill_payload(result.output, "text/plain", what)
    elif how == "folded":
        result.folded.last_attempt_sequence = what
    elif how == "released":
        result.released.reason = what
    elif how == "waiting":
        result.waiting.waiting_for = 1  # type: ignore[assignment]
        result.waiting.question = what
        fill_payload(result.waiting.prompt, "text/plain", "May I?")
    else:
        assert isinstance(what, Fault)
        fill_error(result.error, what)
    return result


_ASKED = ("submits", "subscribes", "unsubscribes", "cancels", "credits")


class CallerPort(Port):
    """A caller's stream."""

    def __init__(self, node: Node, serve: Any, tell: Callable[[bytes], list[tuple[Any, ...]]],
                 subscribed: Callable[[str, int, int], None], look: Callable[[Node, str], None]) -> None:  # fmt: skip
        self._tell = tell
        self._subscribed = subscribed
        self._look = look
        super().__init__(node, serve)

    def items_of(self, frame: bytes) -> list[tuple[Any, ...]]:
        """See Port."""
        return self._tell(frame)

    def frames_of(self, items: Frame) -> list[Any]:
        """See Port."""
        asked = []
        for item in items:
            if item[0] == "get":
                self._look(self.node, item[2])
            else:
                asked.append(self._asks(*item))
        return _framed(dispatch_pb2.DispatchStreamRequest, _ASKED, asked)

    def _asks(self, kind: str, *rest: Any) -> tuple[str, Any]:
        if kind == "submit":
            reference, spec, interest, _ = rest
            if interest != 1:
                self._subscribed(spec.task_id, 0, interest)
            return "submits", dispatch_pb2.Submit(reference=reference, task=spec, interest=interest)
        if kind == "subscribe":
            reference, task_id, interest, after, _ = rest
            self._subscribed(task_id, after, interest)
            asked = dispatch_pb2.Subscribe(reference=reference, task_id=task_id, after_sequence=after)
            asked.interest = interest
            return "subscribes", asked
        if kind == "drop":
            return "unsubscribes", dispatch_pb2.Unsubscribe(task_id=rest[0])
        if kind == "cancel":
            return "cancels", dispatch_pb2.CancelItem(reference=rest[0], task_id=rest[1], reason="changed my mind")
        return "credits", dispatch_pb2.ReaderCredit(task_id=rest[0], bytes=rest[1])
