"""One run of one workload: processes on loopback, a line of JSON as the result."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.beats import Beats
from reach.testing.server import LocalServer

HERE = Path(__file__).parent
RUN_SECONDS = 120


class Figures(NamedTuple):
    """What one run gave."""

    rate: float
    p50_ms: float
    p99_ms: float


def _figures(output: bytes) -> Figures:
    line = json.loads(output.decode().strip().splitlines()[-1])
    return Figures(line["rate"], line["p50_ms"], line["p99_ms"])


def floor(mode: str, inflight: int, tasks: float) -> Figures:
    """A bare relay (`floor.py`)."""
    command = [sys.executable, str(HERE / "floor.py"), mode, "-c", str(inflight), "-n", str(int(tasks))]
    return _figures(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=RUN_SECONDS).stdout)


def _workload(kind: str, inflight: int, tasks: float, *arguments: str) -> Figures:
    """A server with SQLite, one agent process, one load process."""
    with LocalServer() as server:
        common = [sys.executable, "-m", "bench.workload"]
        agent = subprocess.Popen([*common, "agent", server.address])
        try:
            command = [*common, kind, server.address, "-c", str(inflight), "-n", str(int(tasks)), *arguments]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=RUN_SECONDS)
            return _figures(done.stdout)
        finally:
            agent.kill()
            agent.wait()


def sdk(inflight: int, tasks: float, *, volatile: bool = False) -> Figures:
    """Tasks through the Python SDK on both ends."""
    return _workload("sdk", inflight, tasks, *(["--volatile"] if volatile else []))


def unary(inflight: int, tasks: float) -> Figures:
    """Unary Dispatch with wait from a plain stub; the agent is the Python SDK."""
    return _workload("unary", inflight, tasks)


def start_seconds() -> float:
    """From the start of the process to SERVING, with an empty store."""
    server = LocalServer()
    began = time.perf_counter()
    with server:
        return time.perf_counter() - began


def beats(rate: int, interval: float, seconds: float) -> Beats:
    """Streamed heartbeats of agents that have been there for a while (their slow start is over): a server with SQLite,
    and one process that holds all agents."""
    with LocalServer(environment={"AGENT_REACH_HEALTH_SLOW_START": "0"}) as server:
        where = [server.address, "--pid", str(server.pid), "--admin-port", str(server.admin_port)]
        asked = ["--rate", str(rate), "--interval", str(interval), "--seconds", str(seconds)]
        command = [sys.executable, "-m", "bench.beats", *where, *asked]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=RUN_SECONDS)
        return Beats(**json.loads(done.stdout))
