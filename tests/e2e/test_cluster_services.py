"""etcd and PostgreSQL die, and come back, under load (F3, E5, CLU-4): nothing is lost, and nothing moves.

`RESTARTS=all` has all of etcd away for 1, 10 and 30 s, and PostgreSQL crash too; CI is content with 5 s.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from reach.cluster.etcd import EtcdCluster
from reach.cluster.etcd_api import Access
from tests.e2e.cluster_load import seeded, under_load
from tests.e2e.nodes import LEASE_S
from tests.e2e.processes import eventually, tell

ALL = os.environ.get("RESTARTS") == "all"
AWAY_S = (1.0, 10.0, 30.0) if ALL else (5.0,)
HOW = (signal.SIGINT, signal.SIGQUIT) if ALL else (signal.SIGINT,)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]


def all_members(nodes):
    return lambda: {one.checks().get("membership") for one in nodes.all.values()} == {"member"}


@pytest.mark.parametrize("members", [3])
async def test_F3_E2_E5_CLU_4_members_of_etcd_die_and_nothing_stops_or_moves(nodes, agents, log):
    async with under_load(nodes, agents, log, seeded()) as load:
        etcd, moves = nodes.etcd, nodes.moves()

        async def one_leads(since, seconds, what):
            """Exactly one of the nodes, as etcd has it, within so many seconds."""
            async with EtcdCluster(Access(etcd.endpoints)) as seen:
                await asyncio.to_thread(eventually, all_members(nodes), f"{what}: all are members", seconds)
                candidates = lambda: len(seen.mirror.group(b"leader")) == len(nodes.all)  # noqa: E731
                await asyncio.to_thread(eventually, candidates, "each is a candidate once; the oldest leads", seconds)
                assert seen.election.leader in nodes.all
                tell(f"{what}: all are members again {time.monotonic() - since:.1f} s after it")

        leader = await etcd.leader()
        for what, number in (("kill -9 of a member", (leader + 1) % 3), ("kill -9 of the leader", leader)):
            killed = time.monotonic()
            etcd.kill(number)
            await asyncio.sleep(LEASE_S + 1.0)  # longer than a lease
            etcd.start(number)
            await one_leads(killed, 8.0, what)
        assert nodes.moves() == moves, "a member of etcd dies, and no shard moves"
        leader, frozen = await etcd.leader(), time.monotonic()
        etcd.signal(leader, signal.SIGSTOP)
        await asyncio.sleep(2.0 * LEASE_S)  # past two leases
        etcd.signal(leader, signal.SIGCONT)
        await asyncio.sleep(1.0)  # it may wake up to revoke leases that were renewed at the next leader (E2) ...
        await one_leads(frozen, 9.0, "SIGSTOP of the leader past two leases, and SIGCONT")
        await asyncio.to_thread(nodes.settle)  # ... whose nodes join again, and get what is theirs; nothing runs again
        moves = nodes.moves()
        for away in AWAY_S:
            told = len(load.told)
            etcd.kill_all()
            await asyncio.sleep(away)  # for so long
            assert len(load.told) - told > 0.3 * 100 * away, "tasks go on meanwhile"
            etcd.start_all()
            await etcd.ready()
            await one_leads(time.monotonic(), LEASE_S + 3.0, f"all of etcd away for {away:g} s")
        await asyncio.sleep(2.0)  # time for what must not happen
        assert nodes.moves() == moves, "etcd is away and comes back, and no shard moves"


@pytest.mark.parametrize("how", HOW)
async def test_CLU_4_postgresql_restarts_under_load_and_nothing_moves(nodes, agents, log, how):
    """Durable work waits, and goes on at the same nodes."""
    async with under_load(nodes, agents, log, seeded()) as load:
        moves = nodes.moves()
        await asyncio.to_thread(nodes.database.stop, how)
        await asyncio.sleep(4.0)  # longer than answers may be under way
        told = len(load.told)
        await asyncio.sleep(0.5)  # time for what must not happen
        assert len(load.told) == told, "nothing is promised that cannot be kept"
        await asyncio.to_thread(nodes.database.start)
        up = time.monotonic()
        await asyncio.to_thread(eventually, lambda: len(load.told) > told, "work goes on")
        tell(f"answers again {time.monotonic() - up:.2f} s after PostgreSQL is back")
        await asyncio.sleep(2.0)  # time for what must not happen
        assert nodes.moves() == moves, "all have lost it alike: nothing moves"
