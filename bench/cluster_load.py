"""The processes of a run with several nodes: agents that wait and answer, and callers in a closed loop.

python -m bench.cluster_load agents ADDRESS/TYPE … [--ms 300] [--slots 128] [--instance ID]
python -m bench.cluster_load callers ADDRESS/TYPE … -c 500 --seconds 120
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import uvloop

from bench.workload import PAYLOAD
from reach import Agent, Task
from reach.errors import ReachError

if TYPE_CHECKING:
    from reach import Client

WARM_SECONDS = 2.0
"""Streams open and everybody comes at once: what begins by then is checked, and not measured."""
LOST_SECONDS = 120.0
"""A task without an answer by then is lost."""
SHOWN = 3
"""Errors that are told in full."""


async def agents(targets: list[tuple[str, str]], ms: int, slots: int, instance: str | None) -> None:
    """One agent for each target."""
    made = [Agent(kind, addr=address, max_concurrency=slots, instance_id=instance) for address, kind in targets]

    async def answer(task: Task) -> bytes:
        if ms:
            await asyncio.sleep(ms / 1_000)  # its work
        return task.payload

    for one in made:
        one.route()(answer)
    await asyncio.gather(*(one.serve() for one in made))


async def callers(targets: list[tuple[str, str]], count: int, seconds: float) -> None:
    """So many callers, who take turns at the targets; each has one task at a time. Prints the figures."""
    from reach import Client  # agents start without it

    latencies: list[float] = []
    wrong: list[str] = []
    given = 0
    begin = time.perf_counter() + WARM_SECONDS
    end = begin + seconds

    async def caller(client: Client, kind: str) -> None:
        nonlocal given
        while (now := time.perf_counter()) < end:
            given += 1
            try:
                result = await client.send("", PAYLOAD, agent_type=kind, timeout=LOST_SECONDS)
                if not result.ok or result.payload != PAYLOAD:
                    wrong.append(f"a task came to {result.state.name}: {result.error}")
            except ReachError as error:
                wrong.append(f"{error.reason.name}: {error.message}")
            if begin <= now:
                latencies.append(time.perf_counter() - now)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(address)) for address, _ in targets]
        places = [number % len(targets) for number in range(count)]
        await asyncio.gather(*(caller(clients[place], targets[place][1]) for place in places))
    wall = time.perf_counter() - begin
    latencies.sort()
    figures = {
        "tasks": given,
        "rate": round(len(latencies) / wall),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 1),
        "most_ms": round(latencies[-1] * 1e3, 1),
        "wrong": len(wrong),
        "shown": wrong[:SHOWN],
    }
    print(json.dumps(figures), flush=True)


def _target(text: str) -> tuple[str, str]:
    address, _, kind = text.rpartition("/")
    return address, kind


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agents", "callers"])
    parser.add_argument("targets", nargs="+", type=_target)
    parser.add_argument("-c", "--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ms", type=int, default=0)
    parser.add_argument("--slots", type=int, default=1_024)
    parser.add_argument("--instance")
    a = parser.parse_args()
    if a.what == "agents":
        uvloop.run(agents(a.targets, a.ms, a.slots, a.instance))
    else:
        uvloop.run(callers(a.targets, a.callers, a.seconds))


if __name__ == "__main__":
    main()
