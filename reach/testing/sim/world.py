"""One history: a server, agents, callers, the faults between them, and the healing at the end."""

from __future__ import annotations

import logging
from functools import partial
from random import Random
from typing import Any

from agentreach.v1 import task_pb2
from reach.core.model import FIRST_TERMINAL
from reach.core.stream import Interest
from reach.runtime.settings import Settings
from reach.testing.sim.agents import Agent
from reach.testing.sim.audit import audit_bounds, audit_quiet
from reach.testing.sim.callers import Caller
from reach.testing.sim.calls import Exchange
from reach.testing.sim.checker import Checker
from reach.testing.sim.dialled import DialledAgent
from reach.testing.sim.faults import TROUBLES, Dice
from reach.testing.sim.fleet import SHARE, VERSIONS
from reach.testing.sim.keeping import keep_of
from reach.testing.sim.knobs import turned
from reach.testing.sim.link import Network
from reach.testing.sim.loop import VirtualLoop
from reach.testing.sim.operators import Operators
from reach.testing.sim.questions import People
from reach.testing.sim.scene import Scene
from reach.testing.sim.server import Server
from reach.testing.sim.specs import TYPES, spec_of
from reach.testing.sim.spoken import offered
from reach.testing.sim.story import Story, TaskName
from reach.testing.sim.trees import Family
from reach.testing.sim.truth import Violation
from reach.testing.sim.unary import Unary
from reach.testing.sim.work import Manners

HEAL_SECONDS = 900.0
"""How long a healed world may take until all is quiet. Virtual time costs next to nothing."""
LOOK_SECONDS = 2.0
SESSION_TTL_MS = 30 * 86_400_000
"""No session expires, however the clock leaps: in the end all that was said has to be there."""


class World(Scene):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.random = Random(seed)
        self.loop = VirtualLoop()
        self.story = Story(self.loop)
        self.checker = Checker(self._violated, self.loop.time)
        self.dice = dice = Dice(self.random)
        settings = Settings()
        settings.queue_limit, settings.queue_bytes = dice.queue_limit, dice.queue_bytes
        settings.dead_letters = self.random.random() < 0.8
        settings.canary_share = SHARE
        settings.session_ttl_ms = SESSION_TTL_MS
        settings.input_wait_ms = dice.input_wait_ms
        self.checker.keeping.keep = keep_of(self.random)
        self.checker.keeping.clock_leaps = dice.clock_leaps
        self.network = Network(self.loop, self.random, dice.slow_frames)
        self.server = Server(self.loop, self.random, self.checker, self.story, settings, dice.slow_disk)
        self.server.journal.unknown = dice.unknown_commits
        self.raging = True
        manners = Manners(dice.bad_agents, dice.streams, dice.effects, dice.unary, dice.stubborn, dice.asks)
        self.unary = Unary(self)
        self.family = Family(self.random, dice.trees)
        self.exchange = Exchange(self.loop, self.random, self.network, partial(offered, self.checker, self.story))
        self.server.exchange = self.exchange
        self.agents = [self._agent(f"a{number}", TYPES[number % len(TYPES)], manners) for number in range(dice.agents)]
        self.callers = [Caller(self, f"c{number}", "acme" if number < 2 else "beta") for number in range(dice.callers)]
        self._tasks: list[tuple[Caller, str]] = []

    def _agent(self, name: str, agent_type: str, manners: Manners) -> Agent | DialledAgent:
        slots = self.random.choice((1, 2, 5))
        if self.random.random() < self.dice.dialled:
            return DialledAgent(self, self.exchange, name, agent_type, slots, manners)
        return Agent(self, name, agent_type, slots, manners)

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> list[Violation]:
        """Runs it all; what must not be, in the order in which it was found."""
        try:
            with self._watched(), turned(self.random, volatile=self.dice.volatile > 0) as knobs:
                for knob in knobs:
                    self.story.tell("world", "{}", knob)
                self._rage()
                if not self.checker.violations:
                    self._heal()
        finally:
            self._close()
        return self.checker.violations

    def _close(self) -> None:
        self.server.crash(torn=False)
        self.loop.run_until(self.loop.now + 0.01)  # what was cancelled ends
        self.loop.close()

    def _rage(self) -> None:
        random, dice = self.random, self.dice
        self.server.start()
        for agent in self.agents:
            self.loop.call_later(2.0 * random.random(), self.start_agent, agent)
        for caller in self.callers:
            caller.connect()
        if dice.asks:
            People(self).start()
        Operators(self).start()
        for number in range(dice.tasks):
            self.loop.call_later(dice.seconds * random.random(), self._submit, f"t{number}")
        self.loop.call_later(random.expovariate(1 / dice.every), self._fault)
        at = 0.0
        while at < dice.seconds and not self.checker.violations:
            at += LOOK_SECONDS
            self.loop.run_until(at)
            if self.server.up:
                audit_bounds(self.server.host, self.checker)

    def _heal(self) -> None:
        self.story.tell("world", "is healed")
        self.raging = self.server.receivers.raging = False
        self.server.journal.trouble, self.server.journal.unknown = None, 0.0
        self.network.slow = 0.0
        self.server.process.wake()
        self._start_server()
        for agent in self.agents:
            agent.process.wake()
            self.start_agent(agent)
            agent.manners = Manners(0.0, agent.manners.streams, 0.5, 0.0, 0.0, agent.manners.asks)
        end = self.loop.now + HEAL_SECONDS
        while not self.checker.violations and self.loop.now < end:
            self.loop.run_until(self.loop.now + LOOK_SECONDS)
            self._start_server()  # it may have been asked to stop before
            if not self.checker.unended() and not self._waits():
                break
        if self.checker.violations:
            return
        self.checker.finish()
        for caller in self.callers:
            for entry in caller.waiting():
                message = f"{caller.name} still waits for {entry}"
                self.checker.violate("CALLERS_ARE_ANSWERED", (caller.tenant, entry.task_id), message)
                return
        self.loop.run_until(self.loop.now + 45.0)
        if not self.checker.violations:
            audit_quiet(self.server.host, self.checker, self.agents)
            self.checker.sessions.finish(self.server.host.sessions.homes())
            self.checker.webhooks.finish()
            self.checker.fleet.compare(self.server.host)

    def _waits(self) -> bool:
        """Whether somebody waits, or something volatile goes on for which nobody does."""
        return any(caller.waiting() for caller in self.callers) or any(
            task.state < FIRST_TERMINAL for task in self.server.host.tasks.values()
        )

    # -- work ---------------------------------------------------------------------------------------------------------

    def _submit(self, task_id: str) -> None:
        random = self.random
        caller = random.choice(self.callers)
        spec = spec_of(self.random, self.dice, task_id, caller.tenant)
        self.family.join(spec, caller.tenant)
        interest = random.choice((Interest.OUTCOME, Interest.EVENTS, Interest.EVENTS, Interest.ANSWER,
                                  Interest.ACCEPTANCE))  # fmt: skip
        self._tasks.append((caller, task_id))
        caller.tell("submits {}", TaskName(task_id))
        caller.submit(task_id, spec, interest)
        chance = random.random()
        if chance < 0.1:
            self.loop.call_later(random.choice((0.0, 0.01, 1.0)), caller.submit, task_id, spec, interest)
        elif chance < 0.15:
            other = task_pb2.TaskSpec()
            other.CopyFrom(spec)
            other.payload.text += " otherwise"
            self.loop.call_later(random.choice((0.0, 0.01, 1.0)), caller.submit, task_id, other, Interest.ANSWER)
        self._meddle(task_id, caller)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _restart_soon(self) -> None:
        self.loop.call_later(self.random.choice((0.05, 0.5, 3.0)), self._start_server)

    def _start_server(self) -> None:
        if not self.server.up:
            self.server.start()

    def _crash(self) -> None:
        self.server.crash(torn=False)
        self._restart_soon()

    def _torn_crash(self) -> None:
        self.server.crash(torn=True)
        self._restart_soon()

    def _stop(self) -> None:
        self.server.stop()
        self.loop.call_later(2.0, self._restart_soon)

    def _store_trouble(self) -> None:
        trouble = self.random.choice(TROUBLES)
        self.story.tell("world", "the disk is in trouble: {}", trouble.__name__)
        self.server.journal.trouble = trouble("the disk")
        self.loop.call_later(self.random.choice((0.3, 3.0, 12.0)), self._store_well)

    def _store_well(self) -> None:
        self.server.journal.trouble = None
        self._start_server()

    def _stall(self) -> None:
        seconds = self.random.choice((0.3, 1.5, 6.0, 20.0))
        self.story.tell("world", "the server stands still for {} s", seconds)
        self.server.process.pause(seconds)
        if seconds > 5.0:
            streams = [agent.stream for agent in self.agents] + [caller.stream for caller in self.callers]
            for stream in streams:
                if stream is not None and self.random.random() < 0.7:
                    self.loop.call_later(5.0 + self.random.random(), self.server.process.if_still, stream.break_now)

    def _clock(self) -> None:
        leap = self.random.choice((-3_600_000, -5_000, 5_000, 3_600_000, 86_400_000))
        self.story.tell("world", "the wall clock leaps by {} ms", leap)
        self.server.wall.ahead_ms += leap

    def _operator_drains(self) -> None:
        agent = self.random.choice(self.agents)
        if self.server.up:
            self.story.tell("world", "an operator drains {} for a while", agent.name)
            orders = self.checker.fleet.drain_asked(agent.name)
            self.server.drain("acme", agent.name, undo=False, then=partial(self._is_drained, orders))
            told: list[Any] = []
            self.loop.call_later(self.random.choice((0.5, 8.0)), self._undrain, agent, told)

    def _is_drained(self, orders: int, answer: Any) -> None:
        if isinstance(answer, str):
            self.checker.fleet.drained(answer, orders)

    def version(self) -> str:
        """The version of an agent that begins."""
        return self.random.choice(VERSIONS) if self.dice.versions else ""

    def _undrain(self, agent: Agent | DialledAgent, told: list[Any]) -> None:
        """Again, until it is told to be done: what is not written down, a crash undoes."""
        if not told:
            if self.server.up:
                self.server.drain("acme", agent.name, undo=True, then=told.append)
            self.loop.call_later(1.0, self._undrain, agent, told)

    def expects(self, record: logging.LogRecord) -> bool:
        """See Scene. Of a task that was removed there is nothing to tell."""
        given_up = record.msg == "a webhook was given up"
        removed = given_up and self.checker.webhooks.is_removed(record.__dict__["task_id"])
        return removed or super().expects(record)
