"""Questions of agents and the answers to them: what must be true of both, and the people who answer (DLV-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.dialogue import Input
from reach.core.model import Fault, TaskKey, TaskState
from reach.core.rows import Writes
from reach.errors import ErrorClass
from reach.testing.sim.story import TaskName

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker
    from reach.testing.sim.world import World

LOOK_SECONDS = 0.4
"""How often people look whether they are asked something."""


class QuestionTruth:
    """What is known of questions and answers, made of what is durable and of what left the server."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._asked: set[tuple[TaskKey, int]] = set()
        self._kept: dict[TaskKey, dict[int, tuple[str, str, Any]]] = {}
        """number -> (input id, question, content)"""
        self._taken: dict[tuple[TaskKey, str], Any] = {}

    def durable(self, writes: Writes, rows: dict[int, TaskKey]) -> None:
        """A batch is durable."""
        for question in writes.questions:
            if (key := rows.get(question.row)) is not None:
                self._asked.add((key, question.attempt))
        for given in writes.inputs:
            if (key := rows.get(given.row)) is None:
                continue
            kept = self._kept.setdefault(key, {})
            told = (given.input_id, given.question, given.content)
            if kept.setdefault(given.number, told) != told:
                message = f"question {given.number} is answered by {kept[given.number][0]} and by {given.input_id}"
                self._checker.violate("ONE_ANSWER", key, message)
            if [one[0] for one in kept.values()].count(given.input_id) > 1:
                self._checker.violate("INPUT_COUNTS_ONCE", key, f"input {given.input_id} answers two questions")

    def removed(self, key: TaskKey) -> None:
        """A task is removed, and its questions and answers with it."""
        self._kept.pop(key, None)
        self._asked = {one for one in self._asked if one[0] != key}
        self._taken = {one: given for one, given in self._taken.items() if one[0] != key}

    def acknowledged(self, key: TaskKey, attempt: int) -> None:
        """The server says that it has the question of an attempt."""
        known = self._checker.truth(key)
        if known.volatile or known.past is not None or known.outcome is not None or attempt in known.failed:
            return
        if (key, attempt) not in self._asked:
            self._checker.violate("QUESTION_IS_DURABLE", key, f"the question of #{attempt} is not written down")

    def given(self, key: TaskKey, attempt: int, question: str, content: Any) -> None:
        """The server gives an attempt the answer to its question."""
        known = self._checker.truth(key)
        if known.volatile:
            return
        if (question, content) not in [one[1:] for one in self._kept.get(key, {}).values()]:
            self._checker.violate("INPUT_IS_DURABLE", key, f"{content!r} is given and not written down")
        if attempt != max(known.attempts, default=0):
            self._checker.violate("INPUT_IS_CURRENT", key, f"attempt {attempt} gets an answer, and it is over")

    def taken(self, key: TaskKey, given: Input) -> None:
        """The server says that it has taken an answer."""
        known = self._checker.truth(key)
        if known.volatile or (known.past is not None and key not in self._kept):
            return
        if (given.input_id, given.content) not in [(one[0], one[2]) for one in self._kept.get(key, {}).values()]:
            self._checker.violate("INPUT_IS_DURABLE", key, f"{given.input_id} is taken and not written down")
        self._taken[key, given.input_id] = given

    def refused(self, key: TaskKey, given: Input, fault: Fault) -> None:
        """The server refuses an answer."""
        if fault.error_class is ErrorClass.INTERNAL:
            self._checker.violate("NO_INNER_FAULT", key, f"who answers hears {fault}")
        if fault.error_class is ErrorClass.INVALID_REQUEST and (key, given.input_id) in self._taken:
            self._checker.violate("INPUT_IS_KNOWN", key, f"{given.input_id} was taken, and now {fault}")

    def known(self) -> list[tuple[TaskKey, Input]]:
        """Answers that were taken."""
        return [(key, given) for (key, _), given in self._taken.items()]


class People:
    """Those who answer what agents ask: in time, late, twice, or not at all while faults rage."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0

    def start(self) -> None:
        """From now on they look."""
        self._world.loop.call_later(LOOK_SECONDS * (0.5 + self._world.random.random()), self._look)

    def _look(self) -> None:
        world = self._world
        if world.server.up:
            for task in list(world.server.host.tasks.values()):
                if task.state is TaskState.WAITING and (not world.raging or world.random.random() < 0.4):
                    self._count += 1
                    name = f"in-{self._count}"
                    self._send(task.key, Input(name, "", "text/plain", f"answer {name}"))
            if world.random.random() < 0.2 and (known := world.checker.questions.known()):
                self._send(*world.random.choice(known))
        self.start()

    def _send(self, key: TaskKey, given: Input) -> None:
        world, server = self._world, self._world.server

        def act() -> None:
            server.reach.send_input(*key, given, "", _Answered(world.checker, key, given))

        world.story.tell("people", "answer {} by {}", TaskName(key[1]), given.input_id)
        for _ in range(world.random.choice((1, 1, 1, 2))):
            server.process.call_later(0.05 * world.random.random(), act)


class _Answered:
    """Where the answer to an answer goes."""

    __slots__ = ("_checker", "_given", "_key")

    def __init__(self, checker: Checker, key: TaskKey, given: Input) -> None:
        self._checker = checker
        self._key = key
        self._given = given

    def done(self, value: Any) -> None:
        """It is taken, now or before."""
        self._checker.questions.taken(self._key, self._given)

    def refused(self, fault: Fault) -> None:
        """It is not."""
        self._checker.questions.refused(self._key, self._given, fault)
