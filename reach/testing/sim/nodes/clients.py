"""Callers and agents that know several nodes, and come back by another one than they left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import dispatch_pb2, event_pb2, task_pb2
from reach.core.dialogue import Ask, Question
from reach.core.model import Fault
from reach.core.pieces import Delta, Gap, Kind, Mode
from reach.core.stream import Interest
from reach.runtime.faults import fault_of
from reach.testing.sim.agents import Agent, AgentStream
from reach.testing.sim.callers import AGAIN, Caller, CallerStream
from reach.testing.sim.link import Frame
from reach.testing.sim.nodes.ports import AgentPort, CallerPort
from reach.wire.answers import content_of
from reach.wire.status import error_from_proto

if TYPE_CHECKING:
    from reach.testing.sim.nodes.node import Node
    from reach.testing.sim.nodes.world import NodesWorld
    from reach.testing.sim.work import Manners

FAITHFUL = 0.7
"""Share of those who come back that try the node first that they were at."""


class Choosing:
    """Which node to turn to."""

    def __init__(self, world: NodesWorld) -> None:
        self._world = world
        self._last: Node | None = None

    def next(self) -> Node | None:
        """A node, if that can be reached."""
        world = self._world
        node = self._last
        if node is None or not node.takes_streams or world.random.random() > FAITHFUL:
            node = world.random.choice(world.nodes)
        self._last = node
        return node if node.takes_streams else None


# -- agents ------------------------------------------------------------------------------------------------------------


class _Ears(AgentStream):
    """An agent's end of a stream, which counts frames."""

    def heard(self, items: Frame) -> None:
        """See ClientEnd."""
        agent = self._agent
        for kind, *rest in items:
            if agent.end is not self:
                return
            if kind == "frame":
                agent.heard = max(agent.heard, rest[0])
            elif kind == "over":
                self.lost()
            else:
                getattr(agent, f"on_{kind}")(*rest)


class NodesAgent(Agent):
    """An agent that comes back by any node."""

    world: NodesWorld  # type: ignore[assignment]
    more = ("can-all",)

    def __init__(self, world: NodesWorld, name: str, agent_type: str, slots: int, manners: Manners) -> None:
        self._choosing = Choosing(world)
        self.troubled_at = 0.0
        """When something last happened to it or to its own connections."""
        self.away_at: float | None = 0.0
        """Since when nobody has welcomed it; None: it is welcome."""
        super().__init__(world, name, agent_type, slots, manners)  # type: ignore[arg-type]

    def troubled(self) -> None:
        """Something happens to it, and not to a node."""
        self.troubled_at = self.world.loop.now

    def start(self) -> None:
        """See Attempts."""
        self.away_at = self.world.loop.now
        super().start()

    def _connect(self) -> None:
        self._connecting = None
        self.welcomed = False
        node = self._choosing.next()
        if node is None:
            self._connect_later()
            return
        if self.stream is not None:
            self._before = self.stream
        self.end = _Ears(self)
        self.stream = node.connect(self.process, self.end, AgentPort(node, node.serve_agent))
        self.tell("comes to {}", node.name)
        self._new_stream = True
        self.heard = 0
        self._hello()
        stream = self.stream
        self.process.call_later(10.0, lambda: self._give_up(stream))

    def on_welcome(self, generation: int, unknown: Any, replay: Any, heartbeat_ms: int) -> None:
        """See Agent."""
        self.away_at = None
        super().on_welcome(generation, unknown, replay, heartbeat_ms)

    def on_reopen(self) -> None:
        """See Agent."""
        self._goes_away()
        super().on_reopen()

    def disconnected(self) -> None:
        """See Agent."""
        self._goes_away()
        super().disconnected()

    def on_closed(self, fault: Fault) -> None:
        """See Agent."""
        self._goes_away()
        super().on_closed(fault)

    def _goes_away(self) -> None:
        if self.away_at is None:
            self.away_at = self.world.loop.now


# -- callers -----------------------------------------------------------------------------------------------------------


class _CallersEnd(CallerStream):
    """A caller's end of a stream: what comes is what it asked for here, with nothing left out between."""

    def __init__(self, caller: NodesCaller) -> None:
        super().__init__(caller)
        self._mine = caller
        self._from: dict[str, set[int]] = {}
        """Of each task, events after which one that is told may be the next."""
        self._last: dict[str, int] = {}
        self._interest: dict[str, int] = {}

    def heard(self, items: Frame) -> None:
        """See ClientEnd."""
        for kind, *rest in items:
            if self._mine.end is not self:
                return
            if kind == "over":
                self.lost()
            else:
                getattr(self._mine, f"on_{kind}")(*rest)

    def subscribed(self, task_id: str, after: int, interest: int) -> None:
        """The node hears that from now on it reads from here."""
        self._from.setdefault(task_id, set()).add(after)
        self._interest[task_id] = interest

    def tell(self, frame: bytes) -> list[tuple[Any, ...]]:
        """What a frame says, as items."""
        said = dispatch_pb2.DispatchStreamResponse.FromString(frame)
        items: list[tuple[Any, ...]] = [("accepted", one.reference, one.task_id) for one in said.acknowledgements]
        items += [
            ("refused", one.reference, fault_of(error_from_proto(one.error)), one.task_id) for one in said.refusals
        ]
        for event in said.events:
            items.append(self._event(event))
        items += [("cancelled", one.reference) for one in said.cancelled]
        if said.closing:
            items.append(("closing",))
        return items

    def _event(self, event: event_pb2.TaskEvent) -> tuple[Any, ...]:
        told = _told(event)
        number, kind, task_id = told[0], told[3], event.task_id
        first = told[4].first if kind == Kind.GAP else number
        follows = first - 1 == self._last.get(task_id, -1) or first - 1 in self._from.get(task_id, ())
        if kind == Kind.COMPLETE and not (follows and self._interest.get(task_id) == Interest.EVENTS):
            return "ended", 0, task_id, told[4]
        if not follows:
            message = f"event {number} comes after {self._last.get(task_id)}, asked for: {self._from.get(task_id)}"
            self._mine.world.checker.violate("NO_GAP_NO_DOUBLE", (self._mine.tenant, task_id), message)
        self._last[task_id] = number
        return "events", 0, task_id, [told], kind == Kind.COMPLETE


def _told(event: event_pb2.TaskEvent) -> tuple[int, int, int, int, Any]:
    kind = event.WhichOneof("kind") or ""
    data: Any = None
    number = Kind[kind.upper()]
    if kind == "delta":
        data = _delta(event.delta)
    elif kind == "gap":
        data = Gap(event.gap.from_sequence, event.gap.to_sequence, [_delta(one) for one in event.gap.snapshot])
    elif kind == "complete":
        data = ending(event.complete)
    elif kind == "waiting":
        data = Question(0, 0, Ask(1, "", content_of(event.waiting.prompt)[1]), 0, 0, 0)
    return event.sequence, event.attempt, 0, number, data


def _delta(delta: event_pb2.Delta) -> Delta:
    media_type, content = content_of(delta.payload)
    return Delta(delta.channel, Mode(delta.mode), media_type, content)


def ending(result: task_pb2.Result) -> Any:
    """What a caller learns of an end (`checker.Ending`)."""
    content = content_of(result.output)[1] if result.HasField("output") else None
    return int(result.state), content, int(result.error.reason), result.attempts, result.instance_id


class NodesCaller(Caller):
    """A caller that asks any node."""

    world: NodesWorld  # type: ignore[assignment]

    def __init__(self, world: NodesWorld, name: str, tenant: str) -> None:
        self._choosing = Choosing(world)
        super().__init__(world, name, tenant)  # type: ignore[arg-type]

    def connect(self) -> None:
        """See Caller."""
        if self.stream is not None:
            return
        node = self._choosing.next()
        if node is None:
            self._connect_later()
            return
        self._tries = 0
        self.tell("comes to {}", node.name)
        end = self.end = _CallersEnd(self)
        port = CallerPort(node, lambda one: node.serve_caller(one, self.tenant), end.tell, end.subscribed, self._looks)
        self.stream = node.connect(self.process, self.end, port)
        for entry in list(self.entries.values()):
            self._ask(entry)

    def _looks(self, node: Node, task_id: str) -> None:
        """GetTask, at the node that the caller is at."""
        checker, key = self.world.checker, (self.tenant, task_id)
        known, ended = checker.callers.is_known(key), checker.truth(key).told is not None

        def answer(said: dispatch_pb2.GetTaskResponse | None, fault: Fault | None) -> None:
            if said is None:
                assert fault is not None
                checker.callers.refused(key, fault, None, known)
            elif said.task.HasField("result"):
                self.world.shown(key, ending(said.task.result))
            elif ended:
                self.world.still_open(key, said.task.state)

        node.ask(self.tenant, "GetTask", dispatch_pb2.GetTaskRequest(task_id=task_id), answer)

    def dispatch(self, task_id: str, spec: task_pb2.TaskSpec) -> None:
        """Brings a task by a call of its own, and waits for its end for a while; asks again until it is taken."""
        checker, key = self.world.checker, (self.tenant, task_id)
        checker.submitted(key, volatile=False)
        node, process = self._choosing.next(), self.process

        def again(delay: float) -> None:
            if self.process is process:
                process.call_later(delay * (0.5 + self._random.random()), self.dispatch, task_id, spec)

        if node is None:
            again(0.5)
            return
        known, raw = checker.callers.is_known(key), spec.SerializeToString()

        def answer(said: dispatch_pb2.DispatchResponse | None, fault: Fault | None) -> None:
            if said is None:
                assert fault is not None
                checker.callers.refused(key, fault, raw, known)
                if fault.error_class in AGAIN:
                    again(0.5)
                return
            checker.callers.accepted(key, raw)
            if said.HasField("result"):
                self.world.shown(key, ending(said.result))

        request = dispatch_pb2.DispatchRequest(task=spec)
        request.wait.FromMilliseconds(self._random.choice((0, 200, 5_000)))
        node.ask(self.tenant, "Dispatch", request, answer)
