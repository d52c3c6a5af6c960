"""Wires that are cut one way or both: a node from etcd, from PostgreSQL, from another node (F5, CLU-2, CLU-4).

`CUTS=all` cuts all of them, each way and both; CI cuts two.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reach.core.placement import SHARDS
from tests import postgres
from tests.contracts.etcd_servers import EtcdServers, need_etcd
from tests.e2e.cluster_load import seeded, under_load
from tests.e2e.networks import Network
from tests.e2e.nodes import LEASE_S, Node, Nodes
from tests.e2e.processes import eventually, tell

LOST_S = LEASE_S + 6.0
"""How soon others own what a node had that is cut off: its lease, or 3 s without the journal, and the move."""
CUT_S = LEASE_S + 4.0
"""Past the lease, or the doubt; longer than a call waits for an owner."""
FEW = ("a>etcd", "postgres>a")
EACH = ("a>etcd", "etcd>a", "a=etcd", "a>postgres", "postgres>a", "a=postgres", "a>b", "b>a", "a=b")
CUTS = EACH if os.environ.get("CUTS") == "all" else FEW

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 40 * len(CUTS))]


class CutNodes(Nodes):
    """Nodes that have a host each."""

    def __init__(self, network: Network, *rest: object) -> None:
        self.network = network
        super().__init__(*rest)  # type: ignore[arg-type]
        self.agents_at = network.address("here")

    def made(self, name: str, *more: str) -> Node:
        """A node on a host of its own, which listens beyond loopback."""
        host = self.network.add(name)
        node = super().made(name, "--host", host, "--insecure", *more)
        node.host, node.within = host, self.network.within(name)
        return node


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture
def nodes(tmp_path, network) -> Iterator[Nodes]:
    need_etcd()
    with ExitStack() as stack:
        postgres.server()  # skips where there is none
        database = postgres.Server(network.place("postgres"))
        stack.callback(database.end)
        etcd = EtcdServers(tmp_path, place=network.place("etcd"))
        made = CutNodes(network, tmp_path, "abc", 1, etcd, database)
        stack.callback(made.stop)
        made.start()
        yield made
        assert not [line for node in made.all.values() for line in node.tracebacks()]


def wires(what: str) -> list[tuple[str, str]]:
    """From where to where nothing arrives."""
    if ">" in what:
        source, target = what.split(">")
        return [(source, target)]
    one, other = what.split("=")
    return [(one, other), (other, one)]


async def test_F5_a_node_that_is_cut_off_gives_up_what_it_cannot_prove_and_comes_back_by_itself(
    nodes, agents, log, network
):
    """Nothing is lost or run twice. Who is cut off from etcd or PostgreSQL loses what it owned; who does not reach
    another node loses nothing."""
    others = [nodes.all["b"], nodes.all["c"]]
    async with under_load(nodes, agents, log, seeded()):
        for what in CUTS:
            moves, cut = nodes.moves(), time.monotonic()
            for wire in wires(what):
                network.cut(*wire)
            if "b" in what:
                lost = None
            else:
                others_own_all = lambda: sum(one.owned() for one in others) == SHARDS  # noqa: E731
                await asyncio.to_thread(eventually, others_own_all, f"{what}: others own all", LOST_S)
                lost = time.monotonic() - cut
            await asyncio.sleep(max(0.0, CUT_S - (time.monotonic() - cut)))  # cut for so long
            if lost is None:
                assert nodes.moves() == moves, f"{what}: nothing moves between nodes that own what they say"
            elif "postgres" in what:
                assert nodes.all["a"].checks()["owned"] == "in doubt", what
            else:
                assert nodes.all["a"].checks()["owned"] == 0, what
            for wire in wires(what):
                network.mend(*wire)
            mended = time.monotonic()
            await asyncio.to_thread(nodes.settle)
            told = f"others owned all after {lost:.1f} s, it " if lost is not None else "nothing moved; it "
            tell(f"{what}: {told}has its share again {time.monotonic() - mended:.1f} s after the end of the cut")
