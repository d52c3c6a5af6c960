"""What histories of one node and of several have alike: agents and callers, what befalls them, who hears of errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from reach.core.model import TaskKey
from reach.core.stream import Interest
from reach.testing.sim.agents import Agent
from reach.testing.sim.callers import Caller
from reach.testing.sim.checker import Checker
from reach.testing.sim.dialled import DialledAgent
from reach.testing.sim.faults import Dice
from reach.testing.sim.loop import VirtualLoop
from reach.testing.sim.story import Story
from reach.testing.sim.truth import Violation


class Scene:
    """See the module. Methods `_agent_dies` to `_caller_dies` have the names of the dice."""

    random: Random
    loop: VirtualLoop
    story: Story
    checker: Checker
    agents: Sequence[Agent | DialledAgent]
    callers: Sequence[Caller]
    dice: Dice
    raging: bool

    EXPECTED: tuple[str, ...] = ("no space in the journal", "cannot reach the journal", "%s the journal")
    """How messages begin that say something of the world, and not of our code."""

    def __init__(self) -> None:
        self._streamed: dict[tuple[TaskKey, int], dict[str, str]] = {}

    # -- who hears of errors ------------------------------------------------------------------------------------------

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Meanwhile whatever is logged as an error, or raises on the loop, is a violation."""
        logger = logging.getLogger("reach")
        handlers, propagate, level = logger.handlers, logger.propagate, logger.level
        logger.handlers, logger.propagate = [_ErrorLog(self)], False
        logger.setLevel(logging.ERROR)
        self.loop.set_exception_handler(self._loop_failed)
        try:
            yield
        finally:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)

    def _violated(self, violation: Violation) -> None:
        self.story.tell("CHECKER", "{}", violation)
        self.loop.stop()

    def _loop_failed(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.checker.violate("NOTHING_RAISES", None, f"{context['message']}: {error!r}")

    def expects(self, record: logging.LogRecord) -> bool:
        """Whether what is logged as an error is none of ours."""
        return record.msg.startswith(self.EXPECTED)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _meddle(self, task_id: str, caller: Caller) -> None:
        """Others look at the task, read it along, or cancel it."""
        random = self.random
        for _ in range(random.choice((0, 0, 1, 3))):
            self.loop.call_later(3 * random.random(), random.choice(self.callers).look, task_id)
        if random.random() < (0.25 if self.dice.trees else 0.1):
            self.loop.call_later(random.choice((0.005, 0.5, 5.0)) * random.random(), caller.cancel, task_id)
        if random.random() < 0.3:
            others = [one for one in self.callers if one is not caller and one.tenant == caller.tenant]
            if others:
                interest = random.choice((Interest.OUTCOME, Interest.EVENTS))
                self.loop.call_later(5 * random.random(), others[0].read, task_id, interest)
        if random.random() < 0.2:
            self.loop.call_later(2 * random.random(), caller.repeat)

    def _fault(self) -> None:
        """Something goes wrong, and after a while something else."""
        if not self.raging:
            return
        name = self.random.choices(self.dice.names, self.dice.weights)[0]
        self._act_of(name.replace(" ", "_").replace("'", "").replace("-", "_"))()
        self.loop.call_later(self.random.expovariate(1 / self.dice.every), self._fault)

    def _act_of(self, name: str) -> Callable[[], None]:
        """What a fault of this name does."""
        act: Callable[[], None] = getattr(self, f"_{name}")
        return act

    def start_agent(self, agent: Agent | DialledAgent) -> None:
        """A process of an agent, unless there is one."""
        if agent.process.dead:
            agent.start()

    def _any_agent(self) -> Agent | DialledAgent:
        """One to which something is about to happen."""
        return self.random.choice(self.agents)

    def _agent_dies(self) -> None:
        agent = self._any_agent()
        agent.die()
        self.loop.call_later(self.random.choice((0.1, 1.0, 8.0)), self.start_agent, agent)

    def _agent_leaves(self) -> None:
        agent = self._any_agent()
        agent.leave()
        self.loop.call_later(15.0, self._restart_agent, agent)

    def _restart_agent(self, agent: Agent | DialledAgent) -> None:
        if agent.leaving:
            agent.die()
        self.start_agent(agent)

    def _agent_hangs(self) -> None:
        agent, seconds = self._any_agent(), self.random.choice((1.0, 8.0, 25.0, 50.0))
        self._hang(agent, seconds)

    def _hang(self, agent: Agent | DialledAgent, seconds: float) -> None:
        self.story.tell("world", "{} hangs for {} s", agent.name, seconds)
        agent.process.pause(seconds)
        if seconds > 10.0 and agent.stream is not None and self.random.random() < 0.5:
            self.loop.call_later(10.0 + 5 * self.random.random(), agent.stream.break_now)

    def _link_breaks(self) -> None:
        agent = self._any_agent()
        if agent.stream is not None:
            self.story.tell("world", "the stream of {} breaks", agent.name)
            agent.stream.break_now()

    def _link_half_breaks(self) -> None:
        agent = self._any_agent()
        if agent.stream is not None:
            up = self.random.random() < 0.5
            self.story.tell("world", "nothing goes {} {} any more", "up from" if up else "down to", agent.name)
            agent.stream.break_half(up)

    def _callers_link_breaks(self) -> None:
        stream = self.random.choice(self.callers).stream
        if stream is not None:
            stream.break_now()

    def _callers_link_half_breaks(self) -> None:
        stream = self.random.choice(self.callers).stream
        if stream is not None:
            stream.break_half(self.random.random() < 0.5)

    def _caller_dies(self) -> None:
        self.random.choice(self.callers).die()

    # -- what actors need ---------------------------------------------------------------------------------------------

    def streamed(self, key: TaskKey, attempt: int, where: str, text: str) -> None:
        """An agent's text is this far."""
        self._streamed.setdefault((key, attempt), {})[where] = text

    def said(self, key: TaskKey, attempt: int) -> list[str]:
        """All texts of an attempt."""
        return list(self._streamed.get((key, attempt), {}).values())


class _ErrorLog(logging.Handler):
    """What the runtime logs as an error is a bug of ours, unless it is expected."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(logging.ERROR)
        self._scene = scene

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if self._scene.expects(record):
            return
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._scene.checker.violate("NOTHING_RAISES", None, text)
