"""Any node takes any call, also over HTTP: what is at home elsewhere is done there (CLU-1)."""

import asyncio

import pytest
import pytest_asyncio

from reach.http.websocket import LEAVING
from tests.http.conftest import client_of
from tests.http.socket_client import Closed, SocketClient
from tests.http.sse_reader import events_of
from tests.rpc.nodes import cluster
from tests.rpc.peers import AgentByHand, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory):
    async with cluster(tmp_path_factory.mktemp("cluster"), "one", "two") as made:
        made.share()
        yield made


async def test_CLU_1_what_another_node_owns_is_done_there_and_told_here(nodes):
    agent_type = unique("far")
    nodes.give(agent_type, "one")
    agent = AgentByHand(nodes.stubs("one"))
    await agent.join(agent_type, agent_type=agent_type)
    key = unique("key")
    spec = {"selector": {"agent_type": agent_type}, "payload": {"text": "x"}}
    async with client_of(nodes["two"].admin_port) as http:
        given = await http.post("/v1/tasks", json={"task": spec}, headers={"idempotency-key": key})
        assert given.json()["taskId"] == key
        assert key in nodes["one"].tasks()
        assert key not in nodes["two"].tasks()
        async with http.stream("GET", f"/v1/tasks/{key}/events") as answer:
            await agent.serve(await agent.next("offers"), "done")
            seen = [one async for one in events_of(answer)]
        assert [one.kind for one in seen] == ["accepted", "started", "complete"]
        got = (await http.get(f"/v1/tasks/{key}/result")).json()
        assert got["result"]["output"]["text"] == "done"
        listed = (await http.get("/v1/agents", params={"agent_type": agent_type})).json()
        assert [row["registration"]["instanceId"] for row in listed["agents"]] == [agent.instance_id]
        async with http.stream("GET", "/v1/watch/agents", params={"agent_type": agent_type}) as answer:
            told = await anext(events_of(answer))
        assert told.data.keys() >= {"agents", "lostNodes"}
        unknown = await http.get("/v1/tasks/none")
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "TASK_NOT_FOUND")
    await agent.close()


async def hear_to_the_end(ws):
    while True:
        await ws.hear()


async def test_DLV_13_a_reader_on_a_socket_goes_on_at_another_node_when_its_own_stops(tmp_path):
    """The task and its agent are at home elsewhere: the door that stops says so, and the next one goes on behind."""
    async with cluster(tmp_path, "one", "two", "three") as made:
        made.share()
        agent_type, key = unique("far"), unique("key")
        made.give(agent_type, "one")
        agent = AgentByHand(made.stubs("one"))
        await agent.join(agent_type, agent_type=agent_type)
        spec = {"taskId": key, "selector": {"agentType": agent_type}, "payload": {"text": "x"}}
        seen: list[dict[str, object]] = []
        async with SocketClient(made["two"].admin_port) as ws:
            await ws.ask("run", "DispatchService/Run", {"task": spec})
            offer = await agent.next("offers")
            await agent.accept(offer)
            await agent.delta(offer, 1, "1 ")
            while len(seen) < 3:
                seen += (await ws.hear())["response"]["events"]
            stopping = asyncio.ensure_future(made["two"].stop())
            with pytest.raises(Closed) as closed:
                await hear_to_the_end(ws)
            assert closed.value.code == LEAVING
            await stopping
        await agent.delta(offer, 2, "2 ")
        async with SocketClient(made["three"].admin_port) as ws:
            request = {"taskId": key, "afterSequence": seen[-1]["sequence"]}
            await ws.ask("again", "ResultService/StreamResult", request)
            await agent.finish(offer, "done")
            for frame in await ws.hear_all("again"):
                seen += frame.get("response", {}).get("events", [])
        texts = [event["delta"]["payload"]["text"] for event in seen if "delta" in event]  # type: ignore[index]
        assert texts == ["1 ", "2 "]
        assert "complete" in seen[-1]
        sequences = [int(str(event["sequence"])) for event in seen]
        assert sequences == sorted(set(sequences))
        await agent.close()
