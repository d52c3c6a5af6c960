"""Events and text of tasks, also over broken connections."""

from __future__ import annotations

import asyncio

import pytest

from reach import AgentError, Client, InvalidRequest, Reason, Timeout, Unavailable
from reach.wire.status import error_to_proto
from tests.sdk.fake_server import CallerStream, FakeServer, refusal


@pytest.fixture
async def client(server: FakeServer):
    async with Client(server.address) as made:
        yield made


def collect(events) -> tuple[list, asyncio.Task]:
    found: list = []

    async def read():
        async for event in events:
            found.append(event)  # noqa: PERF401 - the list is looked at while it grows

    return found, asyncio.create_task(read())


async def eventually(condition) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def accepted(stream: CallerStream, count: int = 1) -> None:
    submits = await stream.wait("submits", count)
    stream.send(acknowledgements=[{"reference": submits[-1].reference, "task_id": submits[-1].task.task_id}])


async def opened(server: FakeServer, client: Client) -> CallerStream:
    """The client's stream, after one task."""
    sent = asyncio.create_task(client.send("m", task_id="first"))
    stream = await server.caller()
    stream.complete("first")
    await sent
    return stream


async def test_events_in_order_to_the_last(server, client):
    events, reading = collect(client.stream("m", task_id="t"))
    stream = await server.caller()
    await accepted(stream)
    assert stream.items("submits")[0].interest == 3
    stream.send(events=[{"task_id": "t", "sequence": 1, "accepted": {}}])
    stream.send(events=[{"task_id": "t", "sequence": 2, "attempt": 1, "started": {"instance_id": "i"}}])
    stream.delta("t", 3, "a")
    stream.send(events=[{"task_id": "t", "sequence": 4, "progress": {"fraction": 0.5, "note": "n"}}])
    stream.complete("t", "a", sequence=5)
    await reading
    assert [event.kind for event in events] == ["accepted", "started", "delta", "progress", "complete"]
    assert (events[2].text, events[2].mode, events[3].fraction, events[3].note) == ("a", "append", 0.5, "n")
    assert events[4].result.text == "a"
    assert not client._line.entries


async def test_a_stream_resumes_where_it_was(server, client):  # D1
    events, reading = collect(client.stream("m", task_id="t"))
    first = await server.caller()
    await accepted(first)
    for sequence in (1, 2, 3):
        first.delta("t", sequence, str(sequence))
    await eventually(lambda: len(events) == 3)
    first.end(Unavailable("bye"))
    second = await server.caller()
    (subscribe,) = await second.wait("subscribes")
    assert (subscribe.task_id, subscribe.after_sequence, subscribe.interest) == ("t", 3, 3)
    assert not second.items("submits")
    second.delta("t", 3, "again")  # a server that repeats is borne
    for sequence in (4, 5):
        second.delta("t", sequence, str(sequence))
    second.complete("t", sequence=6)
    await reading
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5, 6]


async def test_a_stream_that_was_not_accepted_is_submitted_again(server, client):
    _, reading = collect(client.stream("m", task_id="t"))
    first = await server.caller()
    (submit,) = await first.wait("submits")
    first.end(Unavailable("bye"))
    second = await server.caller()
    assert await second.wait("submits") == [submit]
    second.complete("t")
    await reading


async def test_final_event_right_after_the_first(server, client):  # D4
    stream = await opened(server, client)
    for number in range(1, 101):
        task_id = f"t{number}"
        events, reading = collect(client.stream("m", task_id=task_id))
        await accepted(stream, number + 1)
        result = {"task_id": task_id, "state": 5}
        stream.send(
            events=[
                {"task_id": task_id, "sequence": 1, "accepted": {}},
                {"task_id": task_id, "sequence": 2, "complete": result},
            ]
        )
        await reading
        assert [event.kind for event in events] == ["accepted", "complete"]


async def test_two_readers_see_all(server, client):  # D3
    one, reading_one = collect(client.follow("t"))
    two, reading_two = collect(client.follow("t", after_sequence=2))
    waiting = asyncio.create_task(client.wait_for_result("t"))
    stream = await server.caller()
    (subscribe,) = await stream.wait("subscribes")  # one for all that read it here
    assert (subscribe.after_sequence, subscribe.interest) == (0, 3)
    for sequence in range(1, 101):
        stream.delta("t", sequence, "x")
    stream.complete("t", sequence=101)
    await asyncio.gather(reading_one, reading_two)
    assert [event.sequence for event in one] == list(range(1, 102))
    assert [event.sequence for event in two] == list(range(3, 102))
    assert (await waiting).ok


async def test_a_reader_that_joins_gets_what_it_lacks_and_takes_nothing_away(server, client):
    stream = await opened(server, client)
    one, reading_one = collect(client.follow("t"))
    await stream.wait("subscribes")
    for sequence in (1, 2, 3):
        stream.delta("t", sequence, "x")
    await eventually(lambda: len(one) == 3)
    waiting = asyncio.create_task(client.wait_for_result("t"))
    two, reading_two = collect(client.follow("t", after_sequence=5))
    subscribes = await stream.wait("subscribes", 2)
    assert (subscribes[1].after_sequence, subscribes[1].interest) == (3, 3)
    await asyncio.sleep(0.05)
    assert len(stream.items("subscribes")) == 2
    for sequence in (4, 5, 6):
        stream.delta("t", sequence, "x")
    stream.complete("t", sequence=7)
    await asyncio.gather(reading_one, reading_two, waiting)
    assert [event.sequence for event in one] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.sequence for event in two] == [6, 7]


async def test_what_was_on_its_way_for_another_reader_is_too_early_for_one_that_joins(server, client):
    stream = await opened(server, client)
    one, reading_one = collect(client.follow("t"))
    await stream.wait("subscribes")
    for sequence in (1, 2, 3):
        stream.delta("t", sequence, "x")
    await eventually(lambda: len(one) == 3)
    two, reading_two = collect(client.follow("t"))
    await stream.wait("subscribes", 2)
    stream.delta("t", 4, "x")  # the server has not heard yet that the second one wants all
    for sequence in (1, 2, 3, 4):
        stream.delta("t", sequence, "x")
    stream.complete("t", sequence=5)
    await asyncio.gather(reading_one, reading_two)
    assert [event.sequence for event in one] == [1, 2, 3, 4, 5]
    assert [event.sequence for event in two] == [1, 2, 3, 4, 5]


async def test_those_who_share_a_reader_are_all_refused(server, client):
    stream = await opened(server, client)
    waiting = [asyncio.create_task(client.wait_for_result("t")) for _ in range(2)]
    for number in (1, 2):
        subscribes = await stream.wait("subscribes", number)
        error = InvalidRequest("?", Reason.TASK_NOT_FOUND)
        stream.send(refusals=[refusal(error, reference=subscribes[-1].reference)])
    for task in waiting:
        with pytest.raises(InvalidRequest):
            await task


@pytest.mark.parametrize("reads", [False, True])
async def test_CLU_3_who_waits_beside_one_that_gave_up_is_told_though_the_task_moves(server, client, reads):
    """The server has one reader for both, under the reference of the one that is gone."""
    first = asyncio.create_task(client.send("m", task_id="t"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    second = collect(client.follow("t"))[1] if reads else asyncio.create_task(client.wait_for_result("t"))
    await eventually(lambda: len(client._line.entries) == 2)
    if reads:
        await stream.wait("subscribes")
    asked = len(stream.items("subscribes"))
    first.cancel()
    await eventually(lambda: len(client._line.entries) == 1)
    error = Unavailable("it has moved", Reason.OWNER_UNAVAILABLE, retry_after_ms=10)
    stream.send(refusals=[{"reference": submit.reference, "task_id": "t", "error": error_to_proto(error)}])
    again = (await stream.wait("subscribes", asked + 1))[-1]
    assert again.task_id == "t"
    stream.complete("t", "done", sequence=1)
    await second


async def test_CLU_3_all_who_wait_for_a_task_that_moves_are_asked_for(server, client):
    """The one whose reader it was may not be one that asks for itself."""
    first = asyncio.create_task(client.send("m", task_id="t"))
    stream = await server.caller()
    await stream.wait("submits")
    second = asyncio.create_task(client.wait_for_result("t"))
    await eventually(lambda: len(client._line.entries) == 2)
    reference = max(client._line.entries)
    error = Unavailable("it has moved", Reason.OWNER_UNAVAILABLE, retry_after_ms=10)
    stream.send(refusals=[{"reference": reference, "task_id": "t", "error": error_to_proto(error)}])
    await stream.wait("submits", 2)
    stream.complete("t", "done", sequence=3)
    assert {(await first).text, (await second).text} == {"done"}


async def test_a_server_that_closes_the_stream_gets_everything_on_the_next(server, client):  # A12
    events, reading = collect(client.stream("m", task_id="t"))
    sent = asyncio.create_task(client.send("m", task_id="u"))
    first = await server.caller()
    await first.wait("submits", 2)
    await accepted(first)
    first.send(acknowledgements=[{"reference": first.items("submits")[0].reference, "task_id": "t"}])
    first.delta("t", 1, "x")
    await eventually(lambda: len(events) == 1)
    first.send(closing=True)
    second = await server.caller()
    (subscribe,), (submit,) = await second.wait("subscribes"), await second.wait("submits")
    assert (subscribe.task_id, subscribe.after_sequence, submit.task.task_id) == ("t", 1, "u")
    await asyncio.wait_for(first.closed.wait(), 5)
    second.complete("t", sequence=2)
    second.complete("u")
    await reading
    assert (await sent).ok


async def test_room_is_given_back_as_events_are_taken(server, client):
    reading = client.stream("m", task_id="t")
    begun = asyncio.create_task(anext(reading))
    stream = await server.caller()
    await accepted(stream)
    for sequence in range(1, 5):
        stream.delta("t", sequence, "x" * 40_000)
    await begun
    await asyncio.sleep(0.05)
    assert not stream.items("credits")
    await anext(reading)
    (credit,) = await stream.wait("credits")
    assert (credit.task_id, credit.bytes) == ("t", 2 * 40_064)
    await reading.aclose()
    await stream.wait("unsubscribes")


async def test_leaving_early_leaves_the_task_alone_unless_asked(server, client):
    stream = await opened(server, client)
    for number, cancel in enumerate((False, True)):
        reading = client.stream("m", task_id=f"t{number}", cancel_on_exit=cancel)
        begun = asyncio.create_task(anext(reading))
        await accepted(stream, number + 2)
        stream.delta(f"t{number}", 1, "x")
        await begun
        await reading.aclose()
        await stream.wait("unsubscribes", number + 1)
        await asyncio.sleep(0.05)
        assert [cancel.task_id for cancel in stream.items("cancels")] == ["t1"] * number


async def test_refused_and_too_late(server, client):
    events, reading = collect(client.stream("m", task_id="t"))
    stream = await server.caller()
    (submit,) = await stream.wait("submits")
    error = InvalidRequest("used", Reason.TASK_ID_REUSED)
    stream.send(refusals=[refusal(error, reference=submit.reference)])
    with pytest.raises(InvalidRequest):
        await reading
    events, reading = collect(client.stream("m", task_id="u", timeout=0.1))
    with pytest.raises(Timeout):
        await reading
    assert events == []


async def text_of(client, server, *steps) -> list:
    pieces, reading = collect(client.stream_text("m", task_id="t"))
    stream = await server.caller()
    await accepted(stream)
    for number, step in enumerate(steps, 1):
        stream.send(events=[{"task_id": "t", "sequence": number, "attempt": 1, **step}])
    await reading
    return [(str(piece), piece.restarts) for piece in pieces]


def delta(text: str, mode: int = 1, channel: str = "") -> dict:
    return {"delta": {"mode": mode, "channel": channel, "payload": {"text": text}}}


DONE = {"complete": {"task_id": "t", "state": 5, "output": {"text": "all"}}}


async def test_text_of_a_stream(server, client):
    told = await text_of(client, server, {"accepted": {}}, delta("a"), delta("-", channel="log"), delta("b"), DONE)
    assert told == [("a", False), ("b", False)]


async def test_text_of_an_agent_that_does_not_stream(server, client):
    assert await text_of(client, server, {"accepted": {}}, DONE) == [("all", False)]


async def test_text_that_begins_again_says_so(server, client):
    reset = {"attempt_reset": {"keep_up_to_sequence": 1}}
    assert await text_of(client, server, delta("a"), reset, delta("b"), delta("c"), DONE) == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


async def test_text_after_a_reset_without_deltas_is_the_answer(server, client):
    assert await text_of(client, server, delta("a"), {"attempt_reset": {}}, DONE) == [("a", False), ("all", True)]


async def test_text_that_was_skipped_comes_as_a_whole(server, client):
    gap = {"gap": {"from_sequence": 2, "to_sequence": 2, "snapshot": [{"mode": 2, "payload": {"text": "abc"}}]}}
    assert await text_of(client, server, delta("a"), gap, delta("d"), DONE) == [
        ("a", False),
        ("abc", True),
        ("d", False),
    ]


async def test_text_of_a_task_that_fails(server, client):
    error = {"task_id": "t", "state": 6, "error": error_to_proto(AgentError("cannot"))}
    with pytest.raises(AgentError, match="cannot"):
        await text_of(client, server, delta("a"), {"complete": error})
