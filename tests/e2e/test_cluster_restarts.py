"""All nodes are replaced one after the other with SIGTERM, under load (F12, CLU-6, DLV-13): no task fails, no reader
lacks a piece in the end, no call is asked for more than twice.

`ROUNDS=5` goes round as often (`make cluster-test`); `SEED=7` draws the same moments again.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from reach import Client
from reach.core.model import PoolKey
from reach.core.placement import shard_of
from reach.wire.status import error_from_rpc
from tests.e2e.agents.worker import text_of
from tests.e2e.kills import RATE, Load, even, kept, tell_times
from tests.e2e.nodes import Node, Nodes
from tests.e2e.plain import Plain, spec, timeouts
from tests.e2e.processes import PATIENCE, begins, eventually, tell
from tests.e2e.reading import Text

ROUNDS = int(os.environ.get("ROUNDS", "1"))
TYPES = {"reader": "ab", "writer": "bc", "thinker": "ca"}
"""Types of agents, and the nodes where one of each attaches."""
DIALLED = {"dialled": "c"}
DRAIN_S = 10
GRACE_S = DRAIN_S + 5.0
"""What an orchestrator gives a node: more than it takes to drain and to hand over."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(120 + 60 * ROUNDS)]


class Callers:
    """Simple clients without the SDK: one call at a time, at any node; one that is refused goes to the next."""

    def __init__(self, nodes: Nodes, count: int = 3) -> None:
        self._plains = [Plain(node.address) for node in nodes.all.values()]
        self._count = count
        self._going = True
        self.retries: dict[str, list[str]] = {}
        """Why each call was not answered at once."""
        self.failed: dict[str, str] = {}
        self.answers: dict[str, tuple[str, float]] = {}
        """As `Load.told`."""

    async def run(self) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as callers:
            for number in range(self._count):
                callers.create_task(asyncio.to_thread(self._call, number))

    def stop(self) -> None:
        self._going = False

    def _call(self, caller: int) -> None:
        turn, number = caller, 0
        while self._going:
            number += 1
            name = f"plain-{caller}-{number}"
            for _ in range(10):
                try:
                    answer = self._plains[turn % 3].dispatch(spec("echo", name, name, "reader"), wait=10)
                except grpc.RpcError as failure:
                    error = error_from_rpc(cast("Any", failure))
                    self.retries.setdefault(name, []).append(f"{error.reason.name}: {error.message}")
                    if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                        self.failed[name] = str(error)
                        break
                    turn += 1
                else:
                    if answer.result.output.text != name:
                        self.failed[name] = f"{answer.state} {answer.result.error.message}"
                    self.answers[name] = name, time.time()
                    break
            time.sleep(0.02)  # it asks again, as SDKs do

    def close(self) -> None:
        for plain in self._plains:
            plain.channel.close()


async def replaced(node: Node) -> float:
    """SIGTERM, and another one in its place; how long the end took."""
    began = time.monotonic()
    node.terminate()
    code = await asyncio.to_thread(node.wait, GRACE_S)
    took = time.monotonic() - began
    assert code == 0
    await asyncio.to_thread(node.start)
    return took


def overtaken(nodes: Nodes) -> list[str]:
    """Nodes that lost shards because the store did not answer in time, of which nothing is handed over: the first thing
    to look at if there is a gap."""
    return [name for name, node in nodes.all.items() if "what was decided here is void" in node.log_text()]


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("AGENT_REACH_SERVER_DRAIN_SECONDS", str(DRAIN_S))


async def test_CLU_6_all_nodes_are_replaced_under_load(environment, nodes, agents, log: Path):
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed} ROUNDS={ROUNDS}")
    chance = random.Random(seed)
    for agent_type, at in TYPES.items():
        await asyncio.to_thread(agents, at, agent_type, "--slots", "64")
    for agent_type, at in DIALLED.items():
        await asyncio.to_thread(agents, at, agent_type, "--slots", "64", "--listen", "127.0.0.1:0")
    clients = [Client(node.address, reconnect_timeout=None) for node in nodes.all.values()]
    load, callers = Load(clients, chance, (*TYPES, *DIALLED)), Callers(nodes)
    calling = asyncio.create_task(callers.run())
    load.start()
    ends: list[float] = []
    try:
        await asyncio.sleep(1.0)  # all are at work before
        for _ in range(ROUNDS):
            for node in nodes.all.values():
                await asyncio.sleep(chance.uniform(0.2, 1.0))  # at any moment
                ends.append(await replaced(node))
                await asyncio.to_thread(nodes.settle, 60.0)
        await asyncio.sleep(1.0)  # and after
        callers.stop()
        await calling
        await load.stop()
        rate = len(load.wanted) / load.seconds
        load.wanted |= {name: name for name in callers.answers}
        load.told |= callers.answers
        tell_times("from SIGTERM to the end of a node", ends)
        tell(f"{rate:.0f} tasks a second for {load.seconds:.0f} s; numbers jumped for {len(load.gaps)} readers")
        times = Counter(len(reasons) for reasons in callers.retries.values())
        tell(f"{len(callers.answers)} calls without the SDK, retries by call: {dict(times)}")
        tell(Counter(reason for reasons in callers.retries.values() for reason in reasons))
        tell(f"claims: {nodes.one_owner_each()}")
        even(load, log, lambda name, line: False)
        await kept(clients[0], load)
    finally:
        callers.stop()
        await asyncio.wait({calling})
        callers.close()
        for client in clients:
            await client.close()
    assert not load.gaps, (load.gaps, f"overtaken while the store did not answer: {overtaken(nodes)}")
    assert not callers.failed, list(callers.failed.items())[:3]
    assert max(times, default=0) <= 1, {name: why for name, why in callers.retries.items() if len(why) > 1}
    assert rate > 0.8 * RATE


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setenv("AGENT_REACH_SERVER_DRAIN_SECONDS", "4")


async def test_DLV_13_readers_go_on_where_they_were_when_all_nodes_end_and_begin(soon, nodes, agents, log: Path):
    """Longer than the nodes wait for it: the one that ends last leaves the stream to whoever comes."""
    await asyncio.to_thread(agents, "abc")
    async with Client(",".join(node.address for node in nodes.all.values()), reconnect_timeout=None) as client:
        text, count = Text(), 400
        payload = {"count": count, "pause": 0.04}

        async def read() -> None:
            events = client.stream("stream", payload, agent_type="worker", task_id="long", start_to_close=120)
            async for event in events:
                text.add(event.message)

        reading = asyncio.create_task(read())
        await asyncio.to_thread(eventually, lambda: "delta" in text.kinds, "it streams")
        last = owner_of(nodes, "worker")
        for node in [*(one for one in nodes.all.values() if one is not last), last]:
            node.terminate()
            assert await asyncio.to_thread(node.wait, GRACE_S) == 0
        before = len(text.kinds)
        for node in nodes.all.values():
            await asyncio.to_thread(node.start)
        await asyncio.to_thread(nodes.settle, 60.0)
        async with asyncio.timeout(60):
            await reading
    assert len(text.kinds) - before > 50, "it went on behind them"
    assert "resumed" in text.kinds
    assert not {"gap", "attempt_reset"} & set(text.kinds), Counter(text.kinds)
    assert text.value == text_of("long", count)
    assert len(begins(log)["long"]) == 1


def owner_of(nodes: Nodes, agent_type: str) -> Node:
    """The node whose pool it is, by the last claims."""
    last = {shard: names[0] for (shard, _), names in sorted(nodes.claims().items())}
    return nodes.all[last[shard_of(PoolKey("default", agent_type))]]


def test_DLV_13_a_second_SIGTERM_ends_a_node_at_once(environment, nodes, agents, log: Path):
    agents("abc")
    owner = owner_of(nodes, "worker")
    other = next(node for node in nodes.all.values() if node is not owner)
    with Plain(other.address) as plain:
        plain.dispatch(spec("sleep", {"seconds": 5}, "long", timeouts=timeouts(start_to_close=60)))
        eventually(lambda: begins(log).get("long"), "it runs")
        for node in nodes.all.values():
            if node is not owner:
                node.freeze()  # so that nobody takes what it would hand over, and it waits
        owner.terminate()
        eventually(lambda: '"stopping"' in owner.log_text(), "it stops")
        began = time.monotonic()
        owner.terminate()
        assert owner.wait(GRACE_S) == 1
        assert time.monotonic() - began < 2
        for node in nodes.all.values():
            if node is not owner:
                node.thaw()
        result = plain.result("long")
    assert (result.attempts, result.output.text) == (1, "slept 5")
    assert len(begins(log)["long"]) == 1


def test_DLV_13_a_node_ends_in_time_when_nobody_takes_over(monkeypatch, nodes):
    """The others hang; it was given 4 s (drain_seconds), and needs no more."""
    monkeypatch.setenv("AGENT_REACH_SERVER_DRAIN_SECONDS", "4")
    leaving = nodes.all["a"]
    leaving.kill()
    leaving.start()
    nodes.settle(60.0)
    for name in "bc":
        nodes.all[name].freeze()
    began = time.monotonic()
    leaving.terminate()
    assert leaving.wait(PATIENCE) == 0
    assert time.monotonic() - began <= 4 + 1
    for name in "bc":
        nodes.all[name].thaw()
