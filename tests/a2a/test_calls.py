"""The SDK's own client calls us over all three bindings (API-3)."""

import asyncio

import pytest
from a2a.client.client import ClientCallContext
from a2a.types import a2a_pb2
from a2a.utils import errors as a2a

from reach.a2a.tasks import ANSWER
from reach.wire.a2a.words import CURSOR
from tests.a2a.conftest import message
from tests.rpc.peers import key_of, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

S = a2a_pb2.TaskState


def text_of(artifact):
    return "".join(part.text for part in artifact.parts)


async def task_in(stream):
    """The one task that a call answers with."""
    (answer,) = [one async for one in stream]
    return answer.task


async def test_API_3_a_message_is_a_task_and_its_answer_an_artifact(calling, agent, binding):
    await agent.join(name := unique("shout"), capabilities=[{"name": "shouting"}])
    client = await calling.client(name, binding, streaming=False)
    asking = asyncio.ensure_future(task_in(client.send_message(message("hello"))))
    offer = await agent.next("offers")
    assert offer.task.payload.text == "hello"
    assert offer.task.session.session_id
    await agent.serve(offer, "HELLO")
    task = await asking
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert [text_of(one) for one in task.artifacts] == ["HELLO"]
    assert task.artifacts[0].artifact_id == ANSWER
    assert task.context_id == offer.task.session.session_id
    assert [part.text for one in task.history for part in one.parts] == ["hello"]
    got = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id, history_length=0))
    assert got.artifacts == task.artifacts
    assert not got.history


async def started(calling, agent, binding, **fields):
    """A client, a stream of a task that an agent works on, and its offer."""
    await agent.join(name := unique("agent"))
    client = await calling.client(name, binding)
    stream = client.send_message(message("go", **fields))
    first = await anext(stream)
    offer = await agent.next("offers")
    return client, stream, first, offer


async def until(stream, condition):
    """What comes, up to what is waited for."""
    seen = []
    async for one in stream:
        seen.append(one)
        if condition(one):
            return seen
    raise AssertionError(seen)


def state_in(one):
    return one.status_update.status.state if one.HasField("status_update") else None


def seq_of(metadata):
    return int(metadata[CURSOR]["seq"])


async def test_API_3_a_stream_has_the_task_first_then_pieces_then_the_end(calling, agent, binding):
    _, stream, first, offer = await started(calling, agent, binding)
    assert first.task.status.state == S.TASK_STATE_SUBMITTED
    assert first.task.id
    assert first.task.context_id
    await agent.accept(offer)
    await agent.delta(offer, 1, "one ")
    await agent.send(progress=[{"link": 1, "key": key_of(offer), "progress": {"fraction": 0.5, "note": "half"}}])
    await agent.delta(offer, 2, "two")
    await agent.finish(offer, "one two")
    rest = [one async for one in stream]
    assert state_in(rest[0]) == S.TASK_STATE_WORKING
    pieces = [one.artifact_update for one in rest if one.HasField("artifact_update")]
    assert [(one.append, one.last_chunk, text_of(one.artifact)) for one in pieces] == [
        (False, False, "one "),
        (True, False, "two"),
        (True, True, ""),
    ]
    assert {one.artifact.artifact_id for one in pieces} == {ANSWER}
    notes = [one.status_update for one in rest if one.status_update.status.message.parts]
    assert [one.status.message.parts[0].text for one in notes] == ["half"]
    assert notes[0].metadata["fraction"] == 0.5
    assert state_in(rest[-1]) == S.TASK_STATE_COMPLETED
    numbers = [
        seq_of((one.artifact_update if one.HasField("artifact_update") else one.status_update).metadata) for one in rest
    ]
    assert numbers == sorted(numbers)


async def test_API_3_an_answer_that_was_not_streamed_comes_whole(calling, agent):
    _, stream, _, offer = await started(calling, agent, "JSONRPC")
    await agent.accept(offer)
    await agent.delta(offer, 1, "draft")
    await agent.finish(offer, output={"text": '{"n": 1}', "media_type": "application/json"})
    pieces = [one.artifact_update async for one in stream if one.HasField("artifact_update")]
    assert [(one.append, one.last_chunk) for one in pieces] == [(False, False), (False, True)]
    assert pieces[1].artifact.parts[0].data.struct_value.fields["n"].number_value == 1


async def test_API_3_D1_who_comes_back_gets_a_snapshot_then_what_follows(calling, agent, binding):
    client, stream, first, offer = await started(calling, agent, binding)
    await agent.accept(offer)
    await agent.delta(offer, 1, "a")
    await until(stream, lambda one: one.HasField("artifact_update"))
    await stream.aclose()
    await agent.delta(offer, 2, "b")
    again = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id))
    snapshot = (await anext(again)).task
    seen = [text_of(one) for one in snapshot.artifacts]
    assert snapshot.status.state == S.TASK_STATE_WORKING
    at = seq_of(snapshot.metadata)
    await agent.delta(offer, 3, "c")
    await agent.finish(offer, "abc")
    for one in [one async for one in again]:
        update = one.artifact_update if one.HasField("artifact_update") else one.status_update
        assert seq_of(update.metadata) > at
        if one.HasField("artifact_update"):
            assert one.artifact_update.append
            seen.append(text_of(one.artifact_update.artifact))
    assert "".join(seen) == "abc"
    assert state_in(one) == S.TASK_STATE_COMPLETED
    with pytest.raises(a2a.UnsupportedOperationError):
        await anext(client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id)))


async def test_API_3_D1_the_cursor_extension_replays_what_was_missed_even_of_what_has_ended(calling, agent, binding):
    client, stream, first, offer = await started(calling, agent, binding)
    await agent.accept(offer)
    await agent.delta(offer, 1, "a")
    seen = await until(stream, lambda one: one.HasField("artifact_update"))
    await stream.aclose()
    await agent.delta(offer, 2, "b")
    await agent.finish(offer, "ab")
    context = ClientCallContext(
        service_parameters={
            "A2A-Extensions": CURSOR,
            "reach-after-seq": str(seq_of(seen[-1].artifact_update.metadata)),
        }
    )
    request = a2a_pb2.SubscribeToTaskRequest(id=first.task.id)
    told = [one async for one in client.subscribe(request, context=context)]
    assert told[0].HasField("task")
    pieces = [one.artifact_update for one in told if one.HasField("artifact_update")]
    assert pieces[0].artifact.parts[0].text == "b"
    assert state_in(told[-1]) == S.TASK_STATE_COMPLETED


async def test_API_3_two_readers_see_the_same_and_one_that_leaves_changes_nothing(calling, agent):
    client, stream, first, offer = await started(calling, agent, "GRPC")
    other = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id))
    await anext(other)
    third = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id))
    await anext(third)
    await third.aclose()
    await agent.accept(offer)
    for number in range(1, 6):
        await agent.delta(offer, number, str(number))
    await agent.finish(offer, "12345")
    one, two = [
        [one.artifact_update async for one in each if one.HasField("artifact_update")] for each in (stream, other)
    ]
    assert one == two
    assert len(one) == 6


async def test_API_3_a_question_is_input_required_and_a_message_to_the_task_answers_it(calling, agent, binding):
    client, stream, first, offer = await started(calling, agent, binding)
    await agent.accept(offer)
    await agent.finish(
        offer, waiting={"waiting_for": "WAITING_FOR_INPUT", "prompt": {"text": "which?"}, "question": "q"}
    )
    told = [one async for one in stream]
    assert state_in(told[-1]) == S.TASK_STATE_INPUT_REQUIRED
    assert told[-1].status_update.status.message.parts[0].text == "which?"
    task = await client.get_task(a2a_pb2.GetTaskRequest(id=first.task.id))
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED
    assert task.status.message.parts[0].text == "which?"
    follow = message("this one", task_id=task.id, context_id=task.context_id)
    stream = client.send_message(follow)
    assert (await anext(stream)).task.id == task.id
    assert (await agent.next("inputs")).payload.text == "this one"
    await agent.finish(offer, "done")
    told = [one async for one in stream]
    assert state_in(told[-1]) == S.TASK_STATE_COMPLETED
    assert S.TASK_STATE_INPUT_REQUIRED not in [state_in(one) for one in told]  # nothing of before comes again
    with pytest.raises(a2a.UnsupportedOperationError):
        await anext(client.send_message(message("more", task_id=task.id)))
    with pytest.raises(a2a.InvalidParamsError):
        await anext(client.send_message(message("more", task_id=task.id, context_id="another")))
    with pytest.raises(a2a.TaskNotFoundError):
        await anext(client.send_message(message("more", task_id="nobody's")))


async def test_API_3_a_blocking_message_comes_back_with_the_question(calling, agent, binding):
    await agent.join(name := unique("asks"))
    client = await calling.client(name, binding, streaming=False)
    asking = asyncio.ensure_future(task_in(client.send_message(message("go"))))
    offer = await agent.next("offers")
    await agent.accept(offer)
    await agent.finish(offer, waiting={"waiting_for": "WAITING_FOR_AUTH", "prompt": {"text": "log in"}})
    task = await asking
    assert task.status.state == S.TASK_STATE_AUTH_REQUIRED
    answering = asyncio.ensure_future(task_in(client.send_message(message("token", task_id=task.id))))
    assert (await agent.next("inputs")).payload.text == "token"
    await agent.finish(offer, "done")
    assert (await answering).status.state == S.TASK_STATE_COMPLETED


async def test_API_3_a_task_can_be_given_without_waiting_and_be_cancelled(calling, agent, binding):
    await agent.join(name := unique("slow"))
    client = await calling.client(name, binding, polling=True, streaming=False)
    task = await task_in(client.send_message(message("go")))
    assert task.status.state == S.TASK_STATE_SUBMITTED
    await agent.next("offers")
    gone = await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))
    assert gone.status.state == S.TASK_STATE_CANCELED
    assert (await agent.next("cancels")).key.task_id == task.id
    with pytest.raises(a2a.TaskNotCancelableError):
        await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))
    with pytest.raises(a2a.TaskNotFoundError):
        await client.cancel_task(a2a_pb2.CancelTaskRequest(id="nobody's"))
    with pytest.raises(a2a.TaskNotFoundError):
        await client.get_task(a2a_pb2.GetTaskRequest(id="nobody's"))


async def test_API_3_the_same_message_is_the_same_task(calling, agent, binding):
    await agent.join(name := unique("twice"))
    client = await calling.client(name, binding, polling=True, streaming=False)
    request = message("go")
    one, two = [await task_in(client.send_message(request)) for _ in range(2)]
    assert one.id == two.id
    other = message("stop", message_id=request.message.message_id)
    assert (await task_in(client.send_message(other))).id != one.id
    await agent.serve(await agent.next("offers"), "done")
    ended = [told async for told in (await calling.client(name, binding)).send_message(request)]
    assert ended[0].task.id == one.id
    assert state_in(ended[-1]) == S.TASK_STATE_COMPLETED
    assert [offer.task.task_id for offer in agent.seen["offers"]].count(one.id) == 1


async def test_API_3_a_failure_is_a_state_and_not_a_broken_call(calling, agent, binding):
    _, stream, _, offer = await started(calling, agent, binding)
    await agent.accept(offer)
    await agent.finish(
        offer,
        error={
            "error_class": "ERROR_CLASS_AGENT_ERROR",
            "reason": "ERROR_REASON_AGENT_FAILED",
            "message": "no such city",
        },
    )
    told = [one async for one in stream]
    assert state_in(told[-1]) == S.TASK_STATE_FAILED
    assert told[-1].status_update.status.message.parts[0].text == "no such city"
    assert told[-1].status_update.metadata["reason"] == "AGENT_FAILED"


async def test_API_3_tasks_are_listed_what_changed_last_first(calling, agent, binding):
    await agent.join(name := unique("listed"))
    client = await calling.client(name, binding, polling=True, streaming=False)
    context = unique("conversation")
    ids = [(await task_in(client.send_message(message(str(n), context_id=context)))).id for n in range(5)]
    offers = [await agent.next("offers")]
    await agent.serve(offers[0], "first is done")
    request = a2a_pb2.ListTasksRequest(context_id=context, page_size=2, include_artifacts=True)
    pages = []
    while True:
        page = await client.list_tasks(request)
        pages.append(page)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert [len(page.tasks) for page in pages] == [2, 2, 1]
    assert {page.total_size for page in pages} == {5}
    assert {page.page_size for page in pages} == {2}
    told = [task for page in pages for task in page.tasks]
    assert sorted(task.id for task in told) == sorted(ids)
    stamps = [task.status.timestamp.ToNanoseconds() for task in told]
    assert stamps == sorted(stamps, reverse=True)
    done = await client.list_tasks(a2a_pb2.ListTasksRequest(context_id=context, status=S.TASK_STATE_COMPLETED))
    assert [task.id for task in done.tasks] == [offers[0].task.task_id]
    assert not done.tasks[0].artifacts
    for wrong in ({"page_size": 0}, {"page_size": 101}, {"page_token": "!"}):
        with pytest.raises(a2a.InvalidParamsError):
            await client.list_tasks(a2a_pb2.ListTasksRequest(**wrong))


async def test_API_3_what_is_not_there_is_said_in_the_same_words(calling, agent, binding):
    await agent.join(name := unique("wrong"), input_media_types=["text/plain"])
    client = await calling.client(name, binding, streaming=False)
    config = a2a_pb2.TaskPushNotificationConfig(task_id="t", url="https://example.com/hook")
    with pytest.raises(a2a.PushNotificationNotSupportedError):
        await client.create_task_push_notification_config(config)
    with pytest.raises(a2a.ContentTypeNotSupportedError):
        await task_in(client.send_message(message(parts=[a2a_pb2.Part(raw=b"x", media_type="image/png")])))
    with pytest.raises(a2a.InvalidParamsError):
        await task_in(client.send_message(message("x", message_id="")))
    assert not (await calling.card(name)).capabilities.push_notifications
