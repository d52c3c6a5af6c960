"""kill -9 at random moments under 250 tasks a second (F1, F2): nothing is lost, nothing runs twice that was not killed.

`KILLS=100` kills as often (`make kill-test`); `SEED=7` draws the same moments again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import time
from contextlib import ExitStack

import pytest

from reach import Client
from reach.core.delivery import LOST_MOVES
from tests.e2e.kills import RATE, Load, even, kept, tell_times
from tests.e2e.processes import AgentProcess, begins, tell

KILLS = int(os.environ.get("KILLS", "10"))
AGENTS = 3

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 6 * KILLS)]


@pytest.fixture
def chance():
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed} KILLS={KILLS}")
    return random.Random(seed)


async def test_F1_P1_P2_server_killed_under_load(server, start_agents, log, chance):
    await asyncio.to_thread(start_agents, AGENTS, "--slots", "64")
    killed: list[float] = []
    served: list[float] = []
    async with Client(server.address, reconnect_timeout=None) as client:
        load = Load(client, chance)
        load.start()
        await asyncio.sleep(1.0)
        for _ in range(KILLS):
            await asyncio.sleep(chance.choice((0.1, 1.0, 2.5)) * chance.uniform(0.2, 1.8))
            killed.append(time.time())
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            served.append(time.time())
        await asyncio.sleep(5.0)
        await load.stop()
        even(load, log, lambda name, line: False)
        tell(f"{len(load.wanted) / load.seconds:.0f} tasks a second for {load.seconds:.0f} s")
        tell_times("from the kill to serving", [up - down for down, up in zip(killed, served, strict=True)])
        unserved = load.unserved(list(zip(served, [*killed[1:], time.time()], strict=True)))
        tell_times("from serving to the next answer", unserved)
        await asyncio.to_thread(server.restart)
        await kept(client, load)
    assert len(load.wanted) / load.seconds > 0.8 * RATE
    assert statistics.median(unserved) <= 5.0, "the worst is the machine's: it starts servers, agents and other tests"
    assert not server.tracebacks()


async def test_F2_agents_killed_under_load(server, start_agents, log, chance, plain):
    killed: dict[int, float] = {}
    with ExitStack() as stack:
        agents = await asyncio.to_thread(start_agents, AGENTS + 1, "--slots", "64")
        async with Client(server.address, reconnect_timeout=None) as client:
            load = Load(client, chance)
            load.start()
            await asyncio.sleep(1.0)
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0.05, 0.8))
                victim = agents.pop(chance.randrange(len(agents)))
                victim.kill()
                killed[victim.pid] = time.time()
                fresh = stack.enter_context(AgentProcess(server.address, log, "--slots", "64"))
                agents.append(fresh)
                if len(plain.free()) < 2:  # start-up of processes is slower than their end
                    await asyncio.sleep(1.5)
            await asyncio.sleep(1.0)
            await load.stop()
            begun = begins(log)
            buried = {  # a second's work, where each agent lives for less than two (decision 0006)
                name
                for name, why in load.failed.items()
                if why.startswith(f"DEAD_LETTERED after {LOST_MOVES + 1} attempts")
                and len(begun[name]) == LOST_MOVES + 1
                and all(line["at"] <= killed.get(line["pid"], 0.0) for line in begun[name])
            }
            tell(f"given up, each after {LOST_MOVES + 1} kills in the middle of it: {sorted(buried)}")
            sums = even(
                load, log, lambda name, line: line["pid"] in killed and line["at"] <= killed[line["pid"]], buried
            )
            tell(f"{len(load.wanted) / load.seconds:.0f} tasks a second for {load.seconds:.0f} s")
            moved = [
                again["at"] - killed[first["pid"]]
                for lines in begins(log).values()
                for first, again in itertools.pairwise(lines)
            ]
            tell_times("from the kill to running elsewhere", moved)
            await asyncio.to_thread(server.restart)
            await kept(client, load)
            for name, lines in begins(log).items():
                if len(lines) > 1:
                    result = (await client.get_task(name)).result
                    attempts = result.attempts if result is not None else 0
                    assert attempts >= len(lines), (name, attempts, lines)
    assert sums["begun again"] > 0, "some were killed in the middle of a task"
    assert len(load.wanted) / load.seconds > 0.8 * RATE
    assert not server.tracebacks()
