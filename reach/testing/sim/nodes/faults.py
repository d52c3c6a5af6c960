"""What goes wrong between nodes, and with them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from reach.store.base import StoreBroken, StoreFull, StoreUnavailable
from reach.testing.sim.faults import Dice
from reach.testing.sim.nodes.etcd import MEMBERS
from reach.testing.sim.nodes.journal import STORE

if TYPE_CHECKING:
    from reach.testing.sim.nodes.node import Node
    from reach.testing.sim.nodes.world import NodesWorld

CUTS_S = (0.3, 1.5, 3.0, 6.0, 20.0)
"""How long ways are blocked: less than what anybody notices, to more than anybody waits."""
PAUSES_S = (0.3, 1.5, 2.5, 6.0, 20.0)


class NodesDice(Dice):
    """How bad a history is (see Dice). What befalls agents and callers is as for one node, but less often."""

    def __init__(self, random: Random, nodes: int) -> None:
        super().__init__(random)

        def rate(*choices: float) -> float:
            return random.choice(choices)

        self.slow_roads = rate(0, 0, 0.02, 0.1)
        self.unknown_writes = rate(0, 0, 0.1, 0.3)
        """Share of transactions of etcd that are not answered."""
        self.lag = rate(0, 0, 0.1, 0.5)
        """Share of watches' messages that are late."""
        self.load_time = rate(0.01, 0.01, 0.05)
        """Seconds that some of a shard takes at most to be loaded."""
        own = {
            "node dies": rate(0, 1, 3),
            "node dies in a commit": rate(0, 1, 2),
            "node leaves": rate(0, 0, 1, 2),
            "node stands still": rate(0, 1, 3),
            "node loses etcd": rate(0, 0, 1, 3),
            "node loses the store": rate(0, 0, 1, 2),
            "nodes lose each other": rate(0, 0, 1, 3),
            "a lease ends": rate(0, 0, 1),
            "etcd is away": rate(0, 0, 1),
            "etcd compacts": rate(0, 0, 1),
            "the store is in trouble": rate(0, 0, 1),
            "a clock leaps": rate(0, 0, 1),
            "many at once": rate(0, 0, 1),
        }
        theirs = {name: weight for name, weight in zip(self.names, self.weights, strict=True)
                  if name.startswith(("agent", "caller", "link"))}  # fmt: skip
        if not any(own.values()):
            own["node dies"] = 1
        weights = {**own, **{name: 0.5 * weight for name, weight in theirs.items()}}
        self.names, self.weights = list(weights), list(weights.values())
        self.agents = random.randrange(3, 8)
        self.volatile = self.webhooks = self.sessions = self.unary = self.dialled = self.trees = 0.0
        self.calls = rate(0.0, 0.1, 0.5)
        """Share of tasks that come by calls of their own."""
        self.queue_limit = random.choice((20, 200_000, 200_000))
        self.late_node = nodes > 1 and random.random() < 0.3
        """One of the nodes joins while the others are at work."""


class Faults:
    """Those that befall nodes. The names are those of the dice."""

    def __init__(self, world: NodesWorld) -> None:
        self._world = world
        self._random = world.random

    def _tell(self, what: str, *details: object) -> None:
        self._world.story.tell("world", what, *details)

    def _node(self) -> Node:
        return self._random.choice(self._world.nodes)

    def _again_soon(self, node: Node) -> None:
        self._world.loop.call_later(self._random.choice((0.05, 0.5, 3.0, 8.0)), node.start)

    def node_dies(self) -> None:
        """kill -9; it is started again."""
        node = self._node()
        node.crash()
        self._again_soon(node)

    def node_dies_in_a_commit(self) -> None:
        """What it was about to write is written, or not, or later."""
        node = self._node()
        node.crash(torn=True)
        self._again_soon(node)

    def node_leaves(self) -> None:
        """SIGTERM; it is started again."""
        node = self._node()
        node.stop()
        self._world.loop.call_later(self._random.choice((1.0, 9.0, 12.0)), self._started, node)

    def _started(self, node: Node) -> None:
        if not node.up:
            node.start()
        elif node.leaving:
            node.crash()  # it was asked to go, and did not in time
            self._again_soon(node)

    def node_stands_still(self) -> None:
        """SIGSTOP, and SIGCONT."""
        node, seconds = self._node(), self._random.choice(PAUSES_S)
        self._tell("{} stands still for {} s", node.name, seconds)
        node.process.pause(seconds)
        if seconds > 5.0:
            for port in list(node.ports):
                if port.stream is not None and self._random.random() < 0.7:
                    self._world.loop.call_later(
                        5.0 + self._random.random(), node.process.if_still, port.stream.break_now
                    )

    def _cut(self, here: str, there: str) -> None:
        """In one direction or both, for a while."""
        ways = self._random.choice((((here, there),), ((there, here),), ((here, there), (there, here))))
        seconds = self._random.choice(CUTS_S)
        self._tell("nothing goes {} for {} s", " and ".join(f"from {way[0]} to {way[1]}" for way in ways), seconds)
        self._world.loop.call_later(seconds, self._world.roads.block(*ways))

    def node_loses_etcd(self) -> None:
        """One of its members, or all."""
        node = self._node()
        for member in MEMBERS if self._random.random() < 0.7 else MEMBERS[:1]:
            self._cut(node.name, member)

    def node_loses_the_store(self) -> None:
        """For a while."""
        self._cut(self._node().name, STORE)

    def nodes_lose_each_other(self) -> None:
        """Two of them, or one all others."""
        node = self._node()
        others = [one for one in self._world.nodes if one is not node]
        if others and self._random.random() < 0.7:
            others = [self._random.choice(others)]
        for other in others:
            self._cut(node.name, other.name)

    def a_lease_ends(self) -> None:
        """Somebody takes a living node for dead, or etcd loses a lease."""
        leases = list(self._world.etcd.leases)
        if leases:
            lease = self._random.choice(leases)
            self._tell("the lease of {} is revoked", self._world.etcd.keys_of(lease))
            self._world.etcd.end_lease(lease)

    def etcd_is_away(self) -> None:
        """All members end, and start again; leases begin anew."""
        seconds = self._random.choice((0.5, 3.0, 10.0))
        self._tell("etcd is away for {} s", seconds)
        self._world.etcd.stop()
        self._world.loop.call_later(seconds, self._world.etcd.start)

    def etcd_compacts(self) -> None:
        """Watches that are behind have to list anew."""
        self._tell("etcd compacts")
        self._world.etcd.compact()

    def the_store_is_in_trouble(self) -> None:
        """For all: it is restarted, full, or broken in a way that a node must not survive."""
        trouble = self._random.choice((StoreFull, StoreUnavailable, StoreUnavailable, StoreBroken))
        seconds = self._random.choice((0.3, 2.0, 5.0, 12.0))
        self._tell("the store is in trouble for {} s: {}", seconds, trouble.__name__)
        self._world.store.trouble = trouble("the store")
        self._world.loop.call_later(seconds, self._store_well)

    def _store_well(self) -> None:
        self._world.store.trouble = None
        self._world.start_all()

    def a_clock_leaps(self) -> None:
        """The wall clock of one machine."""
        node, leap = self._node(), self._random.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        self._tell("the wall clock of {} leaps by {} ms", node.name, leap)
        node.wall.ahead_ms += leap

    def many_at_once(self) -> None:
        """Two faults in one moment."""
        for _ in range(2):
            name = self._random.choice(("node_dies", "node_stands_still", "node_loses_etcd", "node_loses_the_store",
                                        "nodes_lose_each_other", "a_lease_ends"))  # fmt: skip
            getattr(self, name)()
