"""The HTTP door of a server in a process of its own: readers whose connections break (D1, STR-2), and bodies that would
be large if they were unpacked (A16)."""

from __future__ import annotations

import asyncio
import gzip
import random
from pathlib import Path

import httpx
import pytest

from reach import Client
from tests.e2e.agents.worker import text_of
from tests.e2e.conftest import StartAgents
from tests.e2e.processes import Server, tell
from tests.http.conftest import client_of
from tests.http.test_cuts import chance, read, socket_once, sse_once  # noqa: F401 - a fixture
from tests.rpc.hostile import MIB
from tests.rpc.test_bad_bytes import high_water

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PIECES = 2_000
CUTS = 20


async def test_D1_STR_2_readers_over_http_that_are_cut_20_times_have_each_of_2000_deltas_once(
    server: Server,
    start_agents: StartAgents,
    chance: random.Random,  # noqa: F811
):
    await asyncio.to_thread(start_agents, 1)
    async with Client(server.address) as client:
        await client.submit("stream", {"count": PIECES, "pause": 0.002}, agent_type="worker", task_id="task")
        cuts = [sorted(chance.sample(range(3, PIECES), CUTS)) for _ in range(2)]
        by_sse, by_socket = await asyncio.gather(
            read(sse_once, server.admin_port, "task", cuts[0]), read(socket_once, server.admin_port, "task", cuts[1])
        )
    for text, came, cut in (by_sse, by_socket):
        assert text.value == text.result == text_of("task", PIECES)
        assert (text.kinds.count("delta"), cut) == (PIECES, CUTS)
        assert set(text.kinds) == {"accepted", "started", "delta", "complete"}, "and no gap"
        assert came > CUTS // 2, "events come in frames, and a cut falls between two of them"
    tell(f"connections: {by_sse[1]} of events, {by_socket[1]} of a socket")


async def test_A16_a_bomb_of_zeros_over_http_is_refused_and_costs_little(server: Server):
    """200 MB that gzip makes 900 KB of: the peak of memory of the server hardly moves."""
    status = Path(f"/proc/{server.pid}/status")
    bomb = gzip.compress(bytes(200_000_000), 1)
    afresh = httpx.Limits(max_keepalive_connections=0)  # an answer before the body is whole ends its connection
    async with client_of(server.admin_port, limits=afresh) as http:
        task = {"task": {"selector": {"agent_id": "nobody"}, "payload": {"text": "x"}}}
        assert (await http.post("/v1/tasks", json=task)).status_code == 200
        before = high_water(status)
        for path in ("/v1/tasks", "/task/dispatch", "/events/report"):
            for coding in ("gzip", "deflate, gzip", "br"):
                answer = await http.post(path, content=bomb, headers={"content-encoding": coding})
                assert (answer.status_code, answer.json()["reason"]) == (415, "MALFORMED_MESSAGE")
        assert (await http.post("/v1/tasks", json=task)).status_code == 200
    grown = high_water(status) - before
    tell(f"the peak grew by {grown / MIB:.1f} MiB")
    assert grown <= 16 * MIB
