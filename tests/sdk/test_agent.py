"""The agent against a scripted server: hello, offers, outcomes, reconnects."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from reach import Agent, AgentError, InvalidRequest, Reason, ResourceExhausted, Unavailable
from reach.sdk import notes
from tests.sdk.fake_server import FakeServer, refusal


@contextlib.asynccontextmanager
async def running(server: FakeServer, *handlers, **fields):
    """An agent that runs `handlers` by their names, and its first stream."""
    made = Agent("worker", addr=server.address, **fields)
    for handler in handlers:
        made.add_handler(handler, handler.__name__)
    async with made:
        stream = await server.agent()
        await stream.wait("beats")
        yield made, stream


async def default(task):
    return task.text.upper()


async def test_hello_says_who_it_is(server):
    fields = {
        "agent_type": "t",
        "capabilities": ["a", {"name": "b", "effects": "none", "expected_latency": 0.5}],
        "tags": ["x"],
        "version": "1.2",
        "max_concurrency": 3,
        "weight": 20,
        "labels": {"k": "v"},
        "languages": ["de"],
        "heartbeat_interval": 2.5,
    }
    async with running(server, default, **fields) as (agent, stream):
        (hello,) = stream.items("hellos")
        assert stream.frames[0].HasField("opening")
        registration = hello.registration
        assert hello.link == 1
        assert registration.agent_id == "worker"
        assert registration.instance_id == agent.instance_id
        assert agent.instance_id.startswith("worker@")
        assert len(agent.instance_id.rpartition("#")[2]) == 6
        assert len(registration.boot_id) == 32
        assert [capability.name for capability in registration.capabilities] == ["a", "b"]
        assert (registration.capabilities[1].effects, registration.capabilities[1].expected_latency.nanos) == (1, 5e8)
        assert (registration.max_concurrency, registration.weight, registration.version) == (3, 20, "1.2")
        assert (registration.heartbeat_interval.seconds, registration.heartbeat_interval.nanos) == (2, 5e8)
        assert not registration.HasField("max_sessions")
        assert hello.status.ready
        assert not hello.running
        assert [frame.sequence for frame in stream.frames] == list(range(1, len(stream.frames) + 1))
        assert agent.generation == 7


async def test_an_offer_is_answered_and_the_beat_says_what_came(server):
    async with running(server, default) as (agent, stream):
        stream.offer("t", "hello")
        result = await stream.result("t")
        assert result.output.text == "HELLO"
        assert (result.link, result.key.attempt) == (1, 1)
        assert not stream.items("accepts")  # an outcome in the same turn says it all
        await stream.settle()
        agent.available()
        (*_, beat) = await stream.wait("beats", 2)
        assert beat.last_frame == stream.sequence
        assert (beat.status.inflight, beat.status.free_slots) == (0, beat.status.max_concurrency)
        assert beat.status.HasField("last_completion_age")


async def test_many_offers_in_a_frame(server):
    async with running(server, default, max_concurrency=64) as (_, stream):
        task = {"payload": {"text": "x"}}
        stream.send(offers=[{"link": 1, "attempt": 1, "task": {"task_id": f"t{n}", **task}} for n in range(64)])
        await stream.wait("results", 64)
        assert len([frame for frame in stream.frames if frame.results]) == 1
        with_status = [result for result in stream.items("results") if result.HasField("status")]
        assert len(with_status) == 1  # warm heartbeats: at most one a second


async def test_work_that_lasts_is_accepted_first(server):
    go = asyncio.Event()

    async def slow(task):
        await go.wait()

    async with running(server, slow) as (_, stream):
        stream.offer("t", method="slow")
        (accept,) = await stream.wait("accepts")
        assert (accept.key.task_id, accept.key.attempt, accept.link) == ("t", 1, 1)
        go.set()
        assert (await stream.result("t")).output.WhichOneof("content") is None


async def test_what_begins_about_the_same_time_is_accepted_in_one_frame(server, monkeypatch):
    """Each frame wakes the server, perhaps a node behind it, and nobody waits for this one."""
    monkeypatch.setattr(notes, "ACCEPT_S", 0.5)  # not 10 ms: a machine that runs tests is busy
    go = asyncio.Event()

    async def slow(task):
        await (asyncio.sleep(0) if task.task_id == "over" else go.wait())

    async with running(server, slow, max_concurrency=16) as (_, stream):
        for number in range(4):
            stream.offer(f"t{number}", method="slow")
            await asyncio.sleep(0.01)  # offers that do not share a frame
        await stream.wait("accepts", 4)
        assert len([frame for frame in stream.frames if frame.accepts]) == 1
        stream.offer("over", method="slow")
        await stream.result("over")
        await stream.settle()
        assert "over" not in [accept.key.task_id for accept in stream.items("accepts")]
        go.set()
        await stream.wait("results", 5)


async def test_an_accept_waits_for_the_next_frame_where_frames_leave_anyway(server, monkeypatch):
    """PRF-6: of a handler that is known to take its time, an agent that is busy says with the next outcome that it has
    begun; one that is not says it soon, for there may be no next frame."""
    monkeypatch.setattr(notes, "BUSY_ACCEPT_S", 2.0)  # not 50 ms: a machine that runs tests is busy
    monkeypatch.setattr(notes, "ACCEPT_SHARE", 0.1)  # of 200 ms: 2 s
    go = asyncio.Event()

    async def slow(task):
        await (asyncio.sleep(0.2) if task.task_id == "known" else go.wait())

    async with running(server, slow, max_concurrency=16) as (_, stream):
        stream.offer("known", method="slow")
        await stream.wait("accepts")
        await stream.result("known")
        stream.offer("waits", method="slow")
        stream.offer("over", method="slow")
        await asyncio.sleep(0.1)
        assert len(stream.items("accepts")) == 1, "a frame is expected"
        go.set()
        await stream.wait("results", 3)
        assert len(stream.items("accepts")) == 1, "their outcomes say it all"


async def test_repeated_offers(server):
    calls = []
    go = asyncio.Event()

    async def slow(task):
        calls.append(task.attempt)
        await go.wait()
        return str(len(calls))

    async with running(server, slow) as (_, stream):
        stream.offer("t", method="slow")
        await stream.wait("accepts")
        stream.offer("t", method="slow")  # it runs: ignored
        await stream.settle()
        go.set()
        first = await stream.result("t")
        stream.offer("t", method="slow")  # it has ended: answered from memory
        await stream.wait("results", 2)
        assert stream.items("results")[1].output == first.output
        assert calls == [1]
        stream.offer("t", method="slow", attempt=2)  # another attempt is other work
        await stream.wait("results", 3)
        assert calls == [1, 2]
        stream.offer("t", method="slow", attempt=1)
        await stream.settle()
        assert calls == [1, 2]
        assert len(stream.items("results")) == 3


async def test_DLV_3_an_id_that_the_server_gives_to_another_task_is_worked_on(server, monkeypatch):
    """Results are kept for a while, dead letters until they are purged: then the same id is a new task."""
    texts = []

    async def work(task):
        texts.append(task.text)
        if task.text == "bad":
            raise ValueError
        return task.text

    async with running(server, work) as (_, stream):
        stream.offer("t", "bad")
        stream.acknowledge((await stream.wait("results"))[0])
        await stream.settle()
        stream.offer("t", "good")
        good = (await stream.wait("results", 2))[1]
        assert good.output.text == "good"
        stream.offer("t", "good")  # what the server does not have yet is said again
        assert (await stream.wait("results", 3))[2] == good
        stream.acknowledge(good)
        await stream.settle()
        stream.offer("t", "good")
        assert (await stream.wait("results", 4))[3] == good
        monkeypatch.setattr("reach.sdk.outcomes.HELD_S", 0.0)
        stream.offer("t", "other")
        assert (await stream.wait("results", 5))[4].output.text == "other"
        assert texts == ["bad", "good", "other"]


async def test_a_newer_attempt_ends_the_older(server):
    ended = []

    async def slow(task):
        try:
            await asyncio.sleep(0 if task.attempt == 2 else 30)
        except asyncio.CancelledError:
            ended.append(task.attempt)
            raise
        return "done"

    async with running(server, slow) as (agent, stream):
        stream.offer("t", method="slow")
        await stream.wait("accepts")
        stream.offer("t", method="slow", attempt=2)
        result = await stream.result("t")
        assert (result.key.attempt, result.output.text, ended) == (2, "done", [1])
        assert len(stream.items("results")) == 1
        assert agent._figures.inflight == 0


async def test_outcomes_without_acknowledgement_are_sent_again(server):
    async with running(server, default) as (_, stream):
        stream.offer("t", "x")
        (first,) = await stream.wait("results")
        stream.send(resync=True)
        results = await stream.wait("results", 2)
        assert results[1].output == first.output
        assert [entry.key.task_id for entry in stream.items("hellos")[1].running] == ["t"]
        stream.end(Unavailable("bye"))
        second = await server.agent()
        (again,) = await second.wait("results")
        assert (again.key, again.output) == (first.key, first.output)
        assert [entry.key.task_id for entry in second.items("hellos")[0].running] == ["t"]
        second.acknowledge(again)
        second.send(resync=True)
        await second.wait("hellos", 2)
        await asyncio.sleep(0.05)
        assert len(second.items("results")) == 1


async def test_HAZARD_4_hellos_are_counted_over_all_streams(server):
    async with running(server, default) as (_, stream):
        stream.send(resync=True)
        first, again = [one.number for one in await stream.wait("hellos", 2)]
        stream.end(Unavailable("bye"))
        (anew,) = await (await server.agent()).wait("hellos")
        assert 0 < first < again < anew.number


async def test_F4_what_is_said_of_attempts_waits_for_the_welcome_of_the_last_hello(server):
    """A hello goes to whoever has the pool, and back, while shards change hands. What follows it goes nowhere."""
    go = asyncio.Event()

    async def slow(task):
        await go.wait()
        await task.begin_effect("pay")
        return "done"

    async with running(server, slow) as (_, stream):
        stream.offer("t", method="slow")
        await stream.wait("accepts")
        server.link_welcome = None
        stream.send(resync=True)
        await stream.wait("hellos", 2)
        go.set()
        stream.offer("u", method="slow")
        await stream.settle()
        await asyncio.sleep(2 * notes.ACCEPT_S)
        await stream.settle()
        assert (stream.items("effects"), len(stream.items("accepts"))) == ([], 1)
        stream.send(links=[{"link": 1, "generation": 7}])
        effects = await stream.wait("effects", 2)
        stream.send(resync=True)
        await stream.wait("hellos", 3)
        stream.send(grants=[{"link": 1, "key": effect.key, "effect": "pay"} for effect in effects])
        await stream.settle()
        assert stream.items("results") == []
        stream.send(links=[{"link": 1, "generation": 7}])
        assert {result.output.text for result in await stream.wait("results", 2)} == {"done"}


async def test_F4_an_outcome_for_which_no_link_was_open_is_no_failure(server):
    """The node that had the link has handed it on: the outcome is the new owner's, told by the next hello."""
    async with running(server, default) as (_, stream):
        stream.offer("t", "x")
        (result,) = await stream.wait("results")
        error = InvalidRequest("there is no link 1: say hello first", Reason.UNEXPECTED_FRAME)
        stream.send(refusals=[refusal(error, link=1, key=result.key)])
        stream.send(resync=True)
        results = await stream.wait("results", 2)
        assert results[1].output == result.output
        assert [entry.key.task_id for entry in stream.items("hellos")[1].running] == ["t"]


async def test_outcomes_without_acknowledgement_are_sent_again_after_a_while(server, monkeypatch):
    monkeypatch.setattr("reach.sdk.outcomes.RESEND_S", 0.2)
    monkeypatch.setattr("reach.sdk.link.RESEND_S", 0.2)
    async with running(server, default) as (_, stream):
        stream.offer("t", "x")
        await stream.wait("results", 3)
        await stream.result("t")


async def test_what_runs_outlives_the_stream(server):
    go = asyncio.Event()

    async def slow(task):
        await go.wait()
        return "done"

    async with running(server, slow) as (_, first):
        first.offer("t", method="slow")
        await first.wait("accepts")
        await server.stop()
        await asyncio.sleep(0.2)
        await server.start()
        second = await server.agent()
        (hello,) = await second.wait("hellos")
        assert [(entry.key.task_id, entry.key.attempt) for entry in hello.running] == [("t", 1)]
        assert hello.registration.boot_id == first.items("hellos")[0].registration.boot_id
        go.set()
        assert (await second.result("t")).output.text == "done"


async def test_an_outcome_while_there_is_no_stream_is_kept(server):
    go = asyncio.Event()

    async def slow(task):
        await go.wait()
        return "done"

    async with running(server, slow) as (_, first):
        first.offer("t", method="slow")
        await first.wait("accepts")
        await server.stop()
        go.set()
        await asyncio.sleep(0.1)
        await server.start()
        second = await server.agent()
        assert (await second.result("t")).output.text == "done"


async def test_an_attempt_that_the_server_does_not_know_is_stopped(server):
    stopped = asyncio.Event()

    async def slow(task):
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    async with running(server, slow) as (_, first):
        first.offer("t", method="slow")
        await first.wait("accepts")
        server.link_welcome = lambda _hello: {"unknown": [{"task_id": "t", "attempt": 1}]}
        first.end(Unavailable("bye"))
        second = await server.agent()
        await asyncio.wait_for(stopped.wait(), 5)
        await asyncio.sleep(0.05)
        assert not second.items("results")


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_ATTEMPT, Reason.STALE_ATTEMPT])
async def test_C10_a_lost_lease_stops_the_handler(server, reason):
    stopped = asyncio.Event()

    async def slow(task):
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    async with running(server, slow) as (_, stream):
        stream.offer("t", method="slow")
        (accept,) = await stream.wait("accepts")
        stream.send(refusals=[refusal(InvalidRequest("late", reason), link=1, key=accept.key)])
        await asyncio.wait_for(stopped.wait(), 5)
        await asyncio.sleep(0.05)
        assert not stream.items("results")


async def test_cancel_stops_the_handler_and_says_so(server):
    async def slow(task):
        await asyncio.sleep(30)

    async with running(server, slow) as (agent, stream):
        stream.offer("t", method="slow")
        (accept,) = await stream.wait("accepts")
        stream.send(cancels=[{"link": 1, "key": accept.key, "reason": 40, "grace": {"seconds": 5}}])
        (result,) = await stream.wait("results")
        assert (result.error.reason, result.key.task_id) == (Reason.CANCELLED, "t")
        assert agent._figures.inflight == 0
        assert agent._figures.failures == 0


async def test_a_refused_outcome_becomes_a_failure(server):
    async with running(server, default) as (_, stream):
        stream.offer("t", "x")
        (result,) = await stream.wait("results")
        stream.send(refusals=[refusal(ResourceExhausted("3 MiB", Reason.RESULT_TOO_LARGE), link=1, key=result.key)])
        await asyncio.sleep(0.05)
        assert len(stream.items("results")) == 1  # retryable, as the server says: it is sent again later
        error = InvalidRequest("bad hint", Reason.INVALID_FIELD)
        stream.send(refusals=[refusal(error, link=1, key=result.key)])
        results = await stream.wait("results", 2)
        assert "bad hint" in results[1].error.message
        stream.send(refusals=[refusal(error, link=1, key=result.key)])
        stream.send(resync=True)
        await stream.wait("hellos", 2)
        await asyncio.sleep(0.05)
        assert len(stream.items("results")) == 2


@pytest.mark.parametrize("reason", [Reason.INVALID_FIELD, Reason.PERMISSION_DENIED, Reason.STALE_GENERATION])
async def test_a_hello_that_is_refused_for_good_ends_the_agent(server, reason):
    server.link_welcome = None
    agent = Agent("worker", addr=server.address)
    agent.add_handler(default)
    serving = asyncio.create_task(agent.serve())
    stream = await server.agent()
    await stream.wait("hellos")
    stream.send(refusals=[refusal(InvalidRequest("bad id", reason), link=1, closed=True)])
    with pytest.raises(InvalidRequest, match="bad id") as caught:
        await serving
    assert caught.value.reason is reason


async def test_a_stream_that_is_refused_for_good_ends_the_agent(server):
    server.refuse = InvalidRequest("who are you?", Reason.UNAUTHENTICATED)
    agent = Agent("worker", addr=server.address)
    agent.add_handler(default)
    with pytest.raises(InvalidRequest, match="who are you"):
        await agent.serve()
    with pytest.raises(InvalidRequest, match="who are you"):
        await agent.register()


async def test_a_hello_that_is_refused_for_now_is_tried_again(server):
    server.link_welcome = None
    agent = Agent("worker", addr=server.address)
    agent.add_handler(default)
    async with agent:
        for _ in range(2):
            stream = await server.agent()
            await stream.wait("hellos")
            error = Unavailable("not now", Reason.STORE_UNAVAILABLE, retry_after_ms=10)
            stream.send(refusals=[refusal(error, link=1, closed=True)])
        server.link_welcome = lambda _hello: {}
        stream = await server.agent()
        await stream.wait("beats")


async def test_reopen_makes_the_new_stream_before_it_breaks_the_old(server):
    go = asyncio.Event()

    async def slow(task):
        await go.wait()
        return "done"

    async with running(server, slow) as (_, first):
        first.offer("t", method="slow")
        await first.wait("accepts")
        server.link_welcome = None
        first.send(reopen=True)
        second = await server.agent()
        (hello,) = await second.wait("hellos")
        assert [entry.key.task_id for entry in hello.running] == ["t"]
        first.offer("old", method="slow")  # on a stream that is not ours any more
        await asyncio.sleep(0.2)
        assert not first.closed.is_set()
        second.send(links=[{"link": 1}])
        await asyncio.wait_for(first.closed.wait(), 5)
        go.set()
        assert (await second.result("t")).output.text == "done"
        assert len(second.items("results")) == 1


async def test_pings_are_answered(server):
    async with running(server, default) as (_, stream):
        stream.send(pings=[{"link": 1, "nonce": 42}])
        (pong,) = await stream.wait("pongs")
        assert pong.nonce == 42


async def test_beats_go_on_as_often_as_the_server_wants(server):
    server.link_welcome = lambda _hello: {"heartbeat_interval": {"nanos": 100_000_000}}
    calls = []

    def status():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no figures")
        return {"mood": "good"} if len(calls) == 3 else {"memory_watermark": 0.5}

    async with running(server, default, heartbeat_status=status) as (agent, stream):
        beats = await stream.wait("beats", 5)
        assert beats[0].status.memory_watermark == 0.5
        assert not beats[1].status.HasField("memory_watermark")
        assert not beats[2].status.HasField("memory_watermark")
        assert beats[3].status.memory_watermark == 0.5
        agent.ready = False
        agent.busy(longest_task=120.0)
        (*_, beat) = await stream.until(lambda: (b := stream.items("beats"))[-1].status.availability == 2 and b)
        assert (beat.status.ready, beat.status.longest_task.seconds) == (False, 120)
        assert agent.ready is False


async def test_register_then_heartbeat_then_report_result(server):
    agent = Agent("worker", addr=server.address)
    entered = asyncio.Event()

    @agent.route()
    async def wait(task):
        entered.set()
        await asyncio.sleep(30)

    assert await agent.register(timeout=5) == 7
    stream = await server.agent()
    await asyncio.sleep(0.05)
    assert not stream.items("beats")
    agent.start_heartbeat()
    await stream.wait("beats")
    stream.offer("t")
    await asyncio.wait_for(entered.wait(), 5)
    reporting = asyncio.create_task(agent.report_result("t", 1, {"answer": 42}))
    result = await stream.result("t")
    await reporting
    assert (result.output.text, result.output.media_type) == ('{"answer":42}', "application/json")
    with pytest.raises(InvalidRequest, match="does not run here"):
        await agent.checkpoint("t", 1, b"x")
    agent.stop(grace=0)
    await agent.serve()


async def test_register_without_a_server(unused_tcp_port):
    agent = Agent("worker", addr=f"127.0.0.1:{unused_tcp_port}")
    agent.add_handler(default)
    with pytest.raises(Unavailable, match="did not answer"):
        await agent.register(timeout=0.3)
    agent.stop(grace=0)
    await agent.serve()


async def test_unknown_method(server):
    async def summarize(task): ...

    async with running(server, summarize) as (_, stream):
        stream.offer("t", method="translate")
        result = await stream.result("t")
        assert result.error.reason == Reason.INVALID_FIELD
        assert "it has: summarize" in result.error.message
        stream.offer("u")  # no method: the only handler there is
        assert (await stream.result("u")).HasField("output")
    assert [method.name for method in stream.items("hellos")[0].registration.methods] == ["summarize"]


async def test_drain(server, caplog):
    go = asyncio.Event()

    async def slow(task):
        await go.wait()
        return "done"

    agent = Agent("worker", addr=server.address)
    agent.add_handler(slow)
    serving = asyncio.create_task(agent.serve())
    stream = await server.agent()
    await stream.wait("beats")
    stream.offer("t")
    await stream.wait("accepts")
    agent.stop()
    (*_, beat) = await stream.until(lambda: (b := stream.items("beats"))[-1].status.availability == 3 and b)
    assert beat.status.inflight == 1
    stream.offer("late")
    late = await stream.result("late")
    assert late.WhichOneof("outcome") == "released"
    assert not serving.done()
    go.set()
    assert (await stream.result("t")).output.text == "done"
    await stream.wait("goodbyes")
    await asyncio.wait_for(serving, 5)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert server.opened == 1


async def test_what_outlasts_the_grace_is_given_back(server):
    async def slow(task):
        await asyncio.sleep(30)

    agent = Agent("worker", addr=server.address)
    agent.add_handler(slow)
    serving = asyncio.create_task(agent.serve())
    stream = await server.agent()
    await stream.wait("beats")
    stream.offer("t")
    await stream.wait("accepts")
    agent.stop(grace=0.1)
    result = await stream.result("t")
    assert result.WhichOneof("outcome") == "released"
    (goodbye,) = await stream.wait("goodbyes")
    assert goodbye.release
    await asyncio.wait_for(serving, 5)
    async with asyncio.timeout(2):
        while server.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_cancelling_serve_gives_back_at_once(server):
    async def slow(task):
        await asyncio.sleep(30)

    agent = Agent("worker", addr=server.address)
    agent.add_handler(slow)
    serving = asyncio.create_task(agent.serve())
    stream = await server.agent()
    await stream.wait("beats")
    stream.offer("t")
    await stream.wait("accepts")
    serving.cancel()
    assert (await stream.result("t")).WhichOneof("outcome") == "released"
    await stream.wait("goodbyes")
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_agents_that_cannot_be():
    with pytest.raises(InvalidRequest, match="no handler"):
        await Agent("worker").serve()
    with pytest.raises(TypeError, match="one argument"):
        Agent("worker").add_handler(lambda: None)
    with pytest.raises(InvalidRequest, match="no field 'colour'"):
        Agent("worker", capabilities=[{"name": "x", "colour": "red"}])
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        Agent("worker", tags=[1])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="max_concurrency"):
        Agent("worker", max_concurrency=0)


async def test_failures_in_a_row_are_counted_and_forgotten(server, monkeypatch):
    async def breaks(task):
        raise ValueError("x")

    async def refuses(task):
        raise AgentError("no")

    async with running(server, breaks, refuses) as (agent, stream):
        for number in range(2):
            stream.offer(f"t{number}", method="breaks")
            await stream.result(f"t{number}")
        agent.available()
        await stream.until(lambda: stream.items("beats")[-1].status.consecutive_failure_count == 2)
        monkeypatch.setattr("reach.sdk.figures.FAILURE_MEMORY_S", 0.0)
        agent.available()
        await stream.until(lambda: stream.items("beats")[-1].status.consecutive_failure_count == 0)
        monkeypatch.setattr("reach.sdk.figures.FAILURE_MEMORY_S", 30.0)
        stream.offer("t2", method="breaks")
        await stream.result("t2")
        stream.offer("t3", method="refuses")  # an agent that says no works
        await stream.result("t3")
        assert agent._figures.failures == 0


async def test_A4_reconnects_for_ever_and_says_it_once(server, caplog):
    async with running(server, default) as (_, stream):
        await server.stop()
        await asyncio.sleep(1.5)
        assert len([record for record in caplog.records if "trying on for ever" in record.message]) == 1
        await server.start()
        again = await server.agent()
        await again.wait("beats")
    assert stream.closed.is_set()
