"""Load on a cluster while something befalls it, and the sums that must come out even afterwards."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from reach import Client
from tests.e2e.kills import Load, even, kept
from tests.e2e.nodes import Nodes
from tests.e2e.processes import tell

ATTACHED = {"reader": "ab", "writer": "bc"}
"""Types of agents that attach, and the nodes where one of each does."""
DIALLED = {"dialled": "c"}
PATIENCE_S = 60.0
"""How long a client asks again where it is told that nobody answers just now."""


def seeded() -> random.Random:
    """What is drawn; `SEED=7` draws the same again."""
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    return random.Random(seed)


@asynccontextmanager
async def under_load(
    nodes: Nodes,
    agents: Callable[..., object],
    log: Path,
    chance: random.Random,
    types: Mapping[str, str] | None = None,
) -> AsyncIterator[Load]:
    """Callers at all nodes and agents at some, while the body runs. Afterwards: nothing was lost, nothing ran twice, no
    shard had two owners in one epoch, and the journal has what was told.

    Args:
        nodes: Which run.
        agents: Starts agents.
        log: What these write.
        chance: What is drawn.
        types: Types of agents that attach, beside those that are always there, and where.
    """
    attached = {**ATTACHED, **(types or {})}
    starts: list[tuple[str, ...]] = [(at, kind, "--slots", "64") for kind, at in attached.items()]
    starts += [(at, kind, "--slots", "64", "--listen", f"{nodes.agents_at}:0") for kind, at in DIALLED.items()]
    await asyncio.gather(*(asyncio.to_thread(agents, *one) for one in starts))
    clients = [Client(node.address, connect_timeout=PATIENCE_S, reconnect_timeout=None) for node in nodes.all.values()]
    load = Load(clients, chance, (*attached, *DIALLED))
    load.start()
    try:
        await asyncio.sleep(1.0)  # all are at work before
        yield load
        await asyncio.sleep(1.0)  # and after
        await load.stop()
        even(load, log, lambda name, line: False)
        claims = nodes.one_owner_each()
        tell(
            f"{len(load.wanted) / load.seconds:.0f} tasks a second for {load.seconds:.0f} s; {claims} claims of shards"
        )
        await kept(clients[0], load)
    finally:
        await load.abandon()
        for client in clients:
            await client.close()
