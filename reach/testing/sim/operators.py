"""Operators try dead letters again (DLV-10), some twice with the same request, as one whose answer was lost does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from agentreach.v1 import ops_pb2
from reach.core.model import TaskKey, TaskState
from reach.errors import ReachError
from reach.rpc.dead_letters import DeadLetters
from reach.rpc.principal import Principal
from reach.store.base import StoreError
from reach.testing.sim.story import TaskName

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker
    from reach.testing.sim.world import World

EVERY_S = 5.0
"""How often an operator looks, on average."""
PURGES = 0.3
"""Share of looks after which dead letters are removed."""


class OperatorTruth:
    """What operators were told. For one request there is one new task, however often it comes, over crashes too.
    Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._became: dict[tuple[TaskKey, str], str] = {}

    def requeued(self, key: TaskKey, request_id: str, new_id: str) -> None:
        """The server says which new task tries a dead letter again."""
        if self._checker.truth(key).reborn:
            return  # it was removed, and may be another dead letter by now
        self._checker.callers.accepted((key[0], new_id))
        first = self._became.setdefault((key, request_id), new_id)
        if first != new_id:
            self._checker.violate("REQUEUED_ONCE", key, f"the same request made {first} and {new_id} of it")


class Operators:
    """They see what is durable."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._requests = 0

    def start(self) -> None:
        """From now on, until the world is healed."""
        world = self._world
        world.loop.call_later(2 * EVERY_S * world.random.random(), self._look)

    def _look(self) -> None:
        world = self._world
        if not world.raging:
            return
        self.start()
        dead = [key for key, known in world.checker.tasks.items()
                if known.outcome is not None and known.outcome.state == TaskState.DEAD_LETTERED]  # fmt: skip
        if not dead:
            return
        key = world.random.choice(dead)
        if world.random.random() < PURGES:
            self._purge(key)
            return
        self._requests += 1
        request = f"again-{self._requests}"
        world.story.tell("operator", "tries {} again", TaskName(key[1]))
        self._requeue(key, request)
        for _ in range(world.random.choice((0, 1, 2))):
            world.loop.call_later(world.random.choice((0.0, 0.003, 1.0, 6.0)), self._requeue, key, request)

    def _purge(self, key: TaskKey) -> None:
        """Removes a dead letter, or all of its tenant."""
        server, checker = self._world.server, self._world.checker
        if not server.up:
            return
        row = checker.truth(key).row
        every = self._world.random.random() < 0.2
        checker.keeping.purge_asked(key[0], "" if every else key[1])
        self._world.story.tell("operator", "removes {}{}", TaskName(key[1]), " and all others" if every else "")
        request = ops_pb2.PurgeDeadLettersRequest(task_ids=[] if every else [key[1]], all=every)

        async def ask() -> None:
            try:
                purged = await self._letters().purge(Principal(key[0], "sim", frozenset()), request)
            except (ReachError, StoreError):
                return
            self._world.story.tell("operator", "hears that {} are removed", purged)
            if purged:
                checker.keeping.purged(key, row)

        server.process.create_task(ask())

    def _letters(self) -> DeadLetters:
        server = self._world.server
        return DeadLetters(
            cast("Any", SimpleNamespace(reach=server.reach, tasks=server, until_stopped=lambda one: one))
        )

    def _requeue(self, key: TaskKey, request_id: str) -> None:
        server = self._world.server
        if not server.up:
            return
        request = ops_pb2.RequeueDeadLettersRequest(task_ids=[key[1]], request_id=request_id)

        async def ask() -> None:
            try:
                answer = await self._letters().requeue(Principal(key[0], "sim", frozenset()), request)
            except (ReachError, StoreError):
                return
            for new_id in answer.new_task_ids.values():
                self._world.story.tell("operator", "hears that {} is now {}", TaskName(key[1]), TaskName(new_id))
                self._world.checker.operators.requeued(key, request_id, new_id)

        server.process.create_task(ask())
