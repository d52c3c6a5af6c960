"""The main job with nothing but the generated stubs: tasks, streams, failures, cancelling, reading late. No SDK."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.peers import AgentByHand, CallerByHand, kind_of, pb, reason_name, refusal, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUCCEEDED, CANCELLED = pb.TASK_STATE_SUCCEEDED, pb.TASK_STATE_CANCELLED
RETRY_SOON = {"delays": [{"nanos": 10_000_000}] * 3}


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs):
    """An agent on a type of its own, with four slots."""
    made = AgentByHand(stubs)
    await made.join(unique("worker"), max_concurrency=4)
    yield made
    await made.close()


def to(agent: AgentByHand) -> dict[str, str]:
    """The selector of one instance."""
    return {"instance_id": agent.instance_id}


async def run(stubs, **spec) -> list[Any]:
    """All events of a Run."""
    return [event async for frame in stubs.dispatch.Run(pb.RunRequest(task=spec), timeout=20) for event in frame.events]


async def read(stubs, task_id: str, after: int = 0) -> list[Any]:
    """All events of a StreamResult."""
    request = pb.StreamResultRequest(task_id=task_id, after_sequence=after)
    return [event async for frame in stubs.result.StreamResult(request, timeout=20) for event in frame.events]


async def test_the_first_frames_say_who_and_what_is_allowed(stubs, node, agent, caller):
    for stream in (agent, caller):
        welcome = (await stream.first_frame()).welcome
        assert welcome.protocol_version == "1"
        assert welcome.node_id == node.node_id
        assert welcome.payload_limit == 4 << 20
        assert welcome.frame_limit == 512 << 10
    link = agent.seen["links"][0]
    assert (link.link, link.instance_id, link.generation) == (1, agent.instance_id, 1)
    assert link.heartbeat_interval.seconds == 5
    assert [frame.sequence for frame in agent.frames] == list(range(1, len(agent.frames) + 1))


async def test_a_task_with_text_runs_and_its_events_are_readable(stubs, agent):
    asked = asyncio.create_task(run(stubs, selector=to(agent), payload={"text": "What is 2 + 2?"}))
    offer = await agent.next("offers")
    assert offer.task.payload.text == "What is 2 + 2?"
    assert offer.task.task_id  # made by the server
    assert (offer.link, offer.attempt, offer.fencing_token) == (1, 1, 1)
    assert offer.schedule_to_close.seconds > 3_000
    await agent.serve(offer, "4")
    events = await asked
    assert [kind_of(event) for event in events] == ["accepted", "started", "complete"]
    assert [event.sequence for event in events] == [1, 2, 3]
    assert {event.task_id for event in events} == {offer.task.task_id}
    assert events[1].started.instance_id == agent.instance_id
    result = events[2].complete
    assert (result.state, result.output.text, result.output.media_type) == (SUCCEEDED, "4", "text/plain")
    assert (result.attempts, result.transfers, result.instance_id) == (1, 0, agent.instance_id)


async def test_G2_raw_control_characters_in_text_stay_as_they_are(stubs, agent):
    """Models emit them in the middle of JSON: the answer is what the agent said, in pieces and in whole."""
    text = '{"poem": "' + "".join(map(chr, range(32))) + '\x7f\x85\u2028"}'
    asked = asyncio.create_task(run(stubs, selector=to(agent), payload={"text": text}))
    offer = await agent.next("offers")
    assert offer.task.payload.text == text
    key = {"task_id": offer.task.task_id, "attempt": 1}
    await agent.send(deltas=[{"link": 1, "key": key, "attempt_sequence": 1, "delta": {"payload": {"text": text}}}])
    await agent.finish(offer, output={"text": text, "media_type": "application/json"})
    events = await asked
    assert [event.delta.payload.text for event in events if kind_of(event) == "delta"] == [text]
    assert events[-1].complete.output.text == text
    found = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=offer.task.task_id))
    assert found.task.result.output.text == text


async def test_G2_bytes_stay_bytes(stubs, agent):
    data = bytes(range(256)) + b"\xff\n\t\x00"
    asked = asyncio.create_task(run(stubs, selector=to(agent), payload={"data": data, "media_type": "image/x-test"}))
    offer = await agent.next("offers")
    assert (offer.task.payload.data, offer.task.payload.media_type) == (data, "image/x-test")
    await agent.finish(offer, output={"data": data[::-1]})
    assert (await asked)[-1].complete.output == pb.Payload(data=data[::-1])


async def test_dispatch_waits_for_the_result_or_answers_at_once(stubs, agent):
    spec = {"task_id": unique("task"), "selector": to(agent), "payload": {"text": "hi"}}
    accepted = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    assert (accepted.task_id, accepted.deduplicated, accepted.HasField("result")) == (spec["task_id"], False, False)
    assert accepted.state in (pb.TASK_STATE_PENDING, pb.TASK_STATE_DELIVERED)
    offer = await agent.next("offers")
    waiting = asyncio.ensure_future(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec, wait={"seconds": 10})))
    late = asyncio.ensure_future(stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=spec["task_id"])))
    await agent.serve(offer, "hello")
    for answer in await asyncio.gather(waiting, late):
        assert (answer.result.state, answer.result.output.text) == (SUCCEEDED, "hello")
    assert (await waiting).deduplicated
    again = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec, wait={"seconds": 10}))
    assert (again.deduplicated, again.result.output.text) == (True, "hello")


async def test_a_caller_that_was_refused_takes_nothing_with_it(stubs, agent):
    """It has brought other content under an id that is taken, to be cancelled with it."""
    spec = {"task_id": unique("mine"), "selector": to(agent)}
    await stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec))
    offer = await agent.next("offers")
    other = CallerByHand(stubs)
    await other.open()
    await other.submit(1, "INTEREST_EVENTS", **spec, payload={"text": "other"}, cancel_with_caller=True)
    assert reason_name((await other.next("refusals")).error) == "TASK_ID_REUSED"
    await other.close()
    await agent.serve(offer, "hello")
    ended = await stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=spec["task_id"]))
    assert ended.result.state == SUCCEEDED


async def test_dispatch_with_a_short_wait_says_where_the_task_stands(stubs, agent):
    request = pb.DispatchRequest(task={"selector": to(agent)}, wait={"nanos": 50_000_000})
    answer = await stubs.dispatch.Dispatch(request)
    assert answer.state == pb.TASK_STATE_DELIVERED
    assert not answer.HasField("result")
    await agent.serve(await agent.next("offers"), "late")


async def test_a_wait_ends_before_the_deadline_of_its_call(stubs, agent):
    spec = {"selector": to(agent)}
    call = stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec, wait={"seconds": 30}), timeout=1)
    answer = await call  # and not DEADLINE_EXCEEDED: the caller learns what became of the task, and its id
    assert answer.state in (pb.TASK_STATE_DELIVERED, pb.TASK_STATE_RUNNING)
    call = stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=answer.task_id), timeout=1)
    assert (await refusal(call))[:2] == ("DEADLINE_EXCEEDED", "WAIT_EXPIRED")
    await agent.finish(await agent.next("offers"), "late")
    call = stubs.dispatch.WaitForResult(pb.WaitForResultRequest(task_id=answer.task_id), timeout=5)
    assert (await call).result.output.text == "late"


async def test_each_interest_hears_what_it_asked_for(agent, caller):
    ids = {name: unique(name.lower()) for name in ("ACCEPTANCE", "OUTCOME", "EVENTS")}
    for reference, (name, task_id) in enumerate(ids.items(), 1):
        await caller.submit(reference, f"INTEREST_{name}", task_id=task_id, selector=to(agent))
    for _ in ids:
        await agent.serve(await agent.next("offers"), "done")
    await caller.complete(ids["OUTCOME"])
    await caller.complete(ids["EVENTS"])
    assert {answer.reference: answer.task_id for answer in caller.seen["acknowledgements"]} == {
        1: ids["ACCEPTANCE"],
        3: ids["EVENTS"],
    }
    assert caller.events_of(ids["ACCEPTANCE"]) == []
    assert [kind_of(event) for event in caller.events_of(ids["OUTCOME"])] == ["complete"]
    assert [kind_of(event) for event in caller.events_of(ids["EVENTS"])] == ["accepted", "started", "complete"]
    assert not caller.seen["refusals"]


async def test_deltas_are_streamed_and_can_be_the_result(agent, caller):
    task_id = unique("deltas")
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector=to(agent))
    offer = await agent.next("offers")
    for number, text in enumerate(("Hel", "lo ", "wörld"), 1):
        await agent.delta(offer, number, text)
    await agent.delta(offer, 3, "a repeat is dropped")
    await agent.delta(offer, 4, "side", channel="notes")
    await agent.finish(offer, folded={"last_attempt_sequence": 4})
    result = await caller.complete(task_id)
    assert result.output.text == "Hello wörld"
    events = caller.events_of(task_id)
    assert [kind_of(event) for event in events] == ["accepted", "started", *["delta"] * 4, "complete"]
    assert [event.delta.payload.text for event in events[2:5]] == ["Hel", "lo ", "wörld"]
    assert events[5].delta.channel == "notes"
    assert [event.sequence for event in events] == list(range(1, 8))
    assert sum(credit.bytes for credit in agent.seen["credits"]) == len("Hello wörld".encode()) + len("side")


async def test_a_fold_with_missing_deltas_asks_for_the_whole(agent, caller):
    task_id = unique("hole")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector=to(agent))
    offer = await agent.next("offers")
    await agent.delta(offer, 1, "a")
    await agent.delta(offer, 3, "c")
    await agent.send(
        results=[{"link": 1, "key": {"task_id": task_id, "attempt": 1}, "folded": {"last_attempt_sequence": 3}}]
    )
    refused = await agent.next("refusals")
    assert (reason_name(refused.error), refused.key.task_id, refused.closed) == ("UNEXPECTED_FRAME", task_id, False)
    await agent.finish(offer, "abc")
    assert (await caller.complete(task_id)).output.text == "abc"


async def test_progress_and_checkpoint_reach_readers_and_the_next_attempt(stubs, agent, caller):
    task_id = unique("checkpoint")
    spec = {"selector": {"agent_type": agent.instance_id}, "retry": RETRY_SOON}
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    for one in (first, second):
        await one.join(agent.instance_id)
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, **spec)
    await agent_with_offer(first, second)
    one, other = (first, second) if first.seen["offers"] else (second, first)
    offer = await one.next("offers")
    key = {"task_id": task_id, "attempt": 1}
    await one.send(
        progress=[{"link": 1, "key": key, "progress": {"fraction": 0.5, "note": "half"}, "checkpoint": b"page 7"}]
    )
    await caller.until(lambda: any(event.HasField("progress") for event in caller.events_of(task_id)))
    await one.close()  # the process is gone: the other one goes on from the checkpoint
    again = await other.next("offers")
    assert (again.attempt, again.fencing_token, again.checkpoint) == (2, 2, b"page 7")
    assert offer.checkpoint == b""
    await other.serve(again, "done")
    result = await caller.complete(task_id)
    assert (result.attempts, result.transfers, result.instance_id) == (2, 1, other.instance_id)
    kinds = [kind_of(event) for event in caller.events_of(task_id)]
    assert kinds == ["accepted", "started", "progress", "retrying", "started", "complete"]
    assert caller.events_of(task_id)[3].retrying.reason == "INSTANCE_LOST"
    await other.close()


async def agent_with_offer(*agents: AgentByHand) -> None:
    """Waits until one of them has an offer."""
    async with asyncio.timeout(20):
        while not any(agent.seen["offers"] for agent in agents):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_DLV_3_who_submits_again_on_the_same_stream_is_told_from_the_beginning_and_only_once(agent, caller):
    task_id = unique("again")
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector=to(agent))
    offer = await agent.next("offers")
    await agent.delta(offer, 1, "a")
    await caller.until(lambda: len(caller.events_of(task_id)) == 3)
    await caller.submit(2, "INTEREST_EVENTS", task_id=task_id, selector=to(agent))
    await caller.until(lambda: len(caller.events_of(task_id)) == 6)
    await agent.delta(offer, 2, "b")
    await agent.finish(offer, "ab")
    await caller.complete(task_id)
    assert [event.sequence for event in caller.events_of(task_id)] == [1, 2, 3, 1, 2, 3, 4, 5]


async def test_what_an_agent_calls_a_failure_is_told_and_not_retried(agent, caller):
    task_id = unique("fails")
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector=to(agent))
    error = {"error_class": "ERROR_CLASS_AGENT_ERROR", "reason": "ERROR_REASON_AGENT_FAILED", "message": "no such page"}
    await agent.finish(await agent.next("offers"), error=error)
    result = await caller.complete(task_id)
    assert (result.state, result.attempts) == (pb.TASK_STATE_FAILED, 1)
    assert (reason_name(result.error), result.error.message) == ("AGENT_FAILED", "no such page")


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (
            {"error_class": "ERROR_CLASS_AGENT_ERROR", "reason": "ERROR_REASON_AGENT_REJECTED"},
            "REJECTED",
            "AGENT_REJECTED",
        ),
        ({"reason": "ERROR_REASON_AGENT_REJECTED"}, "REJECTED", "AGENT_REJECTED"),
        ({}, "FAILED", "AGENT_FAILED"),
        ({"error_class": "ERROR_CLASS_AGENT_ERROR"}, "FAILED", "AGENT_FAILED"),
        ({"error_class": "ERROR_CLASS_INVALID_REQUEST"}, "FAILED", "INVALID_FIELD"),
        ({"error_class": "ERROR_CLASS_INTERNAL"}, "DEAD_LETTERED", "INTERNAL_FAULT"),
        ({"error_class": 77, "reason": 99}, "DEAD_LETTERED", "INTERNAL_FAULT"),
    ],
)
async def test_what_the_class_and_the_reason_of_a_failure_come_to(agent, caller, error, state, reason):
    task_id = unique("class")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector=to(agent))
    await agent.finish(await agent.next("offers"), error={"message": "no", **error})
    result = await caller.complete(task_id)
    assert (pb.TaskState.Name(result.state), reason_name(result.error)) == (f"TASK_STATE_{state}", reason)
    assert result.attempts == 1


async def test_an_unavailable_agent_is_left_for_another_instance(stubs, caller):
    kind, task_id = unique("pair"), unique("moves")
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    for one in (first, second):
        await one.join(kind)
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector={"agent_type": kind}, retry=RETRY_SOON)
    await agent_with_offer(first, second)
    one, other = (first, second) if first.seen["offers"] else (second, first)
    error = {"error_class": "ERROR_CLASS_UNAVAILABLE", "reason": "ERROR_REASON_AGENT_UNAVAILABLE", "message": "reboot"}
    await one.finish(await one.next("offers"), error=error)
    await other.serve(await other.next("offers"), "second try")
    result = await caller.complete(task_id)
    assert (result.output.text, result.attempts, result.transfers) == ("second try", 2, 1)
    kinds = [kind_of(event) for event in caller.events_of(task_id)]
    assert kinds == ["accepted", "started", "retrying", "started", "complete"] or kinds == [
        "accepted", "retrying", "started", "complete",
    ]  # fmt: skip
    for one in (first, second):
        await one.close()


async def test_a_task_that_is_given_back_moves_at_once(stubs, caller):
    kind, task_id = unique("pair"), unique("released")
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    for one in (first, second):
        await one.join(kind)
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"agent_type": kind})
    await agent_with_offer(first, second)
    one, other = (first, second) if first.seen["offers"] else (second, first)
    await one.finish(await one.next("offers"), released={"reason": "I drain"})
    await other.serve(await other.next("offers"), "mine")
    assert (await caller.complete(task_id)).output.text == "mine"
    for one in (first, second):
        await one.close()


@pytest.mark.parametrize("by", ["unary", "stream"])
async def test_a_cancelled_task_stops_at_the_agent_and_stays_cancelled(stubs, agent, caller, by):
    task_id = unique("cancelled")
    await caller.submit(1, "INTEREST_EVENTS", task_id=task_id, selector=to(agent))
    offer = await agent.next("offers")
    await agent.accept(offer)
    if by == "unary":
        answer = await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id, reason="no longer needed"))
        assert (answer.state, reason_name(answer.result.error)) == (CANCELLED, "CANCELLED")
    else:
        await caller.send(cancels=[{"reference": 9, "task_id": task_id, "reason": "no longer needed"}])
        answer = await caller.next("cancelled")
        assert (answer.reference, answer.task_id, answer.state) == (9, task_id, CANCELLED)
    stop = await agent.next("cancels")
    assert (stop.key.task_id, stop.key.attempt, stop.link) == (task_id, 1, 1)
    assert stop.grace.seconds == 5
    await agent.finish(offer, "too late")  # acknowledged, and dropped
    assert (await caller.complete(task_id)).state == CANCELLED
    again = await stubs.dispatch.CancelTask(pb.CancelTaskRequest(task_id=task_id))
    assert again.state == CANCELLED
    found = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id))
    assert found.task.state == CANCELLED
    assert not found.task.result.HasField("output")


async def test_streams_are_read_late_from_any_position_and_to_the_end(stubs, agent):
    task_id = unique("late")
    request = pb.DispatchRequest(task={"task_id": task_id, "selector": to(agent)})
    await stubs.dispatch.Dispatch(request)
    offer = await agent.next("offers")
    await agent.delta(offer, 1, "one ")
    early = asyncio.create_task(read(stubs, task_id))
    await agent.delta(offer, 2, "two")
    await agent.finish(offer, folded={"last_attempt_sequence": 2})
    everything = await early
    assert [kind_of(event) for event in everything] == ["accepted", "started", "delta", "delta", "complete"]
    for after in range(len(everything)):
        assert await read(stubs, task_id, after) == everything[after:]
    assert await read(stubs, task_id, after=len(everything)) == []  # it has had them all: the call ends
    call = stubs.result.StreamResult(pb.StreamResultRequest(task_id=task_id, after_sequence=99))
    assert (await refusal(call))[:2] == ("OUT_OF_RANGE", "SEQUENCE_OUT_OF_RANGE")


async def test_subscribers_on_a_stream_read_tasks_of_others(stubs, agent, caller):
    task_id = unique("shared")
    request = pb.DispatchRequest(task={"task_id": task_id, "selector": to(agent)})
    await stubs.dispatch.Dispatch(request)
    offer = await agent.next("offers")
    await agent.delta(offer, 1, "abc")
    await caller.send(
        subscribes=[{"reference": 5, "task_id": task_id, "after_sequence": 2, "interest": "INTEREST_EVENTS"}]
    )
    await caller.until(lambda: caller.events_of(task_id))
    other = CallerByHand(stubs)
    await other.open()
    await other.send(subscribes=[{"reference": 1, "task_id": task_id, "interest": "INTEREST_OUTCOME"}])
    await other.send(unsubscribes=[{"task_id": task_id}])
    await agent.serve(offer, "abc")
    await caller.complete(task_id)
    assert [kind_of(event) for event in caller.events_of(task_id)] == ["delta", "complete"]
    await other.send(subscribes=[{"reference": 2, "task_id": task_id, "interest": "INTEREST_OUTCOME"}])
    await other.complete(task_id)
    assert [kind_of(event) for event in other.events_of(task_id)] == ["complete"]  # not told twice
    await other.close()


async def test_a_caller_that_half_closes_still_gets_what_it_asked_for(stubs, agent):
    """As `grpcurl -d '…'`, and as clients in many languages, do: send all, close the sending side, read to the end."""
    caller, ids = CallerByHand(stubs), [unique("half") for _ in range(3)]
    for reference, (task_id, interest) in enumerate(zip(ids, ("ACCEPTANCE", "OUTCOME", "EVENTS"), strict=True), 1):
        await caller.submit(reference, f"INTEREST_{interest}", task_id=task_id, selector=to(agent))
    await caller.send(cancels=[{"reference": 7, "task_id": "nobody-knows-it"}])
    await caller.half_close()
    for _ in ids:
        await agent.serve(await agent.next("offers"), "ok")
    code, reason = await caller.ended()
    assert (code.name, reason) == ("OK", "")
    assert sorted(answer.reference for answer in caller.seen["acknowledgements"]) == [1, 3]
    assert [one.reference for one in caller.seen["refusals"]] == [7]
    assert [kind_of(event) for event in caller.events_of(ids[1])] == ["complete"]
    assert [kind_of(event) for event in caller.events_of(ids[2])] == ["accepted", "started", "complete"]
