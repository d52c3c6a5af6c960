"""Alerts of a node and its cluster: once each time something begins (OBS-4)."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reach.cluster.base import NodeInfo
from reach.cluster.leader import Leader
from reach.cluster.single import Memory, SingleCluster
from reach.core.node_state import NodeFacts
from reach.runtime.standing import NodeStanding
from reach.runtime.standing_alerts import UNTOLD_LOOKS, StandingAlerts, kinds_of
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


class Three:
    """Nodes that look after themselves; `lead` leads."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.facts = WELL
        self.nodes = {name: SingleCluster(self.memory) for name in ("lead", "dies", "leaves")}
        self.told: dict[str, list[str]] = {name: [] for name in self.nodes}
        self.watches: dict[str, StandingAlerts] = {}

    async def start(self) -> None:
        for name, cluster in self.nodes.items():
            await cluster.membership.join(NodeInfo(name, "boot", "h:1"))
            await cluster.election.campaign()
            steering = Steering(cluster, Leader(cluster, lambda: 0), name)
            standing = SimpleNamespace(facts=lambda: self.facts, steering=steering)
            self.watches[name] = StandingAlerts(cast("NodeStanding", cast("Any", standing)), self.told[name].append)

    def look(self) -> None:
        for watch in self.watches.values():
            watch.look()

    async def leave(self) -> None:
        membership = self.nodes["leaves"].membership
        await membership.update(NodeInfo("leaves", "boot", "h:1", weight=0))
        await membership.leave()


async def test_OBS_4_an_alert_is_told_once_each_time_it_begins_and_lost_nodes_by_the_leader() -> None:
    three = Three()
    await three.start()
    three.look()
    for doubt in (True, True, False, True):
        three.facts = WELL._replace(in_doubt=doubt)
        three.look()
    assert three.told["lead"] == ["in_doubt"] * 2
    three.facts = WELL
    three.memory.expire("dies", "boot")
    three.look()
    assert three.told["lead"][2:] == ["node_lost"]
    three.look()
    assert three.told["lead"][2:] == ["node_lost"]
    assert "node_lost" not in three.told["leaves"], "it does not lead"


async def test_OBS_4_who_leaves_in_less_time_than_it_takes_to_look_is_not_lost() -> None:
    """A rolling restart said so of each node."""
    three = Three()
    await three.start()
    running = asyncio.create_task(three.watches["lead"].run())
    await asyncio.sleep(0)
    await three.leave()
    three.watches["lead"].look()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert three.told["lead"] == []


async def test_OBS_4_a_leader_that_is_lost_is_told_of_by_the_next_one() -> None:
    three = Three()
    await three.start()
    three.look()
    candidates = dict(three.memory.candidates)
    three.memory.candidates.clear()  # its end is known before it is known who leads then
    three.memory.expire("lead", "boot")
    del three.watches["lead"]
    three.look()
    three.memory.candidates |= {who: at for who, at in candidates.items() if who[0] != "lead"}
    three.look()
    assert three.told["dies"] == ["node_lost"]
    await three.nodes["dies"].election.resign()
    for _ in range(UNTOLD_LOOKS):
        three.look()
    assert three.told["dies"] == ["node_lost"]


async def test_OBS_4_who_begins_to_lead_long_after_does_not_tell_it_again() -> None:
    three = Three()
    await three.start()
    three.look()
    three.memory.expire("leaves", "boot")
    for _ in range(UNTOLD_LOOKS + 1):
        three.look()
    await three.nodes["lead"].election.resign()
    three.look()
    assert three.told["lead"] == ["node_lost"]
    assert three.told["dies"] == []
