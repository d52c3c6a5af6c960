"""Kinds of handlers, what they see and what they answer."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from reach import AgentError, Answer, Delta, InvalidRequest, Progress, Reason, ResourceExhausted, SessionKey
from reach.sdk.flow import CREDIT, KEEP
from tests.sdk.fake_server import refusal
from tests.sdk.test_agent import running


async def answer_of(server, handler, payload="hello", **offer):
    handler.__dict__.setdefault("__name__", "handler")
    async with running(server, handler) as (_, stream):
        stream.offer("t", payload, method=handler.__name__, **offer)
        return await stream.result("t"), stream


KINDS = ["def", "async def", "partial", "object"]


def handler_of(kind: str, value):
    def plain(task):
        return value

    async def coroutine(task):
        await asyncio.sleep(0)
        return value

    class Callable:
        async def __call__(self, task):
            return value

    made: Any
    if kind == "partial":
        made = functools.partial(lambda value, task: value, value)
    else:
        made = {"def": plain, "async def": coroutine, "object": Callable()}[kind]
    made.__name__ = "handler"
    return made


@pytest.mark.parametrize("kind", KINDS)
async def test_kinds(server, kind):
    result, _ = await answer_of(server, handler_of(kind, "done"))
    assert result.output.text == "done"


@pytest.mark.parametrize(
    ("value", "text", "data", "media_type"),
    [
        ("t", "t", b"", ""),
        (b"\xff", "", b"\xff", ""),
        ({"a": 1}, '{"a":1}', b"", "application/json"),
        ([1], "[1]", b"", "application/json"),
        (True, "true", b"", "application/json"),
        (None, "", b"", ""),
        (Answer(b"# x", media_type="text/markdown"), "", b"# x", "text/markdown"),
        ("\ud800", "?", b"", ""),
    ],
)
async def test_values(server, value, text, data, media_type):
    result, _ = await answer_of(server, handler_of("async def", value))
    assert (result.output.text, result.output.data, result.output.media_type) == (text, data, media_type)


async def test_answer_with_everything(server):
    value = Answer("x", confidence=0.5, conflict_hint="y", usage={"tokens": 7}, executed_intent="a.b")
    result, _ = await answer_of(server, handler_of("def", value))
    assert (result.confidence, result.conflict_hint, result.usage["tokens"]) == (0.5, "y", 7)
    assert (result.output.text, result.executed_intent) == ("x", "a.b")


async def test_a_plain_function_that_returns_a_coroutine(server):
    async def inner():
        await asyncio.sleep(0)
        return threading.current_thread() is threading.main_thread()

    def handler(task):
        return inner()

    result, _ = await answer_of(server, handler)
    assert result.output.text == "true"


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    ("error", "error_class", "reason", "message"),
    [
        (AgentError("cannot"), 6, Reason.AGENT_FAILED, "cannot"),
        (InvalidRequest("bad input"), 1, Reason.INVALID_FIELD, "bad input"),
        (ResourceExhausted("busy", retry_after_ms=5), 2, Reason.AGENT_BUSY, "busy"),
        (ValueError("broken"), 5, Reason.AGENT_CRASHED, "ValueError: broken"),
        (ValueError("\udcff \x1b[31m \xff"), 5, Reason.AGENT_CRASHED, None),  # G3
        (ValueError("x" * 10_000), 5, Reason.AGENT_CRASHED, None),
        (SystemExit(3), 5, Reason.AGENT_CRASHED, "SystemExit: 3"),
    ],
)
async def test_errors(server, caplog, kind, error, error_class, reason, message):
    def plain(task):
        raise error

    async def coroutine(task):
        raise error

    result, _ = await answer_of(server, plain if kind == "def" else coroutine)
    told = result.error
    assert (told.error_class, told.reason) == (error_class, reason)
    assert "Traceback" not in told.message
    assert len(told.message.encode()) <= 4096
    if message is not None:
        assert told.message == message
    assert bool([r for r in caplog.records if r.exc_info]) is (reason is Reason.AGENT_CRASHED)


async def test_an_answer_without_a_form_and_one_too_large(server):
    result, _ = await answer_of(server, handler_of("def", object()))
    assert (result.error.reason, "object" in result.error.message) == (Reason.AGENT_CRASHED, True)
    server.welcome["payload_limit"] = 10
    result, _ = await answer_of(server, handler_of("def", "x" * 11))
    assert result.error.reason == Reason.RESULT_TOO_LARGE


async def test_data_that_is_not_json(server):
    async def handler(task):
        return task.data["a"]

    result, _ = await answer_of(server, handler, '{"a": 1, }')
    assert (result.error.reason, "line 1 column 10" in result.error.message) == (Reason.INVALID_FIELD, True)
    result, _ = await answer_of(server, handler, b'{"a": "\xff"}')
    assert "not UTF-8 at byte 7" in result.error.message
    result, _ = await answer_of(server, handler, '{"a": NaN}')
    assert "NaN" in result.error.message
    result, _ = await answer_of(server, handler, "[" * 100_000)
    assert result.error.reason == Reason.INVALID_FIELD


async def test_what_a_handler_sees(server):
    seen = []

    async def handler(task):
        seen.append(task)
        assert 4 < task.deadline <= 5
        assert repr(task) == "Task('t', attempt=3, method='handler')"
        return task.data

    task = {
        "payload": {"data": b"[1]", "media_type": "application/json"},
        "session": {"app_id": "a", "user_id": "u", "session_id": "s"},
        "labels": {"k": "v"},
        "attachments": [{"name": "doc", "payload": {"text": "d"}}],
        "trace": {"traceparent": "00-1"},
        "source": "caller",
    }
    result, _ = await answer_of(
        server,
        handler,
        task=task,
        attempt=3,
        tenant="other",
        checkpoint=b"half",
        start_to_close={"seconds": 5},
        session_context={"revision": 4},
        effect_granted=True,
    )
    assert result.key.tenant == "other"
    (seen_task,) = seen
    assert (seen_task.task_id, seen_task.method, seen_task.attempt, seen_task.fencing_token) == ("t", "handler", 3, 3)
    assert (seen_task.payload, seen_task.text, seen_task.media_type) == (b"[1]", "[1]", "application/json")
    assert (seen_task.tenant, seen_task.session) == ("other", SessionKey("a", "u", "s"))
    assert (seen_task.labels, seen_task.trace, seen_task.source) == ({"k": "v"}, "00-1", "caller")
    assert (seen_task.attachments["doc"].text, seen_task.attachments["doc"].media_type) == ("d", "text/plain")
    assert (seen_task.checkpoint, seen_task.context.revision, seen_task.effect_granted) == (b"half", 4, True)


def pieces_in_thread(*pieces):
    def handler(task):
        yield from pieces

    return handler


def pieces_on_loop(*pieces):
    async def handler(task):
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    return handler


both = pytest.mark.parametrize("generator", [pieces_in_thread, pieces_on_loop])


@both
async def test_generators_stream(server, generator):
    result, stream = await answer_of(
        server, generator("a", Progress(0.5, "half"), b"b", Delta("log", {"x": 1}), Delta("", "c", "replace"), "")
    )
    deltas = [item.delta for item in stream.items("deltas")]
    assert [item.attempt_sequence for item in stream.items("deltas")] == [1, 2, 3, 4]
    assert [(delta.channel, delta.mode) for delta in deltas] == [("", 1), ("", 1), ("log", 1), ("", 2)]
    assert (deltas[0].payload.text, deltas[1].payload.data, deltas[3].payload.text) == ("a", b"b", "c")
    assert (deltas[2].payload.text, deltas[2].payload.media_type) == ('{"x":1}', "application/json")
    assert result.folded.last_attempt_sequence == 4
    assert result.WhichOneof("outcome") == "folded"


@both
async def test_a_last_answer_is_the_result(server, generator):
    result, stream = await answer_of(server, generator("a", Answer("whole", confidence=1.0), "never"))
    assert (result.output.text, result.confidence) == ("whole", 1.0)
    assert len(stream.items("deltas")) == 1


@both
async def test_a_generator_without_pieces(server, generator):
    result, _ = await answer_of(server, generator())
    assert result.output.WhichOneof("content") is None


@both
@pytest.mark.parametrize("piece", [17, {"a": 1}, Delta("", "x", "prepend")])
async def test_pieces_that_are_none(server, generator, piece):
    result, _ = await answer_of(server, generator("a", piece))
    assert result.error.reason == Reason.AGENT_CRASHED


@both
async def test_a_streamed_answer_that_grows_too_large(server, generator):
    server.welcome["payload_limit"] = 1000
    result, stream = await answer_of(server, generator("x" * 900, "y" * 1001, "z"))
    assert result.error.reason == Reason.RESULT_TOO_LARGE
    assert len(stream.items("results")) == 1


@both
async def test_credit_holds_the_producer_back(server, generator):
    piece = "x" * (64 << 10)
    handler = generator(*[piece] * 10)
    async with running(server, handler) as (_, stream):
        stream.offer("t", method=handler.__name__)
        await stream.wait("deltas", CREDIT // len(piece))
        await asyncio.sleep(0.1)
        assert len(stream.items("deltas")) == 4
        key = stream.items("deltas")[0].key
        stream.send(credits=[{"link": 1, "key": key, "bytes": 2 * len(piece)}])
        await stream.wait("deltas", 6)
        await asyncio.sleep(0.1)
        assert len(stream.items("deltas")) == 6
        stream.send(credits=[{"link": 1, "key": key, "bytes": 9 * len(piece)}])
        assert (await stream.result("t")).folded.last_attempt_sequence == 10


@both
async def test_a_producer_without_credit_can_be_cancelled(server, generator):
    handler = generator(*["x" * (64 << 10)] * 10)
    async with running(server, handler) as (agent, stream):
        stream.offer("t", method=handler.__name__)
        (delta, *_) = await stream.wait("deltas", 4)
        stream.send(cancels=[{"link": 1, "key": delta.key}])
        (result,) = await stream.wait("results")
        assert result.error.reason == Reason.CANCELLED
        assert agent._figures.inflight == 0


async def test_deltas_are_replayed_when_asked(server):
    go = asyncio.Event()

    async def handler(task):
        yield "a"
        yield "b"
        await go.wait()
        yield "c"

    async with running(server, handler) as (_, first):
        first.offer("t", method="handler")
        await first.wait("deltas", 2)
        server.link_welcome = lambda hello: {"replay": [entry.key for entry in hello.running]}
        first.end(InvalidRequest("x", Reason.UNEXPECTED_FRAME))
        second = await server.agent()
        assert second.items("hellos") or await second.wait("hellos")
        assert second.items("hellos")[0].running[0].last_attempt_sequence == 2
        await second.wait("deltas", 2)
        go.set()
        result = await second.result("t")
        assert [item.attempt_sequence for item in second.items("deltas")] == [1, 2, 3]
        assert result.folded.last_attempt_sequence == 3


async def test_without_a_replay_the_outcome_carries_the_whole(server):
    go = asyncio.Event()

    async def handler(task):
        yield "a"
        await go.wait()
        yield "b"

    async with running(server, handler) as (_, first):
        first.offer("t", method="handler")
        await first.wait("deltas")
        first.end(InvalidRequest("x", Reason.UNEXPECTED_FRAME))
        second = await server.agent()
        await second.wait("beats")
        go.set()
        assert (await second.result("t")).output.text == "ab"


async def test_what_cannot_be_replayed_comes_with_the_outcome(server):
    go = asyncio.Event()
    half = "x" * (KEEP // 2 + 1)

    async def handler(task):
        yield half
        yield half
        await go.wait()
        yield "c"

    async with running(server, handler) as (_, first):
        first.offer("t", method="handler")
        (delta,) = await first.wait("deltas")
        first.send(credits=[{"link": 1, "key": delta.key, "bytes": 4 * KEEP}])
        await first.wait("deltas", 2)
        server.link_welcome = lambda hello: {"replay": [entry.key for entry in hello.running]}
        first.end(InvalidRequest("x", Reason.UNEXPECTED_FRAME))
        second = await server.agent()
        await second.wait("beats")
        go.set()
        result = await second.result("t")
        assert result.output.text == half + half + "c"
        assert not second.items("deltas")


async def test_a_folded_outcome_that_is_refused_comes_whole(server):
    async with running(server, handler := pieces_on_loop("a", "b")) as (_, stream):
        stream.offer("t", method=handler.__name__)
        (result,) = await stream.wait("results")
        assert result.HasField("folded")
        error = InvalidRequest("deltas are missing", Reason.UNEXPECTED_FRAME)
        stream.send(refusals=[refusal(error, link=1, key=result.key)])
        results = await stream.wait("results", 2)
        assert results[1].output.text == "ab"


async def test_a_folded_outcome_on_a_new_stream_comes_whole(server):
    async with running(server, handler := pieces_on_loop("a", "b")) as (_, first):
        first.offer("t", method=handler.__name__)
        await first.wait("results")
        first.end(InvalidRequest("x", Reason.UNEXPECTED_FRAME))
        second = await server.agent()
        assert (await second.result("t")).output.text == "ab"


@pytest.mark.parametrize("threaded", [False, True])
async def test_progress_and_checkpoints(server, threaded):
    seen = threading.Event()

    def say(task):
        task.progress(0.1)
        task.progress(0.25, "a quarter\ud800")
        task.save_checkpoint(b"state")
        with pytest.raises(InvalidRequest):
            task.save_checkpoint(b"x" * ((256 << 10) + 1))
        with pytest.raises(TypeError, match="a checkpoint is bytes, not str"):
            task.save_checkpoint("state")

    def plain(task):
        say(task)
        with pytest.raises(InvalidRequest, match="ask_blocking"):
            task.ask("May I?")  # says so at once: in a thread nobody awaits it
        seen.wait(10)

    async def coroutine(task):
        say(task)
        await asyncio.to_thread(seen.wait, 10)

    handler = plain if threaded else coroutine
    async with running(server, handler) as (_, stream):
        stream.offer("t", method=handler.__name__)
        await stream.until(lambda: any(item.HasField("checkpoint") for item in stream.items("progress")))
        seen.set()
        result = await stream.result("t")
    last = [item for item in stream.items("progress") if item.HasField("progress")][-1]
    assert (last.progress.fraction, last.progress.note) == (0.25, "a quarter\ufffd")
    assert (stream.items("progress")[-1].checkpoint, last.key) == (b"state", result.key)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("granted", [False, True])
async def test_effects_wait_for_permission(server, threaded, granted):
    done = []

    def plain(task):
        task.begin_effect("charge")
        done.append(True)

    async def coroutine(task):
        await task.begin_effect("charge")
        done.append(True)

    handler = plain if threaded else coroutine
    async with running(server, handler) as (_, stream):
        stream.offer("t", method=handler.__name__)
        (request,) = await stream.wait("effects")
        await asyncio.sleep(0.05)
        assert (request.effect, done) == ("charge", [])
        refused = {} if granted else {"refusal": refusal(InvalidRequest("late", Reason.STALE_ATTEMPT))["error"]}
        stream.send(grants=[{"link": 1, "key": request.key, "effect": "charge", **refused}])
        result = await stream.result("t")
        assert done == [True] * granted
        assert granted or result.error.reason == Reason.STALE_ATTEMPT


async def test_an_effect_is_asked_again_on_a_new_stream(server):
    async def handler(task):
        await task.begin_effect("charge")
        return "charged"

    async with running(server, handler) as (_, first):
        first.offer("t", method="handler")
        await first.wait("effects")
        first.end(InvalidRequest("x", Reason.UNEXPECTED_FRAME))
        second = await server.agent()
        (request,) = await second.wait("effects")
        second.send(grants=[{"link": 1, "key": request.key, "effect": "charge"}])
        assert (await second.result("t")).output.text == "charged"


async def test_a_thread_sees_that_it_is_cancelled(server):
    def handler(task):
        while not task.cancelled:
            time.sleep(0.01)
        return "too late"

    async with running(server, handler) as (_, stream):
        stream.offer("t", method="handler")
        (accept,) = await stream.wait("accepts")
        stream.send(cancels=[{"link": 1, "key": accept.key}])
        (result,) = await stream.wait("results")
        assert result.error.reason == Reason.CANCELLED


async def test_a_handler_that_cancels_itself_has_failed(server):
    async def handler(task):
        raise asyncio.CancelledError

    result, _ = await answer_of(server, handler)
    assert (result.error.reason, result.error.error_class) == (Reason.AGENT_CRASHED, 5)


async def test_threads_are_as_many_as_slots(server):
    lock, most, now = threading.Lock(), 0, 0

    def handler(task):
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.1)
        with lock:
            now -= 1

    async with running(server, handler, max_concurrency=3) as (agent, stream):
        for number in range(9):
            stream.offer(f"t{number}", method="handler")
        await stream.settle()
        assert len(stream.items("accepts")) == 3
        agent.available()
        (*_, beat) = await stream.wait("beats", 2)
        assert (beat.status.inflight, beat.status.queue_length, beat.status.free_slots) == (9, 6, 0)
        await stream.wait("results", 9)
        assert len(stream.items("accepts")) == 9
        assert most == 3


@pytest.mark.parametrize(
    "value",
    [
        Answer("x", media_type=5),  # type: ignore[arg-type]
        Answer("x", confidence="high"),  # type: ignore[arg-type]
        Answer("x", usage={"tokens": "many"}),  # type: ignore[dict-item]
        Answer([object()]),
    ],
)
async def test_answers_that_cannot_be_sent(server, value):
    result, _ = await answer_of(server, handler_of("async def", value))
    assert result.error.reason == Reason.AGENT_CRASHED


@both
@pytest.mark.parametrize("piece", [Delta(5, "x"), Delta("", "x", media_type=5)])  # type: ignore[arg-type]
async def test_deltas_that_cannot_be_sent(server, generator, piece):
    result, _ = await answer_of(server, generator("a", piece, "b"))
    assert result.error.reason == Reason.AGENT_CRASHED


@pytest.mark.parametrize("threaded", [False, True])
async def test_nonsense_said_on_the_way_is_the_handlers_failure(server, threaded):
    def plain(task):
        task.progress("half")

    def charge(task):
        task.begin_effect(5)

    async def coroutine(task):
        task.progress("half")

    async def charge_on_loop(task):
        await task.begin_effect(5)

    for handler in (plain, charge) if threaded else (coroutine, charge_on_loop):
        result, _ = await answer_of(server, handler)
        assert result.error.reason == Reason.AGENT_CRASHED


async def test_progress_is_bounded(server):
    def handler(task):
        yield Progress(7, "x" * 5000)
        yield Progress(float("nan"))
        time.sleep(0.1)

    _, stream = await answer_of(server, handler)
    progress = stream.items("progress")
    assert not progress[-1].progress.HasField("fraction")
    assert all(len(item.progress.note) <= 1024 for item in progress)
