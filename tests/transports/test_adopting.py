"""`Adopt`: A2A agents as members of the fleet, over failures and changes of their cards (API-3, REG-6, G6)."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from agentreach.v1 import task_pb2
from reach.transports.a2a import endpoint as a2a_endpoint
from tests.a2a_agent import serving
from tests.rpc.peers import Stubs, pb, refusal, running, unique
from tests.transports.endpoint_agent import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED


async def adopted(stubs, served, **terms):
    """Adopts it as one of a type of its own."""
    terms = {"card_url": served.card_url, "agent_type": unique("plain"), **terms}
    return await stubs.registry.Adopt(pb.AdoptRequest(terms=terms), timeout=20)


async def ask(stubs, answer, text, **spec):
    """Gives it a task and waits for what comes of it."""
    task = {
        "task_id": unique("task"),
        "selector": {"agent_type": answer.registration.agent_type},
        "payload": {"text": text},
        "retry": {"name": "never"},
        **spec,
    }
    answer = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 15}), timeout=20)
    return answer.result


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_API_3_an_agent_is_adopted_by_its_card_and_gets_tasks(node, stubs, binding):
    async with serving(binding) as served:
        answer = await adopted(stubs, served)
        registration = answer.registration
        assert registration.agent_id == "plain-agent"
        assert [one.name for one in registration.capabilities] == ["obey"]
        assert registration.endpoints[0].card.binding == binding
        assert list(answer.warnings) == []
        result = await ask(stubs, answer, "words 3")
        assert (result.state, result.output.text) == (SUCCEEDED, "w0 w1 w2 ")
        again = await stubs.registry.Adopt(
            pb.AdoptRequest(terms={"card_url": served.card_url, "agent_type": registration.agent_type}), timeout=20
        )
        assert (again.registration.instance_id, again.generation) == (registration.instance_id, answer.generation)
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=registration.instance_id))


async def test_API_3_states_and_questions_of_the_agent_are_ours(node, stubs):
    async with serving() as served:
        answer = await adopted(stubs, served, max_concurrency=4)
        result = await ask(stubs, answer, "fail no luck")
        assert (result.state, result.error.message) == (task_pb2.TASK_STATE_FAILED, "the agent failed: no luck")
        assert (await ask(stubs, answer, "reject not mine")).state == task_pb2.TASK_STATE_REJECTED
        assert (await ask(stubs, answer, "two")).output.media_type == "application/a2a+json"
        task_id = unique("task")
        asking = asyncio.create_task(ask(stubs, answer, "ask colour", task_id=task_id))

        async def waits():
            task = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id))).task
            return task if task.state == task_pb2.TASK_STATE_WAITING else None

        await asyncio.sleep(0.1)
        task = await eventually(waits)
        assert task.waiting.prompt.text == "which colour?"
        await stubs.dispatch.SendInput(
            pb.SendInputRequest(task_id=task_id, input_id="1", payload={"text": "said blue"})
        )
        result = await asking
        assert (result.state, result.output.text) == (SUCCEEDED, "blue")
        task_id = unique("task")
        asking = asyncio.create_task(ask(stubs, answer, "login", task_id=task_id))
        await asyncio.sleep(0.1)
        assert (await eventually(waits)).waiting_for == task_pb2.WAITING_FOR_AUTH
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id))
        assert (await asking).state == task_pb2.TASK_STATE_CANCELLED
        await eventually(lambda: served.executor.cancelled)


async def test_API_3_a_cancel_reaches_the_remote_task(node, stubs):
    async with serving() as served:
        answer = await adopted(stubs, served)
        task_id = unique("task")
        asking = asyncio.create_task(ask(stubs, answer, "hold", task_id=task_id))
        await eventually(lambda: served.executor.running)
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id))
        assert (await asking).state == task_pb2.TASK_STATE_CANCELLED
        await eventually(lambda: served.executor.cancelled)


async def test_API_3_a_context_stays_with_its_instance_and_fails_over_with_its_history(node, stubs):
    agent_type = unique("plain")
    async with serving() as first, serving(name="Other agent") as second:
        answer, another = [
            await adopted(stubs, served, agent_type=agent_type, max_concurrency=4) for served in (first, second)
        ]
        agents = {answer.registration.instance_id, another.registration.instance_id}
        session = {"app_id": "a", "user_id": "u", "session_id": unique("s")}
        result = await ask(stubs, answer, "my name is Ada", session=session)
        pinned, other = result.instance_id, (agents - {result.instance_id}).pop()
        result = await ask(stubs, answer, "seen two", session=session)
        assert result.instance_id == pinned
        seen = json.loads(result.output.text)
        assert seen["context"] == [["my name is Ada"], ["seen two"]]  # one remote context, and nothing is said twice
        await stubs.registry.Deregister(pb.DeregisterRequest(instance_id=pinned))
        result = await ask(stubs, answer, "seen three", session=session)
        assert result.instance_id == other
        seen = json.loads(result.output.text)
        (said,) = seen["context"]
        agent_id = pinned.split("@")[0]
        assert said[:2] == ["The user said before: my name is Ada", f"Agent {agent_id} said before: my name is Ada"]
        assert said[2] == "The user said before: seen two"
        assert said[-1] == "seen three"


async def test_API_3_slots_begin_with_one_and_grow(node, stubs):
    async with serving() as served:
        answer = await adopted(stubs, served)
        await asyncio.gather(*(ask(stubs, answer, "nap 0.02") for _ in range(30)))
        assert 2 <= served.executor.most <= 10
        instance = node.reach.instance("default", answer.registration.instance_id)[1]
        assert instance.max_concurrency >= 3


async def test_API_3_a_changed_card_is_taken_over(node, stubs, monkeypatch):
    monkeypatch.setattr(a2a_endpoint, "CARD_EVERY_S", 0.1)
    async with serving() as served:
        answer = await adopted(stubs, served)
        served.card.skills.add(id="rest", name="Rest", description="Does nothing", tags=["idle"])
        served.card.version = "2"
        instance_id = answer.registration.instance_id

        async def agent():
            return (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=instance_id))).agent

        async def changed():
            return len((await agent()).registration.capabilities) == 2

        await eventually(changed)
        found = await agent()
        assert found.registration.version == "2"
        assert (found.generation, found.registration.agent_id) == (answer.generation, "plain-agent")
        assert found.adopted.HasField("card_age")


async def test_API_3_an_agent_whose_name_leads_elsewhere_is_found_there(node, stubs, monkeypatch):
    where = {"helper.test": "127.0.0.1"}
    real = socket.getaddrinfo

    def found(host, *more, **named):
        return real(where.get(host, host), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    async with serving() as served:
        card_url, url = f"http://helper.test:{served.port}/", f"http://helper.test:{served.port}/rpc"
        answer = await stubs.registry.Adopt(pb.AdoptRequest(terms={"card_url": card_url, "url": url}), timeout=20)
        assert (await ask(stubs, answer, "here")).output.text == "here"
        port = served.port
    instance = node.reach.instance("default", answer.registration.instance_id)[1]
    await eventually(lambda: instance.probe_status == "unreachable")
    where["helper.test"] = "127.0.0.3"
    async with serving(port=port, host="127.0.0.3"):
        await eventually(lambda: not instance.blocked_by)
        assert (await ask(stubs, answer, "again, there")).output.text == "again, there"


RUBBISH = {
    "a page": (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<h1>It works</h1>", "It works"),
    "no JSON": (b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"jsonrpc": \n', "jsonrpc"),
    "another JSON": (b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[1, "two"]', "two"),
    "no event": (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {]\n\n", "{]"),
    "an error page": (b"HTTP/1.1 500 Oh\r\ncontent-type: text/html\r\n\r\n<h1>Oh no</h1>", "HTTP 500"),
    "not UTF-8": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\xff\xfe", ""),
}


async def test_GOV_5_an_agent_that_breaks_the_protocol_fails_the_task_with_what_it_said(node, stubs):
    said = b""

    async def answer_rubbish(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    rubbish = await asyncio.start_server(answer_rubbish, "127.0.0.1", 0)
    port = rubbish.sockets[0].getsockname()[1]
    async with serving() as served, rubbish:
        answer = await adopted(stubs, served, url=f"http://127.0.0.1:{port}/")
        for kind, (rubbish_said, kept) in RUBBISH.items():
            said = rubbish_said
            result = await ask(stubs, answer, "hello")
            assert result.state == task_pb2.TASK_STATE_FAILED, kind
            assert result.error.metadata["a2a_reason"] == "INVALID_AGENT_RESPONSE", kind
            assert kept in result.error.metadata.get("raw", "") + result.error.message, kind


async def test_G6_the_operators_url_beats_the_card(node, stubs):
    async with serving() as served:
        served.card.supported_interfaces[0].url = f"http://0.0.0.0:{served.port}/rpc"
        answer = await adopted(stubs, served)
        assert answer.registration.endpoints[0].url == f"a2a+http://127.0.0.1:{served.port}/rpc"
        assert "which is no address" in answer.warnings[0]
        served.card.supported_interfaces[0].url = "http://internal.invalid:1/rpc"
        url = f"http://127.0.0.1:{served.port}/rpc"
        answer = await adopted(stubs, served, agent_id="other", url=url)
        assert (await ask(stubs, answer, "hello")).output.text == "hello"


async def test_GOV_2_credentials_open_calls_and_the_extended_card(tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text("canary-secret\n")
    auth = [{"name": "ours", "token_file": str(file), "hosts": ["127.0.0.1"]}]
    async with (
        serving(key="canary-secret") as served,
        running(tmp_path / "node", agents__auth=auth) as node,
        Stubs(node.port) as stubs,
    ):
        answer = await adopted(stubs, served)
        assert "the card asks for credentials (key): say --credential" in answer.warnings
        assert (await ask(stubs, answer, "hello")).error.message.startswith("the agent refused our credentials")
        answer = await adopted(stubs, served, agent_id="known", auth_reference="ours")
        assert [one.name for one in answer.registration.capabilities] == ["obey", "secret"]
        assert (await ask(stubs, answer, "hello")).output.text == "hello"
        shown = repr(node.config) + repr(await stubs.registry.ListAgents(pb.ListAgentsRequest()))
    assert "canary-secret" not in shown + caplog.text


async def test_GOV_6_interfaces_at_forbidden_addresses_are_not_called(node, stubs):
    async with serving() as served:
        served.card.supported_interfaces[0].url = "http://169.254.169.254/latest"
        request = pb.AdoptRequest(terms={"card_url": served.card_url})
        code, reason, text = await refusal(stubs.registry.Adopt(request))
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), text
        assert "metadata" in text


async def test_API_3_an_agent_that_is_full_gets_less_and_the_task_goes_elsewhere(node, stubs):
    asked = []

    async def full(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 429 Full\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    busy = await asyncio.start_server(full, "127.0.0.1", 0)
    agent_type = unique("plain")
    async with serving() as served, busy:
        url = f"http://127.0.0.1:{busy.sockets[0].getsockname()[1]}/"
        await adopted(stubs, served, agent_type=agent_type, agent_id="busy", url=url, priority=9)
        answer = await adopted(stubs, served, agent_type=agent_type, agent_id="free", priority=0)
        results = [await ask(stubs, answer, "hello", retry={"name": "quick"}) for _ in range(4)]
        assert {result.state for result in results} == {SUCCEEDED}
        assert asked


async def test_GOV_6_cards_of_forbidden_addresses_are_not_read(node, stubs):
    for url in ("http://169.254.169.254/", "http://[fd00:ec2::254]/card", "ftp://host/", "http://u@127.0.0.1/"):
        code, reason, text = await refusal(stubs.registry.Adopt(pb.AdoptRequest(terms={"card_url": url})))
        assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), (url, text)
