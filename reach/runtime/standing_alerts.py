"""What operators should hear of this node and its cluster, once each time it begins (OBS-4): counted and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from reach.core.node_state import NodeFacts, problems_of
from reach.runtime.standing import NodeStanding

log = logging.getLogger("reach.alerts")

LOOK_SECONDS: Final = 0.25
ETCD_AWAY_MS: Final = 10_000
"""How long etcd may not be heard before that is an alert: nothing moves meanwhile, but all goes on."""
UNTOLD_LOOKS: Final = 40
"""How many looks a node that is gone is told of by whoever leads then: it may be the leader that is gone."""


class StandingAlerts:
    """See the module.

    Args:
        standing: How this node does.
        alerted: Counts an alert by its kind.
    """

    def __init__(self, standing: NodeStanding, alerted: Callable[[str], None]) -> None:
        self._standing = standing
        self._alerted = alerted
        self._holding: frozenset[str] = frozenset()
        self._weights: dict[str, int] = {}
        """Of the nodes that there are, or were when it was looked last; as they said last."""
        self._gone: dict[str, int] = {}
        """Nodes that are gone without leaving, and for how many looks more that may be told."""

    async def run(self) -> None:
        """Looks until it is cancelled."""
        steering = self._standing.steering
        end = steering.cluster.membership.subscribe(self._heard) if steering is not None else None
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if end is not None:
                end()

    def look(self) -> None:
        """Tells what has begun since the last look."""
        facts = self._standing.facts()
        if facts.stopping:
            return
        holding = frozenset(kinds_of(facts))
        for kind in sorted(holding - self._holding):
            self._tell(kind, "; ".join(problems_of(facts)))
        self._holding = holding
        self._look_at_nodes()

    def _heard(self) -> None:
        """A node that leaves gives its weight up first, and may be gone before the next look."""
        steering = self._standing.steering
        if steering is not None:
            self._weights |= {name: info.weight for name, info in steering.cluster.membership.nodes().items()}

    def _look_at_nodes(self) -> None:
        """Who leads tells of nodes that went without saying so."""
        steering = self._standing.steering
        if steering is None:
            return
        self._heard()
        nodes = steering.cluster.membership.nodes()
        for name in self._weights.keys() - nodes.keys():
            if self._weights.pop(name) > 0:
                self._gone[name] = UNTOLD_LOOKS
        self._gone = {name: looks - 1 for name, looks in self._gone.items() if looks and name not in nodes}
        if steering.cluster.election.term is not None:
            for name in sorted(self._gone):
                self._tell("node_lost", f"node {name!r} is gone without leaving: its shards go to the others")
            self._gone.clear()

    def _tell(self, kind: str, evidence: str) -> None:
        self._alerted(kind)
        log.warning("this node or its cluster needs attention", extra={"kind": kind, "evidence": evidence})


def kinds_of(facts: NodeFacts) -> list[str]:
    """The alerts that hold; kinds of `metrics.ALERTS`."""
    found = []
    if facts.in_doubt:
        found.append("in_doubt")
    if facts.membership == "lost":
        found.append("lease_lost")
    if facts.membership == "replaced":
        found.append("replaced")
    if facts.behind_ms >= ETCD_AWAY_MS:
        found.append("etcd_away")
    return found
