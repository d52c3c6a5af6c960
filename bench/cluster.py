"""Runs with nodes on etcd and PostgreSQL (`reach.testing.cluster`): a closed loop with agents that are killed (PRF-6),
and what several nodes carry beside one.

    MINUTES=10 python -m bench PRF-6        longer than its two minutes

All of it shares one machine: nodes, etcd, PostgreSQL (with fsync), agents, callers. So three nodes cannot carry more
than one; the ratio tells what working together costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import grpc

from agentreach.v1 import cluster_pb2, ops_pb2_grpc
from reach.core.model import PoolKey
from reach.core.placement import SHARDS, shard_of
from reach.testing.cluster import LocalCluster

MINUTES = float(os.environ.get("MINUTES", "2"))
"""Of PRF-6."""
CALLERS, AGENTS, TASK_MS, SLOTS = 500, 8, 300, 128
KILL_SECONDS, AWAY_SECONDS = 60.0, 5.0
"""An agent is killed this often, and stays away for so long."""
PER_NODE = 64
"""Tasks in flight for each node, where throughput is measured; as many in all with one node."""
THROUGHPUT_SECONDS = 10.0
NODES = 3
SETTLE_SECONDS = 30.0
LOAD = (sys.executable, "-m", "bench.cluster_load")
Target = tuple[str, str]
"""(address, agent type)"""


class Load(NamedTuple):
    """What callers saw."""

    tasks: int
    rate: float
    p50_ms: float
    p99_ms: float
    most_ms: float
    wrong: int
    """Tasks that were lost or failed, and errors."""
    shown: list[str]


@contextmanager
def started(nodes: int) -> Iterator[LocalCluster]:
    """A cluster that owns all shards, each node its share."""
    with tempfile.TemporaryDirectory(prefix="reach-bench-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL does not run as root
        cluster = LocalCluster(Path(folder), nodes=nodes, members=1, free=True)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def owners(cluster: LocalCluster) -> list[str]:
    """The node that owns each shard, once all have their share."""
    fair = {SHARDS // len(cluster.nodes), -(-SHARDS // len(cluster.nodes))}
    end = time.monotonic() + SETTLE_SECONDS
    with grpc.insecure_channel(cluster.addresses[0]) as channel:
        stub = ops_pb2_grpc.OpsServiceStub(channel)
        while time.monotonic() < end:
            placement = stub.GetCluster(cluster_pb2.GetClusterRequest(), timeout=5).placement
            found = [one.owner for one in sorted(placement, key=lambda one: one.shard)]
            if len(found) == SHARDS and all(found.count(name) in fair for name in cluster.nodes):
                return found
            time.sleep(0.2)  # nobody tells when they are
    raise RuntimeError("the shards were not shared out")


def types_of(placement: Sequence[str], names: Sequence[str]) -> list[str]:
    """For each name of a node an agent type that is at home there."""
    kinds = [f"kind-{number}" for number in range(1_000)]
    found: list[str] = []
    for name in names:
        at_home = (kind for kind in kinds if placement[shard_of(PoolKey("default", kind))] == name)
        found.append(next(kind for kind in at_home if kind not in found))
    return found


@contextmanager
def _agents(targets: Sequence[Target], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*LOAD, "agents", *_texts(targets), *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _callers(targets: Sequence[Target], count: int, seconds: float) -> Load:
    command = [*LOAD, "callers", *_texts(targets), "-c", str(count), "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=seconds + 300)
    load = Load(**json.loads(done.stdout))
    for line in load.shown:
        print(line, file=sys.stderr)
    return load


def _texts(targets: Sequence[Target]) -> list[str]:
    return [f"{address}/{kind}" for address, kind in targets]


@cache
def closed_loop(seconds: float) -> Load:
    """PRF-6: 500 callers and 8 agents at three nodes. Measured once for all figures that are of it."""
    with started(NODES) as cluster, ExitStack() as stack:
        owners(cluster)
        addresses, over = cluster.addresses, threading.Event()

        def run(number: int) -> ExitStack:
            target = (addresses[number % NODES], "worker")
            what = ("--ms", str(TASK_MS), "--slots", str(SLOTS), "--instance", f"worker-{number}")
            own = ExitStack()
            own.enter_context(_agents([target], *what))
            return own

        running = [run(number) for number in range(AGENTS)]

        def kill() -> None:
            """The first after half the time between two."""
            wait, number = min(KILL_SECONDS, seconds) / 2, 0
            while not over.wait(wait):
                running[number].close()
                over.wait(AWAY_SECONDS)
                running[number] = run(number)
                number = (number + 1) % AGENTS
                wait = KILL_SECONDS - AWAY_SECONDS

        time.sleep(3.0)  # they have come, and begun
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            return _callers([(address, "worker") for address in addresses], CALLERS, seconds)
        finally:
            over.set()
            killer.join()
            for one in running:
                stack.push(one.pop_all())


def throughput(nodes: int, scale: float, *, away: bool = False) -> float:
    """Durable no-op tasks a second. Three agent types, with several nodes one at home at each.

    Args:
        nodes: How many.
        scale: Of the time.
        away: Callers are at the node behind the owner's, agents at the one behind that: everything is proxied.
    """
    with started(nodes) as cluster:
        names = list(cluster.nodes)
        homes = [number % nodes for number in range(NODES)]
        kinds = types_of(owners(cluster), [names[home] for home in homes])

        def at(step: int) -> list[Target]:
            where = [(home + step) % nodes if away else home for home in homes]
            return [(cluster.addresses[place], kind) for place, kind in zip(where, kinds, strict=True)]

        with _agents(at(2)):
            time.sleep(2.0)  # they have come
            load = _callers(at(1), PER_NODE * NODES, max(2.0, THROUGHPUT_SECONDS * scale))
    if load.wrong:
        raise RuntimeError(f"{load.wrong} of {load.tasks} tasks went wrong: {load.shown}")
    return load.rate
