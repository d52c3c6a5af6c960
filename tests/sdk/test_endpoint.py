"""Agents that listen: the same handlers behind AgentEndpointService, joined again by a server that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agentreach.v1 import endpoint_pb2_grpc
from reach import Agent, Client, Listen, Progress, Task
from reach.errors import AgentError, InvalidRequest
from tests.rpc.peers import pb, running
from tests.transports.endpoint_agent import eventually

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def serving(tmp_path: Path, agent_of: Any, **settings: Any) -> AsyncIterator[tuple[Any, Agent, Client]]:
    """A node, an agent that it dials, and a client."""
    async with running(tmp_path, **settings) as node:
        agent = agent_of(f"127.0.0.1:{node.port}")
        async with agent, Client(f"127.0.0.1:{node.port}") as client:
            await agent.register(10)
            await eventually(lambda: not instance_of(node, agent).blocked_by)
            yield node, agent, client


def instance_of(node: Any, agent: Agent) -> Any:
    return node.reach.instance("default", agent.instance_id)[1]


def make(addr: str, **fields: Any) -> Agent:
    agent = Agent("listens", addr=addr, listen=fields.pop("listen", "127.0.0.1:0"), **fields)

    @agent.route("echo")
    async def echo(task: Task) -> str:
        return task.text

    @agent.route("thread")
    def thread(task: Task) -> str:
        return f"thread {task.text}"

    @agent.route("stream")
    async def stream(task: Task) -> AsyncIterator[Any]:
        for number in range(int(task.text)):
            yield f"{number};"
            yield Progress(note=f"{number}")

    @agent.route("fail")
    async def fail(_task: Task) -> str:
        raise AgentError("no such order")

    @agent.route("pay")
    async def pay(task: Task) -> str:
        await task.begin_effect("card")
        return "paid"

    return agent


class Server:
    """What a server would call, by hand."""

    def __init__(self, agent: Agent) -> None:
        link: Any = agent._running_link()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{link._port}")
        self.endpoint: Any = endpoint_pb2_grpc.AgentEndpointServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    def execute(self, task_id: str, method: str, text: str = "", attempt: int = 1) -> Any:
        task = {"task_id": task_id, "method": method, "payload": {"text": text}}
        return self.endpoint.Execute(pb.ExecuteRequest(offer={"attempt": attempt, "task": task}))

    async def check(self, *believed: tuple[str, int]) -> set[tuple[str, int]]:
        request = pb.CheckRequest(running=[{"task_id": task_id, "attempt": attempt} for task_id, attempt in believed])
        return {(key.task_id, key.attempt) for key in (await self.endpoint.Check(request)).running}


async def rest(call: Any) -> list[Any]:
    """All that a call still says."""
    frames = []
    while (frame := await call.read()) is not grpc.aio.EOF:
        frames.append(frame)
    return frames


async def test_API_5_handlers_of_all_kinds_are_called(tmp_path):
    async with serving(tmp_path, make) as (_, _agent, client):
        target: Any = {"agent_id": "listens"}
        assert await client.call("echo", "hi", **target) == "hi"
        assert await client.call("thread", "hi", **target) == "thread hi"
        assert await client.call("stream", "300", **target) == "".join(f"{number};" for number in range(300))
        assert await client.call("pay", "", effects="irreversible", **target) == "paid"
        with pytest.raises(AgentError, match="no such order"):
            await client.call("fail", "", **target)


async def test_API_5_it_leaves_the_registry_when_it_ends(tmp_path):
    async with running(tmp_path) as node:
        agent = make(f"127.0.0.1:{node.port}")
        async with agent:
            assert await agent.register(10) == 1
            assert node.reach.instances("default")
        assert not node.reach.instances("default")


async def test_HLT_4_its_status_is_told_at_once(tmp_path):
    async with serving(tmp_path, make) as (node, agent, _):
        agent.ready = False
        await eventually(lambda: instance_of(node, agent).blocked_by == "not_ready")
        agent.ready = True
        await eventually(lambda: not instance_of(node, agent).blocked_by)


async def test_HLT_3_it_serves_health_and_answers_checks(tmp_path):
    async with serving(tmp_path, make) as (_, agent, _client), Server(agent) as server:
        for service in ("", "agentreach.v1.AgentEndpointService"):
            answer = await server.health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        answer = await server.endpoint.Check(pb.CheckRequest())
        assert answer.boot_id
        assert (answer.status.ready, answer.worker_idle_share) == (True, 1.0)


async def test_GOV_2_who_does_not_show_the_token_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text("the-token\n")
    auth = [{"name": "ours", "token_file": str(file), "hosts": ["127.0.0.1"]}]

    def agent_of(addr: str) -> Agent:
        return make(addr, listen=Listen("127.0.0.1:0", token_file=str(file), auth_reference="ours"))

    async with serving(tmp_path / "node", agent_of, agents__auth=auth) as (_, agent, client), Server(agent) as server:
        assert await client.call("echo", "hi", agent_id="listens") == "hi"
        for call in (server.execute("t", "echo"), server.endpoint.Check(pb.CheckRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await (call.read() if hasattr(call, "read") else call)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_port_that_is_taken_is_said(tmp_path):
    async with serving(tmp_path, make) as (node, agent, _):
        link: Any = agent._running_link()
        second = make(f"127.0.0.1:{node.port}", listen=f"127.0.0.1:{link._port}")
        with pytest.raises(InvalidRequest, match="cannot listen"):
            await second.register(5)


async def test_DLV_2_an_attempt_is_joined_and_says_all_again(tmp_path):
    gate = asyncio.Event()

    def agent_of(addr: str) -> Agent:
        agent = make(addr)

        @agent.route("gated")
        async def gated(_task: Task) -> AsyncIterator[str]:
            yield "first;"
            await gate.wait()
            yield "second;"

        return agent

    async with serving(tmp_path, agent_of) as (_, agent, _client), Server(agent) as server:
        call = server.execute("t", "gated")
        while not (await call.read()).deltas:
            pass
        call.cancel()
        assert await server.check(("t", 1)) == {("t", 1)}  # it goes on without us
        again = server.execute("t", "gated")
        frames = [await again.read(), await again.read()]
        gate.set()
        frames += await rest(again)
        texts = [delta.delta.payload.text for frame in frames for delta in frame.deltas]
        assert texts == ["first;", "second;"]
        assert [delta.attempt_sequence for frame in frames for delta in frame.deltas] == [1, 2]
        assert frames[-1].result.folded.last_attempt_sequence == 2


async def test_DLV_2_an_outcome_is_held_until_a_check_no_longer_names_it(tmp_path):
    async with serving(tmp_path, make, probe__check_interval=3600) as (_, agent, _client), Server(agent) as server:
        frames = await rest(server.execute("t", "stream", "3"))
        assert frames[-1].result.HasField("folded")
        assert await server.check(("t", 1)) == {("t", 1)}
        joined = await rest(server.execute("t", "stream", "3"))
        assert joined[-1].result.output.text == "0;1;2;"  # whole: whoever asks may lack the deltas
        assert await server.check() == set()
        outcomes = agent._running_link().outcomes
        assert not outcomes.unacknowledged


async def test_DLV_11_cancel_stops_the_handler_and_ends_the_call(tmp_path):
    stopped = asyncio.Event()

    def agent_of(addr: str) -> Agent:
        agent = make(addr)

        @agent.route("long")
        async def long(_task: Task) -> str:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()
            return ""

        return agent

    async with serving(tmp_path, agent_of) as (_, agent, _client), Server(agent) as server:
        call = server.execute("t", "long")
        assert (await call.read()).HasField("accept")
        key = {"task_id": "t", "attempt": 1}
        await server.endpoint.Cancel(pb.CancelRequest(key=key))
        last = (await rest(call))[-1]
        assert stopped.is_set()
        assert last.result.error.message == "the attempt was cancelled"
        assert await server.check(("t", 1)) == set()
        await server.endpoint.Cancel(pb.CancelRequest(key=key))  # again, and of what never was
        await server.endpoint.Cancel(pb.CancelRequest(key={"task_id": "never", "attempt": 7}))


async def test_DLV_2_a_newer_attempt_ends_the_older_and_a_stale_one_is_refused(tmp_path):
    def agent_of(addr: str) -> Agent:
        agent = make(addr)

        @agent.route("long")
        async def long(_task: Task) -> str:
            await asyncio.sleep(60)
            return ""

        return agent

    async with serving(tmp_path, agent_of) as (_, agent, _client), Server(agent) as server:
        older = server.execute("t", "long")
        await older.read()
        newer = server.execute("t", "echo", "x", attempt=2)
        assert (await rest(newer))[-1].result.output.text == "x"
        assert (await rest(older)) == []
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await server.execute("t", "echo", attempt=1).read()
        assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_STR_5_a_reader_that_is_gone_stops_the_handler_at_its_credit_and_no_more(tmp_path):
    made = 0

    def agent_of(addr: str) -> Agent:
        agent = make(addr)

        @agent.route("flood")
        async def flood(_task: Task) -> AsyncIterator[str]:
            nonlocal made
            for _ in range(100):
                yield "x" * 16_384
                made += 1

        return agent

    async with serving(tmp_path, agent_of) as (_, agent, _client), Server(agent) as server:
        call = server.execute("t", "flood")
        await call.read()
        call.cancel()
        await asyncio.sleep(0.5)
        assert made < 60
        frames = await rest(server.execute("t", "flood"))
        result = frames[-1].result
        text = result.output.text or "".join(delta.delta.payload.text for frame in frames for delta in frame.deltas)
        assert len(text) == 100 * 16_384
