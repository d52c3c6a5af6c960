"""Who may call over A2A, and what is not yours is not there (GOV-1, GOV-2, G4, G9)."""

import grpc
import pytest
import pytest_asyncio
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils import errors as a2a
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from tests.a2a.conftest import Calling, message
from tests.a2a.test_calls import task_in
from tests.http.conftest import client_of
from tests.rpc.peers import AgentByHand, Stubs, reason_in, unique

WITH_KEYS = True
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


@pytest_asyncio.fixture(loop_scope="module")
async def acme(node, keys):
    """An agent of one tenant."""
    async with Stubs(node.port) as stubs:
        made = AgentByHand(stubs, keys.header("acme"))
        await made.join(unique("acme-agent"), capabilities=[{"name": "secrets"}])
        yield made
        await made.close()


def rpc(method, **params):
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


SENT = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
REST = [
    ("POST", "/a2a/message:send", SENT),
    ("POST", "/a2a/t.x/message:stream", SENT),
    ("GET", "/a2a/tasks", None),
    ("GET", "/a2a/tasks/t", None),
    ("POST", "/a2a/tasks/t:cancel", {}),
    ("POST", "/a2a/tasks/t:subscribe", {}),
    ("GET", "/a2a/tasks/t:subscribe", None),
    ("GET", "/a2a/tasks/t/pushNotificationConfigs", None),
    ("GET", "/a2a/extendedAgentCard", None),
]
RPC = [
    rpc("SendMessage", **SENT),
    rpc("SendStreamingMessage", **SENT),
    rpc("GetTask", id="t"),
    rpc("ListTasks"),
    rpc("CancelTask", id="t"),
    rpc("SubscribeToTask", id="t"),
    rpc("GetExtendedAgentCard"),
    rpc("GetTaskPushNotificationConfig", taskId="t", id="c"),
]


async def test_G9_nothing_is_open_without_the_right_key(node, keys):
    for header in ({}, {"authorization": "Bearer ar_x_y"}, {"authorization": "Basic eDp5"}):
        async with client_of(node.admin_port, headers={"a2a-version": "1.0", **header}) as http:
            for verb, path, body in REST:
                answer = await http.request(verb, path, json=body)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
            for body in RPC:
                answer = await http.post("/a2a", json=body)
                assert answer.status_code == 401, body
            for path in ("/.well-known/ai-catalog.json", "/a2a/t.x/.well-known/agent-card.json"):
                assert (await http.get(path)).status_code == 401
    wrong = dict(keys.header("acme", "agent"))
    async with client_of(node.admin_port, headers={"a2a-version": "1.0", **wrong}) as http:
        for verb, path, body in REST:
            if "push" not in path:
                answer = await http.request(verb, path, json=body)
                assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED"), path
        for body in RPC[:-1]:
            answer = await http.post("/a2a", json=body)
            assert answer.status_code == 403
            assert answer.json()["error"]["data"][0]["reason"] == "PERMISSION_DENIED"


async def test_G9_keys_count_over_gRPC_too(node, keys, acme):
    request = message("x")
    request.tenant = f"t.{acme.agent_id}"
    request.configuration.return_immediately = True
    version = ("a2a-version", "1.0")
    async with Stubs(node.port) as stubs:
        stub = a2a_pb2_grpc.A2AServiceStub(stubs.channel)
        for header, code in (
            ((), "UNAUTHENTICATED"),
            ((("authorization", "Bearer ar_x_y"),), "UNAUTHENTICATED"),
            (keys.header("acme", "reader"), "PERMISSION_DENIED"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.SendMessage(request, metadata=(version, *header))
            assert error.value.code().name == code
            assert reason_in(error.value.trailing_metadata()) == code
        task = (await stub.SendMessage(request, metadata=(version, *keys.header("acme", "caller")))).task
        for one in (task.id, "nobody"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.GetTask(a2a_pb2.GetTaskRequest(id=one), metadata=(version, *keys.header("rival")))
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
            info = error_details_pb2.ErrorInfo()
            status = status_pb2.Status.FromString(dict(error.value.trailing_metadata())["grpc-status-details-bin"])
            assert status.details[0].Unpack(info)
            assert (info.reason, info.domain) == ("TASK_NOT_FOUND", "a2a-protocol.org")


async def test_G9_a_stranger_learns_where_to_ask_and_with_what(node, acme):
    async with client_of(node.admin_port) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
    assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
    assert not card.get("skills")


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_GOV_2_a_caller_needs_no_more_than_the_scope_of_callers(node, keys, acme, binding):
    calling = Calling(node.admin_port, dict(keys.header("acme", "caller")))
    client = await calling.client(acme.agent_id, binding, polling=True, streaming=False)
    assert [skill.id for skill in (await calling.card(acme.agent_id)).skills] == ["secrets"]
    task = await task_in(client.send_message(message("x")))
    assert (await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))).id == task.id
    await calling.close()


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_G4_GOV_1_what_is_not_yours_is_what_nobody_has(node, keys, acme, binding):
    mine = Calling(node.admin_port, dict(keys.header("acme")))
    theirs = Calling(node.admin_port, dict(keys.header("rival")))
    client = await mine.client(acme.agent_id, binding, polling=True, streaming=False)
    context = unique("context")
    task = await task_in(client.send_message(message("secret", context_id=context)))
    async with Stubs(node.port) as stubs:
        own = AgentByHand(stubs, keys.header("rival"))
        await own.join(unique("rival-agent"))
        rival = await theirs.client(own.agent_id, binding, streaming=True)
        for ask in (
            lambda one: rival.get_task(a2a_pb2.GetTaskRequest(id=one)),
            lambda one: rival.cancel_task(a2a_pb2.CancelTaskRequest(id=one)),
            lambda one: anext(rival.subscribe(a2a_pb2.SubscribeToTaskRequest(id=one))),
            lambda one: anext(rival.send_message(message("x", task_id=one))),
        ):
            told = []
            for one in (task.id, "nobody"):
                with pytest.raises(a2a.TaskNotFoundError) as error:
                    await ask(one)
                told.append(str(error.value).replace(task.id, "nobody"))
            assert told[0] == told[1]
        assert not (await rival.list_tasks(a2a_pb2.ListTasksRequest(context_id=context))).tasks
        assert [one.id for one in (await client.list_tasks(a2a_pb2.ListTasksRequest(context_id=context))).tasks] == [
            task.id
        ]
        await own.close()
    async with client_of(node.admin_port, headers=dict(keys.header("rival"))) as http:
        cards = [await http.get(f"/a2a/t.{one}/.well-known/agent-card.json") for one in (acme.agent_id, "nobody")]
        assert {one.status_code for one in cards} == {404}
        assert cards[0].text.replace(acme.agent_id, "nobody") == cards[1].text
        assert "acme" not in (await http.get("/.well-known/ai-catalog.json")).text
        assert "secrets" not in (await http.get("/.well-known/agent-card.json")).text
    await mine.close()
    await theirs.close()


async def test_G4_the_same_message_of_another_tenant_is_another_task(node, keys, acme):
    request = message("x")
    ids = []
    for tenant in ("acme", "rival"):
        calling = Calling(node.admin_port, dict(keys.header(tenant)))
        async with Stubs(node.port) as stubs:
            own = AgentByHand(stubs, keys.header(tenant))
            await own.join(unique("own"), agent_type="shared-name")
            client = await calling.client("shared-name", polling=True, streaming=False)
            task = await task_in(client.send_message(request))
            ids.append((await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))).status.timestamp.ToNanoseconds())
            assert (await own.next("offers")).task.payload.text == "x"
            await own.close()
        await calling.close()
    assert ids[0] != ids[1]
