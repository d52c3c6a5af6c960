"""Fail-over, deadlines, keys over gRPC, several nodes: what callers over A2A see of it (API-3, STR-3, DLV-6)."""

import asyncio
import subprocess
import sys

import grpc
import pytest
from a2a.types import a2a_pb2, a2a_pb2_grpc

from reach.a2a.story import fold
from reach.rpc.access import Admission
from tests.a2a.conftest import BINDINGS, Asking, Calling, message
from tests.a2a.test_calls import S, state_in, text_of, until
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.nodes import cluster
from tests.rpc.peers import OPTIONS, AgentByHand, Stubs, reason_in, running, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


async def test_STR_3_a_new_attempt_begins_the_artifact_anew(calling, stubs, binding):
    one, two = Asking(stubs), Asking(stubs)
    await one.join(name := unique("first"))
    client = await calling.client(name, binding)
    stream = client.send_message(message("go"))
    task = (await anext(stream)).task
    offer = await one.next("offers")
    await one.accept(offer)
    await one.delta(offer, 1, "half of ")
    await until(stream, lambda told: told.HasField("artifact_update"))
    reader = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=task.id))
    snapshot = (await anext(reader)).task
    assert [text_of(artifact) for artifact in snapshot.artifacts] == ["half of "]
    await two.join(unique("second"), agent_type=name)
    await one.close()  # it is lost in the middle of its answer
    offer = await two.next("offers")
    await two.accept(offer)
    await two.delta(offer, 1, "all ")
    await two.delta(offer, 2, "of it")
    await two.finish(offer, "all of it")
    for told in (stream, reader):
        seen = [one async for one in told]
        fold(snapshot, [one.artifact_update if one.HasField("artifact_update") else one.status_update for one in seen])
        assert [text_of(artifact) for artifact in snapshot.artifacts] == ["all of it"]
        states = [state for one in seen if (state := state_in(one)) is not None]
        assert S.TASK_STATE_SUBMITTED not in states
        assert states[-1] == S.TASK_STATE_COMPLETED
    again = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
    assert [text_of(artifact) for artifact in again.artifacts] == ["all of it"]
    await two.close()


async def test_DLV_6_a_call_with_a_deadline_is_answered_before_it_and_the_task_goes_on(agent, node):
    await agent.join(name := unique("slow"))
    request = message("go")
    request.tenant = f"t.{name}"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}", options=OPTIONS) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        answer = await stub.SendMessage(request, timeout=1, metadata=(("a2a-version", "1.0"),))
        assert answer.task.status.state == S.TASK_STATE_SUBMITTED
        offer = await agent.next("offers")
        await agent.serve(offer, "done")
        got = await stub.GetTask(a2a_pb2.GetTaskRequest(id=answer.task.id), metadata=(("a2a-version", "1.0"),))
        assert got.status.state == S.TASK_STATE_COMPLETED


async def test_a_caller_that_goes_holds_nothing(agent, node, http):
    await agent.join(name := unique("left"))
    gates = node._grpc.entrance.gates.values()
    before = [gate.held for gate in gates]
    for path in ("message:send", "message:stream"):
        body = {"message": {"messageId": unique("m"), "role": "ROLE_USER", "parts": [{"text": "go"}]}}
        call = asyncio.ensure_future(http.post(f"/a2a/t.{name}/{path}", json=body, headers={"a2a-version": "1.0"}))
        offer = await agent.next("offers")
        assert [gate.held for gate in gates] != before
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(5):
            while [gate.held for gate in gates] != before:  # noqa: ASYNC110 - it is no event
                await asyncio.sleep(0.01)
        await agent.serve(offer, "done")  # for nobody, but it is not cancelled


async def test_API_3_options_of_the_dispatch_extension_are_taken(agent, calling):
    from reach.wire.a2a.words import DISPATCH

    await agent.join(name := unique("optional"), tags=["gpu"])
    client = await calling.client(name, polling=True, streaming=False)
    request = message("go")
    options = {"priority": 9, "deadline_ms": 60_000, "required_tags": ["gpu"], "effects": "none", "method": "paint"}
    request.message.metadata.update({DISPATCH: options})
    request.metadata.update({"order": "7", "nested": {"not": "a label"}})
    [_ async for _ in client.send_message(request)]
    spec = (await agent.next("offers")).task
    assert (spec.priority, spec.method, spec.timeouts.schedule_to_close.seconds) == (9, "paint", 60)
    assert spec.labels["order"] == "7"
    assert "nested" not in spec.labels
    for wrong in ({"priority": "high"}, {"effects": "some"}, {"deadline_ms": 1e300}, {"required_tags": 7}, 7):
        request = message("go")
        request.message.metadata.update({DISPATCH: wrong})
        with pytest.raises(Exception, match="dispatch"):
            [_ async for _ in client.send_message(request)]


async def test_G2_there_is_no_socket(node):
    reader, writer = await asyncio.open_connection("127.0.0.1", node.admin_port)
    head = "GET /a2a/x HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    writer.write(f"{head}sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
    assert b" 404 " in await reader.readline()
    writer.close()


async def test_PRF_10_a_server_that_nobody_calls_over_A2A_has_not_loaded_it():
    code = "import reach.node, sys; print(*sorted({'a2a', 'pydantic', 'sse_starlette', 'httpx'} & set(sys.modules)))"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout == "\n"


async def test_GOV_5_errors_of_ours_say_when_to_come_back(agent, http, node, monkeypatch):
    await agent.join(name := unique("full"))
    monkeypatch.setattr(node._grpc.entrance.gates[Admission.SUBMITS], "limit", 0)
    headers = {"a2a-version": "1.0"}
    sent = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
    rest = await http.post(f"/a2a/t.{name}/message:send", json=sent, headers=headers)
    assert (rest.status_code, rest.headers["retry-after"]) == (429, "1")
    told = rest.json()["error"]
    assert (told["code"], told["status"]) == (429, "RESOURCE_EXHAUSTED")
    call = {"jsonrpc": "2.0", "id": "seven", "method": "SendStreamingMessage", "params": sent}
    rpc = (await http.post(f"/a2a/t.{name}", json=call, headers=headers)).json()
    assert (rpc["id"], rpc["error"]["code"]) == ("seven", -32000)
    for details in (told["details"], rpc["error"]["data"]):
        assert (details[0]["reason"], details[0]["domain"]) == ("TOO_MANY_STREAMS", "agentreach")
        assert details[1]["retryDelay"] == "1s"
    part = {"kind": "text", "text": "x"}
    old = {**call, "method": "message/send", "params": {"message": {"messageId": "m", "role": "user", "parts": [part]}}}
    answer = (await http.post(f"/a2a/t.{name}/", json=old)).json()
    assert answer["error"]["data"][0]["reason"] == "TOO_MANY_STREAMS"
    request = message("x")
    request.tenant = "t.nobody"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}", options=OPTIONS) as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.SendMessage(request, metadata=(("a2a-version", "1.0"),))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason_in(error.value.trailing_metadata()) == "TOO_MANY_STREAMS"


async def test_a_route_that_is_none_is_said_so_over_each_binding(http, node):
    headers = {"a2a-version": "1.0"}
    sent = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
    rest = await http.post("/a2a/nonsense/message:send", json=sent, headers=headers)
    assert (rest.status_code, rest.json()["error"]["details"][0]["reason"]) == (404, "NO_ROUTE")
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {**sent, "tenant": "nonsense"}}
    rpc = (await http.post("/a2a", json=call, headers=headers)).json()
    assert rpc["error"]["data"][0]["reason"] == "NO_ROUTE"


async def test_CLU_1_any_node_takes_calls_over_A2A(tmp_path):
    async with cluster(tmp_path, "one", "two") as nodes:
        nodes.share()
        nodes.give(kind := unique("far"), "one")
        agent = AgentByHand(nodes.stubs("one"))
        await agent.join(kind, agent_type=kind, capabilities=[{"name": "travelling"}])
        calling = Calling(nodes["two"].admin_port)
        assert [skill.id for skill in (await calling.card(kind)).skills] == ["travelling"]
        for binding in ("HTTP+JSON", "GRPC"):
            client = await calling.client(kind, binding)
            stream = client.send_message(message("go"))
            task = (await anext(stream)).task
            await agent.serve(await agent.next("offers"), "done")
            assert state_in([one async for one in stream][-1]) == S.TASK_STATE_COMPLETED
            assert task.id in nodes["one"].tasks()
        await calling.close()
        await agent.close()


async def test_DLV_13_a_server_that_stops_ends_streams_at_once(tmp_path):
    async with running(tmp_path) as node, Stubs(node.port) as stubs:
        agent = AgentByHand(stubs)
        await agent.join(name := unique("open"))
        calling = Calling(node.admin_port)
        streams = [(await calling.client(name, binding)).send_message(message(binding)) for binding in BINDINGS]
        for stream in streams:
            assert (await anext(stream)).HasField("task")
        await agent.close()
        begun = asyncio.get_running_loop().time()
        stopping = asyncio.ensure_future(node.stop())
        for stream in streams:
            with pytest.raises(Exception, match=r"shutting down|AioRpcError"):  # each binding has its own word for it
                await until(stream, lambda _: False)
        await stopping
        assert asyncio.get_running_loop().time() - begun < 8
        await calling.close()
