"""One history of several nodes: what befalls them, their callers and their agents, and the healing at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any

from agentreach.v1 import task_pb2
from reach.core.model import FIRST_TERMINAL, TaskKey
from reach.core.stream import Interest
from reach.runtime.settings import Settings
from reach.testing.sim.agents import Agent
from reach.testing.sim.audit import audit_bounds, audit_quiet
from reach.testing.sim.dialled import DialledAgent
from reach.testing.sim.knobs import turned
from reach.testing.sim.link import Network
from reach.testing.sim.nodes.channels import Channel, Servers
from reach.testing.sim.nodes.checks import NodesChecker
from reach.testing.sim.nodes.clients import NodesAgent, NodesCaller
from reach.testing.sim.nodes.etcd import Etcd
from reach.testing.sim.nodes.faults import Faults, NodesDice
from reach.testing.sim.nodes.journal import NodeJournal, SharedStore
from reach.testing.sim.nodes.node import Node
from reach.testing.sim.nodes.observed import observed
from reach.testing.sim.nodes.ownership import CONVERGE_S, MOVES_S, SPREAD_S, Owner, OwnershipTruth
from reach.testing.sim.nodes.people import NodesPeople
from reach.testing.sim.nodes.process import NodeProcess, NodesLoop
from reach.testing.sim.nodes.roads import Roads
from reach.testing.sim.scene import Scene
from reach.testing.sim.specs import spec_of
from reach.testing.sim.story import Story, TaskName
from reach.testing.sim.truth import Violation, ending_of_row
from reach.testing.sim.work import Manners

TYPES = ("echo", "mail", "sum", "web", "fax")
"""Of agents: each type is a pool, in a shard of its own."""
HEAL_SECONDS = 900.0
LOOK_SECONDS = 2.0
SETTLE_SECONDS = 45.0
"""How long it is quiet before the last look."""


class NodesWorld(Scene):
    """See the module."""

    loop: NodesLoop
    agents: list[NodesAgent]
    callers: list[NodesCaller]
    checker: NodesChecker
    dice: NodesDice
    EXPECTED = (*Scene.EXPECTED, "what this node owns cannot", "another process has joined", "the store is broken",
                "another node refuses this one")  # fmt: skip

    def __init__(self, seed: int, nodes: int) -> None:
        super().__init__()
        self.seed = seed
        self.random = Random(f"{nodes} nodes {seed}")
        self.loop = NodesLoop()
        self.story = Story(self.loop)
        self.checker = NodesChecker(self._violated, self.loop.time)
        self.dice = dice = NodesDice(self.random, nodes)
        settings = self.settings = Settings()
        settings.queue_limit, settings.queue_bytes = dice.queue_limit, dice.queue_bytes
        settings.input_wait_ms = dice.input_wait_ms
        settings.dead_letters = self.random.random() < 0.8
        self.processes: list[NodeProcess] = []
        self.network = Network(self.loop, self.random, dice.slow_frames)
        self.roads = Roads(self.loop, self.random, dice.slow_roads)
        self.servers = Servers(self.roads)
        self.etcd = Etcd(self.loop, self.random, self.servers, self.story.tell)
        self.etcd.unknown, self.etcd.lag = dice.unknown_writes, dice.lag
        self.truth = OwnershipTruth(self.checker)
        self.store = SharedStore(self.checker, self.truth, self.story.tell, self.random)
        self.store.unknown = dice.unknown_commits
        self.store.others_first = self._others_first
        self.raging = True
        self.asked: set[tuple[TaskKey, int]] = set()
        """Attempts that asked something."""
        self.answers: dict[tuple[TaskKey, int], bool] = {}
        """Attempts that have reported, and whether it was an answer."""
        self.nodes = [Node(self, f"n{number + 1}") for number in range(nodes)]
        manners = Manners(dice.bad_agents, dice.streams, dice.effects, 0.0, dice.stubborn, dice.asks)
        self.agents = [self._agent(f"a{number}", TYPES[number % len(TYPES)], manners) for number in range(dice.agents)]
        self.checker.agents = {agent.name: agent for agent in self.agents}
        self.callers = [NodesCaller(self, f"c{number}", "acme" if number < 2 else "beta")
                        for number in range(dice.callers)]  # fmt: skip
        self.faults = Faults(self)

    def _agent(self, name: str, agent_type: str, manners: Manners) -> NodesAgent:
        return NodesAgent(self, name, agent_type, self.random.choice((1, 2, 5)), manners)

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> list[Violation]:
        """Runs it all; what must not be, in the order in which it was found."""
        with self._watched(), ExitStack() as stack:
            for knob in stack.enter_context(turned(self.random, volatile=False)):
                self.story.tell("world", "{}", knob)
            stack.enter_context(observed(self._channel, self.loop.time, self.random))
            self._rage()
            if not self.checker.violations:
                self._heal()
            self._close()
        return self.checker.violations

    def _channel(self, address: str, options: Any = None) -> Channel:
        process: Any = asyncio.get_running_loop()  # whose code it is that asks
        return Channel(self.servers, process, address)

    def _close(self) -> None:
        """Lets everything end, with nobody to hear of it."""
        self.checker.violate = lambda *what: None  # type: ignore[method-assign]
        self.story.tell = lambda *what: None  # type: ignore[method-assign]
        self.store.journal.close()
        for node in self.nodes:
            node.crash()
        self.etcd.stop()
        for process in (*self.processes, *self.etcd.processes()):
            process.bury()
        self.loop.run_until(self.loop.now + 0.001)
        self.loop.close()

    def _rage(self) -> None:
        random, dice = self.random, self.dice
        for node in self.nodes:
            late = dice.late_node and node is self.nodes[-1]
            self.loop.call_later(random.random() * (dice.seconds if late else 1.0), node.start)
        for agent in self.agents:
            self.loop.call_later(2.0 * random.random(), self.start_agent, agent)
        for caller in self.callers:
            caller.connect()
        NodesPeople(self).start()
        for number in range(dice.tasks):
            self.loop.call_later(1.0 + dice.seconds * random.random(), self._submit, f"t{number}")
        self.loop.call_later(2.0 + random.expovariate(1 / dice.every), self._fault)
        at = 0.0
        while at < dice.seconds and not self.checker.violations:
            at += LOOK_SECONDS
            self.loop.run_until(at)
            self._audit()

    def _audit(self) -> None:
        for node in self.nodes:
            if node.up:
                audit_bounds(node.host, self.checker)

    def start_all(self) -> None:
        """Whoever is down is started."""
        for node in self.nodes:
            node.start()

    def _heal(self) -> None:
        self.story.tell("world", "is healed")
        self.raging = False
        self.store.trouble, self.store.unknown = None, 0.0
        self.etcd.unknown = self.etcd.lag = 0.0
        self.network.slow = self.roads.slow = 0.0
        self.roads.heal()
        self.etcd.start()
        for node in self.nodes:
            node.process.wake()
            node.wall.ahead_ms = 0
            if node.leaving:
                node.crash()  # or nobody knows when it ends
        self.start_all()
        for agent in self.agents:
            agent.process.wake()
            self.start_agent(agent)
            agent.manners = Manners(0.0, agent.manners.streams, 0.5, 0.0, 0.0, agent.manners.asks)
        healed = self.loop.now
        self.loop.run_until(healed + CONVERGE_S)
        self._look_at_owners()
        self.loop.run_until(healed + SPREAD_S)
        if not self.checker.violations:
            self.truth.spread(self._served())
        while not self.checker.violations and self.loop.now < healed + HEAL_SECONDS:
            self.loop.run_until(self.loop.now + LOOK_SECONDS)
            if not self.checker.unended() and not any(caller.waiting() for caller in self.callers):
                break
        if not self.checker.violations:
            self._finish()

    def _served(self) -> dict[Owner, frozenset[int]]:
        return {(node.name, node.boot): node.claims.owned for node in self.nodes if node.up}

    def _look_at_owners(self) -> None:
        unsettled, until = self.truth.unsettled(self._served()), self.loop.now + MOVES_S
        while unsettled and self.loop.now < until:
            self.loop.run_until(self.loop.now + 0.1)
            wrong = self.truth.unsettled(self._served())
            unsettled = {shard: what for shard, what in wrong.items() if shard in unsettled}
        if not self.checker.violations:
            self.truth.converged(unsettled)

    def _finish(self) -> None:
        self.checker.finish()
        for caller in self.callers:
            for entry in caller.waiting():
                message = f"{caller.name} still waits for {entry}"
                self.checker.violate("CALLERS_ARE_ANSWERED", (caller.tenant, entry.task_id), message)
                return
        self.loop.run_until(self.loop.now + SETTLE_SECONDS)
        for node in self.nodes:
            if not self.checker.violations:
                audit_quiet(node.host, self.checker, self.agents)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _submit(self, task_id: str) -> None:
        random = self.random
        caller = random.choice(self.callers)
        spec = self._spec(task_id, caller.tenant)
        interest = random.choice((Interest.OUTCOME, Interest.EVENTS, Interest.EVENTS, Interest.ACCEPTANCE))
        caller.tell("submits {}", TaskName(task_id))
        if random.random() < self.dice.calls:
            caller.dispatch(task_id, spec)
        else:
            caller.submit(task_id, spec, interest)
        chance = random.random()
        if chance < 0.3:  # the same, by another caller who may be at another node, at once or later
            others = [one for one in self.callers if one.tenant == caller.tenant]
            delay = random.choice((0.0, 0.0, 0.01, 1.0))
            self.loop.call_later(delay, random.choice(others).submit, task_id, spec, interest)
        elif chance < 0.35:
            other = task_pb2.TaskSpec()
            other.CopyFrom(spec)
            other.payload.text += " otherwise"
            self.loop.call_later(random.choice((0.0, 0.01, 1.0)), caller.submit, task_id, other, Interest.OUTCOME)
        self._meddle(task_id, caller)

    def _spec(self, task_id: str, tenant: str) -> task_pb2.TaskSpec:
        spec = spec_of(self.random, self.dice, task_id, tenant)
        agent_type = self.random.choice(TYPES[: max(1, min(len(TYPES), len(self.agents)))])
        if spec.selector.agent_type:
            spec.selector.agent_type = agent_type
        elif self.random.random() < 0.5:
            spec.selector.capability = f"can-{agent_type}"
        else:
            spec.selector.capability = "can-all"  # several pools, on several nodes, could
        return spec

    def commit_time(self) -> float:
        """How long the next piece of work of a writer takes."""
        chance = self.random.random()
        return 0.5 + chance if chance < self.dice.slow_disk and self.raging else 0.001 + 0.005 * chance

    def _others_first(self, journal: NodeJournal) -> None:
        """What others have on its way to the database gets there just now."""
        for node in self.nodes:
            if node.up and node.journal is not journal and self.random.random() < 0.3:
                node.hurry()

    # -- faults -------------------------------------------------------------------------------------------------------

    def _act_of(self, name: str) -> Callable[[], None]:
        of_nodes: Callable[[], None] | None = getattr(self.faults, name, None)
        return of_nodes if of_nodes is not None else super()._act_of(name)

    def _any_agent(self) -> NodesAgent:
        agent = self.random.choice(self.agents)
        agent.troubled()
        return agent

    def _hang(self, agent: Agent | DialledAgent, seconds: float) -> None:
        super()._hang(agent, seconds)
        assert isinstance(agent, NodesAgent)
        agent.troubled_at += seconds

    # -- what actors need ---------------------------------------------------------------------------------------------

    def version(self) -> str:
        """Of agents: all have the same."""
        return ""

    def shown(self, key: TaskKey, ending: Any) -> None:
        """A node shows how a task ended."""
        known = self.checker.truth(key)
        if known.outcome is None or ending_of_row(known.outcome) != ending:
            self.checker.violate("TOLD_IS_DURABLE", key, f"shown: {ending}; written: {known.outcome}")

    def still_open(self, key: TaskKey, state: int) -> None:
        """A node shows that a task goes on, whose end was told before it was asked."""
        if state < FIRST_TERMINAL:
            self.checker.callers.open(key, state)
