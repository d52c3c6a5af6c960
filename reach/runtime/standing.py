"""How this node does: one answer for `/readyz`, gRPC health, metrics and `reach cluster status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reach.core.node_state import NodeFacts, NodeState, is_ready, problems_of, state_of
from reach.core.placement import SHARDS
from reach.runtime.host import Host
from reach.runtime.reach_api import Reach

if TYPE_CHECKING:
    from reach.runtime.claims import Claims
    from reach.runtime.steering import Steering

MEMBER = "member"
"""The standing of a node that surely holds its lease (`cluster.base.Standing`)."""


class NodeStanding:
    """See the module.

    Args:
        host: The shards of this node.
        reach: Its door.
        weight: Its share of the work, as configured.
    """

    def __init__(self, host: Host, reach: Reach, weight: int = 1) -> None:
        self._host = host
        self._reach = reach
        self.weight = weight
        self.is_open = False
        """All parts run; set by whoever builds the node."""
        self.claims: Claims | None = None
        """What it owns, where nodes share a journal."""
        self.steering: Steering | None = None
        """The other nodes, where nodes share a journal."""
        self.cluster_name = ""
        """Empty: this node is alone."""
        self.operators: frozenset[str] = frozenset()
        """Tenants whose operators may steer the nodes."""
        self.address = ""
        """Where other nodes reach this one."""

    def facts(self) -> NodeFacts:
        """What is known now. Quick: metrics and probes ask."""
        held = self._host.committer.held
        facts = NodeFacts(
            is_open=self.is_open,
            stopping=self._reach.stopping,
            held="" if held is None else type(held).__name__,
            weight=self.weight,
            owned=SHARDS,
        )
        claims, steering = self.claims, self.steering
        if claims is None or steering is None:
            return facts
        return facts._replace(
            settled=claims.has_settled,
            in_doubt=claims.is_in_doubt(),
            membership=steering.cluster.membership.standing.value,
            behind_ms=steering.cluster.behind_ms,
            drained=self._reach.node_id in steering.drained(),
            owned=len(claims.owned),
        )

    def state(self) -> NodeState:
        """In one word."""
        return state_of(self.facts())

    def epochs(self) -> Mapping[int, int]:
        """The shards of this node, and their epochs; a node that is alone has all, and no epochs."""
        return dict.fromkeys(range(SHARDS), 0) if self.claims is None else self.claims.epochs()

    def is_ready(self) -> bool:
        """Whether it takes new work."""
        return is_ready(self.facts())

    def ready(self) -> tuple[bool, Mapping[str, object]]:
        """For `/readyz`: whether it takes new work, and what each check said."""
        facts = self.facts()
        intake = "stopping" if facts.stopping else "open" if facts.is_open else "starting"
        checks: dict[str, object] = {"state": state_of(facts).value, "intake": intake, "store": facts.held or "ok"}
        if self.claims is not None:
            checks["membership"] = facts.membership
            checks["owned"] = "in doubt" if facts.in_doubt else facts.owned
            checks["etcd"] = f"not heard for {facts.behind_ms / 1_000:.1f} s" if facts.behind_ms else "ok"
        if found := problems_of(facts):
            checks["problems"] = found
        return is_ready(facts), checks

    def figures(self) -> Mapping[str, float]:
        """For metrics; keys of `metrics.NODE`."""
        facts, steering = self.facts(), self.steering
        figures = {
            "ready": float(is_ready(facts)),
            "in_doubt": float(facts.in_doubt),
            "shards": float(facts.owned),
            "etcd_behind_seconds": facts.behind_ms / 1_000,
            "leads": 0.0,
            "nodes": 1.0,
            "lease_held": 1.0,
            "drained": float(facts.drained),
        }
        if steering is not None:
            figures["leads"] = float(steering.cluster.election.term is not None)
            figures["nodes"] = float(len(steering.cluster.membership.nodes()))
            figures["lease_held"] = float(facts.membership == MEMBER)
        return figures
