"""The processes of a run: an agent that answers what it gets, and callers that keep N tasks in flight."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable

import uvloop

from reach import Agent, Client, Task

PAYLOAD = b"y" * 256
WAIT_SECONDS = 30


async def agent(address: str) -> None:
    """The no-op agent."""
    echo = Agent("echo", addr=address, max_concurrency=1_024)

    @echo.route()
    async def answer(task: Task) -> bytes:
        return task.payload

    await echo.serve()


async def drive(one: Callable[[str], Awaitable[object]], inflight: int, tasks: int) -> None:
    """Keeps `inflight` tasks going until `tasks` are done, and prints the figures."""
    base = os.urandom(6).hex()
    await one(f"{base}-warm-up")
    latencies: list[float] = []

    async def worker(number: int) -> None:
        for count in range(tasks // inflight):
            began = time.perf_counter()
            await one(f"{base}-{number:08d}-{count:08d}-0000")
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker(number) for number in range(inflight)))
    wall = time.perf_counter() - began
    latencies.sort()
    figures = {
        "inflight": inflight,
        "rate": round(len(latencies) / wall),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 3),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
    }
    print(json.dumps(figures), flush=True)


async def sdk(address: str, inflight: int, tasks: int, volatile: bool) -> None:
    """Callers through the SDK."""
    async with Client(address) as client:

        async def one(task_id: str) -> None:
            result = await client.send("", PAYLOAD, agent_id="echo", task_id=task_id, durable=not volatile)
            assert result.payload == PAYLOAD, result

        await drive(one, inflight, tasks)


async def unary(address: str, inflight: int, tasks: int) -> None:
    """Callers with nothing but the generated stub."""
    import grpc

    from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, task_pb2

    async with grpc.aio.insecure_channel(address) as channel:
        stub = dispatch_pb2_grpc.DispatchServiceStub(channel)

        async def one(task_id: str) -> None:
            request = dispatch_pb2.DispatchRequest()
            request.task.task_id = task_id
            request.task.selector.agent_id = "echo"
            request.task.payload.data = PAYLOAD
            request.wait.seconds = WAIT_SECONDS
            answer = await stub.Dispatch(request, wait_for_ready=True)
            assert answer.state == task_pb2.TASK_STATE_SUCCEEDED, answer

        await drive(one, inflight, tasks)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["agent", "sdk", "unary"])
    parser.add_argument("address")
    parser.add_argument("-c", "--inflight", type=int, default=64)
    parser.add_argument("-n", "--tasks", type=int, default=8_000)
    parser.add_argument("--volatile", action="store_true")
    a = parser.parse_args()
    if a.kind == "agent":
        uvloop.run(agent(a.address))
    elif a.kind == "sdk":
        uvloop.run(sdk(a.address, a.inflight, a.tasks, a.volatile))
    else:
        uvloop.run(unary(a.address, a.inflight, a.tasks))


if __name__ == "__main__":
    main()
