"""The real streams of a node, and the checker, which hears first what they say (`rpc.callers`, `rpc.agent`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import grpc

from agentreach.v1 import attempt_pb2, dispatch_pb2
from reach.core.dialogue import Input
from reach.core.model import FIRST_TERMINAL, Fault, Instance, Task, TaskKey
from reach.core.pieces import Kind
from reach.core.stream import Interest, Reader
from reach.rpc import agent, branches, link_end
from reach.rpc.agent import AttachStream
from reach.rpc.callers import CallerStream
from reach.rpc.links import AttachLink
from reach.rpc.services import Services
from reach.testing.sim.readers import ReaderCheck
from reach.testing.sim.story import TaskName

if TYPE_CHECKING:
    from reach.testing.sim.nodes.node import Node


class NodeServices(Services):
    """Services that know their node."""

    sim: Node


def _node(services: Services) -> Node:
    assert isinstance(services, NodeServices)
    return services.sim


class ObservedCaller(CallerStream):
    """A caller's stream, where it came in, or at the owner of what it asks for."""

    def __init__(self, services: Services, *arguments: Any) -> None:
        super().__init__(services, *arguments)
        self._sim = _node(services)
        self._spec_of: dict[int, tuple[bytes | None, bool]] = {}
        """reference -> (what was submitted, whether the task was known by then)"""
        self._late: dict[int, bool] = {}
        """reference -> whether its task had been said to have ended when it came"""
        self._checks: dict[Reader, ReaderCheck] = {}

    def _asks(self, reference: int, task_id: str, spec: bytes | None) -> None:
        checker, key = self._sim.checker, (self._tenant, task_id)
        self._spec_of[reference] = spec, checker.callers.is_known(key)
        self._late[reference] = checker.truth(key).told is not None

    def _reads(self, task_id: str, after: int) -> None:
        reader = self._readers.get(task_id)
        if reader is not None and reader not in self._checks:
            name = f"{self._sim.name}/{reader.reference}"
            self._checks[reader] = ReaderCheck(self._sim.checker, (self._tenant, task_id), name, after)

    def _submit(self, submit: dispatch_pb2.Submit) -> None:
        task_id = submit.task.task_id  # the message is taken apart
        self._asks(submit.reference, task_id, submit.task.SerializeToString())
        super()._submit(submit)
        self._reads(task_id, 0)

    def _subscribe(self, subscribe: dispatch_pb2.Subscribe) -> None:
        self._asks(subscribe.reference, subscribe.task_id, None)
        super()._subscribe(subscribe)
        self._reads(subscribe.task_id, subscribe.after_sequence)

    def _put_back(self, reader: Reader) -> None:
        task_id, before, _ = self._before[reader]
        super()._put_back(reader)
        self._reads(task_id, before.told)

    def _cancel(self, cancel: dispatch_pb2.CancelItem) -> None:
        self._asks(cancel.reference, cancel.task_id, None)
        super()._cancel(cancel)

    def accepted(self, reader: Reader, task: Task, state: int, deduplicated: bool) -> None:
        """See Sink."""
        if reader.interest != Interest.OUTCOME:
            self._sim.tell("accepts {}", TaskName(task.task_id))
            self._sim.speaks(task, "accepts")
            self._sim.checker.callers.accepted(task.key, self._spec_of[reader.reference][0])
            if state < FIRST_TERMINAL and self._late[reader.reference] and not self._sim.is_former(task):
                self._sim.checker.callers.open(task.key, state)
        super().accepted(reader, task, state, deduplicated)

    def refuse(self, reference: int, fault: Fault, task_id: str) -> None:
        """See CallerStream."""
        self._sim.tell("refuses {}: {}", TaskName(task_id), fault.reason.name)
        if task_id and reference in self._spec_of:
            self._sim.checker.callers.refused((self._tenant, task_id), fault, *self._spec_of[reference])
        super().refuse(reference, fault, task_id)

    def events(self, reader: Reader, task: Task, events: list[tuple[int, int, int, int, Any]]) -> None:
        """See Sink."""
        if reader.left:
            return
        self._sim.speaks(task, "tells events")
        check = self._checks[reader]
        for event in events:
            check.told(event)
            if event[3] == Kind.COMPLETE:
                self._sim.checker.callers.ended(task.key, event[4])
        if events:
            names = ", ".join(f"{event[0]} {Kind(event[3]).name}" for event in events)
            self._sim.tell("tells of {}: {}", TaskName(task.task_id), names)
        super().events(reader, task, events)

    def ended(self, reader: Reader, task: Task) -> None:
        """See Sink."""
        assert task.outcome is not None
        self._sim.tell("tells that {} ended: {}", TaskName(task.task_id), task.outcome.state.name)
        self._sim.speaks(task, "tells the end")
        self._sim.checker.callers.ended(task.key, task.outcome)
        super().ended(reader, task)

    def cancelled(self, reference: int, task: Task) -> None:
        """See CallerStream."""
        assert task.outcome is not None
        self._sim.tell("has cancelled {}: {}", TaskName(task.task_id), task.outcome.state.name)
        self._sim.checker.callers.ended(task.key, task.outcome)
        super().cancelled(reference, task)


class ObservedAgents(AttachStream):
    """An agent's stream, where it came in, or at the owner of its pool."""

    def _result(self, link: AttachLink, instance: Instance, message: attempt_pb2.AttemptResult) -> None:
        key, sim = message.key, _node(self.services)
        named = ((key.tenant or link.tenant, key.task_id), key.attempt)
        if message.HasField("waiting"):
            sim.world.asked.add(named)
        else:
            sim.world.answers[named] = message.HasField("output") or message.HasField("folded")
        super()._result(link, instance, message)


class ObservedLink(AttachLink):
    """One agent on such a stream."""

    __slots__ = ("_sim",)

    def __init__(self, stream: AttachStream, number: int, tenant: str) -> None:
        super().__init__(stream, number, tenant)
        self._sim = _node(stream.services)

    def offer(self, task: Task, instance: Instance, traceparent: str, context: bytes = b"") -> None:
        """See AgentLink."""
        self._sim.tell("offers {} #{} to {}", TaskName(task.task_id), task.attempt, instance.instance_id)
        self._sim.offers(task, instance)
        super().offer(task, instance, traceparent, context)

    def stop(self, tenant: str, task_id: str, attempt: int, reason: Any) -> None:
        """See AgentLink."""
        self._sim.tell("stops {} #{}: {}", TaskName(task_id), attempt, reason.name)
        super().stop(tenant, task_id, attempt, reason)

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """See AgentLink."""
        key, world = (tenant, task_id), self._sim.world
        self._sim.tell("acknowledges {} #{}", TaskName(task_id), attempt)
        if (key, attempt) in world.asked:
            world.checker.questions.acknowledged(key, attempt)
        else:
            world.checker.attempts.acknowledged(key, attempt, world.answers.get((key, attempt), False))
        super().acknowledge(tenant, task_id, attempt)

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """See AgentLink."""
        self._sim.tell("refuses {} #{}: {}", TaskName(task_id), attempt, fault.reason.name)
        super().refuse(tenant, task_id, attempt, fault)

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """See AgentLink."""
        key: TaskKey = (tenant, task_id)
        self._sim.tell("grants {} #{}: {}", TaskName(task_id), attempt, "yes" if fault is None else fault.reason.name)
        if fault is None and self.instance is not None:
            self._sim.grants(key, attempt, self.instance)
        super().grant(tenant, task_id, attempt, effect, fault)

    def give_input(self, task: Task, given: Input, context: bytes = b"") -> None:
        """See AgentLink."""
        self._sim.tell("gives {} #{} its answer {}", TaskName(task.task_id), task.attempt, given.input_id)
        self._sim.checker.questions.given(task.key, task.attempt, given.question, given.content)
        super().give_input(task, given, context)


@contextmanager
def observed(channel: Any, seconds: Any, random: Any) -> Iterator[None]:
    """For the time of a history: streams are observed, connections are simulated, and so is time.

    Args:
        channel: Makes the channel to an address, for the process that runs.
        seconds: The monotonic clock.
        random: The chance.
    """
    from reach.cluster import etcd_member, etcd_mirror
    from reach.cluster.etcd_api import connection, watch

    clock = SimpleNamespace(monotonic=seconds)

    def now_ms() -> int:
        return int(seconds() * 1_000)

    with (
        mock.patch.object(link_end, "CallerStream", ObservedCaller),
        mock.patch.object(link_end, "AttachStream", ObservedAgents),
        mock.patch.object(agent, "AttachLink", ObservedLink),
        mock.patch.object(branches, "random", random),
        mock.patch.object(grpc.aio, "insecure_channel", channel),
        mock.patch.object(etcd_mirror, "now_ms", now_ms),
        mock.patch.object(etcd_member, "now_ms", now_ms),
        mock.patch.object(connection, "time", clock),
        mock.patch.object(watch, "time", clock),
    ):
        yield
