"""kill -9 of nodes under 100 tasks a second (CLU-3, F1): nothing is lost, and what runs goes on.

`NODE_KILLS=30` kills as often (`make cluster-test`); `SEED=7` draws the same moments again.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from reach.core.model import PoolKey
from reach.core.placement import shard_of
from tests.e2e.cluster_load import ATTACHED, DIALLED, seeded, under_load
from tests.e2e.kills import RATE, Load, tell_times
from tests.e2e.nodes import LEASE_S, Nodes
from tests.e2e.processes import read_log, tell

KILLS = int(os.environ.get("NODE_KILLS", "3"))
EACH_TYPE_S = 0.5
"""Within this of a moment each type has an answer to a task that was asked for then, when nothing is wrong."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(150 + 15 * KILLS)]


class Kill(NamedTuple):
    """A node was killed."""

    at: float
    node: int
    types: Sequence[str]
    """What it owned."""


def owned_by(nodes: Nodes, name: str) -> list[str]:
    """The types whose pools a node owns."""
    served = nodes.served_by()
    return [one for one in (*ATTACHED, *DIALLED) if served.get(shard_of(PoolKey("default", one))) == name]


def take_over(load: Load, kill: Kill) -> float:
    """Seconds until others answered for all that the node owned: by tasks that were given to them afterwards."""
    firsts = []
    for agent_type in kill.types:
        times = [
            load.told[name][1]
            for name, (at, client, one) in load.asked.items()
            if at > kill.at and client != kill.node and one == agent_type and name in load.told
        ]
        firsts.append(min(times, default=float("inf")) - kill.at)
    return max(firsts)


def crossing(log: Path, moments: Sequence[float]) -> int:
    """How many attempts had begun and not ended at one of these moments."""
    ends = {(line["task"], line["attempt"]): line["at"] for line in read_log(log, "end")}
    spans = [(line["at"], ends.get((line["task"], line["attempt"]), line["at"])) for line in read_log(log, "begin")]
    return sum(1 for begin, end in spans if any(begin < moment < end for moment in moments))


@pytest.mark.parametrize("members", [3])
async def test_CLU_3_F1_nodes_killed_under_load(nodes, agents, log):
    """No agent is killed, so nothing may run twice, whether its agent attached or is dialled."""
    chance = seeded()
    names = list(nodes.all)
    kills: list[Kill] = []
    async with under_load(nodes, agents, log, chance) as load:
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.2, 2.0))  # at any moment
            number = chance.randrange(len(names))
            victim = nodes.all[names[number]]
            kills.append(Kill(time.time(), number, owned_by(nodes, names[number])))
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(chance.choice((0.0, 1.0, 4.0)) * chance.uniform(0.2, 1.2))  # away
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(nodes.settle)
    went_on = crossing(log, [kill.at for kill in kills])
    tell(f"{KILLS} nodes killed; {went_on} attempts ran at that moment, and went on")
    assert went_on > 0
    assert len(load.wanted) / load.seconds > 0.8 * RATE
    if took := [take_over(load, kill) for kill in kills if kill.types]:
        tell_times("from the kill of an owner to an answer of each of its pools", took)
        assert statistics.median(took) <= LEASE_S + EACH_TYPE_S, took
