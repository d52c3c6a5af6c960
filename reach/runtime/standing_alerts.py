"""What operators should hear of this node and its cluster, once each time it begins (OBS-4): counted and logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from reach.core.node_state import NodeFacts, problems_of
from reach.runtime.standing import NodeStanding

log = logging.getLogger("reach.alerts")

LOOK_SECONDS: Final = 0.25
ETCD_AWAY_MS: Final = 10_000
"""How long etcd may not be heard before that is an alert: nothing moves meanwhile, but all goes on."""


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
        self._nodes: Mapping[str, int] = {}

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

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

    def _look_at_nodes(self) -> None:
        """Who leads tells of nodes that went without saying so; a node that leaves gives its weight up first."""
        steering = self._standing.steering
        if steering is None:
            return
        nodes = {name: info.weight for name, info in steering.cluster.membership.nodes().items()}
        if steering.cluster.election.term is not None:
            for name in sorted(self._nodes.keys() - nodes.keys()):
                if self._nodes[name] > 0:
                    self._tell("node_lost", f"node {name!r} is gone without leaving: its shards go to the others")
        self._nodes = nodes

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
