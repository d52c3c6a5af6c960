"""Memory (PRF-9): what a server takes with 10,000 agents, and whether it grows while it streams.

    python -m bench.memory agents [--count 10000]      resident memory with that many instances that beat
    python -m bench.memory streaming [--seconds 60]    growth while answers are streamed to readers without a pause

An hour of streaming is scaled: what counts is pieces, not time. Growth is looked for after a warm-up of a fifth,
between the medians of the next fifth and of the last: caches that fill up look like growth only at the beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import uvloop

from bench import beats
from reach import Agent, Client, Task
from reach.testing.server import LocalServer

MIB = 1 << 20
INTERVAL = 5.0
STREAMS = 16
PIECES, PIECE = 200, "x" * 500


class Streaming(NamedTuple):
    """What a run of streaming gave."""

    pieces: int
    first_mb: float
    last_mb: float
    growth_mb: float


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


async def _attach(address: str, pid: int, count: int) -> float:
    channels = [grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    per = beats.PER_STREAM
    streams = [
        beats.AgentStream(channels[first // per % 4], first, min(per, count - first), INTERVAL)
        for first in range(0, count, per)
    ]
    for stream in streams:
        await stream.join()
    frames = [stream.frames(round(INTERVAL / beats.TICK)) for stream in streams]
    await beats.send(streams, frames, 2 * INTERVAL)
    taken = rss_mb(pid)
    for stream in streams:
        await stream.close()
    for channel in channels:
        await channel.close()
    return taken


def agents(count: int = 10_000) -> float:
    """Resident memory of a server with so many agents, in MB."""
    with LocalServer() as server:
        return round(uvloop.run(_attach(server.address, server.pid, count)), 1)


async def _stream(address: str, pid: int, seconds: float) -> Streaming:
    agent = Agent("talker", addr=address, max_concurrency=2 * STREAMS)

    @agent.route()
    async def talk(task: Task) -> AsyncIterator[str]:
        for _ in range(PIECES):
            yield PIECE
            await asyncio.sleep(0)

    pieces, samples = 0, []
    ends = time.monotonic() + seconds

    async def read(client: Client) -> None:
        nonlocal pieces
        while time.monotonic() < ends:
            async for event in client.stream("", "", agent_id="talker"):
                pieces += event.kind == "delta"

    async with agent, Client(address) as client:
        readers = [asyncio.create_task(read(client)) for _ in range(STREAMS)]
        while time.monotonic() < ends:
            await asyncio.sleep(seconds / 100)
            samples.append(rss_mb(pid))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*readers)
    fifth = max(1, len(samples) // 5)
    first, last = statistics.median(samples[fifth : 2 * fifth]), statistics.median(samples[-fifth:])
    return Streaming(pieces, round(first, 1), round(last, 1), round(last - first, 1))


def streaming(seconds: float = 60.0) -> Streaming:
    """Growth of a server that streams."""
    with LocalServer() as server:
        return uvloop.run(_stream(server.address, server.pid, seconds))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["agents", "streaming"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    a = parser.parse_args()
    print(json.dumps({"rss_mb": agents(a.count)} if a.what == "agents" else streaming(a.seconds)._asdict()))


if __name__ == "__main__":
    main()
