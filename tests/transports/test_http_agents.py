"""Agents that are dialled over HTTP: what they are asked, in which forms they may answer, and how attempts end (REG-6,
HLT-3, HLT-4, DLV-3, DLV-4, DLV-11)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, error_pb2, task_pb2
from reach.node import Node
from reach.transports.dialled import Dialled
from reach.wire.agent_answers import RAW_BYTES
from tests.rpc.peers import Stubs, pb, running, unique
from tests.transports.endpoint_agent import eventually
from tests.transports.http_agent import Heard, HttpAgent, answer, chunks, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT_ERROR = error_pb2.ERROR_CLASS_AGENT_ERROR


async def ask(stubs: Stubs, agent: HttpAgent, method: str = "default", **spec: Any) -> Any:
    task = {
        "task_id": unique("task"),
        "selector": {"agent_type": agent.agent_type},
        "method": method,
        "payload": {"text": '{"a": 1}', "media_type": "application/json"},
        "retry": {"name": "never"},
        **spec,
    }
    request = pb.DispatchRequest(task=task, wait={"seconds": 15})
    return (await stubs.dispatch.Dispatch(request, timeout=20)).result


def fixed(raw: bytes) -> Any:
    async def act(agent: HttpAgent, heard: Heard) -> bytes:
        return raw

    return act


async def row_of(stubs: Stubs, agent: HttpAgent) -> Any:
    return (await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=agent.instance_id), timeout=5)).agent


async def test_REG_6_a_task_is_posted_as_an_envelope_and_the_answer_is_the_result(node: Node, stubs: Stubs):
    agent = HttpAgent(own=fixed(answer('{"n": 12345678901234567890123}')))
    async with serving(agent):
        registered = await agent.register(stubs)
        assert (list(registered.warnings), registered.blocked_by) == ([], "")
        done = await ask(stubs, agent, timeouts={"start_to_close": {"seconds": 9}}, labels={"k": "v"})
        assert (done.output.text, done.output.media_type) == ("done", "text/plain")
        ((verb, path, headers, *_),) = agent.asked
        said = agent.asked[0].said
        assert (verb, path) == ("POST", "/ask")
        assert headers["idempotency-key"] == said["task_id"]
        assert headers["agentreach-attempt"] == "1"
        assert (said["protocol_version"], said["attempt"], said["fencing_token"]) == ("1", 1, 1)
        assert (said["method"], said["payload"], said["labels"]) == ("default", {"a": 1}, {"k": "v"})
        assert 8_000 < said["timeout_ms"] <= 9_000
        assert said["report"] == {"path": "/events/report", "instance_id": agent.instance_id, "boot_id": agent.boot_id}
        own = await ask(stubs, agent, "own")
        assert own.output.text == '{"n": 12345678901234567890123}', "what is no envelope is the answer, byte for byte"


STREAMS = {
    "sse": chunks(
        b'event: delta\ndata: "Hel"\n\n: a comment\n\nevent: ping\ndata:\n\nda',
        b'ta: {"delta": "lo"}\n\nevent: progress\ndata: 0.5\n\n',
        b"data:  there\n\nevent: result\ndata: [1]\n\n",
        kind="text/event-stream; charset=utf-8",
    ),
    "done": chunks(b"data: Hel\r\n\r\ndata: lo there\r\n\r\ndata: [DONE]\r\n\r\n", kind="text/event-stream"),
    "lines": chunks(
        b'{"delta": "Hello"}\n{"progress": {"note": "so"}}\n{"delta"', b': " there"}\n', kind="application/x-ndjson",
    ),
    "text": chunks(b"Hello th", b"ere", kind="text/plain"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STREAMS)
async def test_STR_1_streams_come_through_to_readers(node: Node, stubs: Stubs, kind: str):
    agent = HttpAgent(stream=fixed(STREAMS[kind]))
    async with serving(agent):
        await agent.register(stubs)
        task_id = unique("task")
        done = await ask(stubs, agent, "stream", task_id=task_id)
        assert done.output.text == ("[1]" if kind == "sse" else "Hello there"), done
        events = []
        async for frame in stubs.result.StreamResult(pb.StreamResultRequest(task_id=task_id), timeout=5):
            events += frame.events
        told = "".join(one.delta.payload.text for one in events if one.HasField("delta"))
        assert told == "Hello there"


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson", "text/plain"])
async def test_STR_1_a_piece_is_with_readers_before_the_next_is_made(node: Node, stubs: Stubs, kind: str):
    pieces = {
        "text/event-stream": (b"data: one\n\n", b"data: two\n\ndata: [DONE]\n\n"),
        "application/x-ndjson": (b'{"delta": "one"}\n', b'{"delta": "two"}\n{"result": "onetwo"}\n'),
        "text/plain": (b"one", b"two"),
    }[kind]
    gate = asyncio.Event()

    async def act(agent: HttpAgent, heard: Heard) -> bytes:
        heard.write.write(chunks(pieces[0], kind=kind, end=False))
        await gate.wait()
        return chunks(pieces[1], kind=kind).partition(b"\r\n\r\n")[2]

    agent = HttpAgent(stream=act)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "stream")
        text = ""
        async for frame in stubs.result.StreamResult(pb.StreamResultRequest(task_id=task_id), timeout=10):
            for event in frame.events:
                if event.HasField("delta"):
                    text += event.delta.payload.text
                    assert text in ("one", "onetwo")
                    gate.set()
        assert (await result_of(stubs, task_id)).output.text == text == "onetwo"


RUBBISH: dict[str, tuple[bytes, int, str]] = {
    "broken JSON": (answer('{"result": '), AGENT_ERROR, "is not JSON"),
    "raw newlines in a string": (answer('{"result": "a\nb"}'), AGENT_ERROR, "is not JSON"),
    "a NUL in a string": (answer('{"result": "a\0b"}'), AGENT_ERROR, "is not JSON"),
    "invalid UTF-8 in JSON": (answer(b'{"result": "\xff"}'), AGENT_ERROR, "is not JSON"),
    "invalid UTF-8 in a text": (answer(b"caf\xe9", kind="text/plain"), AGENT_ERROR, "is not utf-8"),
    "invalid UTF-8 in chunks": (chunks(b"caf\xe9!", kind="text/plain"), AGENT_ERROR, "is not UTF-8"),
    "a strange charset": (answer("x", kind="text/plain; charset=ebcdic-x"), AGENT_ERROR, "charset"),
    "very deep JSON": (answer("[" * 100_000), AGENT_ERROR, "nested"),
    "text that says it is JSON": (answer("Hello"), AGENT_ERROR, "is not JSON"),
    "a page of HTML": (answer("<html>Oops</html>", kind="text/html"), AGENT_ERROR, "HTML page"),
    "nothing at all": (answer(""), AGENT_ERROR, "is empty"),
    "compressed": (answer(b"\x1f\x8b", content_encoding="gzip"), AGENT_ERROR, "compressed"),
    "base64 that is none": (answer({"result": {"base64": "!!"}}), AGENT_ERROR, "base64"),
    "an empty stream": (chunks(kind="text/event-stream"), AGENT_ERROR, "without a result"),
    "a stream of lists": (chunks(b"[1]\n", kind="application/x-ndjson"), AGENT_ERROR, "no JSON object"),
    "a stream of rubbish": (chunks(b"{]\n", kind="application/x-ndjson"), AGENT_ERROR, "is not JSON"),
    "a length that is too short": (answer({"result": "done"}, content_length="9"), AGENT_ERROR, "is not JSON"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", AGENT_ERROR, "is not HTTP"),
    "endless headers": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, AGENT_ERROR, "is not HTTP"),
    "a huge body": (answer(b"x" * (6 << 20), kind="text/plain"), error_pb2.ERROR_CLASS_INVALID_REQUEST, "over"),
    "a huge line": (
        chunks(b"x" * (6 << 20), kind="application/x-ndjson"), error_pb2.ERROR_CLASS_INVALID_REQUEST, "over",
    ),
    "a text without end": (
        chunks(*[b"x" * (64 << 10)] * 100, kind="text/plain", end=False),
        error_pb2.ERROR_CLASS_INVALID_REQUEST,
        "4 MiB",
    ),
    "a length that is too long": (
        answer({"result": "done"}, content_length="999"), error_pb2.ERROR_CLASS_UNAVAILABLE, "broke",
    ),
    "a chunk that is cut": (
        chunks(b"data: x\n\n", kind="text/event-stream", end=False), error_pb2.ERROR_CLASS_UNAVAILABLE, "broke",
    ),
    "no word": (b"", error_pb2.ERROR_CLASS_UNAVAILABLE, "broke"),
    "another task's result": (
        answer({"task_id": "other", "result": 1}), error_pb2.ERROR_CLASS_INTERNAL, "another attempt",
    ),
    "a redirect": (answer("", "302 Found", location="/x"), error_pb2.ERROR_CLASS_UNAVAILABLE, "redirects"),
    "400": (answer("what?", "400 Bad Request"), error_pb2.ERROR_CLASS_INVALID_REQUEST, "takes no such task"),
    "401": (answer("", "401 Unauthorized"), error_pb2.ERROR_CLASS_UNAVAILABLE, "credentials"),
    "404": (
        answer({"detail": "Not Found"}, "404 Not Found"), error_pb2.ERROR_CLASS_UNAVAILABLE, "nothing at this path",
    ),
    "404 in its own words": (answer({"error": "no such order"}, "404 Not Found"), AGENT_ERROR, "no such order"),
    "409": (answer("", "409 Conflict"), AGENT_ERROR, "the agent failed"),
    "429": (answer("", "429 Too Many Requests", retry_after="7"), error_pb2.ERROR_CLASS_RESOURCE_EXHAUSTED, "full"),
    "503 with a time": (
        answer("", "503 Service Unavailable", retry_after="7"), error_pb2.ERROR_CLASS_RESOURCE_EXHAUSTED, "full",
    ),
    "503": (answer("", "503 Service Unavailable"), error_pb2.ERROR_CLASS_UNAVAILABLE, "takes no work now"),
    "504": (answer("", "504 Gateway Timeout"), error_pb2.ERROR_CLASS_TIMEOUT, "gave up waiting"),
    "500": (
        answer("<html>Traceback</html>", "500 Oops", kind="text/html"), error_pb2.ERROR_CLASS_INTERNAL, "broke",
    ),
    "an error in words": (answer({"error": "no such order"}), AGENT_ERROR, "no such order"),
    "an error with a class": (
        answer({"error": {"message": "later", "error_class": "unavailable"}}),
        error_pb2.ERROR_CLASS_UNAVAILABLE,
        "later",
    ),
}  # fmt: skip


KEPT = {
    "broken JSON", "raw newlines in a string", "a NUL in a string", "invalid UTF-8 in JSON", "invalid UTF-8 in a text",
    "very deep JSON", "text that says it is JSON", "a page of HTML", "500", "a stream of rubbish", "a huge body",
    "a huge line",
}  # fmt: skip
"""Of what cannot be read, the first is shown."""


@pytest.mark.parametrize("name", RUBBISH)
async def test_GOV_5_rubbish_is_a_clean_error_with_what_came(node: Node, stubs: Stubs, name: str):
    raw, error_class, words = RUBBISH[name]
    agent = HttpAgent(**{name: fixed(raw)})
    async with serving(agent):
        await agent.register(stubs)
        failed = await ask(stubs, agent, name)
        assert failed.error.error_class == error_class, failed
        assert words in failed.error.message, failed
        assert not failed.HasField("output")
        if name in KEPT:
            came = raw.partition(b"\r\n\r\n")[2]
            if b"chunked" in raw[:200]:
                came = came.partition(b"\r\n")[2]
            kept = failed.error.metadata["raw"]
            assert kept[:6] == came.decode("utf-8", "replace").partition("\r\n")[0].rstrip("\n").replace("\0", "�")[:6]
            assert len(kept) <= RAW_BYTES
        if name in ("429", "503 with a time"):
            assert failed.error.retry_after.seconds == 7
        good = await ask(stubs, agent)
        assert good.output.text == "done", "the next one is well"


async def test_a_204_is_an_empty_answer(node: Node, stubs: Stubs):
    agent = HttpAgent(quiet=fixed(b"HTTP/1.1 204 No Content\r\n\r\n"))
    async with serving(agent):
        await agent.register(stubs)
        assert (await ask(stubs, agent, "quiet")).output.WhichOneof("content") == "text"


async def test_DLV_6_an_agent_that_hangs_is_given_up_at_its_time_and_its_connection_is_closed(node: Node, stubs: Stubs):
    closed = asyncio.Event()

    async def hang(agent: HttpAgent, heard: Heard) -> None:
        await heard.hung_up()
        closed.set()

    agent = HttpAgent(hang=hang)
    async with serving(agent):
        await agent.register(stubs)
        failed = await ask(stubs, agent, "hang", timeouts={"start_to_close": {"nanos": 300_000_000}})
        assert failed.error.reason == error_pb2.ERROR_REASON_START_TO_CLOSE
        await asyncio.wait_for(closed.wait(), 5)


async def accepted(agent: HttpAgent, heard: Heard) -> bytes:
    said = heard.said
    path = f"/jobs/{said['task_id']}/{said['attempt']}"
    agent.jobs.setdefault(path, answer({"status": "running", "progress": 0.5}))
    return answer({"status": "accepted"}, "202 Accepted", location=path, retry_after="0")


async def accepted_only(agent: HttpAgent, heard: Heard) -> bytes:
    return answer("", "202 Accepted")


async def given(stubs: Stubs, agent: HttpAgent, method: str, **spec: Any) -> str:
    task_id = unique("task")
    task = {
        "task_id": task_id,
        "selector": {"agent_type": agent.agent_type},
        "method": method,
        "payload": {"text": "x"},
        "timeouts": {"start_to_close": {"seconds": 60}},
        **spec,
    }
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=20)
    return task_id


async def result_of(stubs: Stubs, task_id: str) -> Any:
    request = pb.WaitForResultRequest(task_id=task_id, timeout={"seconds": 15})
    return (await stubs.dispatch.WaitForResult(request, timeout=20)).result


async def test_DLV_14_an_agent_that_answers_202_reports_later(node: Node, stubs: Stubs):
    agent = HttpAgent(slow=accepted_only)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        await eventually(lambda: agent.asked)
        report = {
            "reporter": {"instance_id": agent.instance_id, "boot_id": agent.boot_id},
            "result": {"key": {"task_id": task_id, "attempt": 1}, "output": {"text": "late"}},
        }
        await asyncio.sleep(0.3)
        await stubs.result.ReportResult(pb.ReportResultRequest(**report), timeout=5)
        assert (await result_of(stubs, task_id)).output.text == "late"


async def test_DLV_14_who_reports_is_not_asked_any_more(node: Node, stubs: Stubs):
    agent = HttpAgent(slow=accepted)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        await eventually(lambda: agent.others)
        report = {
            "reporter": {"instance_id": agent.instance_id, "boot_id": agent.boot_id},
            "result": {"key": {"task_id": task_id, "attempt": 1}, "output": {"text": "late"}},
        }
        await stubs.result.ReportResult(pb.ReportResultRequest(**report), timeout=5)
        await eventually(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == "http-agent"])
        assert {one.verb for one in agent.others} == {"GET"}, "it has said that it is done: nobody tells it to stop"


async def test_REG_6_an_agent_that_answers_202_with_a_place_is_asked_there(node: Node, stubs: Stubs):
    agent = HttpAgent(slow=accepted)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        polled = await eventually(lambda: agent.others)
        path = polled[0].path
        told = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5)).task
        assert told.attempts[0].handle == path
        agent.jobs[path] = answer({"result": {"sum": 3}})
        assert json.loads((await result_of(stubs, task_id)).output.text) == {"sum": 3}


async def test_DLV_11_a_cancel_is_a_delete_where_the_attempt_has_a_place(node: Node, stubs: Stubs):
    agent = HttpAgent(slow=accepted)
    async with serving(agent):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        await eventually(lambda: agent.others)
        await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id), timeout=5)
        told = await eventually(lambda: [one for one in agent.others if one.verb == "DELETE"])
        assert told[0].path == f"/jobs/{task_id}/1"
        await eventually(lambda: _free(stubs, agent), 3)  # no grace: there is no connection that it could end


async def _free(stubs: Stubs, agent: HttpAgent) -> bool:
    return bool((await row_of(stubs, agent)).inflight == 0)


async def test_DLV_11_a_cancel_is_a_delete_with_the_feature_and_else_closes_the_connection(node: Node, stubs: Stubs):
    closed: list[str] = []

    async def hang(agent: HttpAgent, heard: Heard) -> None:
        await heard.hung_up()
        closed.append(heard.said["task_id"])

    async with serving(agent := HttpAgent(hang=hang)), serving(offers := HttpAgent(hang=hang)):
        await agent.register(stubs)
        await offers.register(stubs, features=["cancel"])
        for one in (agent, offers):
            task_id = await given(stubs, one, "hang")
            await eventually(lambda one=one: one.asked)
            await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id), timeout=5)
            if one is agent:
                await eventually(lambda task_id=task_id: task_id in closed)
            else:
                (told,) = await eventually(lambda: offers.others)
                assert (told.verb, told.path) == ("DELETE", f"/ask/{task_id}?attempt=1")
        assert not agent.others


async def test_HLT_4_who_loads_a_model_gets_no_work_until_it_is_ready(node: Node, stubs: Stubs):
    agent = HttpAgent()
    agent.health = answer({"status": "loading", "model_loaded": False}, "503 Service Unavailable")
    async with serving(agent):
        assert (await agent.register(stubs)).blocked_by == "not_ready"
        task_id = await given(stubs, agent, "default")
        await asyncio.sleep(0.5)
        assert not agent.asked
        agent.health = answer({"status": "ok"})
        assert (await result_of(stubs, task_id)).output.text == "done"


async def test_HLT_4_who_is_ready_a_moment_after_it_registered_waits_for_no_check(tmp_path: Path):
    agent = HttpAgent()
    agent.health = answer({"ready": False})
    settings = {"probe__interval": 0.2, "probe__retry_interval": 0.1, "probe__check_interval": 600}
    async with running(tmp_path, **settings) as slow, Stubs(slow.port) as stubs, serving(agent):
        assert (await agent.register(stubs)).blocked_by == "not_ready"
        agent.health = answer({"ready": True})  # before the first probe: none ever hears that it was not
        assert (await result_of(stubs, await given(stubs, agent, "default"))).output.text == "done"


async def test_HLT_2_status_comes_in_headers_and_in_the_body(node: Node, stubs: Stubs):
    agent = HttpAgent(warm=fixed(answer({"result": 1}, agentreach_status='{"queue_length": 7}')))
    agent.health = answer({"max_concurrency": 3, "current_load": 0, "memory_watermark": 0.5, "loop_stalled": "no"})
    async with serving(agent):
        await agent.register(stubs)
        await eventually(lambda: _has(stubs, agent, "max_concurrency", 3))
        await ask(stubs, agent, "warm")
        await eventually(lambda: _has_queue(stubs, agent, 7))


async def _has(stubs: Stubs, agent: HttpAgent, field: str, value: Any) -> bool:
    return bool(getattr(await row_of(stubs, agent), field) == value)


async def _has_queue(stubs: Stubs, agent: HttpAgent, value: int) -> bool:
    return bool((await row_of(stubs, agent)).status.queue_length == value)


async def test_HLT_3_who_hangs_up_while_it_is_registered_is_probed_all_the_same(
    node: Node, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
):
    """Killed before it heard the answer, say: it is registered, and would be taken for ready for ever."""
    agent = HttpAgent()
    calls: list[Any] = []
    opened = Dialled.opened

    async def slowly(target: Dialled, link: Any) -> Any:
        calls[0].cancel()
        await asyncio.sleep(0.2)  # the handler is told meanwhile
        return await opened(target, link)

    async with serving(agent):
        with monkeypatch.context() as patched:
            patched.setattr(Dialled, "opened", slowly)
            calls.append(stubs.registry.Register(agent.registration(), timeout=20))
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            await eventually(lambda: agent.checks)
        await eventually(lambda: not node.reach.instance("default", agent.instance_id)[1].blocked_by)
    await eventually(lambda: node.reach.instance("default", agent.instance_id)[1].blocked_by == "no_link")


async def test_HLT_3_an_agent_without_a_health_path_is_alive(node: Node, stubs: Stubs):
    agent = HttpAgent()
    agent.health = answer("", "404 Not Found")
    async with serving(agent):
        registered = await agent.register(stubs)
        assert "there is nothing at /healthz" in registered.warnings[0]
        assert (await ask(stubs, agent)).output.text == "done"
        assert (await row_of(stubs, agent)).health == agent_pb2.HEALTH_HEALTHY


async def test_HLT_3_a_broken_connection_moves_its_task_and_a_refused_one_all(node: Node, stubs: Stubs):
    async def hang(agent: HttpAgent, heard: Heard) -> None:
        await asyncio.sleep(30)

    first, second = HttpAgent(hang=hang, slow=accepted_only), HttpAgent()
    second.agent_type = second.agent_id = first.agent_type
    async with serving(second):
        async with serving(first):
            await first.register(stubs)
            held = await given(stubs, first, "hang")
            later = await given(stubs, first, "slow")
            await eventually(lambda: len(first.asked) == 2)
            await second.register(stubs)
        for task_id in (held, later):
            done = await result_of(stubs, task_id)
            assert (done.output.text, done.instance_id) == ("done", second.instance_id)


async def test_GOV_6_a_place_at_another_origin_is_not_asked(node: Node, stubs: Stubs):
    other = HttpAgent()

    async def act(agent: HttpAgent, heard: Heard) -> bytes:
        return answer("", "202 Accepted", location=f"http://127.0.0.1:{other.port}/jobs/1", retry_after="0")

    agent = HttpAgent(slow=act)
    async with serving(agent), serving(other):
        await agent.register(stubs)
        task_id = await given(stubs, agent, "slow")
        await asyncio.sleep(0.6)
        assert not other.others
        state = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5)).task.state
        assert state == task_pb2.TASK_STATE_RUNNING
