"""A2A on both sides: a caller that speaks it, and an agent behind us that does too, ours or somebody's (API-3)."""

import pytest
from a2a.types import a2a_pb2

from tests.a2a.conftest import message
from tests.a2a.test_calls import S, state_in, text_of
from tests.a2a_agent import serving
from tests.rpc.conftest import no_tracebacks  # noqa: F401 - a fixture here too
from tests.rpc.peers import pb, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]


async def adopted(stubs, card_url):
    """The type of an agent that is adopted by its card."""
    terms = {"card_url": card_url, "agent_type": unique("adopted"), "agent_id": unique("adopted"), "max_concurrency": 4}
    return (await stubs.registry.Adopt(pb.AdoptRequest(terms=terms), timeout=20)).registration.agent_type


async def told(client, request):
    """All that a stream tells: the text, and the last state with what is said of it."""
    text, last = "", None
    async for one in client.send_message(request):
        if one.HasField("artifact_update"):
            piece = text_of(one.artifact_update.artifact)
            text = text + piece if one.artifact_update.append else piece
        task = one.task if one.HasField("task") else None
        last = task.status if task is not None else one.status_update.status if state_in(one) is not None else last
    return text, last, one.status_update.task_id


async def test_API_3_an_A2A_agent_is_called_through_us_as_it_is(calling, stubs, binding):
    async with serving({"JSONRPC": "GRPC", "GRPC": "HTTP+JSON", "HTTP+JSON": "JSONRPC"}[binding]) as served:
        kind = await adopted(stubs, served.card_url)
        card = await calling.card(kind)
        assert [(skill.id, skill.description) for skill in card.skills] == [("obey", "Obedience: Does as told")]
        client = await calling.client(kind, binding)
        text, status, _ = await told(client, message("words 5"))
        assert (text, status.state) == ("w0 w1 w2 w3 w4 ", S.TASK_STATE_COMPLETED)
        text, status, _ = await told(client, message("again"))
        assert (text, status.state) == ("right", S.TASK_STATE_COMPLETED)
        _, status, _ = await told(client, message("reject not today"))
        assert status.state == S.TASK_STATE_REJECTED
        _, status, task_id = await told(client, message("ask colour"))
        assert (status.state, status.message.parts[0].text) == (S.TASK_STATE_INPUT_REQUIRED, "which colour?")
        text, status, same = await told(client, message("red is best", task_id=task_id))
        assert (text, status.state, same) == ("red is best", S.TASK_STATE_COMPLETED, task_id)


async def test_API_3_our_own_card_can_be_adopted(calling, agent, stubs, node):
    await agent.join(name := unique("inner"), capabilities=[{"name": "being-inner"}])
    kind = await adopted(stubs, f"http://127.0.0.1:{node.admin_port}/a2a/t.{name}")
    client = await calling.client(kind)
    stream = client.send_message(message("through two doors", context_id=unique("context")))
    first = (await anext(stream)).task
    offer = await agent.next("offers")
    assert offer.task.payload.text == "through two doors"
    await agent.accept(offer)
    await agent.delta(offer, 1, "and ")
    await agent.delta(offer, 2, "back")
    await agent.finish(offer, "and back")
    seen = [one async for one in stream]
    assert "".join(text_of(one.artifact_update.artifact) for one in seen) == "and back"
    assert state_in(seen[-1]) == S.TASK_STATE_COMPLETED
    got = await client.get_task(a2a_pb2.GetTaskRequest(id=first.id))
    assert [text_of(one) for one in got.artifacts] == ["and back"]
