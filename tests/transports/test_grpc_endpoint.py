"""Agents that are dialled: what they say becomes what an Attach agent's words become, and each end of a call has its
meaning."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from agentreach.v1 import task_pb2
from reach.transports.dialled_link import DialledLink
from reach.transports.executions import CREDIT_BYTES
from tests.rpc.peers import CallerByHand, kind_of, pb, reason_name, unique
from tests.transports.endpoint_agent import EndpointAgent, ask, eventually, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
FAILED = task_pb2.TASK_STATE_FAILED
DEAD = task_pb2.TASK_STATE_DEAD_LETTERED
MIB = 1 << 20


def frame(**fields: Any) -> Any:
    return pb.ExecuteResponse(**fields)


def delta(text: str, **fields: Any) -> dict[str, Any]:
    return {"delta": {"payload": {"text": text}, "mode": "DELTA_MODE_APPEND"}, **fields}


async def test_REG_6_a_dialled_agent_gets_tasks_and_answers(stubs):
    agent = EndpointAgent()
    async with serving(agent):
        registered = await agent.register(stubs)
        assert (registered.generation, registered.blocked_by, list(registered.warnings)) == (1, "", [])
        result = await ask(stubs, agent, "plain")
    assert (result.state, result.output.text, result.instance_id) == (SUCCEEDED, "done", agent.instance_id)
    offer = agent.executed[0]
    assert (offer.attempt, offer.fencing_token, offer.task.payload.text) == (1, 1, "ping")


async def test_STR_1_its_events_are_those_of_an_attach_agent(stubs):
    async def act(_agent, offer, _context):
        key = {"task_id": offer.task.task_id, "attempt": offer.attempt}
        yield frame(accept={"key": key})
        yield frame(deltas=[delta("a", key=key, attempt_sequence=1), delta("b", key=key, attempt_sequence=2)])
        yield frame(deltas=[delta("b", attempt_sequence=2), delta("c")], progress=[{"progress": {"note": "half"}}])
        yield frame(result={"folded": {"last_attempt_sequence": 3}, "confidence": 0.5})

    agent = EndpointAgent(stream=act)
    caller = CallerByHand(stubs)
    await caller.open()
    async with serving(agent):
        await agent.register(stubs)
        task_id = unique("task")
        selector = {"agent_type": agent.agent_type}
        await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector=selector, method="stream")
        result = await caller.complete(task_id)
    assert (result.output.text, result.confidence, result.attempts) == ("abc", 0.5, 1)
    kinds = [kind_of(event) for event in caller.events_of(task_id)]
    assert kinds == ["accepted", "started", "delta", "delta", "delta", "progress", "complete"]
    await caller.close()


async def test_STR_4_repeats_are_dropped_and_take_no_room(stubs):
    async def act(_agent, _offer, _context):
        for _ in range(20):
            yield frame(deltas=[delta("x" * 65_536, attempt_sequence=1)])
        yield frame(deltas=[delta("y", attempt_sequence=2)], result={"folded": {"last_attempt_sequence": 2}})

    agent = EndpointAgent(repeat=act)
    async with serving(agent):
        await agent.register(stubs)
        result = await ask(stubs, agent, "repeat")
    assert result.output.text == "x" * 65_536 + "y"


ENDS: list[tuple[Any, str, int]] = [
    (grpc.StatusCode.UNAVAILABLE, "AGENT_UNAVAILABLE", DEAD),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "AGENT_BUSY", DEAD),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "START_TO_CLOSE", DEAD),
    (grpc.StatusCode.UNAUTHENTICATED, "AGENT_UNAVAILABLE", DEAD),
    (grpc.StatusCode.UNIMPLEMENTED, "AGENT_UNAVAILABLE", DEAD),
    (grpc.StatusCode.ABORTED, "AGENT_UNAVAILABLE", DEAD),
    (grpc.StatusCode.CANCELLED, "AGENT_UNAVAILABLE", DEAD),
    (grpc.StatusCode.INTERNAL, "AGENT_CRASHED", DEAD),
    (grpc.StatusCode.DATA_LOSS, "AGENT_CRASHED", DEAD),
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", FAILED),
    (grpc.StatusCode.NOT_FOUND, "AGENT_FAILED", FAILED),
    (grpc.StatusCode.FAILED_PRECONDITION, "AGENT_FAILED", FAILED),
]


@pytest.mark.parametrize(("code", "reason", "state"), ENDS, ids=lambda value: getattr(value, "name", None))
async def test_DLV_4_each_status_has_its_meaning(stubs, code, reason, state):
    async def act(_agent, _offer, context):
        await context.abort(code, "said so")
        yield

    agent = EndpointAgent(end=act)
    async with serving(agent):
        await agent.register(stubs)
        result = await ask(stubs, agent, "end")
        assert (result.state, reason_name(result.error)) == (state, reason), result
        assert "said so" in result.error.message
        again = await ask(stubs, agent, "plain")  # the agent itself is fine
        assert again.state == SUCCEEDED


async def test_DLV_4_a_handler_that_raises_is_a_crash(stubs):
    async def act(_agent, _offer, _context):
        raise ValueError("boom")
        yield

    agent = EndpointAgent(end=act)
    async with serving(agent):
        await agent.register(stubs)
        result = await ask(stubs, agent, "end")
    assert (result.state, reason_name(result.error)) == (DEAD, "AGENT_CRASHED")
    assert "boom" in result.error.message


async def test_DLV_4_what_is_no_result_is_a_violation(stubs):
    async def silent(_agent, _offer, _context):
        yield frame(accept={})

    async def nothing(_agent, _offer, _context):
        yield frame(result={})

    async def foreign(_agent, _offer, _context):
        yield frame(deltas=[delta("x", key={"task_id": "another", "attempt": 1})])
        await asyncio.sleep(30)

    async def gap(_agent, _offer, _context):
        yield frame(deltas=[delta("x", attempt_sequence=2)], result={"folded": {"last_attempt_sequence": 2}})

    agent = EndpointAgent(silent=silent, nothing=nothing, foreign=foreign, gap=gap)
    async with serving(agent):
        await agent.register(stubs)
        for method in ("silent", "nothing", "foreign", "gap"):
            result = await ask(stubs, agent, method)
            assert (result.state, reason_name(result.error)) == (DEAD, "PROTOCOL_VIOLATION"), method
        assert {key.task_id for key in agent.cancelled} & set(agent.open) == set(agent.open)


async def test_GOV_5_garbage_in_place_of_a_frame_fails_the_attempt_alone(stubs):
    """A server whose Execute answers bytes that are no message."""

    class Garbage(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            if not handler_call_details.method.endswith("/Execute"):
                return None

            async def execute(_request, _context):
                yield b"\xff\xff\xff garbage"
                await asyncio.sleep(30)

            return grpc.unary_stream_rpc_method_handler(execute)

    agent = EndpointAgent()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Garbage(),))
    agent.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    registered = await agent.register(stubs)
    assert list(registered.warnings) == ["the check failed: it does not serve Check"]
    result = await ask(stubs, agent, "any")
    assert (result.state, reason_name(result.error)) == (DEAD, "PROTOCOL_VIOLATION")
    await server.stop(0)


async def test_GOV_5_an_answer_over_the_limit_fails_the_attempt_alone(stubs):
    async def large(_agent, offer, _context):
        size = 4 * MIB + 1 if offer.task.payload.text == "just" else 6 * MIB
        yield frame(result={"output": {"text": "x" * size}})

    agent = EndpointAgent(large=large)
    async with serving(agent):
        await agent.register(stubs)
        for payload in ("just", "far"):
            result = await ask(stubs, agent, "large", payload={"text": payload})
            assert (result.state, reason_name(result.error)) == (FAILED, "RESULT_TOO_LARGE"), payload
        assert (await ask(stubs, agent, "plain")).state == SUCCEEDED


async def test_DLV_11_cancel_reaches_the_agent_and_the_slot_follows(node, stubs):
    stopped = asyncio.Event()

    async def act(_agent, _offer, _context):
        yield frame(accept={})
        await stopped.wait()

    agent = EndpointAgent(wait=act)
    async with serving(agent):
        await agent.register(stubs, max_concurrency=1)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id="to-cancel"))
        await eventually(lambda: agent.open)
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id="to-cancel"))
        assert (await asked).state == task_pb2.TASK_STATE_CANCELLED
        await eventually(lambda: [key.task_id for key in agent.cancelled] == ["to-cancel"])
        _, instance = node.reach.instance("default", agent.instance_id)
        assert instance.inflight == 1
        stopped.set()
        await eventually(lambda: instance.inflight == 0)


async def test_DLV_11_an_agent_that_does_not_stop_is_abandoned_after_the_grace(node, stubs):
    ended = asyncio.Event()

    async def act(_agent, _offer, _context):
        try:
            yield frame(accept={})
            await asyncio.sleep(60)
        finally:
            ended.set()

    agent = EndpointAgent(wait=act)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id="stubborn"))
        await eventually(lambda: agent.open)
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id="stubborn"))
        await asked
        begun = time.monotonic()
        await asyncio.wait_for(ended.wait(), 10)
        assert 4 < time.monotonic() - begun < 8


async def test_DLV_6_the_deadline_of_the_call_follows_the_limit(stubs):
    left: list[float] = []

    async def act(_agent, offer, context):
        left.append(context.time_remaining())
        yield frame(accept={})
        await asyncio.sleep(60)

    agent = EndpointAgent(wait=act)
    async with serving(agent):
        await agent.register(stubs)
        begun = time.monotonic()
        result = await ask(stubs, agent, "wait", timeouts={"start_to_close": {"nanos": 300_000_000}})
        assert reason_name(result.error) == "START_TO_CLOSE"
        assert time.monotonic() - begun < 2
        await eventually(lambda: agent.cancelled)
    assert 4 < left[0] <= 5.4


async def test_STR_4_an_agent_is_read_only_as_fast_as_its_deltas_are_taken(stubs, monkeypatch):
    """What is not committed gives no credit: the agent's frames then stay in gRPC, which slows it; ours is a bounded
    part."""
    made = 0

    async def act(_agent, _offer, _context):
        nonlocal made
        for _ in range(400):
            yield frame(deltas=[{"delta": {"payload": {"text": "x" * 65_536}, "mode": "DELTA_MODE_REPLACE"}}])
            made += 1
        yield frame(result={"output": {"text": "all"}})

    agent = EndpointAgent(flood=act)
    async with serving(agent):
        await agent.register(stubs)
        credit, kept = DialledLink.credit, []
        monkeypatch.setattr(DialledLink, "credit", lambda *arguments: kept.append(arguments))
        asked = asyncio.create_task(ask(stubs, agent, "flood"))
        await eventually(lambda: kept)
        await asyncio.sleep(1)
        held, posted = made, len(kept)
        assert posted <= CREDIT_BYTES // 65_536 + 1
        assert held < 250
        monkeypatch.setattr(DialledLink, "credit", credit)
        for arguments in kept:
            credit(*arguments)
        assert (await asked).output.text == "all"
        assert made == 400


async def test_DLV_14_and_a_dialled_agent_may_report_by_a_call_of_its_own(stubs):
    async def act(_agent, _offer, _context):
        yield frame(accept={})
        await asyncio.sleep(60)

    agent = EndpointAgent(wait=act)
    async with serving(agent):
        await agent.register(stubs)
        asked = asyncio.create_task(ask(stubs, agent, "wait", task_id="reported"))
        await eventually(lambda: agent.open)
        reporter = {"instance_id": agent.instance_id, "boot_id": agent.boot_id}
        result = {"key": {"task_id": "reported", "attempt": 1}, "output": {"text": "by report"}}
        await stubs.result.ReportResult(pb.ReportResultRequest(reporter=reporter, result=result))
        assert (await asked).output.text == "by report"
