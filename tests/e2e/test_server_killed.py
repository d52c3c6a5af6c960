"""kill -9 of the server (F1, P1, P2, P4): nothing accepted is lost, nothing acknowledged runs again, work goes on."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc
from reach import Client, InvalidRequest, Reason, TaskState
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, spec, timeouts
from tests.e2e.processes import begins, tell
from tests.e2e.reading import Text

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 10
EACH = 20
"""Tasks that are given between two kills."""
LIMITS = timeouts(start_to_close=90)


class Load:
    """Gives tasks in all ways, and remembers what it was told."""

    def __init__(self, client: Client, address: str, chance: random.Random) -> None:
        self.client = client
        self.chance = chance
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 300)])
        self.stub = dispatch_pb2_grpc.DispatchServiceStub(self.channel)
        self.wanted: dict[str, str] = {}
        """What the answer of each accepted task must be."""
        self.told: dict[str, tuple[str, float]] = {}
        """What the first answer was, and when it came."""
        self.unsure: dict[str, str] = {}
        """Tasks of which nobody said that they were accepted."""

    async def soon(self, kind: Callable[[str], Awaitable[None]], task_id: str) -> None:
        """At a random moment, so that some meet a server that just dies, and some meet none."""
        await asyncio.sleep(self.chance.uniform(0, 1.5))
        await kind(task_id)

    async def quick(self, task_id: str) -> None:
        handle = await self.client.submit("echo", task_id, agent_type="worker", task_id=task_id)
        self.wanted[task_id] = task_id
        self._told(task_id, (await handle.result()).text)

    async def slow(self, task_id: str) -> None:
        seconds = round(self.chance.uniform(1, 3), 3)
        result = await self.client.send(
            "sleep", {"seconds": seconds}, agent_type="worker", task_id=task_id, start_to_close=90
        )
        self.wanted[task_id] = f"slept {seconds}"
        self._told(task_id, result.text)

    async def streamed(self, task_id: str) -> None:
        count, text = self.chance.randrange(20, 300), Text()
        payload = {"count": count, "pause": 0.01}
        async for event in self.client.stream(
            "stream", payload, agent_type="worker", task_id=task_id, start_to_close=90
        ):
            text.add(event.message)
        self.wanted[task_id] = text_of(task_id, count)
        assert text.value == self.wanted[task_id], "the pieces that were streamed do not make the whole"
        self._told(task_id, text.result)

    async def plainly(self, task_id: str) -> None:
        request = dispatch_pb2.DispatchRequest(task=spec("sleep", {"seconds": 0.5}, task_id, timeouts=LIMITS))
        try:
            await self.stub.Dispatch(request, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            self.unsure[task_id] = "slept 0.5"
        else:
            self.wanted[task_id] = "slept 0.5"

    def _told(self, task_id: str, text: str) -> None:
        self.told[task_id] = (text, time.time())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("journal", ["sqlite", "postgres"])
async def test_F1_P1_P2_server_killed_ten_times_under_load(server, start_agents, log):
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    chance = random.Random(seed)
    await asyncio.to_thread(start_agents, 2)
    async with Client(server.address, reconnect_timeout=None) as client:
        load = Load(client, server.address, chance)
        running: list[asyncio.Task[None]] = []
        for phase in range(KILLS):
            for number in range(EACH):
                kind = (load.quick, load.slow, load.quick, load.streamed, load.plainly)[number % 5]
                running.append(asyncio.create_task(load.soon(kind, f"{phase}-{number}-{kind.__name__}")))
            await asyncio.sleep(chance.uniform(0.05, 2.5))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await asyncio.wait_for(asyncio.gather(*running), 60)
        for task_id, text in load.unsure.items():
            try:
                await client.get_task(task_id)
            except InvalidRequest as error:
                if error.reason is not Reason.TASK_NOT_FOUND:
                    raise
            else:
                load.wanted[task_id] = text
        given = KILLS * EACH
        tell(f"{given} given, {len(load.unsure)} of them without an answer; {len(load.wanted)} were accepted")
        for task_id, text in load.wanted.items():
            result = await client.wait_for_result(task_id, timeout=DEADLINE)
            assert (result.state, result.text) == (TaskState.SUCCEEDED, text), task_id
        await asyncio.to_thread(server.restart)
        for task_id, text in load.wanted.items():  # from the journal alone
            task = await client.get_task(task_id)
            assert task.result is not None
            assert (task.result.state, task.result.text) == (TaskState.SUCCEEDED, text), task_id
        await load.channel.close()
    begun = begins(log)
    assert begun.keys() == load.wanted.keys(), "what was accepted is what ran"
    again = {task_id: lines for task_id, lines in begun.items() if len(lines) > 1}
    late = [
        (task_id, line)
        for task_id, (_, told_at) in load.told.items()
        for line in begun[task_id]
        if line["at"] > told_at
    ]
    assert not late, "began after its result was acknowledged"
    assert not again, "attempts that ran when the server died were run again"
    assert not server.tracebacks()
