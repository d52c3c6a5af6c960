"""Answers of real agents that are not quite right, and are taken all the same (GOV-5)."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentreach.v1 import result_pb2
from reach.core.endpoint import Endpoint
from reach.transports.a2a.lenient import without_times
from tests.a2a_agent import serving
from tests.transports.a2a.test_line import offered, told, way_of

NO_ZONE = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-11-30T17:05:40.286260"}
TASK = {"id": "t", "contextId": "c", "status": NO_ZONE, "artifacts": [{"artifactId": "a", "parts": [{"text": "ok"}]}]}


def test_GOV_5_times_of_statuses_are_left_out_wherever_they_are():
    said = {
        "result": {"task": {"status": {"state": "x", "timestamp": 1}}, "statusUpdate": {"status": {"timestamp": 1}}}
    }
    assert without_times(said) == {"result": {"task": {"status": {"state": "x"}}, "statusUpdate": {"status": {}}}}
    assert [without_times(one) for one in ([1], "x", None, {"status": 3})] == [[1], "x", None, {"status": 3}]


@pytest.mark.asyncio
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_GOV_5_a_time_without_a_zone_breaks_nothing(binding, streaming):
    said = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": TASK}} if binding == "JSONRPC" else {"task": TASK})
    kind, body = ("text/event-stream", f"data: {said}\n\n") if streaming else ("application/json", said)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}".encode())
        writer.close()

    agent = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with serving(binding, streaming=streaming) as served, agent:
        port = agent.sockets[0].getsockname()[1]
        served.card.supported_interfaces[0].url = f"http://127.0.0.1:{port}/"
        way = way_of(served)
        line = way.line(Endpoint(""), result_pb2.Reporter())
        try:
            assert (await told(line, offered("hello")))[-1].result.output.text == "ok"
        finally:
            await line.close()
