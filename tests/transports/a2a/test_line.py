"""The client side of A2A against the SDK's own server: three bindings, two versions, streams and polling (API-3)."""

from __future__ import annotations

import asyncio

import pytest

from agentreach.v1 import event_pb2, result_pb2, task_pb2
from reach.core.endpoint import Endpoint
from reach.errors import Reason
from reach.transports.a2a import attempt
from reach.transports.a2a.card import read_card, registration_of
from reach.transports.a2a.endpoint import A2aWay
from reach.transports.seam import Approach
from reach.wire.addresses import read_address
from reach.wire.agents import read_registration
from tests.a2a_agent import Served, serving
from tests.rpc.peers import pb, unique

pytestmark = pytest.mark.asyncio

KINDS = [
    ("JSONRPC", False, True), ("HTTP+JSON", False, True), ("GRPC", False, True), ("JSONRPC", True, True),
    ("HTTP+JSON", False, False), ("GRPC", False, False), ("HTTP+JSON", True, True), ("JSONRPC", False, False),
]  # fmt: skip


def way_of(served: Served) -> A2aWay:
    """As the dialler makes it of a card."""
    from google.protobuf import json_format

    card = read_card(json_format.MessageToJson(served.card).encode())
    terms = pb.AdoptionTerms(card_url=served.card_url)
    _, joining = read_registration(registration_of(card, terms).registration)
    endpoint = joining.endpoint
    assert endpoint is not None
    return A2aWay(endpoint, Approach(read_address(endpoint.url), ("127.0.0.1",), "", None, 4 << 20))


def offered(text: str, **fields):
    """A task that says `text`."""
    task = {"task_id": unique("task"), "payload": {"text": text}, **fields.pop("task", {})}
    return pb.ExecuteRequest(offer={"attempt": 1, "task": task, **fields})


async def told(line, request):
    """All frames of an attempt."""
    call = line.execute(request, 10)
    frames = []
    try:
        async with asyncio.timeout(15):
            while (frame := await call.read()) is not None:
                frames.append(frame)
    finally:
        call.cancel()
    return frames


def text_of(frames):
    """What the deltas of the answer come to."""
    text = ""
    for frame in frames:
        for one in frame.deltas:
            replaces = one.delta.mode == event_pb2.DELTA_MODE_REPLACE
            text = one.delta.payload.text if replaces else text + one.delta.payload.text
    return text


@pytest.mark.parametrize(("binding", "legacy", "streaming"), KINDS)
async def test_API_3_all_bindings_and_versions_stream_or_are_polled(binding, legacy, streaming, monkeypatch):
    monkeypatch.setattr(attempt, "POLL_FIRST_S", 0.02)
    async with serving(binding, legacy=legacy, streaming=streaming) as served:
        line = way_of(served).line(Endpoint(""), result_pb2.Reporter())
        try:
            frames = await told(line, offered("words 5"))
            assert frames[0].HasField("accept")
            assert frames[0].accept.handle
            assert text_of(frames) == "w0 w1 w2 w3 w4 "
            assert frames[-1].result.output.text == "w0 w1 w2 w3 w4 "
            if streaming:
                assert sum(len(frame.deltas) for frame in frames) == 5
            answer = (await told(line, offered("message hello")))[-1].result.output
            assert answer.text == "hello"
            result = (await told(line, offered("fail too hard")))[-1].result
            assert (result.error.reason, result.error.message) == (Reason.AGENT_FAILED, "the agent failed: too hard")
            result = (await told(line, offered("reject not mine")))[-1].result
            assert result.error.reason == Reason.AGENT_REJECTED
            request = offered("ask colour")
            result = (await told(line, request))[-1].result
            assert result.waiting.waiting_for == task_pb2.WAITING_FOR_INPUT
            assert result.waiting.prompt.text == "which colour?"
            request.offer.inputs.add(input_id="1").payload.text = "said red"
            assert (await told(line, request))[-1].result.output.text == "red"
            first, second = served.executor.messages[-2:]
            assert second.task_id
            assert second.context_id
            task_id = request.offer.task.task_id
            assert (first.message_id, second.message_id) == (f"{task_id}.1", f"{task_id}.1.1")
        finally:
            await line.close()
