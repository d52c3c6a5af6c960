"""The client against a scripted server."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentreach.v1 import task_pb2
from reach import (
    AgentError,
    Client,
    Internal,
    InvalidRequest,
    Reason,
    ResourceExhausted,
    SessionKey,
    TaskState,
    Timeout,
    Unavailable,
)
from reach.wire.status import error_to_proto
from tests.sdk.fake_server import FakeServer, refusal


@pytest.fixture
async def client(server: FakeServer):
    async with Client(server.address) as made:
        yield made


async def start(coroutine) -> asyncio.Task:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def test_a_task_goes_there_and_its_result_comes_back(server, client):
    sent = await start(client.send("task.process", "Hello", agent_id="greeter", tags=["a"], priority=7))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    assert stream.frames[0].opening.protocol_version == "1"
    assert submit.interest == 2
    assert submit.task.method == "task.process"
    assert submit.task.payload.text == "Hello"
    assert submit.task.selector.agent_id == "greeter"
    assert list(submit.task.selector.required_tags) == ["a"]
    assert submit.task.priority == 7
    assert len(submit.task.task_id) == 32
    stream.complete(submit.task.task_id, "Hi", agent_id="greeter", instance_id="greeter@x", transfers=1)
    result = await sent
    assert (result.ok, result.state, result.text, result.transfers) == (True, TaskState.SUCCEEDED, "Hi", 1)
    assert (result.agent_id, result.instance_id, result.error) == ("greeter", "greeter@x", None)


async def test_tasks_of_one_turn_share_a_frame(server, client):
    warm = await start(client.send("m"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    stream.complete(submit.task.task_id)
    await warm
    before = len(stream.frames)
    tasks = [asyncio.create_task(client.send("m", str(n))) for n in range(50)]
    submits = (await stream.wait("submits", 51))[1:]
    assert len(stream.frames) == before + 1
    for submit in reversed(submits):
        stream.complete(submit.task.task_id, submit.task.payload.text)
    assert [(await task).text for task in tasks] == [str(n) for n in range(50)]


async def test_frames_are_bounded(server, client):
    tasks = [asyncio.create_task(client.send("m", "x" * 300_000)) for _ in range(4)]
    tasks.append(asyncio.create_task(client.send("m", "x" * 3_000_000)))
    stream = await server.caller()
    submits = await stream.wait("submits", 5)
    assert all(frame.ByteSize() <= 512 << 10 or len(frame.submits) == 1 for frame in stream.frames)
    for submit in submits:
        stream.complete(submit.task.task_id)
    await asyncio.gather(*tasks)


async def test_a_payload_that_is_too_large_is_refused_alone(server, client):
    other = await start(client.send("m", "small"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    with pytest.raises(InvalidRequest) as caught:
        await client.send("m", b"x" * ((4 << 20) + 1))
    assert caught.value.reason is Reason.PAYLOAD_TOO_LARGE
    stream.complete(submit.task.task_id)
    assert (await other).ok


async def test_the_limit_is_the_servers(server, client):
    server.welcome["payload_limit"] = 100
    first = await start(client.send("m", "small"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    stream.complete(submit.task.task_id)
    await first
    with pytest.raises(InvalidRequest, match="at most 100"):
        await client.send("m", "x" * 101)


@pytest.mark.parametrize(
    ("payload", "text", "data", "media_type"),
    [
        ("text", "text", b"", ""),
        (b"\xff", "", b"\xff", ""),
        (bytearray(b"ab"), "", b"ab", ""),
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}', b"", "application/json"),
        (17, "17", b"", "application/json"),
        (None, "", b"", ""),
        ("lone \ud800", "lone ?", b"", ""),
    ],
)
async def test_payloads(server, client, payload, text, data, media_type):
    sent = await start(client.send("m", payload))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    content = submit.task.payload
    assert (content.text, content.data, content.media_type) == (text, data, media_type)
    stream.complete(submit.task.task_id)
    await sent


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"session": "abc"}, "a session is"),
        ({"budget": 5}, "a budget is"),
        ({"webhook": 5}, "a webhook is"),
    ],
)
async def test_options_of_the_wrong_kind_are_refused_with_what_they_are(client, options, said):
    with pytest.raises(InvalidRequest, match=said):
        await client.send("m", "x", **options)


async def test_payloads_that_have_no_form(client):
    with pytest.raises(InvalidRequest, match="object"):
        await client.send("m", object())
    with pytest.raises(InvalidRequest, match="JSON"):
        await client.send("m", [float("nan")])


async def test_all_options(server, client):
    sent = await start(
        client.send(
            "m",
            session=SessionKey("app", "user", "s1"),
            effects="irreversible",
            durable=False,
            retry={"delays": [0.5], "retry_on": ["TIMEOUT"], "full_jitter": True},
            labels={"k": "v"},
            not_before=1.5,
            attachments={"doc": b"bytes"},
            start_to_close=2,
            timeout_class="qa",
            trace="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
            task_id="mine",
            source="test",
            capability="c",
            intent="a.b",
            excluded_instances=["x"],
            parent_task_id="p",
            fairness_key="f",
        )
    )
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    task = submit.task
    assert (task.session.app_id, task.session.user_id, task.session.session_id) == ("app", "user", "s1")
    assert (task.effects, task.durability, task.task_id, task.source) == (3, 2, "mine", "test")
    assert (task.retry.delays[0].nanos, list(task.retry.retry_on), task.retry.full_jitter) == (500_000_000, [4], True)
    assert (task.start_delay.seconds, task.start_delay.nanos) == (1, 500_000_000)
    assert (task.attachments[0].name, task.attachments[0].payload.data) == ("doc", b"bytes")
    assert (task.timeouts.start_to_close.seconds, task.timeouts.timeout_class) == (2, "qa")
    assert task.trace.traceparent.startswith("00-1111")
    assert (task.labels["k"], task.selector.intent, task.selector.capability) == ("v", "a.b", "c")
    assert (list(task.selector.excluded_instances), task.parent_task_id, task.fairness_key) == (["x"], "p", "f")
    stream.complete("mine")
    await sent


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"colour": "red"}, TypeError, "colour"),
        ({"effects": "some"}, InvalidRequest, "irreversible"),
        ({"session": ("a", "b", "")}, InvalidRequest, "session"),
        ({"task_id": "x" * 257}, InvalidRequest, "256"),
        ({"priority": -1}, InvalidRequest, "cannot be sent"),
        ({"labels": {"a": 1}}, InvalidRequest, "cannot be sent"),
        ({"tags": [1]}, InvalidRequest, "tags"),
        ({"retry": {"retry_on": ["NEVER"]}}, InvalidRequest, "NEVER"),
        ({"agent_id": "\ud800"}, InvalidRequest, "cannot be sent"),
    ],
)
async def test_bad_options(client, options, error, text):
    with pytest.raises(error, match=text):
        await client.send("m", **options)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"output": {"text": "t"}}, "t"),
        ({"output": {"text": "[1]", "media_type": "application/json"}}, [1]),
        ({"output": {"data": b'{"a":1}', "media_type": "application/ld+json; charset=utf-8"}}, {"a": 1}),
        ({"output": {"data": b"\xff"}}, b"\xff"),
        ({"output": {}}, None),
    ],
)
async def test_call_returns_the_value(server, client, fields, value):
    called = await start(client.call("m"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    stream.complete(submit.task.task_id, **fields)
    assert await called == value


@pytest.mark.parametrize(
    ("state", "error", "kind", "reason"),
    [
        (6, AgentError("no"), AgentError, Reason.AGENT_FAILED),
        (9, Unavailable("gone", Reason.INSTANCE_LOST), Unavailable, Reason.INSTANCE_LOST),
        (9, Internal("ValueError: x", Reason.AGENT_CRASHED), Internal, Reason.AGENT_CRASHED),
        (7, None, InvalidRequest, Reason.CANCELLED),
    ],
)
async def test_call_raises_what_went_wrong_and_send_does_not(server, client, state, error, kind, reason):
    fields = {"state": state} | ({"error": error_to_proto(error)} if error else {})
    called, sent = await start(client.call("m")), await start(client.send("m"))
    stream = await server.caller()
    for submit in await stream.wait("submits", 2):
        stream.complete(submit.task.task_id, **fields)
    with pytest.raises(kind) as caught:
        await called
    assert caught.value.reason is reason
    result = await sent
    assert not result.ok
    assert type(result.error) is kind


async def test_refusals_are_typed_and_concern_one_task(server, client):
    bad, good = await start(client.send("m", task_id="bad")), await start(client.send("m", task_id="good"))
    stream = await server.caller()
    submits = await stream.wait("submits", 2)
    error = ResourceExhausted("full", Reason.QUEUE_FULL, retry_after_ms=1500)
    stream.send(refusals=[refusal(error, reference=submits[0].reference)])
    with pytest.raises(ResourceExhausted) as caught:
        await bad
    assert (caught.value.reason, caught.value.retry_after_ms) == (Reason.QUEUE_FULL, 1500)
    stream.complete("good")
    assert (await good).ok


async def test_a_refusal_that_passes_is_asked_again(server, client):
    sent = await start(client.send("m", task_id="t"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    error = Unavailable("closing", Reason.SHUTTING_DOWN, retry_after_ms=20)
    stream.send(refusals=[refusal(error, reference=submit.reference)])
    submits = await stream.wait("submits", 2)
    assert submits[0] == submits[1]
    stream.complete("t")
    assert (await sent).ok
    assert len(stream.items("submits")) == 2
    assert not stream.items("subscribes")


async def test_tasks_without_an_answer_are_sent_again_on_the_next_stream(server, client):
    sent = await start(client.send("m", "x", task_id="t"))
    first = await server.caller()
    (submit,) = await first.wait("submits")
    first.end(Unavailable("bye", Reason.SHUTTING_DOWN, retry_after_ms=0))
    second = await server.caller()
    assert await second.wait("submits") == [submit]
    second.complete("t", "done")
    assert (await sent).text == "done"


async def test_a_server_that_dies_and_comes_back(server, client, caplog):
    sent = [await start(client.send("m", str(n), task_id=f"t{n}")) for n in range(5)]
    first = await server.caller()
    await first.wait("submits", 5)
    await server.stop()
    sent.append(await start(client.send("m", "5", task_id="t5")))
    await asyncio.sleep(0.5)
    await server.start()
    second = await server.caller()
    submits = await second.wait("submits", 6)
    assert [submit.task.task_id for submit in submits] == [f"t{n}" for n in range(6)]
    for submit in submits:
        second.complete(submit.task.task_id, submit.task.payload.text)
    assert [(await task).text for task in sent] == list("012345")
    assert len([r for r in caplog.records if "trying on for ever" in r.message]) == 1


async def test_nobody_there(unused_tcp_port):
    async with Client(f"127.0.0.1:{unused_tcp_port}", connect_timeout=0.3) as client:
        with pytest.raises(Unavailable, match="is `reach serve` running") as caught:
            await client.send("m")
        assert caught.value.retryable
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="is `reach serve` running"):
            await client.send("m", timeout=0.2)
        assert time.monotonic() - begin < 1


async def test_nobody_there_yet(unused_tcp_port):
    late = FakeServer(unused_tcp_port)
    async with Client(late.address) as client:
        sent = await start(client.send("m", task_id="t"))
        await asyncio.sleep(0.3)
        await late.start()
        stream = await late.caller()
        stream.complete("t")
        assert (await sent).ok
    await late.stop()


async def test_refused_for_good(server, client):
    server.refuse = InvalidRequest("who are you?", Reason.UNAUTHENTICATED)
    with pytest.raises(InvalidRequest, match="who are you") as caught:
        await client.send("m")
    assert caught.value.reason is Reason.UNAUTHENTICATED
    server.refuse = None
    sent = await start(client.send("m", task_id="t"))
    (await server.caller()).complete("t")
    assert (await sent).ok


async def test_the_key_travels_in_the_metadata(server, monkeypatch):
    monkeypatch.setenv("AGENT_REACH_API_KEY", "k1")
    monkeypatch.setenv("AGENT_REACH_ADDR", server.address)
    async with Client() as client:
        sent = await start(client.send("m", task_id="t"))
        stream = await server.caller()
        assert stream.metadata["authorization"] == "Bearer k1"
        stream.complete("t")
        await sent


async def test_a_timeout_bounds_only_the_waiting(server, client):
    with pytest.raises(Timeout) as caught:
        await client.send("m", task_id="t", timeout=0.05)
    assert caught.value.reason is Reason.WAIT_EXPIRED
    stream = await server.caller()
    await stream.wait("unsubscribes")
    assert not stream.items("cancels")
    with pytest.raises(Timeout):
        await client.send("m", task_id="t2", timeout=0.05, cancel_on_timeout=True)
    (cancel,) = await stream.wait("cancels")
    assert cancel.task_id == "t2"


async def test_a_caller_that_leaves_frees_its_entry(server, client):
    sent = await start(client.send("m", task_id="t"))
    stream = await server.caller()
    await stream.wait("submits")
    sent.cancel()
    (left,) = await stream.wait("unsubscribes")
    assert left.task_id == "t"
    stream.complete("t")
    again = await start(client.send("m", task_id="t3"))
    stream.complete("t3")
    assert (await again).ok
    assert not client._line.entries


async def test_the_same_task_twice_at_once(server, client):
    first, second = await start(client.send("m", task_id="t")), await start(client.send("m", task_id="t"))
    stream = await server.caller()
    await stream.wait("submits", 2)
    stream.complete("t", "once")
    assert (await first).text == (await second).text == "once"


async def test_submit_returns_when_accepted(server, client):
    submitted = await start(client.submit("m", task_id="t"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    assert submit.interest == 1
    answer = {"reference": submit.reference, "task_id": "t", "deduplicated": True, "state": 1, "warnings": ["w"]}
    stream.send(acknowledgements=[answer])
    handle = await submitted
    assert (handle.task_id, handle.state, handle.deduplicated) == ("t", TaskState.PENDING, True)
    assert handle.warnings == ("w",)
    waiting = await start(handle.result())
    (subscribe,) = await stream.wait("subscribes")
    assert (subscribe.task_id, subscribe.interest) == ("t", 2)
    stream.complete("t", "done")
    assert (await waiting).text == "done"


async def test_cancel(server, client):
    cancelled = await start(client.cancel("t", "no need"))
    stream = await server.caller()
    (cancel,) = await stream.wait("cancels")
    assert cancel.reason == "no need"
    stream.send(cancelled=[{"reference": cancel.reference, "task_id": "t", "state": 7}])
    assert await cancelled is TaskState.CANCELLED
    unknown = await start(client.cancel("u"))
    cancel = (await stream.wait("cancels", 2))[1]
    stream.send(refusals=[refusal(InvalidRequest("?", Reason.TASK_NOT_FOUND), reference=cancel.reference)])
    with pytest.raises(InvalidRequest):
        await unknown


def running_task(task_id: str) -> task_pb2.Task:
    return task_pb2.Task(spec=task_pb2.TaskSpec(task_id=task_id), state=task_pb2.TASK_STATE_RUNNING)


async def test_get_task(server, client):
    server.get_task = running_task
    task = await client.get_task("t")
    assert (task.task_id, task.state, task.result) == ("t", TaskState.RUNNING, None)
    server.get_task = lambda _id: InvalidRequest("no such task", Reason.TASK_NOT_FOUND)
    with pytest.raises(InvalidRequest) as caught:
        await client.get_task("t")
    assert caught.value.reason is Reason.TASK_NOT_FOUND


async def test_close_tells_those_who_wait(server):
    client = Client(server.address)
    sent = await start(client.send("m"))
    await server.caller()
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await sent
    async with asyncio.timeout(2):  # A2, A3: the call object is closed with it
        while server.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_another_loop_is_refused(server, client):
    sent = await start(client.send("m", task_id="t"))
    (await server.caller()).complete("t")
    await sent
    with pytest.raises(RuntimeError, match="another loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.send("m")))


async def test_attachments_that_are_too_much_together_are_refused_alone(client):
    with pytest.raises(InvalidRequest) as caught:
        await client.send("m", attachments={"a": "x" * (3 << 20), "b": "x" * (3 << 20)})
    assert caught.value.reason is Reason.PAYLOAD_TOO_LARGE


async def test_the_application_of_sessions(server):
    async with Client(server.address, app_id="web", source="shop") as client:
        sent = await start(client.send("m", session=("user", "s1"), task_id="t"))
        stream = await server.caller()
        (submit,) = await stream.wait("submits")
        assert (submit.task.session.app_id, submit.task.session.session_id) == ("web", "s1")
        assert submit.task.source == "shop"
        stream.complete("t")
        await sent
