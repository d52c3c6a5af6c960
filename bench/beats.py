"""Streamed heartbeats (PRF-5): what they cost a server, and how many it takes.

    python -m bench.beats ADDRESS --pid PID --admin-port PORT --rate 2100 --interval 5 --seconds 5

Registers `rate × interval` instances of TYPES types, several on each Attach stream, and lets each beat once in an
interval with the status that the Python SDK sends, after one interval that is not measured. The beats of a stream share
a frame, the streams spread over the interval. Prints one JSON line: beats sent and counted by the server
(`agentreach_heartbeat_total`), the CPU that its process used meanwhile (/proc, all threads, in cores), and what it used
before while nobody beat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import time
import urllib.request
from typing import Any, NamedTuple

import grpc
import uvloop

from agentreach.v1 import agent_pb2, attach_pb2

TYPES = 10
PER_STREAM = 100
"""Instances on one stream. With one each, frames cost several times what the beats in them do."""
TICK = 0.05
IDLE_SECONDS = 1.0
SETTLE_SECONDS = 60.0
METHOD = "/agentreach.v1.AgentService/Attach"
COUNTED = re.compile(rb'^agentreach_heartbeat_total\{kind="stream"\} (\S+)$', re.MULTILINE)


class Beats(NamedTuple):
    """What one run gave."""

    sent: float
    """Beats per second."""
    counted: float
    cores: float
    idle: float


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and all its threads."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counted(admin_port: int) -> float:
    """Streamed beats that the server has counted so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=10) as answer:
        found = COUNTED.search(answer.read())
    return float(found[1]) if found else 0.0


def _status(number: int) -> agent_pb2.AgentStatus:
    status = agent_pb2.AgentStatus(
        inflight=number % 4,
        queue_length=0,
        max_concurrency=4,
        free_slots=4 - number % 4,
        consecutive_failure_count=0,
        ready=True,
        availability=agent_pb2.AVAILABILITY_READY,
    )
    status.last_task_duration.nanos = 250_000_000
    status.last_completion_age.seconds = number % 7
    return status


class AgentStream:
    """One Attach stream with some instances."""

    def __init__(self, channel: grpc.aio.Channel, first: int, count: int, interval: float) -> None:
        call: Any = channel.stream_stream(METHOD, None, attach_pb2.AttachResponse.FromString)  # frames go as bytes
        self.call = call()
        self.first = first
        self.count = count
        self.interval = interval
        self.opened = 0
        self._reader = asyncio.create_task(self._read(), name="reader")

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):  # how it ends when we leave
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                assert not frame.refusals, frame.refusals[0]
                self.opened += len(frame.links)

    async def join(self) -> None:
        """Registers the instances, and waits for the answer to each."""
        frame = attach_pb2.AttachRequest()
        frame.opening.protocol_version = "1"
        for link in range(1, self.count + 1):
            number = self.first + link
            said = frame.hellos.add(link=link).registration
            said.agent_id, said.instance_id, said.boot_id = f"bench-{number % TYPES}", f"bench-{number}", "b"
            said.max_concurrency, said.ready = 4, True
            said.heartbeat_interval.FromMilliseconds(int(self.interval * 1_000))
        await self.call.write(frame.SerializeToString())
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.opened < self.count:
            assert time.monotonic() < deadline, f"{self.opened} of {self.count} links are open"
            await asyncio.sleep(0.02)

    def frames(self, ticks: int) -> list[bytes]:
        """The beats of one interval: a frame (or nothing) for each tick."""
        made = [attach_pb2.AttachRequest() for _ in range(ticks)]
        for link in range(1, self.count + 1):
            made[self.first // self.count * 7919 % ticks].beats.add(link=link, status=_status(link))
        return [frame.SerializeToString() for frame in made]

    async def close(self) -> None:
        """Leaves."""
        self.call.cancel()
        await asyncio.wait({self._reader})


async def send(streams: list[AgentStream], frames: list[list[bytes]], seconds: float) -> None:
    """Lets all beat for so long."""
    began = time.monotonic()
    for tick in range(round(seconds / TICK)):
        for stream, own in zip(streams, frames, strict=True):
            if own[tick % len(own)]:
                await stream.call.write(own[tick % len(own)])
        await asyncio.sleep(max(0.0, began + (tick + 1) * TICK - time.monotonic()))


async def beat(a: argparse.Namespace) -> Beats:
    """See the module."""
    address, pid, admin_port, interval, per_stream = a.address, a.pid, a.admin_port, a.interval, a.per_stream
    instances = int(a.rate * interval)
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(4)]
    streams = [
        AgentStream(channels[first // per_stream % 4], first, min(per_stream, instances - first), interval)
        for first in range(0, instances, per_stream)
    ]
    for stream in streams:
        await stream.join()
    ticks = round(interval / TICK)
    frames = [stream.frames(ticks) for stream in streams]
    used = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(pid) - used) / IDLE_SECONDS
    await send(streams, frames, interval)  # who has just come is looked at more closely: that is not what we measure
    before, used, began = await asyncio.to_thread(counted, admin_port), cpu_seconds(pid), time.monotonic()
    await send(streams, frames, a.seconds)
    took, used = time.monotonic() - began, cpu_seconds(pid) - used
    got = await asyncio.to_thread(counted, admin_port) - before
    for stream in streams:
        await stream.close()
    for channel in channels:
        await channel.close()
    return Beats(instances / interval * a.seconds / took, got / took, used / took, idle)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--admin-port", type=int, required=True)
    parser.add_argument("--rate", type=int, default=2_100)
    parser.add_argument("--interval", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--per-stream", type=int, default=PER_STREAM)
    a = parser.parse_args()
    figures = uvloop.run(beat(a))
    print(json.dumps(figures._asdict()), flush=True)


if __name__ == "__main__":
    main()
