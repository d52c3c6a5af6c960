"""Who may have a socket, and what of it: the same keys, scopes and tenants as everywhere, also while it is open (GOV-1,
GOV-2, G9)."""

import asyncio
import json

import pytest

from reach.http import websocket
from reach.http.routes import ROWS
from reach.rpc.access import TABLE
from tests.http.conftest import client_of
from tests.http.socket_client import Closed, Refused, SocketClient
from tests.rpc.peers import TIMEOUT, AgentByHand, Stubs, unique

WITH_KEYS = True
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer rk_none_none"}, {"authorization": "x"}])
async def test_G9_nobody_gets_no_socket(node, headers):
    with pytest.raises(Refused) as refused:
        await SocketClient(node.admin_port, headers).open()
    assert (refused.value.status, refused.value.told["reason"]) == (401, "UNAUTHENTICATED")
    with pytest.raises(Refused) as refused:
        await SocketClient(node.admin_port, protocols=("agentreach.v1", "bearer.rk_none_none")).open()
    assert refused.value.status == 401


async def test_G9_no_method_is_open_without_its_scope(node, keys):
    for scope in ("agent", "caller", "reader", "operator"):
        async with SocketClient(node.admin_port, dict(keys.header("acme", scope))) as ws:
            for rpc in sorted({row.rpc for row in ROWS}):
                if scope in TABLE[f"/agentreach.v1.{rpc}"].scopes:
                    continue
                told = await ws.call(rpc)
                assert told["problem"]["reason"] == "PERMISSION_DENIED", rpc


async def test_GOV_1_what_is_not_yours_is_not_there(node, keys):
    header = keys.header("acme")
    async with Stubs(node.port) as stubs:
        agent = AgentByHand(stubs, header)
        await agent.join(unique("agent"))
        task_id = unique("task")
        async with client_of(node.admin_port, headers=dict(header)) as http:
            spec = {"taskId": task_id, "selector": {"agentId": agent.agent_id}, "payload": {"text": "x"}}
            assert (await http.post("/v1/tasks", json={"task": spec})).status_code == 200
        key = keys.header("rival")[0][1].removeprefix("Bearer ")
        async with SocketClient(node.admin_port, protocols=("agentreach.v1", f"bearer.{key}")) as ws:
            for method, more in (
                ("DispatchService/GetTask", {}),
                ("DispatchService/CancelTask", {}),
                ("DispatchService/SendInput", {"payload": {"text": "x"}}),
                ("DispatchService/WaitForResult", {}),
                ("ResultService/StreamResult", {"afterSequence": "1"}),
                ("OpsService/ExplainTask", {}),
            ):
                answers = []
                for name in (task_id, "0" * len(task_id)):
                    told = (await ws.call(method, {"taskId": name, **more}))["problem"]
                    told.pop("traceId")
                    answers.append(json.dumps(told).replace(name, "?"))
                assert answers[0] == answers[1], method
        rivals = client_of(node.admin_port, headers={**dict(keys.header("rival")), "last-event-id": "1"})
        async with rivals as http:  # nor is what an id of an event stands for (D5)
            told = [await http.get(f"/v1/tasks/{name}/events") for name in (task_id, "0" * len(task_id))]
        assert [one.status_code for one in told] == [404, 404]
        assert told[0].json()["reason"] == told[1].json()["reason"] == "TASK_NOT_FOUND"
        await agent.close()


async def test_GOV_2_a_key_that_is_revoked_ends_its_sockets(node, keys, monkeypatch):
    monkeypatch.setattr(websocket, "RECHECK_SECONDS", 0.1)
    header = keys.header("acme")
    async with SocketClient(node.admin_port, dict(header)) as ws:
        await ws.say(ping="x")
        assert await ws.hear() == {"pong": "x"}
        await asyncio.sleep(0.25)
        assert (await ws.call("DispatchService/GetTask", {"taskId": "none"}))["problem"]["reason"] == "TASK_NOT_FOUND"
        keys.revoke(header)
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(Closed) as closed:
                await ws.hear()
        assert closed.value.code == websocket.NOT_ALLOWED
        assert closed.value.reason.startswith("UNAUTHENTICATED")


async def test_GOV_5_nobody_sends_a_body_who_may_not_make_the_call(node, keys):
    """The answer comes before the body does."""
    only_reads = dict(keys.header("acme", "reader"))["authorization"]
    for header, status in (("", 401), (f"authorization: {only_reads}\r\n", 403)):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
        writer.write(f"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\n{header}content-length: 100000\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT):
            assert (await reader.readline()).startswith(f"HTTP/1.1 {status}".encode())
        writer.close()
