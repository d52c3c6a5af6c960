"""The modelled etcd, and what our client makes of it: a node that stands still while it joins (CLU-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from agentreach.internal.etcd.v3 import etcd_pb2 as pb
from reach.cluster.base import ClusterUnavailable, NodeInfo, Standing
from reach.cluster.etcd import EtcdCluster
from reach.cluster.etcd_api import Access
from reach.testing.sim.nodes.channels import Channel, Servers
from reach.testing.sim.nodes.etcd import MEMBERS, Etcd, address_of
from reach.testing.sim.nodes.observed import observed
from reach.testing.sim.nodes.process import NodeProcess, NodesLoop
from reach.testing.sim.nodes.roads import Roads

INFO = NodeInfo("n1", "n1.1", "n1:7411")


class Bench:
    """A node's client, and etcd, in virtual time."""

    def __init__(self) -> None:
        random = Random(7)
        self.loop = NodesLoop()
        self.roads = Roads(self.loop, random, 0.0)
        self.servers = Servers(self.roads)
        self.told: list[Any] = []
        self.etcd = Etcd(self.loop, random, self.servers, lambda *words: self.told.append(words))
        self.node = NodeProcess(self.loop, random, "n1")

    def run(self, work: Coroutine[Any, Any, None], seconds: float = 30.0) -> None:
        ended: list[Any] = []
        channel = lambda address, options=None: Channel(self.servers, self.node, address)  # noqa: E731
        with observed(channel, self.loop.time, Random(7)):
            task = self.node.create_task(work)
            task.add_done_callback(ended.append)
            self.loop.run_until(self.loop.now + seconds)
            assert ended, "it has not ended"
            ended[0].result()
            self.etcd.stop()
            for process in (self.node, *self.etcd.processes()):
                process.bury()
            self.loop.run_until(self.loop.now + 0.001)
        self.loop.close()

    def cluster(self) -> EtcdCluster:
        return EtcdCluster(Access([address_of(member) for member in MEMBERS]), "sim")

    def when(self, path: str, act: Any, times: int = 1) -> None:
        """Does something just before a call of this path arrives."""
        for _, handlers in self.servers._at.values():
            honest = handlers[path]

            async def handle(call: Any, honest: Any = honest) -> None:
                nonlocal times
                if times:
                    times -= 1
                    act()
                await honest(call)

            handlers[path] = handle


TXN = "/etcdserverpb.KV/Txn"


def test_CLU_2_a_node_whose_lease_lapses_while_it_joins_can_join_again() -> None:
    bench = Bench()

    async def act() -> None:
        cluster = bench.cluster()
        await cluster.start()
        bench.when(TXN, lambda: bench.etcd.end_lease(max(bench.etcd.leases)))
        with pytest.raises(ClusterUnavailable, match="lapsed"):
            await cluster.membership.join(INFO)
        assert cluster.membership.info is None
        await cluster.membership.join(INFO)
        assert cluster.membership.standing is Standing.MEMBER

    bench.run(act())


def test_CLU_2_a_node_whose_lease_lapses_while_it_becomes_a_candidate_is_one_soon() -> None:
    bench = Bench()

    async def act() -> None:
        cluster = bench.cluster()
        await cluster.start()
        await cluster.membership.join(INFO)
        bench.when(TXN, lambda: bench.etcd.end_lease(max(bench.etcd.leases)))
        with pytest.raises(ClusterUnavailable, match="lapsed"):
            await cluster.election.campaign()
        while cluster.election.term is None:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.1)
        assert cluster.election.leader == "n1"

    bench.run(act())


def test_the_modelled_etcd_compacts_lapses_and_comes_back() -> None:
    bench = Bench()

    async def act() -> None:
        cluster, other = bench.cluster(), bench.cluster()
        await cluster.start()
        await other.start()
        await cluster.membership.join(INFO)
        await asyncio.sleep(0.5)
        assert set(other.membership.nodes()) == {"n1"}
        unblock = bench.roads.block(("n1", "e1"), ("n1", "e2"))
        await asyncio.sleep(4.0)
        assert bench.etcd.keys_of(max(bench.etcd.leases, default=0)) == []
        bench.etcd.compact()
        unblock()
        await asyncio.sleep(3.0)
        assert set(other.membership.nodes()) == {"n1"}, "it has joined again, and the other one has listed anew"
        bench.etcd.stop()
        await asyncio.sleep(1.0)
        bench.etcd.start()
        await asyncio.sleep(2.5)
        assert cluster.membership.standing is Standing.MEMBER

    bench.run(act(), 60.0)


def test_an_unknown_outcome_is_told_as_one() -> None:
    bench = Bench()
    bench.etcd.unknown = 1.0

    async def act() -> None:
        client = bench.cluster().client
        with pytest.raises(ClusterUnavailable) as caught:
            await client.txn([pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=b"v"))])
        assert caught.value.unknown

    bench.run(act())
