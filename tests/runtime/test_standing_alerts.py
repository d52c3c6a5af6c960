"""Alerts of a node and its cluster: once each time something begins (OBS-4)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from reach.cluster.base import NodeInfo
from reach.cluster.leader import Leader
from reach.cluster.single import Memory, SingleCluster
from reach.core.node_state import NodeFacts
from reach.runtime.standing import NodeStanding
from reach.runtime.standing_alerts import StandingAlerts, kinds_of
from reach.runtime.steering import Steering
from reach.telemetry.metrics import ALERTS

WELL = NodeFacts(is_open=True, membership="member")


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        (WELL, []),
        (WELL._replace(in_doubt=True), ["in_doubt"]),
        (WELL._replace(membership="lost", behind_ms=9_999), ["lease_lost"]),
        (WELL._replace(membership="lost", behind_ms=10_000), ["lease_lost", "etcd_away"]),
        (WELL._replace(membership="replaced"), ["replaced"]),
    ],
)
def test_OBS_4_what_is_an_alert(facts: NodeFacts, kinds: list[str]) -> None:
    assert kinds_of(facts) == kinds
    assert set(kinds) <= set(ALERTS)


async def test_OBS_4_an_alert_is_told_once_each_time_it_begins_and_lost_nodes_by_the_leader() -> None:
    memory = Memory()
    nodes = {name: SingleCluster(memory) for name in ("lead", "dies", "leaves")}
    for name, cluster in nodes.items():
        await cluster.membership.join(NodeInfo(name, "boot", "h:1"))
        await cluster.election.campaign()
    facts = [WELL]
    told: dict[str, list[str]] = {}
    watches = {}
    for name, cluster in nodes.items():
        standing = SimpleNamespace(facts=lambda: facts[0], steering=Steering(cluster, Leader(cluster, lambda: 0), name))
        told[name] = []
        watches[name] = StandingAlerts(cast("NodeStanding", cast("Any", standing)), told[name].append)

    def look() -> None:
        for watch in watches.values():
            watch.look()

    look()
    for doubt in (True, True, False, True):
        facts[0] = WELL._replace(in_doubt=doubt)
        look()
    assert told["lead"] == ["in_doubt"] * 2
    facts[0] = WELL
    memory.expire("dies", "boot")
    await nodes["leaves"].membership.update(NodeInfo("leaves", "boot", "h:1", weight=0))
    look()
    await nodes["leaves"].membership.leave()
    look()
    assert told["lead"][2:] == ["node_lost"]
    assert "node_lost" not in told["leaves"], "it does not lead"
