"""What agents ask of the server by calls of their own: late, perhaps twice, and in no order with their streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reach.core import events as ev
from reach.core.joining import Joining
from reach.core.model import Fault, TaskKey
from reach.errors import ErrorClass, ReachError, Reason
from reach.runtime.faults import fault_of
from reach.testing.sim.agent_door import Report, event_of
from reach.testing.sim.loop import Process
from reach.testing.sim.story import TaskName
from reach.testing.sim.work import Outcome

if TYPE_CHECKING:
    from reach.testing.sim.attempts import Attempts
    from reach.testing.sim.server import Server
    from reach.testing.sim.world import World

Reply = Callable[[Fault | None], None]


class Unary:
    """The way of such calls."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, act: Callable[[Server], object]) -> bool:
        """Has the server do something when the call arrives; False if it cannot be reached."""
        world, server = self._world, self._world.server
        if not server.up:
            return False
        process = server.process

        def arrive() -> None:
            if server.process is process:
                process.call_soon(act, server)

        world.loop.call_later(world.network.delay(), arrive)
        return True

    def back_to(self, process: Process, hear: Callable[..., object]) -> Callable[..., None]:
        """The way back of an answer."""
        world = self._world

        def reply(*answer: Any) -> None:
            world.loop.call_later(world.network.delay(), process.call_soon, hear, *answer)

        return reply

    def report(self, agent: Attempts, boot: str, outcome: Outcome) -> None:
        """An outcome."""

        def hear(item: tuple[Any, ...]) -> None:
            getattr(agent, f"on_{item[0]}")(*item[1:])

        reply = self.back_to(agent.process, hear)
        key, attempt, content = outcome.key, outcome.attempt, outcome.content
        for _ in range(self._world.random.choice((1, 1, 2))):
            self.ask(lambda server: report(server, "acme", agent.name, boot, key, attempt, content, reply))


def report(
    server: Server, tenant: str, instance_id: str, boot: str, key: TaskKey, attempt: int, outcome: Any, reply: Any
) -> None:
    """ReportResult."""
    answered = outcome[0] in ("output", "folded")
    back = Report(server, tenant, key, attempt, answered, reply)
    try:
        pool, instance = server.reach.instance(tenant, instance_id, boot)
    except ReachError as error:
        back.refused(fault_of(error))
        return
    event = event_of(instance, "result", *key, attempt, list(outcome))
    event.reply = back
    server.reach.post(pool, event)


def register(server: Server, tenant: str, agent_type: str, joining: Joining, caller: Process, reply: Reply) -> None:
    """Register, of an agent that wants to be dialled. Its call ends with its process."""

    async def join() -> None:
        try:
            await server.dialler.register(tenant, agent_type, joining)
        except ReachError as error:
            reply(fault_of(error))
        else:
            reply(None)

    caller.ends(server.process.create_task(join()))


def beat(server: Server, tenant: str, instance_id: str, boot: str, status: dict[str, Any]) -> None:
    """Heartbeat."""
    try:
        pool, instance = server.reach.instance(tenant, instance_id, boot)
    except ReachError:
        return
    server.reach.post(pool, ev.Beat(instance, status))


def deregister(server: Server, tenant: str, instance_id: str, boot: str) -> None:
    """Deregister."""
    try:
        pool, instance = server.reach.instance(tenant, instance_id, boot)
    except ReachError:
        return
    server.reach.post(pool, ev.Left(instance))


def begin_effect(
    server: Server, tenant: str, instance_id: str, boot: str, key: TaskKey, attempt: int, reply: Reply
) -> None:
    """BeginEffect."""
    try:
        pool, instance = server.reach.instance(tenant, instance_id, boot)
    except ReachError as error:
        reply(fault_of(error))
        return
    event = ev.EffectAsked(instance, *key, attempt, "pay", _Asking(server, tenant, key, attempt, instance_id, reply))
    server.reach.post(pool, event)


class _Asking:
    """Where the answer to a request for an effect goes (`rpc.waiting.StillMine`)."""

    __slots__ = ("_attempt", "_instance_id", "_key", "_reply", "_server", "tenant")

    def __init__(self, server: Server, tenant: str, key: TaskKey, attempt: int, instance_id: str, reply: Reply) -> None:
        self._server = server
        self._key = key
        self._attempt = attempt
        self._instance_id = instance_id
        self._reply = reply
        self.tenant = tenant

    def grant(self, tenant: str, task_id: str, attempt: int, effect: str, fault: Fault | None) -> None:
        """Permission, or not."""
        self._server.tell(
            "grants {} #{}: {}", TaskName(task_id), attempt, "yes" if fault is None else fault.reason.name
        )
        if fault is None:
            self._server.checker.attempts.granted(self._key, self._attempt, self._instance_id)
        self._reply(fault)

    def refuse(self, tenant: str, task_id: str, attempt: int, fault: Fault) -> None:
        """The attempt is over."""
        self._reply(fault)

    def refused(self, fault: Fault) -> None:
        """See `refuse`."""
        self._reply(fault)

    def acknowledge(self, tenant: str, task_id: str, attempt: int) -> None:
        """The task has ended."""
        self._reply(Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, "the attempt is over"))
