"""Bad values in messages: each gets a clear status with a reason of the contract, and the node goes on."""

import asyncio
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from agentreach.v1 import error_pb2
from tests.rpc.hostile import METHODS, each_odd_value
from tests.rpc.peers import (
    TIMEOUT,
    AgentByHand,
    CallerByHand,
    Stubs,
    golden,
    info_in,
    key_of,
    pb,
    reason_name,
    refusal,
    unique,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

REASONS = {name.removeprefix("ERROR_REASON_") for name in dict(error_pb2.ErrorReason.items())}
SPEC: dict[str, Any] = {"selector": {"agent_id": "nobody-is-called-so"}, "payload": {"text": "x"}}
WHO = {"instance_id": "bad-input", "boot_id": "boot"}
KEY = {"task_id": "no-such-task", "attempt": 1}
STREAMS = ("/agentreach.v1.AgentService/Attach", "/agentreach.v1.DispatchService/DispatchStream")


def path_of(name: str) -> str:
    """The full name of a method."""
    return next(path for path in METHODS if path.endswith(f"/{name}"))


BASES: dict[str, dict[str, Any]] = {
    "Register": {"registration": {"agent_id": "bad-input", **WHO}},
    "Deregister": {"instance_id": "nobody"},
    "Drain": {"instance_id": "nobody"},
    "GetAgent": {"instance_id": "bad-input"},
    "ListAgents": {},
    "WatchAgents": {},
    "Heartbeat": {"beat": WHO},
    "StreamHeartbeats": {"beats": [WHO]},
    "Attach": {
        "opening": {"protocol_version": "1"},
        "hellos": [{"link": 1, "registration": {"agent_id": "bad-input", **WHO}}],
    },
    "Dispatch": {"task": SPEC},
    "Run": {"task": SPEC},
    "DispatchStream": {"opening": {"protocol_version": "1"}, "submits": [{"reference": 1, "task": SPEC}]},
    "GetTask": {"task_id": "no-such-task"},
    "ListTasks": {},
    "WaitForResult": {"task_id": "no-such-task", "timeout": {"seconds": 5}},
    "CancelTask": {"task_id": "no-such-task"},
    "SendInput": {"task_id": "no-such-task"},
    "PreviewRoute": {"task": SPEC},
    "StreamResult": {"task_id": "no-such-task"},
    "ReportResult": {"reporter": WHO, "result": {"key": KEY, "output": {"text": "x"}}},
    "ReportResultStream": {"reporter": WHO, "result": {"key": KEY, "output": {"text": "x"}}},
    "ReportEvents": {"reporter": WHO},
    "BeginEffect": {"reporter": WHO, "key": KEY},
    "ExtendLease": {"reporter": WHO, "key": KEY},
    "Adopt": {"terms": {"card_url": "http://127.0.0.1:1/card"}},
    "GetSession": {}, "ListSessions": {}, "DeleteSession": {},
    "GetServerInfo": {}, "WatchTasks": {}, "ExplainTask": {}, "ListDecisions": {}, "ListDeadLetters": {},
    "RequeueDeadLetters": {"all": True}, "PurgeDeadLetters": {"all": True}, "ListFailedWebhooks": {},
    "GetCluster": {}, "GetNode": {}, "DrainNode": {"node_id": "no-such-node"}, "Rebalance": {},
    "CreateKey": {}, "ListKeys": {}, "RevokeKey": {},
}  # fmt: skip
"""A message for each method in which nothing is wrong with any field, though it may name what is not there."""


@pytest_asyncio.fixture(loop_scope="module")
async def registered(stubs):
    """The instance that the messages speak for, as if nobody had ever registered under its name."""
    await refusal(stubs.registry.Deregister(pb.DeregisterRequest(instance_id=WHO["instance_id"])))
    await stubs.registry.Register(pb.RegisterRequest(**BASES["Register"]))


async def outcome(stubs: Stubs, name: str, message: bytes, wait: float = 0.5) -> tuple[str, str, str]:
    """(code, reason, text) of one call. One that stays open for `wait` seconds is OK."""
    path = path_of(name)
    method = METHODS[path]
    kinds = ["stream" if yes else "unary" for yes in (method.client_streaming, method.server_streaming)]
    make = getattr(stubs.channel, "_".join(kinds))(path, request_serializer=bytes, response_deserializer=bytes)

    async def one():
        yield message

    call = make(one() if method.client_streaming else message, timeout=wait)
    try:
        code, reason, text = await refusal(call)
    finally:
        call.cancel()
    if code in ("DEADLINE_EXCEEDED", "CANCELLED") and not reason:
        return "OK", "", ""
    return code, reason, text


def encoded(name: str, **fields: Any) -> bytes:
    """A request of a method."""
    return GetMessageClass(METHODS[path_of(name)].input_type)(**fields).SerializeToString()


async def test_there_is_a_message_for_each_method():
    assert {path.rpartition("/")[2] for path in METHODS} == set(BASES)


@pytest.mark.parametrize("name", BASES)
async def test_each_odd_value_of_each_field(stubs, registered, name):
    """One field after the other; whatever it is, the answer is OK or has a reason that is meant for callers."""
    kind = GetMessageClass(METHODS[path_of(name)].input_type)
    cases = list(each_odd_value(METHODS[path_of(name)].input_type, kind(**BASES[name])))
    wrong: list[str] = []
    room = asyncio.Semaphore(40)

    async def one(what: str, message: bytes) -> None:
        async with room:
            code, reason, text = await outcome(stubs, name, message, wait=0.2)
        if code == "OK" or text == "Internal error from Core":  # the latter is the client's own, grpc/grpc#36066
            return
        if code in ("UNKNOWN", "INTERNAL") or reason not in REASONS or not text:
            wrong.append(f"{name} {what}: {code} {reason} {text}")
        if any(character in text for character in "\n\0\x1b") or len(text) > 1_024:
            wrong.append(f"{name} {what}: a text that is not fit to be shown: {text!r:.200}")

    await asyncio.gather(*(one(what, message) for what, message in cases))
    await golden(stubs)
    assert not wrong, "\n".join(wrong[:20])


MISSING = [
    ("Register", {"registration": {"boot_id": "b"}}, "registration.agent_id"),
    ("Register", {"registration": {"agent_id": "a"}}, "registration.boot_id"),
    ("Register", {}, "registration.agent_id"),
    ("Deregister", {}, "instance_id"),
    ("Drain", {}, "agent_id"),
    ("GetAgent", {}, "instance_id"),
    ("Heartbeat", {}, "beat.instance_id"),
    ("Heartbeat", {"beat": {"instance_id": "i"}}, "beat.boot_id"),
    ("Dispatch", {}, "task.selector"),
    ("Dispatch", {"task": {"task_id": "t"}}, "task.selector"),
    ("Dispatch", {"task": {**SPEC, "session": {"app_id": "a", "user_id": "u"}}}, "session.session_id"),
    ("Run", {}, "task.selector"),
    ("PreviewRoute", {}, "task.selector"),
    ("GetTask", {}, "task_id"),
    ("WaitForResult", {}, "task_id"),
    ("CancelTask", {}, "task_id"),
    ("StreamResult", {}, "task_id"),
    ("ReportResult", {"result": {"key": KEY}}, "reporter.instance_id"),
    ("ReportResult", {"reporter": {"instance_id": "i"}}, "reporter.boot_id"),
    ("ReportResult", {"reporter": WHO}, "result.key.task_id"),
    ("ReportResult", {"reporter": WHO, "result": {"key": {"task_id": "t"}}}, "result.key.attempt"),
    ("ReportResultStream", {}, "reporter.instance_id"),
    ("ReportEvents", {}, "reporter.instance_id"),
    ("BeginEffect", {"reporter": WHO}, "key.task_id"),
    ("ExtendLease", {"reporter": WHO, "key": {"task_id": "t"}}, "key.attempt"),
]
LONG, CONTROL, NEGATIVE, CENTURY = "x" * 257, "a\x1b[31m", {"seconds": -1}, {"seconds": 3_155_760_000}
BAD_VALUES = [
    ("Register", {"registration": {"agent_id": LONG, "boot_id": "b"}}, "registration.agent_id"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "agent_type": "~x"}}, "registration.agent_type"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "weight": 101}}, "registration.weight"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "priority": 10}}, "registration.priority"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "max_concurrency": 0}}, "registration.max_concurrency"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "availability": 5}}, "registration.availability"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "heartbeat_interval": {}}}, "registration.heartbeat"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "heartbeat_interval": NEGATIVE}}, "registration.heartbeat"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "endpoints": [{"url": "http://["}]}}, "registration.endp"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "endpoints": [{"url": "ftp://x"}]}}, "registration.endp"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "tags": ["t"] * 65}}, "registration.tags"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "labels": {CONTROL: "x"}}}, "registration.labels"),
    ("Register", {"registration": {**WHO, "agent_id": "a", "sdk": "a\0"}}, "registration.sdk"),
    *(
        ("Register", {"registration": {**WHO, "agent_id": "a", "capabilities": [{"name": "c", **odd}]}}, field)
        for odd, field in (
            ({"success_rate": float("nan")}, "registration.capabilities.success_rate"),
            ({"expected_latency": NEGATIVE}, "registration.capabilities.expected_latency"),
            ({"effects": 4}, "registration.capabilities.effects"),
            ({"name": ""}, "registration.capabilities.name"),
        )
    ),
    ("Heartbeat", {"beat": {**WHO, "status": {"memory_watermark": float("nan")}}}, "status.memory_watermark"),
    ("Heartbeat", {"beat": {**WHO, "status": {"memory_watermark": 1.5}}}, "status.memory_watermark"),
    ("Heartbeat", {"beat": {**WHO, "status": {"max_concurrency": 0}}}, "status.max_concurrency"),
    ("Heartbeat", {"beat": {**WHO, "status": {"availability": -1}}}, "status.availability"),
    ("Heartbeat", {"beat": {**WHO, "status": {"longest_task": CENTURY}}}, "status.longest_task"),
    ("Dispatch", {"task": {**SPEC, "task_id": LONG}}, "task.task_id"),
    ("Dispatch", {"task": {**SPEC, "task_id": "../\n"}}, "task.task_id"),
    ("Dispatch", {"task": {**SPEC, "task_id": CONTROL}}, "task.task_id"),
    ("Dispatch", {"task": {**SPEC, "task_id": "\0"}}, "task.task_id"),
    ("Dispatch", {"task": {**SPEC, "task_id": "y" * 65_536}}, "task.task_id"),
    ("Dispatch", {"task": {**SPEC, "priority": 10}}, "task.priority"),
    ("Dispatch", {"task": {**SPEC, "effects": 4}}, "task.effects"),
    ("Dispatch", {"task": {**SPEC, "durability": 3}}, "task.durability"),
    ("Dispatch", {"task": {**SPEC, "cost_slots": 0}}, "task.cost_slots"),
    ("Dispatch", {"task": {**SPEC, "policy": "none-such"}}, "task.policy"),
    ("Dispatch", {"task": {**SPEC, "labels": {"": "x"}}}, "task.labels"),
    ("Dispatch", {"task": {**SPEC, "attachments": [{"name": "a"}] * 17}}, "task.attachments"),
    ("Dispatch", {"task": {**SPEC, "related_task_ids": ["r"] * 17}}, "task.related_task_ids"),
    ("Dispatch", {"task": {**SPEC, "retry": {"name": "none-such"}}}, "task.retry.name"),
    ("Dispatch", {"task": {**SPEC, "retry": {"retry_on": [99]}}}, "task.retry.retry_on"),
    ("Dispatch", {"task": {**SPEC, "retry": {"delays": [NEGATIVE]}}}, "task.retry.delays"),
    *(
        ("Dispatch", {"task": {**SPEC, "timeouts": {name: value}}}, f"task.timeouts.{name}")
        for name in ("schedule_to_start", "start_to_close", "schedule_to_close", "silence")
        for value in (NEGATIVE, {}, CENTURY, {"seconds": 1, "nanos": -2_000_000_000})
    ),
    ("Dispatch", {"task": {**SPEC, "timeouts": {"timeout_class": "slow"}}}, "task.timeouts.timeout_class"),
    ("Dispatch", {"task": {**SPEC, "start_delay": NEGATIVE}}, "task.start_delay"),
    ("Dispatch", {"task": SPEC, "wait": NEGATIVE}, "wait"),
    ("Dispatch", {"task": SPEC, "wait": CENTURY}, "wait"),
    ("WaitForResult", {"task_id": "t", "timeout": NEGATIVE}, "timeout"),
    ("Drain", {"instance_id": "i", "deadline": CENTURY}, "deadline"),
    ("CancelTask", {"task_id": "t", "reason": "two\nlines"}, "reason"),
    ("GetTask", {"task_id": "t", "view": 3}, "view"),
    ("ListTasks", {"view": 99}, "view"),
    ("ListTasks", {"page_size": 1_001}, "page_size"),
    ("ListTasks", {"page_token": "x"}, "page_token"),
    ("ListTasks", {"page_token": "9" * 5_000}, "page_token"),
    ("ListTasks", {"page_token": "9" * 19}, "page_token"),
    ("ListTasks", {"filter": {"states": [10]}}, "filter.states"),
    ("ListTasks", {"filter": {"session": {"app_id": "a"}}}, "session.user_id"),
    ("ListTasks", {"filter": {"accepted_after": {"seconds": 1 << 60}}}, "filter.accepted_after"),
    ("ListTasks", {"filter": {"accepted_before": {"nanos": -1}}}, "filter.accepted_before"),
    ("ListAgents", {"page_size": 1_001}, "page_size"),
    ("ListAgents", {"filter": {"health": [77]}}, "filter.health"),
    ("WatchAgents", {"filter": {"agent_type": "a\n"}}, "filter.agent_type"),
    ("BeginEffect", {"reporter": WHO, "key": KEY, "effect": LONG}, "effect"),
]


@pytest.mark.parametrize(("name", "fields", "field"), [*MISSING, *BAD_VALUES])
async def test_a_bad_field_is_named(stubs, registered, name, fields, field):
    code, reason, text = await outcome(stubs, name, encoded(name, **fields))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert text.startswith(field), text


async def test_the_name_of_the_bad_field_is_there_for_programs(stubs):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stubs.dispatch.Dispatch(pb.DispatchRequest(task={**SPEC, "priority": 77}))
    info = info_in(caught.value.trailing_metadata())
    assert dict(info.metadata) == {"field": "task.priority", "class": "INVALID_REQUEST", "retryable": "false"}


@pytest.mark.parametrize("name", BASES)
async def test_unknown_fields_of_a_newer_client_change_nothing(stubs, registered, name):
    known = encoded(name, **BASES[name])
    assert await outcome(stubs, name, known + b"\xfa\x3f\x04abcd\xc0\x3e\x01") == await outcome(stubs, name, known)


async def test_unknown_fields_of_a_task_reach_the_agent(stubs):
    """A newer caller may speak to a newer agent through an older server."""
    agent = AgentByHand(stubs)
    await agent.join(unique("newer"))
    spec = pb.TaskSpec(selector={"instance_id": agent.instance_id})
    spec.MergeFromString(b"\xfa\x3f\x04abcd")
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec, wait={"seconds": 10}), timeout=TIMEOUT)
    waiting = asyncio.ensure_future(call)
    offer = await agent.next("offers")
    assert b"\xfa\x3f\x04abcd" in offer.task.SerializeToString()
    await agent.finish(offer, "ok")
    await waiting
    await agent.close()


async def test_a_task_id_names_one_task_for_ever(stubs):
    spec = {**SPEC, "task_id": unique("same")}
    first = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    again = await stubs.dispatch.Dispatch(pb.DispatchRequest(task={**spec, "trace": {"traceparent": "other"}}))
    assert (first.deduplicated, again.deduplicated) == (False, True)
    for other in ({"payload": {"text": "y"}}, {"payload": {"data": b"x"}}, {"method": "m"}, {"priority": 9}):
        code, reason, _ = await outcome(stubs, "Dispatch", encoded("Dispatch", task={**spec, **other}))
        assert (code, reason) == ("ALREADY_EXISTS", "TASK_ID_REUSED")
        assert (await outcome(stubs, "Run", encoded("Run", task={**spec, **other})))[1] == "TASK_ID_REUSED"
    caller = CallerByHand(stubs)
    await caller.submit(7, "INTEREST_EVENTS", **{**spec, "payload": {"text": "y"}})
    refused = await caller.next("refusals")
    assert (refused.reference, refused.task_id, reason_name(refused.error)) == (7, spec["task_id"], "TASK_ID_REUSED")
    await caller.close()


async def test_nonsense_beside_an_answer_does_not_cost_the_answer(stubs):
    """Figures that are none, notes without end, texts with escapes: the answer arrives, and it can be listed."""
    agent = AgentByHand(stubs)
    await agent.join(unique("odd"))
    spec = {"task_id": unique("odd"), "selector": {"instance_id": agent.instance_id}}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    offer = await agent.next("offers")
    await agent.finish(
        offer,
        "answer",
        confidence=float("nan"),
        usage={"tokens": 5.0, "cost": float("inf"), "x" * 300: 1.0, **{f"n{number}": 1.0 for number in range(100)}},
        conflict_hint="h" * 100_000,
        executed_intent="i\x1b[31m",
    )
    result = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=spec["task_id"]))).task.result
    assert (result.output.text, result.HasField("confidence")) == ("answer", False)
    assert "cost" not in result.usage
    assert len(result.usage) == 64
    assert len(result.conflict_hint) <= 1_024
    assert result.executed_intent == "i\N{REPLACEMENT CHARACTER}[31m"
    spec["task_id"] = unique("odd")
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    offer = await agent.next("offers")
    error = {"message": "\x1b]0;owned\x07" + "m" * 100_000, "metadata": {f"k{n}": "v" * 5_000 for n in range(50)}}
    await agent.send(results=[{"link": 1, "key": key_of(offer), "error": error}])
    await agent.next("acknowledgements")
    result = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=spec["task_id"]))).task.result
    assert reason_name(result.error) == "AGENT_FAILED"
    assert len(result.error.message) <= 4_096
    assert result.error.message.startswith("\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}m")
    await agent.close()
