"""Hostile calls over A2A: whatever comes, it is the caller's mistake or it is done, and never a fault of the server
(GOV-5, G1, G2). REACH_HOSTILE says how many; some hundreds where nothing is said."""

import contextlib
import copy
import json
import os
import random
from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from reach.wire.a2a.words import DISPATCH
from tests.a2a.conftest import message
from tests.http.bodies import BYTES, RAW, spoiled
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.hostile import odd_messages
from tests.rpc.peers import OPTIONS, unique

COUNT = int(os.environ.get("REACH_HOSTILE", "250"))

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("no_tracebacks"),
    pytest.mark.timeout(60 + COUNT // 10),
]

SERVICE = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
OLD_SERVICE = a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"]
UNARY = [method.name for method in SERVICE.methods if not method.server_streaming]
OLD = ("message/send", "tasks/get", "tasks/cancel", "tasks/pushNotificationConfig/set", "message/stream")
PATHS = (
    "/a2a", "/a2a/t.x", "/a2a/message:send", "/a2a/any/message:send", "/a2a/message:stream", "/a2a/tasks/t:cancel",
    "/a2a/tasks/t/pushNotificationConfigs", "/a2a/v1/message:send", "/a2a/v1/message:stream", "/a2a/tx.!/message:send",
)  # fmt: skip
QUERIES = (
    "pageSize=x", "pageSize=99999999999", "pageSize=-1", "historyLength=1e999", "status=NONSENSE", "status=-1",
    "%ff=%fe", "statusTimestampAfter=now", "contextId=%00", "pageToken=%00", "includeArtifacts=maybe",
    "status=1&status=2",
    "pageToken=" + "x" * 3_000, "contextId=" + "%C3%BC" * 1_000,
)  # fmt: skip


def params_for(name, number, chance):
    """Parameters of a method, with something odd in them."""
    descriptor = SERVICE.methods_by_name[name].input_type
    fields = json_format.MessageToDict(message("hello")) if "Message" in name else {"id": "t", "taskId": "t"}
    if number % 2:
        made = GetMessageClass(descriptor).FromString(chance.choice(odd_messages(descriptor, 5, number)))
        with contextlib.suppress(ValueError, json_format.Error):  # what JSON cannot say
            fields = json_format.MessageToDict(made)
    return copy.deepcopy(spoiled(chance, fields)) if number % 3 else fields


def bodies(count, seed):
    """Bodies of JSON-RPC and of REST."""
    chance = random.Random(seed)
    for number in range(count):
        name = chance.choice([*UNARY, *OLD])
        params = params_for(name if name in UNARY else "SendMessage", number, chance)
        call = {"jsonrpc": "2.0", "id": chance.choice((1, "x", None, 1.5, [], True)), "method": name, "params": params}
        if number % 5 == 0:
            call = copy.deepcopy(spoiled(chance, call))
        fields = call if number % 2 else params
        body = bytearray(json.dumps(fields, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"))
        if number % 3 == 2:
            place = chance.randint(0, len(body))
            body[place : place + chance.randint(0, 4)] = chance.choice(BYTES)
        yield bytes(body)


async def test_G2_no_body_is_a_fault_of_the_server(http, node):
    sent = [(path, body) for path in PATHS[:: 3 if COUNT < 1_000 else 1] for body in RAW]
    sent += [(path, body) for seed, path in enumerate(PATHS) for body in bodies(COUNT // len(PATHS), seed)]
    for number, (path, body) in enumerate(sent):
        version = "0.3" if "/v1/" in path or number % 7 == 0 else ("1.0", "", "9", "x\t")[number % 5 // 4]
        headers = {"a2a-version": version, "content-type": "application/json"}
        async with http.stream("POST", path, content=body, headers=headers, timeout=20) as answer:
            assert answer.status_code < 500, (path, body[:200], await answer.aread())
            if "event-stream" in answer.headers["content-type"]:
                continue  # it waits for an agent
            text = await answer.aread()
        told = json.loads(text)
        if path in ("/a2a", "/a2a/t.x") and "error" in told:
            assert told["error"]["code"] != -32603, (path, body[:200], text)


async def test_G2_no_query_and_no_path_is_one_either(http):
    headers = {"a2a-version": "1.0"}
    for query in QUERIES:
        for path in (
            "/a2a/tasks",
            "/a2a/tasks/t",
            "/a2a/t.x/tasks",
            "/a2a/tasks/t/pushNotificationConfigs",
            "/a2a/v1/tasks/t",
        ):
            answer = await http.get(f"{path}?{query}", headers=headers)
            assert answer.status_code < 500, (path, query, answer.text)
    for path in (
        "//",
        "/a2a/",
        "/a2a//",
        "/a2a/%2f",
        "/a2a/%00/tasks",
        "/a2a/t.x/t.y/tasks",
        "/a2a/..%2f..",
        "/a2a/tasks/%ff",
    ):
        for verb in ("GET", "POST", "DELETE", "PUT", "HEAD"):
            answer = await http.request(verb, path, headers=headers)
            assert answer.status_code < 500, (verb, path, answer.text)


async def test_G2_no_message_over_gRPC_is_one_either(node, stubs):
    codes = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}", options=OPTIONS) as channel:
        for service in (SERVICE, OLD_SERVICE):
            for seed, method in enumerate(service.methods):
                # A message of 0.3 with a part that is none: the SDK fails over it, before we see it.
                for data in [
                    b"",
                    b"\xff\xff",
                    b"\x0a\x04\x2a\x00\x20\x01",
                    *odd_messages(method.input_type, max(3, COUNT // 60), seed),
                ]:
                    path, metadata = f"/{service.full_name}/{method.name}", (("a2a-version", "1.0"),)
                    make: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
                    call = make(path)(data, timeout=5, metadata=metadata)
                    try:
                        await (call.read() if method.server_streaming else call)
                        call.cancel()
                    except grpc.aio.AioRpcError as error:
                        codes.add(error.code())
    assert codes.isdisjoint({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})
    assert grpc.StatusCode.INVALID_ARGUMENT in codes


async def test_GOV_5_a_body_has_a_limit(http, node):
    big = b"x" * (2 * node.config.server.payload_limit + (2 << 20))
    for path in ("/a2a", "/a2a/message:send"):
        answer = await http.post(path, content=big)
        assert (answer.status_code, answer.json()["reason"]) == (413, "PAYLOAD_TOO_LARGE")
    answer = await http.post("/a2a", content=b"{}", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


async def test_GOV_5_pages_of_other_sites_cannot_act(http):
    answer = await http.post("/a2a", json={}, headers={"origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["reason"]) == (403, "PERMISSION_DENIED")
    answer = await http.get("/.well-known/agent-card.json", headers={"host": "evil.example"})
    assert answer.status_code == 403


async def test_G2_what_only_protobuf_can_say_is_no_fault_either(stubs):
    stub, version = a2a_pb2_grpc.A2AServiceStub(stubs.channel), (("a2a-version", "1.0"),)
    for seconds in (2**62, -(2**62)):
        listing = a2a_pb2.ListTasksRequest(status_timestamp_after={"seconds": seconds, "nanos": -5})
        assert (await stub.ListTasks(listing, metadata=version)).page_size == 50
    for value in (float("nan"), float("inf"), -1e300):
        request = message("x")
        request.message.metadata.update({DISPATCH: {"priority": value}})
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.SendMessage(request, metadata=version)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        request = message("x")
        request.message.parts.add().data.number_value = value
        request.configuration.return_immediately = True
        if value > -1:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SendMessage(request, metadata=version)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("version", ["", "0.2", "2.0", "one"])
async def test_API_3_another_version_is_told_which_there_is(http, stubs, version):
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "t"}}
    told = (await http.post("/a2a", json=body, headers={"a2a-version": version} if version else {})).json()
    assert told["error"]["data"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    call = stubs.channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(b"\x12\x01t", metadata=(("a2a-version", version),) if version else ())
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "1.0" in str(error.value.details())


async def test_G1_what_nobody_expected_is_logged_once_and_told_by_its_id_alone(http, stubs, monkeypatch, caplog):
    def broken(*_: object, **__: object):
        raise RuntimeError("secret")

    monkeypatch.setattr("reach.a2a.handler.task_of", broken)
    monkeypatch.setattr("reach.a2a.handler.state_of", broken)
    name = unique("task")
    await http.post("/v1/tasks", json={"task": {"task_id": name, "selector": {"agent_id": "x"}}})
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": name}}
    headers = {"a2a-version": "1.0"}
    told = [
        (await http.post("/a2a", json=body, headers=headers)).text,
        (answer := await http.get(f"/a2a/tasks/{name}", headers=headers)).text,
    ]
    assert answer.status_code == 500
    call = stubs.channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(a2a_pb2.GetTaskRequest(id=name).SerializeToString(), metadata=(("a2a-version", "1.0"),))
    told.append(str(error.value))
    assert all("INTERNAL_FAULT" in one or "INTERNAL" in one for one in told)
    assert not any("secret" in one for one in told)
    assert len([one for one in caplog.records if one.message == "a call failed unexpectedly"]) == 3
    assert "secret" not in caplog.text


@pytest.mark.parametrize("depth", [10, 90, 100, 5_000, 100_000])
async def test_G1_what_is_nested_in_a_part_is_bounded_in_its_depth(http, depth):
    """Data of a part becomes a `Struct`, whose own depth protobuf has not always bounded."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        data = opening * depth + ("1" if closing == "}" else "") + closing * depth
        message = f'{{"messageId": "{unique("m")}", "role": "ROLE_USER", "parts": [{{"data": {data}}}]}}'
        configuration = '"configuration": {"returnImmediately": true}'
        params = f'{{"message": {message}, {configuration}}}'
        rpc = f'{{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {params}}}'
        for path, body in (("/a2a/t.nobody", rpc), ("/a2a/t.nobody/message:send", params)):
            headers = {"a2a-version": "1.0", "content-type": "application/json"}
            answer = await http.post(path, content=body, headers=headers, timeout=20)
            told = answer.json()
            assert answer.status_code < 500, (path, depth, answer.text[:300])
            if depth >= 100:
                assert "error" in told, (path, depth, answer.text[:300])
                assert told["error"]["code"] in (-32700, -32600, -32602, 400), told
            assert len(answer.text) < 4_000
