"""Networks that cut (STR-2), and networks that go dead without a word, one way or both (F6, A10)."""

from __future__ import annotations

import asyncio
import os
import random
import time

import grpc
import pytest

from agentreach.v1 import result_pb2, result_pb2_grpc
from reach import Agent, Client, Task
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import tell
from tests.e2e.reading import Text
from tests.rpc.proxy import Proxy

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PIECES = 2_000
CUTS = 20
KEEPALIVE_S = 15.0
"""10 s until a ping, 5 s until nobody answered it: the defaults of both ends."""


@pytest.fixture
def chance():
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    return random.Random(seed)


async def plain_reader(port: int, cuts: list[int]) -> tuple[Text, list[str], int]:
    """Reads by the stub; leaves after each of these events and comes back behind the last one."""
    text, pieces, came_back = Text(), [], 0
    while not text.ended:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = result_pb2.StreamResultRequest(task_id="task", after_sequence=text.last)
            call = result_pb2_grpc.ResultServiceStub(channel).StreamResult(request, timeout=DEADLINE)
            async for frame in call:
                for event in frame.events:
                    text.add(event)
                    if event.WhichOneof("kind") == "delta":
                        pieces.append(event.delta.payload.text)
                if cuts and text.last >= cuts[0]:
                    cuts.pop(0)
                    came_back += 1
                    break
            call.cancel()
    return text, pieces, came_back


async def test_D1_STR2_a_reader_that_is_cut_20_times_gets_each_of_2000_deltas_once(server, start_agents, chance):
    """One reader leaves and comes back by the stub; under the one of the SDK connections are reset."""
    await asyncio.to_thread(start_agents, 1)
    async with Client(server.address) as client, Proxy(server.port) as proxy:
        cut, over = 0, asyncio.Event()

        async def follow() -> tuple[Text, list[str]]:
            text, pieces = Text(), []
            async with Client(f"127.0.0.1:{proxy.port}", reconnect_timeout=None) as reader:
                async for event in reader.follow("task"):
                    text.add(event.message)
                    if event.kind == "delta":
                        pieces.append(event.message.delta.payload.text)
            over.set()
            return text, pieces

        async def cut_now_and_then() -> None:
            nonlocal cut
            while not over.is_set() and cut < CUTS:
                await asyncio.sleep(chance.uniform(0.1, 0.4))
                proxy.cut()
                cut += 1

        await client.submit(
            "stream", {"count": PIECES, "pause": 0.003}, agent_type="worker", task_id="task", start_to_close=120
        )
        cuts = sorted(chance.sample(range(3, PIECES), CUTS))
        (text, pieces, came_back), (followed, seen), _ = await asyncio.gather(
            plain_reader(server.port, cuts), follow(), cut_now_and_then()
        )
    tell(f"by the stub {came_back} cuts, {len(pieces)} pieces; by the SDK {cut} cuts, {len(seen)} pieces")
    wanted = text_of("task", PIECES)
    for read, each in ((text, pieces), (followed, seen)):
        assert read.value == read.result == wanted
        assert "".join(each) == wanted, "each exactly once, and no gap"
        assert "gap" not in read.kinds
    assert came_back >= CUTS // 2, "events come in frames, and a cut falls between two of them"
    assert cut == CUTS


@pytest.mark.timeout(120)
async def test_F6_A10_a_network_that_goes_dead_without_a_word_is_noticed_and_left(server):
    """One way or both, under an agent in the middle of a stream, and under a reader of another one: both come back
    over new connections within keepalive and ping timeout, and nothing is lost or doubled."""

    async def play(way: str, of: str) -> tuple[str, float]:
        kind, task_id = f"{of}-{way}", f"task-{of}-{way}"
        async with Proxy(server.port) as proxy:
            through = f"127.0.0.1:{proxy.port}"
            agent = Agent(kind, addr=through if of == "agent" else server.address, heartbeat_interval=2.0)

            @agent.route()
            async def count(task: Task):
                for number in range(240):
                    yield f"{number};"
                    await asyncio.sleep(0.1)

            reader = through if of == "reader" else server.address
            text, longest, last = Text(), 0.0, 0.0
            async with agent, Client(reader, reconnect_timeout=None) as client:
                async for event in client.stream("", "", agent_id=kind, task_id=task_id, start_to_close=120):
                    now = time.monotonic()
                    longest, last = max(longest, now - last if last else 0.0), now
                    text.add(event.message)
                    if len(text.kinds) == 20:
                        proxy.stall(up=way in ("up", "both"), down=way in ("down", "both"))
            assert text.value == text.result == "".join(f"{number};" for number in range(240)), kind
            assert text.attempts == {1}, "it ran once"
        return kind, longest

    ways = [(way, of) for way in ("up", "down", "both") for of in ("agent", "reader")]
    silences = dict(await asyncio.gather(*(play(way, of) for way, of in ways)))
    tell({kind: f"{longest:.1f} s without a piece" for kind, longest in silences.items()})
    assert max(silences.values()) <= KEEPALIVE_S + 1 + 3, "and what it takes to connect again on a busy machine"
