"""How a node does, in one word, and what is not as it should be: told alike by probes, metrics and `reach cluster`."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class NodeState(Enum):
    """The state of a node; names as in the contract, which also knows nodes that do not answer."""

    STARTING = "starting"
    SERVING = "serving"
    IN_DOUBT = "in doubt"
    DRAINING = "draining"
    DOOR = "door"
    STOPPING = "stopping"
    REPLACED = "replaced"


TAKING: Final = frozenset({NodeState.SERVING, NodeState.DRAINING, NodeState.DOOR})
"""States in which a node takes what it is asked, and brings it to whoever owns it."""


class NodeFacts(NamedTuple):
    """What a node knows of itself. The defaults are those of a node that is alone."""

    is_open: bool
    """All its parts run, and it is not about to end."""
    stopping: bool = False
    held: str = ""
    """Why the journal takes nothing; empty: it does."""
    settled: bool = True
    """It has owned what it is to own, once."""
    in_doubt: bool = False
    """What it owns may be another's by now (CLU-2)."""
    membership: str = ""
    """Its standing (`cluster.base.Standing`); empty: there is none."""
    behind_ms: int = 0
    """Since when etcd is not heard; 0: it is."""
    weight: int = 1
    """As configured."""
    drained: bool = False
    """An operator wants it to own nothing."""
    owned: int = 0
    """Shards."""


def state_of(facts: NodeFacts) -> NodeState:
    """The state: of several that would fit, the one that explains most."""
    if facts.stopping:
        return NodeState.STOPPING
    if facts.membership == "replaced":
        return NodeState.REPLACED
    if not facts.is_open:
        return NodeState.STARTING
    if facts.in_doubt:
        return NodeState.IN_DOUBT
    if not facts.settled:
        return NodeState.STARTING
    if facts.drained or facts.weight <= 0:
        return NodeState.DRAINING if facts.owned else NodeState.DOOR
    return NodeState.SERVING


def is_ready(facts: NodeFacts) -> bool:
    """Whether new work should be brought to it. Without etcd it should: all goes on, nothing moves (CLU-4)."""
    return state_of(facts) in TAKING and not facts.held


def problems_of(facts: NodeFacts) -> list[str]:
    """What is not as it should be, a line each, for people."""
    found = []
    if facts.membership == "replaced":
        found.append("another process has joined under this name: start this one with a name of its own (--node-id)")
    elif facts.membership == "lost":
        found.append("its lease may have lapsed: others may be given what it owns")
    elif facts.membership == "out" and facts.is_open and not facts.stopping:
        found.append("it has not joined the cluster")
    if facts.in_doubt:
        found.append("it cannot confirm what it owns, and sends nothing until it can: does it reach PostgreSQL?")
    if facts.held:
        found.append(f"the journal takes nothing ({facts.held}): new work is refused, what is accepted is held")
    if facts.behind_ms:
        found.append(f"etcd has not been heard for {facts.behind_ms / 1_000:.1f} s: nothing moves, and all goes on")
    if facts.is_open and not facts.settled and not facts.stopping:
        found.append("it does not own yet what it is to own")
    return found
