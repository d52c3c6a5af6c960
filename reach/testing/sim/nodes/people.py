"""Those who answer what agents ask, by way of any node (DLV-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import dispatch_pb2
from reach.core.dialogue import Input
from reach.core.model import Fault, TaskKey, TaskState
from reach.testing.sim.questions import People
from reach.testing.sim.story import TaskName

if TYPE_CHECKING:
    from reach.testing.sim.nodes.world import NodesWorld


class NodesPeople(People):
    """They see what waits, wherever it is."""

    _world: NodesWorld  # type: ignore[assignment]

    def __init__(self, world: NodesWorld) -> None:
        super().__init__(world)  # type: ignore[arg-type]

    def _look(self) -> None:
        world = self._world
        waiting = {task.key: None for node in world.nodes if node.up for task in node.host.tasks.values()
                   if task.state is TaskState.WAITING}  # fmt: skip
        for key in waiting:
            if not world.raging or world.random.random() < 0.4:
                self._count += 1
                self._send(key, Input(f"in-{self._count}", "", "text/plain", f"answer in-{self._count}"))
        if world.random.random() < 0.2 and (known := world.checker.questions.known()):
            self._send(*world.random.choice(known))
        self.start()

    def _send(self, key: TaskKey, given: Input) -> None:
        world = self._world
        world.story.tell("people", "answer {} by {}", TaskName(key[1]), given.input_id)
        request = dispatch_pb2.SendInputRequest(task_id=key[1], input_id=given.input_id)
        request.payload.media_type, request.payload.text = given.media_type, str(given.content)

        def hear(said: Any, fault: Fault | None) -> None:
            if fault is None:
                world.checker.questions.taken(key, given)
            else:
                world.checker.questions.refused(key, given, fault)

        for _ in range(world.random.choice((1, 1, 1, 2))):
            node = world.random.choice(world.nodes)
            if node.takes_streams:
                node.process.call_later(0.05 * world.random.random(), node.ask, key[0], "SendInput", request, hear)
