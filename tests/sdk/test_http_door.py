"""Agents that listen for HTTP: the same handlers behind POST, joined again by a server that comes back (REG-6)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from reach import Agent, Listen, Task
from reach.errors import AgentError, InvalidRequest
from reach.wire.agent_answers import of_event
from reach.wire.agent_http import RUNNING_HEADER, believed_text
from tests.sdk.test_endpoint import instance_of, make, serving
from tests.transports.endpoint_agent import eventually

pytestmark = pytest.mark.asyncio


def over_http(addr: str, **fields: Any) -> Agent:
    agent = make(addr, listen=fields.pop("listen", "http://127.0.0.1:0"), **fields)
    gate = asyncio.Event()

    @agent.route("gated")
    async def gated(_task: Task) -> AsyncIterator[str]:
        yield "first;"
        await gate.wait()
        yield "second;"

    agent.gate = gate  # type: ignore[attr-defined]
    return agent


def url_of(agent: Agent) -> str:
    link: Any = agent._running_link()
    return f"http://127.0.0.1:{link._port}"


def body(method: str, payload: Any = "", attempt: int = 1, task_id: str = "t") -> dict[str, Any]:
    return {"task_id": task_id, "method": method, "payload": payload, "attempt": attempt}


async def test_API_5_handlers_of_all_kinds_are_called(tmp_path):
    async with serving(tmp_path, over_http) as (node, agent, client):
        assert instance_of(node, agent).endpoint.url == f"{url_of(agent)}"
        target: Any = {"agent_id": "listens"}
        assert await client.call("echo", "hi", **target) == "hi"
        assert await client.call("echo", {"n": 1}, **target) == '{"n":1}'
        assert await client.call("thread", "hi", **target) == "thread hi"
        assert await client.call("stream", "300", **target) == "".join(f"{number};" for number in range(300))
        assert await client.call("pay", "", effects="irreversible", **target) == "paid"
        with pytest.raises(AgentError, match="no such order"):
            await client.call("fail", "", **target)


async def test_REG_6_anybody_may_post_a_task_and_gets_json(tmp_path):
    async with serving(tmp_path, over_http) as (_, agent, _client), httpx.AsyncClient(base_url=url_of(agent)) as http:
        said = await http.post("/", json={"task_id": "t1", "method": "echo", "payload": "hi"})
        assert (said.status_code, said.json()["result"]) == (200, "hi")
        said = await http.post("/any/path", json={"task_id": "t2", "method": "stream", "payload": "3"})
        assert said.json()["result"] == "0;1;2;"
        said = await http.post("/", json={"task_id": "t3", "method": "fail"})
        assert (said.status_code, said.json()["error"]["message"]) == (422, "no such order")
        for wrong in (b"{", b"[]", b'{"method": 1}', b'{"task_id": "t", "attempt": "x"}', b'{"protocol_version": "9"}'):
            said = await http.post("/", content=wrong)
            assert (said.status_code, list(said.json())) == (400, ["error"])
        assert (await http.put("/", content=b"")).status_code == 405
        assert (await http.delete("/t1?attempt=x")).status_code == 400


async def test_STR_1_streams_are_server_sent_events(tmp_path):
    async with serving(tmp_path, over_http) as (_, agent, _client), httpx.AsyncClient(base_url=url_of(agent)) as http:
        said = await http.post("/", json=body("stream", "2"), headers={"accept": "text/event-stream"})
        assert said.headers["content-type"] == "text/event-stream"
        events = [part.split("\n") for part in said.text.strip().split("\n\n")]
        frames = [of_event(name.removeprefix("event: "), data.removeprefix("data: ")) for name, data in events]
        texts = [one.delta.payload.text for frame in frames if frame is not None for one in frame.deltas]
        assert texts == ["0;", "1;"]
        last = frames[-1]
        assert last is not None
        assert last.result.folded.last_attempt_sequence == 2


async def test_HLT_4_health_says_how_it_is_and_what_it_runs(tmp_path):
    async with (
        serving(tmp_path, over_http) as (node, agent, _client),
        httpx.AsyncClient(base_url=url_of(agent)) as http,
    ):
        said = (await http.get("/healthz")).json()
        assert (said["ready"], said["worker_idle_share"], "running" in said) == (True, 1.0, False)
        agent.ready = False
        await eventually(lambda: instance_of(node, agent).blocked_by == "not_ready")
        agent.ready = True
        await eventually(lambda: not instance_of(node, agent).blocked_by)


async def test_DLV_2_an_attempt_is_joined_and_says_all_again(tmp_path):
    async with (
        serving(tmp_path, over_http, probe__check_interval=3600) as (_, agent, _client),
        httpx.AsyncClient(base_url=url_of(agent), headers={"accept": "text/event-stream"}) as http,
    ):
        async with http.stream("POST", "/", json=body("gated")) as first:
            async for line in first.aiter_lines():
                if line.startswith("data:") and "first;" in line:
                    break

        async def runs() -> list[Any]:
            header = {RUNNING_HEADER: believed_text([("default", "t", 1)], "default")}
            return list((await http.get("/healthz", headers=header)).json()["running"])

        assert await runs() == [{"task_id": "t", "attempt": 1}], "it goes on without us"
        data = []
        async with http.stream("POST", "/", json=body("gated")) as again:
            async for line in again.aiter_lines():
                if line.startswith("data: "):
                    data.append(json.loads(line[6:]))
                    agent.gate.set()  # type: ignore[attr-defined]
        assert [one["delta"] for one in data if "delta" in one] == ["first;", "second;"]
        assert data[-1] == {"folded": 2}
        assert await runs() == [{"task_id": "t", "attempt": 1}], "its outcome is held"
        whole = await http.post("/", json=body("gated"))
        assert whole.json()["result"] == "first;second;"
        assert (await http.post("/", json=body("gated", attempt=2))).status_code == 200
        assert (await http.post("/", json=body("gated", attempt=1))).status_code == 409


async def test_DLV_11_a_delete_stops_an_attempt(tmp_path):
    async with serving(tmp_path, over_http) as (_, agent, client):
        handle = await client.submit("gated", "", agent_id="listens")
        await eventually(lambda: agent._figures.inflight)
        await handle.cancel()
        await eventually(lambda: not agent._figures.inflight)


async def test_GOV_2_who_does_not_show_the_token_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("the-token\n")
    auth = [{"name": "ours", "token_file": str(file), "hosts": ["127.0.0.1"]}]

    def agent_of(addr: str) -> Agent:
        return over_http(addr, listen=Listen("127.0.0.1:0", token_file=str(file), auth_reference="ours", http=True))

    async with serving(tmp_path / "node", agent_of, agents__auth=auth) as (_, agent, client):
        assert await client.call("echo", "hi", agent_id="listens") == "hi"
        async with httpx.AsyncClient(base_url=url_of(agent)) as http:
            assert (await http.post("/", json=body("echo"))).status_code == 401
            assert (await http.get("/healthz")).status_code == 401


async def test_a_port_that_is_taken_is_said(tmp_path):
    async with serving(tmp_path, over_http) as (node, agent, _):
        second = make(f"127.0.0.1:{node.port}", listen=url_of(agent))
        with pytest.raises(InvalidRequest, match="cannot listen"):
            await second.register(5)


async def test_the_sdk_loads_no_http_server_before_it_is_wanted():
    code = (
        "import sys; from reach import Agent; Agent('a', listen='127.0.0.1:0');"
        " sys.exit('uvicorn' in sys.modules or 'httpcore' in sys.modules)"
    )
    process = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False)
    assert process.returncode == 0
