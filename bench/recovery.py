"""Recovery (PRF-8): how long a server with many waiting tasks takes after kill -9, until it serves.

    python -m bench.recovery [--tasks 100000] [--payload 256]

Gives tasks for an agent that is not there, kills the server, starts it again, and then lets an agent come and answer a
few, to see that what was loaded is alive. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import uvloop

from agentreach.v1 import agent_pb2, dispatch_pb2, ops_pb2, ops_pb2_grpc, registry_pb2, registry_pb2_grpc
from reach import Agent, Task
from reach.testing.server import LocalServer

PER_FRAME = 500
METHOD = "/agentreach.v1.DispatchService/DispatchStream"
ANSWERED = 200
"""Tasks that are done afterwards before the run counts."""


class Recovery(NamedTuple):
    """What one run gave."""

    tasks: int
    seconds: float
    """From the start of the process to SERVING."""
    rss_mb: float
    first_answer: float
    """Seconds from SERVING to the first task done, by an agent that had to come first."""


async def give(address: str, tasks: int, payload: int) -> None:
    """Tasks that wait."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = channel.stream_stream(
            METHOD,
            dispatch_pb2.DispatchStreamRequest.SerializeToString,
            dispatch_pb2.DispatchStreamResponse.FromString,
        )
        call = stub()
        opening = dispatch_pb2.StreamOpening(protocol_version="1")
        await call.write(dispatch_pb2.DispatchStreamRequest(opening=opening))
        accepted, content = 0, os.urandom(payload)
        for first in range(0, tasks, PER_FRAME):
            frame = dispatch_pb2.DispatchStreamRequest()
            for number in range(first, min(first + PER_FRAME, tasks)):
                submit = frame.submits.add(reference=number, interest=dispatch_pb2.INTEREST_ACCEPTANCE)
                submit.task.task_id = f"waiting-{number:08d}"
                submit.task.selector.agent_id = "late"
                submit.task.payload.data = content
            await call.write(frame)
            while accepted < first - 4 * PER_FRAME:
                accepted += len((await call.read()).acknowledgements)
        while accepted < tasks:
            answer = await call.read()
            assert not answer.refusals, answer.refusals[0]
            accepted += len(answer.acknowledgements)
        call.cancel()


async def first_answer(address: str) -> float:
    """Seconds until an agent that comes now has done its first task, and some more."""
    began, done = time.perf_counter(), 0
    first = 0.0
    agent = Agent("late", addr=address, max_concurrency=64)

    @agent.route()
    async def answer(task: Task) -> bytes:
        nonlocal done, first
        done += 1
        first = first or time.perf_counter() - began
        return task.payload

    async with agent:
        while done < ANSWERED:
            assert time.perf_counter() - began < 60, f"{done} tasks were done"
            await asyncio.sleep(0.01)
    return first


def recover(tasks: int = 100_000, payload: int = 256) -> Recovery:
    """See the module."""
    with LocalServer() as server:
        with grpc.insecure_channel(server.address) as channel:  # known, and not there
            said = agent_pb2.Registration(agent_id="late", instance_id="late-0", boot_id="b")
            registry = registry_pb2_grpc.RegistryServiceStub(channel)
            registry.Register(registry_pb2.RegisterRequest(registration=said), wait_for_ready=True)
        uvloop.run(give(server.address, tasks, payload))
        server.kill()
        began = time.perf_counter()
        server.start()
        took = time.perf_counter() - began
        with grpc.insecure_channel(server.address) as channel:
            stub = ops_pb2_grpc.OpsServiceStub(channel)
            found = stub.GetServerInfo(ops_pb2.GetServerInfoRequest(), wait_for_ready=True).open_tasks
        assert found == tasks, f"{found} of {tasks} tasks came back"
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        rss = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        return Recovery(tasks, round(took, 3), round(rss, 1), round(uvloop.run(first_answer(server.address)), 3))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--payload", type=int, default=256)
    a = parser.parse_args()
    print(json.dumps(recover(a.tasks, a.payload)._asdict()), flush=True)


if __name__ == "__main__":
    main()
