"""A TCP path that is dead in one direction (HLT-9): the agent speaks and hears nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.e2e.plain import Plain, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, eventually, tell
from tests.e2e.test_reachability import look
from tests.rpc.proxy import Proxy

pytestmark = pytest.mark.e2e

BEAT = 1.0
KEEPALIVE = 17.0
"""Both ends ping each 10 s and wait 5 s for the answer; a ping of the protocol and two beats are sooner, or later."""


async def test_HLT_9_an_agent_that_hears_nothing_is_out_its_work_moves_and_it_comes_back(
    server: Server, plain: Plain, log: Path
) -> None:
    async with Proxy(server.port) as proxy:
        await asyncio.to_thread(_deaf_and_back, server, plain, log, proxy)


def _deaf_and_back(server: Server, plain: Plain, log: Path, proxy: Proxy) -> None:
    common = ("--heartbeat", str(BEAT))
    with AgentProcess(f"127.0.0.1:{proxy.port}", log, "--instance", "deaf", *common):
        eventually(lambda: plain.free() == ["deaf"], "it is there")
        eventually(lambda: look(plain, "deaf").probe_status == "ok", "it has answered a ping")
        plain.dispatch(spec("sleep", {"seconds": 90}, "long", timeouts=timeouts(start_to_close=120)))
        eventually(lambda: [one.instance_id for one in plain.get("long").attempts] == ["deaf"], "it has the task")
        with AgentProcess(server.address, log, "--instance", "other", *common):
            eventually(lambda: "other" in plain.free(), "another one is there")
            proxy.stall(up=False)
            since = time.monotonic()
            seen = eventually(lambda: (one := look(plain, "deaf")).blocked_by and one, "it is out", seconds=KEEPALIVE)
            assert seen.blocked_by in ("deaf", "no_link"), "by its echo, or by keepalive of either end"
            tell(f"{seen.blocked_by} after {time.monotonic() - since:.2f} s")
            answers = [plain.dispatch(spec("echo", "hello"), wait=30).result for _ in range(5)]
            assert {answer.instance_id for answer in answers} == {"other"}
            eventually(lambda: plain.get("long").attempts[-1].instance_id == "other", "its work moved")
            tell(f"its work moved after {time.monotonic() - since:.2f} s")
            assert len(plain.get("long").attempts) == 2
            eventually(lambda: not look(plain, "deaf").blocked_by, "it is back", seconds=60)
            tell(f"back after {time.monotonic() - since:.2f} s")
            plain.cancel("long")
