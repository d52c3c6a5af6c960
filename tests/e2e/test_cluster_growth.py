"""A fourth node comes (CLU-4, E4); a thousand agents live without a word in etcd (E3).

`AGENTS=1000 QUIET_SECONDS=600` is E3 as it was reported; CI has fewer, for a shorter time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

import pytest

from reach import Agent, Client, Task
from reach.cluster.etcd_api import Access, EtcdClient
from reach.core.placement import SHARDS
from tests.e2e.cluster_load import seeded, under_load
from tests.e2e.kills import Load
from tests.e2e.processes import tell

AGENTS = int(os.environ.get("AGENTS", "60"))
QUIET_S = float(os.environ.get("QUIET_SECONDS", "10"))
SESSIONS = 60

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180 + AGENTS // 5 + int(QUIET_S))]


async def talk(client: Client, load: Load, kind: str, when: str) -> dict[str, str]:
    """One turn of each session: who answered."""

    async def turn(number: int) -> tuple[str, str]:
        task_id = f"{when}-{kind}-{number}"
        load.wanted[task_id] = "x"
        session = ("app", "user", f"s{number}")
        result = await client.send("echo", "x", agent_type=kind, session=session, task_id=task_id)
        load.told[task_id] = (result.text, time.time())
        return f"s{number}", result.instance_id

    return dict(await asyncio.gather(*(turn(number) for number in range(SESSIONS))))


async def test_CLU_4_E4_a_fourth_node_takes_16_of_64_shards_and_no_living_session_moves(nodes, agents, log):
    async with under_load(nodes, agents, log, seeded()) as load, Client(nodes.all["a"].address) as client:
        kinds = ("reader", "writer")
        pinned = {kind: await talk(client, load, kind, "before") for kind in kinds}
        assert all(len(set(pins.values())) == 2 for pins in pinned.values()), "both agents of a type have some"
        claims = nodes.claims()
        fourth = nodes.all["d"] = nodes.made("d")
        await asyncio.to_thread(fourth.start)
        await asyncio.to_thread(nodes.settle)
        assert {kind: await talk(client, load, kind, "after") for kind in kinds} == pinned
        moved = {key: names for key, names in nodes.claims().items() if key not in claims}
        assert [names for names in moved.values() if names != ["d"]] == []
        assert len(moved) == len({shard for shard, _ in moved}) == SHARDS // 4
        assert load.failed == {}


async def test_E3_agents_that_live_write_nothing_to_etcd(nodes):
    """Beats, scores and results stay where they are: revisions stand still while nobody comes or goes."""

    async def work(task: Task) -> str:
        return task.text

    etcd = EtcdClient(Access(nodes.etcd.endpoints))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(etcd.close)
        for number in range(AGENTS):
            address = list(nodes.all.values())[number % 3].address
            agent = Agent(f"kind-{number % 12}", addr=address, instance_id=f"one-{number}", heartbeat_interval=2.0)
            agent.add_handler(work)
            await stack.enter_async_context(agent)
        clients = [await stack.enter_async_context(Client(node.address)) for node in nodes.all.values()]
        await asyncio.sleep(2.0)  # what was written when all came is over
        (_, before), loop = await etcd.list(b"/reach/"), asyncio.get_running_loop()
        until, given = loop.time() + QUIET_S, 0
        while loop.time() < until:
            answers = (client.send("", "x", agent_type=f"kind-{given % 12}") for client in clients)
            assert {one.text for one in await asyncio.gather(*answers)} == {"x"}
            given += len(clients)
            await asyncio.sleep(0.2)  # light work, for a while
        _, after = await etcd.list(b"/reach/")
    a_minute = (after - before) * 60 / QUIET_S / len(nodes.all)
    tell(
        f"{AGENTS} agents, {given} tasks in {QUIET_S:g} s: {after - before} revisions, {a_minute:.1f} a minute and node"
    )
    assert a_minute <= 5
