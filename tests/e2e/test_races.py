"""Cancel against completion (C6), the last event (D4), several readers (D3): hundreds of times, at random moments."""

from __future__ import annotations

import asyncio
import os
import random

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, result_pb2, result_pb2_grpc, task_pb2
from reach import Client, TaskState
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, spec, timeouts
from tests.e2e.processes import begins, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

LONG = timeouts(start_to_close=120)


@pytest.fixture
def chance():
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    tell(f"SEED={seed}")
    return random.Random(seed)


async def test_C6_cancel_against_completion(server, plain, start_agents, log, chance):
    """200 times: one terminal state, the answer of the cancel agrees with it, and it never changes."""
    await asyncio.to_thread(start_agents, 1, "--slots", "64")
    told: dict[str, set[TaskState]] = {}

    async def race(client: Client, task_id: str) -> None:
        seconds = chance.choice((0.0, chance.uniform(0, 0.03)))
        handle = await client.submit("sleep", {"seconds": seconds}, agent_type="worker", task_id=task_id)
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(chance.choice((0.0, max(0.0, seconds + chance.uniform(-0.02, 0.02)))))
        cancelled = await handle.cancel("race")
        result, task = await waiting, await client.get_task(task_id)
        again = await client.cancel(task_id)
        told[task_id] = {cancelled, result.state, task.state, again}
        assert (result.text != "") == (result.state is TaskState.SUCCEEDED)

    async with Client(server.address, reconnect_timeout=None) as client:
        for first in range(0, 200, 20):
            await asyncio.gather(*(race(client, f"task-{number}") for number in range(first, first + 20)))
        await asyncio.sleep(0.5)  # what agents still say changes nothing
        stays = {task_id: (await client.get_task(task_id)).state for task_id in told}
        await asyncio.to_thread(server.restart)
        kept = {task_id: (await client.get_task(task_id)).state for task_id in told}
    for task_id, states in told.items():
        assert states == {stays[task_id]} == {kept[task_id]}, task_id
    ended = list(kept.values())
    tell({state.name: ended.count(state) for state in set(ended)})
    assert set(ended) == {TaskState.SUCCEEDED, TaskState.CANCELLED}, "both happened"
    assert all(len(lines) == 1 for lines in begins(log).values())


async def test_D4_last_event_is_seen_and_kept(server, start_agents, chance):
    """100 times an agent that answers and is done in one step: a reader gets the last event, early, late or after."""
    await asyncio.to_thread(start_agents, 1, "--slots", "64")
    async with grpc.aio.insecure_channel(server.address) as channel:
        dispatching = dispatch_pb2_grpc.DispatchServiceStub(channel)
        results = result_pb2_grpc.ResultServiceStub(channel)

        async def read(frames) -> Text:
            text = Text()
            async for frame in frames:
                for event in frame.events:
                    text.add(event)
            return text

        async def one(number: int) -> None:
            task_id = f"task-{number}"
            count = number % 3  # none: a plain answer; one or two pieces and the end in the same tick
            task = spec("stream", {"count": count, "pause": 0}, task_id) if count else spec("echo", "x", task_id)
            wanted = text_of(task_id, count) if count else "x"
            running = asyncio.create_task(read(dispatching.Run(dispatch_pb2.RunRequest(task=task), timeout=DEADLINE)))
            await asyncio.sleep(0)
            await dispatching.Dispatch(dispatch_pb2.DispatchRequest(task=task), timeout=DEADLINE)
            await asyncio.sleep(chance.choice((0, chance.uniform(0, 0.01))))
            request = result_pb2.StreamResultRequest(task_id=task_id)
            beside = asyncio.create_task(read(results.StreamResult(request, timeout=DEADLINE)))
            first, second = await running, await beside
            third = await read(results.StreamResult(request, timeout=DEADLINE))
            stored = (await dispatching.GetTask(dispatch_pb2.GetTaskRequest(task_id=task_id))).task
            assert stored.state == task_pb2.TASK_STATE_SUCCEEDED
            assert stored.result.output.text == wanted
            for text in (first, second, third):
                assert (text.ended, text.result, text.last) == (True, wanted, stored.result.sequence)
                assert text.kinds.count("complete") == 1

        for first in range(0, 100, 10):
            await asyncio.gather(*(one(number) for number in range(first, first + 10)))


async def test_D3_two_readers_see_the_same_in_the_same_order(server, start_agents):
    """100 pieces; one reads along from the start, one comes a little later, one over the SDK: all see all of it."""
    await asyncio.to_thread(start_agents, 1)
    async with grpc.aio.insecure_channel(server.address) as channel, Client(server.address) as client:
        results = result_pb2_grpc.ResultServiceStub(channel)
        handle = await client.submit(
            "stream", {"count": 100, "pause": 0.005}, agent_type="worker", task_id="task", start_to_close=60
        )
        assert handle.state is TaskState.DELIVERED or handle.state is TaskState.PENDING

        async def read(delay: float) -> list[tuple[int, bytes]]:
            await asyncio.sleep(delay)
            request = result_pb2.StreamResultRequest(task_id="task")
            return [
                (event.sequence, event.SerializeToString(deterministic=True))
                async for frame in results.StreamResult(request, timeout=DEADLINE)
                for event in frame.events
            ]

        async def follow() -> list[tuple[int, bytes]]:
            return [
                (event.sequence, event.message.SerializeToString(deterministic=True))
                async for event in client.follow("task")
            ]

        first, second, third = await asyncio.gather(read(0), read(0.2), follow())
    assert first == second == third
    assert [sequence for sequence, _ in first] == list(range(1, 104)), "accepted, started, 100 pieces, complete"


async def test_D1_STR2_events_between_two_connections_come_once(server, start_agents):
    """Cut at some event, connect again a second later with the last sequence: what follows, each once."""
    await asyncio.to_thread(start_agents, 1)
    text = Text()
    async with grpc.aio.insecure_channel(server.address) as channel:
        dispatching = dispatch_pb2_grpc.DispatchServiceStub(channel)
        task = spec("stream", {"count": 100, "pause": 0.03}, "task", timeouts=LONG)
        await dispatching.Dispatch(dispatch_pb2.DispatchRequest(task=task))
        for cut_at in (3, 30, 60, 1_000):
            async with grpc.aio.insecure_channel(server.address) as other:
                request = result_pb2.StreamResultRequest(task_id="task", after_sequence=text.last)
                call = result_pb2_grpc.ResultServiceStub(other).StreamResult(request, timeout=DEADLINE)
                async for frame in call:
                    for event in frame.events:
                        text.add(event)
                    if text.last >= cut_at:
                        break
                call.cancel()
            if not text.ended:
                await asyncio.sleep(0.5)
    assert text.value == text.result == text_of("task", 100)
    assert (len(text.kinds), text.last, text.kinds.count("gap")) == (103, 103, 0)
