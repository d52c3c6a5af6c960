"""Callers of version 0.3 (API-3, API-4)."""

import asyncio

import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import a2a_pb2
from a2a.utils import errors as a2a
from grpc import aio

from tests.a2a.conftest import message
from tests.a2a.test_calls import S, state_in, task_in, text_of
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.peers import unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


async def old_client(calling, agent, binding, node, **config):
    """A client that knows 0.3 only."""
    word = unique("xylophone").replace("-", "")
    await agent.join(
        name := unique("old"),
        capabilities=[{"name": "playing", "description": f"plays the {word}", "examples": [word]}],
    )
    card = await calling.card(name)
    found = [one for one in card.supported_interfaces if one.protocol_version == "0.3"]
    if binding == "GRPC":
        found = [a2a_pb2.AgentInterface(url=f"127.0.0.1:{node.port}", protocol_binding="GRPC", protocol_version="0.3")]
    if binding == "HTTP+JSON":
        at = f"http://127.0.0.1:{node.admin_port}/a2a"
        found = [a2a_pb2.AgentInterface(url=at, protocol_binding="HTTP+JSON", protocol_version="0.3")]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(found)
    settings = ClientConfig(supported_protocol_bindings=[binding], grpc_channel_factory=aio.insecure_channel, **config)
    return ClientFactory(settings).create(card), word


async def test_API_3_callers_of_0_3_are_served(calling, agent, binding, node):
    client, word = await old_client(calling, agent, binding, node, streaming=False)
    asking = asyncio.ensure_future(task_in(client.send_message(message(word))))
    offer = await agent.next("offers")
    await agent.serve(offer, "HELLO")
    task = await asking
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert [text_of(one) for one in task.artifacts] == ["HELLO"]
    assert (await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))).id == task.id
    with pytest.raises((a2a.A2AError, Exception)):
        await client.get_task(a2a_pb2.GetTaskRequest(id="nobody"))
    await client.close()


async def test_API_3_callers_of_0_3_are_streamed_to(calling, agent, binding, node):
    client, word = await old_client(calling, agent, binding, node)
    stream = client.send_message(message(word))
    assert (await anext(stream)).HasField("task")
    offer = await agent.next("offers")
    await agent.accept(offer)
    await agent.delta(offer, 1, "one")
    await agent.finish(offer, "one")
    told = [one async for one in stream]
    assert state_in(told[-1]) == S.TASK_STATE_COMPLETED
    await client.close()


async def test_API_4_a_card_can_be_read_by_those_who_know_0_3_only(agent, http, node):
    await agent.join(name := unique("old"))
    card = (await http.get(f"/a2a/t.{name}/.well-known/agent-card.json")).json()
    assert card["url"] == f"http://127.0.0.1:{node.admin_port}/a2a/t.{name}"
    assert (card["preferredTransport"], card["protocolVersion"]) == ("JSONRPC", "0.3")
