"""Bytes that are no messages, and messages that are too large: refused where they come in, and nothing else suffers."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from reach.testing.server import LocalServer
from tests.rpc.hostile import METHODS, MIB
from tests.rpc.peers import (
    TIMEOUT,
    AgentByHand,
    CallerByHand,
    Stubs,
    golden,
    key_of,
    pb,
    reason_name,
    refusal,
    running,
    unique,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

LIMIT = 4 * MIB
RECEIVED = LIMIT + MIB // 4
"""What the server takes at most as one message."""
NO_MESSAGES = {
    "text": b"hello, this is no protobuf",
    "cut short": b"\x0a\x7fabc",
    "a group": b"\x0b\x0b\x0b",
    "a varint without end": b"\x08" + b"\xff" * 11,
    "a length of many gigabytes": b"\x0a\xff\xff\xff\xff\x7f",
}


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs):
    made = AgentByHand(stubs)
    await made.join(unique("large"), max_concurrency=16)
    yield made
    await made.close()


def raw(stubs: Stubs, path: str, *frames: bytes, **options: Any) -> Any:
    """A call with bytes instead of messages."""
    method = METHODS[path]
    kinds = ["stream" if yes else "unary" for yes in (method.client_streaming, method.server_streaming)]
    make = getattr(stubs.channel, "_".join(kinds))(path, request_serializer=bytes, response_deserializer=bytes)

    async def several():
        for frame in frames:
            yield frame

    return make(several() if method.client_streaming else frames[0], timeout=TIMEOUT, **options)


@pytest.mark.parametrize("path", METHODS)
async def test_bytes_that_do_not_decode(stubs, path):
    """A field of another wire type than ours is an unknown field by the rules of protobuf, and no error."""
    for what, data in NO_MESSAGES.items():
        code, reason, text = await refusal(raw(stubs, path, data))
        if text == "Internal error from Core":  # the client lost the status, grpc/grpc#36066: once more
            code, reason, text = await refusal(raw(stubs, path, data))
        assert (code, reason) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE"), (what, text)
        assert text == "the message could not be decoded"  # and not the name of a class of ours
    await golden(stubs)


@pytest.mark.parametrize("path", ["DispatchService/Dispatch", "RegistryService/Register", "AgentService/Attach"])
async def test_g1_nesting_without_end_is_no_message(stubs, path):
    """No message of ours holds itself, so only unknown groups can nest; protobuf stops reading them at 100."""
    for depth in (101, 1_000, 100_000, 1_000_000):
        data = b"\x7b" * depth + b"\x7c" * depth
        code, reason, _ = await refusal(raw(stubs, f"/agentreach.v1.{path}", data))
        assert (code, reason) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE"), depth
    await golden(stubs)


async def test_text_that_is_not_utf_8_is_no_message_and_other_streams_live(stubs, agent, caller):
    """G3. The sender of such a frame loses its stream; SDKs replace such bytes before they send."""
    broken = AgentByHand(stubs)
    await broken.join(unique("latin-1"))
    task_id = unique("latin-1")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"instance_id": broken.instance_id})
    offer = await broken.next("offers")
    good = pb.AttachRequest(
        results=[{"link": 1, "key": key_of(offer), "error": {"message": "caf__"}}]
    ).SerializeToString()
    stream = raw(stubs, "/agentreach.v1.AgentService/Attach", good.replace(b"caf__", b"caf\xe9\xff"))
    assert (await refusal(stream))[:2] == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE")
    await broken.finish(offer, error={"message": "caf\N{REPLACEMENT CHARACTER}"})
    assert (await caller.complete(task_id)).error.message == "caf\N{REPLACEMENT CHARACTER}"
    assert await stubs.dispatch.ListTasks(pb.ListTasksRequest(view="TASK_VIEW_FULL"))
    await broken.close()
    await golden(stubs, agent)


async def test_g2_raw_control_characters_in_a_payload_arrive_as_they_are(stubs, agent, caller):
    text = '{"answer": "two\nlines\tand \x00 \x1b[31m \u2028"}'
    task_id = unique("controls")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"instance_id": agent.instance_id})
    await agent.finish(await agent.next("offers"), output={"text": text, "media_type": "application/json"})
    output = (await caller.complete(task_id)).output
    assert (output.text, output.media_type) == (text, "application/json")


# -- sizes of tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("kind", ["data", "text"])
async def test_a_payload_of_the_largest_size_is_taken_and_one_byte_more_is_not(stubs, agent, caller, size, kind):
    payload = {"data": b"\xff" * size} if kind == "data" else {"text": "é" * (size // 2) + "e" * (size % 2)}
    selector = {"instance_id": agent.instance_id}
    spec = {"selector": selector, "payload": payload}
    dispatched = stubs.dispatch.Dispatch(pb.DispatchRequest(task={**spec, "task_id": unique("size")}), timeout=TIMEOUT)
    ran = stubs.dispatch.Run(pb.RunRequest(task={**spec, "task_id": unique("size")}), timeout=TIMEOUT)
    small, large = unique("small"), unique("large")
    await caller.send(
        submits=[
            {"reference": 1, "task": {"task_id": small, "selector": selector}},
            {"reference": 2, "task": {**spec, "task_id": large}},
        ]
    )
    if size > LIMIT:
        for call in (dispatched, ran):
            code, reason, text = await refusal(call)
            assert (code, reason) == ("INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE")
            assert f"at most {LIMIT} are allowed" in text
        item = await caller.next("refusals")
        assert (item.reference, reason_name(item.error)) == (2, "PAYLOAD_TOO_LARGE")
        assert item.error.metadata["limit"] == str(LIMIT)
        await agent.serve(await agent.next("offers"), "the small one")
    else:
        reading = asyncio.ensure_future(refusal(ran))
        for _ in range(4):
            offer = await agent.next("offers")
            if offer.task.task_id != small:
                assert offer.task.payload == pb.Payload(**payload)
            await agent.serve(offer, "ok")
        await dispatched
        assert (await reading)[0] == "OK"
        await caller.complete(large)
    await caller.complete(small)


async def test_attachments_count_too(stubs):
    attachments = [{"name": str(number), "payload": {"data": b"x" * (MIB // 2)}} for number in range(8)]
    spec = {
        "selector": {"agent_id": "nobody"},
        "payload": {"data": b"x" * (MIB // 4 - 4_000)},
        "attachments": attachments,
    }
    code, reason, text = await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec)))
    assert (code, reason) == ("INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE"), text


async def test_a_message_over_the_limit_of_the_connection_ends_its_own_call_only(stubs, agent, caller):
    """gRPC itself refuses it, before any code of ours: there is no reason, but the text says how large it was."""
    spec = {"selector": {"agent_id": "nobody"}, "payload": {"data": b"x" * (RECEIVED + 1)}}
    code, reason, text = await refusal(stubs.dispatch.Dispatch(pb.DispatchRequest(task=spec)))
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "")
    assert "larger than max" in text
    victim = CallerByHand(stubs)
    await victim.open()
    await victim.submit(1, "INTEREST_OUTCOME", **spec)
    assert (await victim.ended())[0].name == "RESOURCE_EXHAUSTED"
    await golden(stubs, agent)
    await caller.send(cancels=[{"reference": 1, "task_id": "nobody"}])
    await caller.next("refusals")


async def test_metadata_over_the_limit_is_refused(stubs):
    call = stubs.ops.GetServerInfo(
        pb.GetServerInfoRequest(), metadata=(("x-large", "y" * (20 << 10)),), timeout=TIMEOUT
    )
    code, _, _ = await refusal(call)
    assert code in ("RESOURCE_EXHAUSTED", "UNAVAILABLE")  # the core's own limit may close the connection
    await golden(stubs)


# -- sizes of answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output", [{"data": b"x" * (LIMIT + 1)}, {"text": "é" * (LIMIT // 2 + 1)}, {"text": "x" * (LIMIT + 1000)}]
)
async def test_an_answer_over_the_limit_fails_its_task_and_the_stream_lives(agent, caller, output):
    task_id, other = unique("too-large"), unique("beside")
    for name in (task_id, other):
        await caller.submit(1, "INTEREST_OUTCOME", task_id=name, selector={"instance_id": agent.instance_id})
    offers = {(offer := await agent.next("offers")).task.task_id: offer for _ in range(2)}
    await agent.finish(offers[task_id], output=output)
    result = await caller.complete(task_id)
    assert (reason_name(result.error), result.state) == ("RESULT_TOO_LARGE", pb.TASK_STATE_FAILED)
    assert f"at most {LIMIT}" in result.error.message
    await agent.finish(offers[other], "fine")
    assert (await caller.complete(other)).output.text == "fine"


async def test_deltas_over_the_limit_fail_their_task_and_the_agent_is_told_to_stop(agent, caller):
    task_id = unique("endless")
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"instance_id": agent.instance_id})
    offer = await agent.next("offers")
    for number in range(1, 6):
        await agent.delta(offer, number, "x" * MIB)
    assert reason_name((await caller.complete(task_id)).error) == "RESULT_TOO_LARGE"
    assert (await agent.next("cancels")).key.task_id == task_id


async def test_the_largest_task_with_the_largest_answer_can_be_read_whole(stubs, agent, caller):
    """Payload, checkpoint and answer, each as large as allowed: offers, events and GetTask carry them all."""
    task_id = unique("whole")
    spec = {"task_id": task_id, "selector": {"instance_id": agent.instance_id}, "payload": {"data": b"x" * LIMIT}}
    spec |= {"labels": {f"l{number}": "v" * 256 for number in range(64)}, "retry": {"delays": [{"nanos": 1_000_000}]}}
    await caller.submit(1, "INTEREST_EVENTS", **spec)
    offer = await agent.next("offers")
    await agent.send(progress=[{"link": 1, "key": key_of(offer), "checkpoint": b"c" * (256 << 10)}])
    await agent.finish(offer, error={"error_class": "ERROR_CLASS_UNAVAILABLE", "message": "once more"})
    offer = await agent.next("offers")
    assert len(offer.checkpoint) == 256 << 10
    await agent.finish(offer, output={"data": b"y" * LIMIT}, conflict_hint="h" * 2_000)
    result = await caller.complete(task_id)
    assert len(result.output.data) == LIMIT
    found = await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id, view="TASK_VIEW_FULL"))
    assert (len(found.task.spec.payload.data), len(found.task.result.output.data)) == (LIMIT, LIMIT)
    page = await stubs.dispatch.ListTasks(pb.ListTasksRequest(page_size=1_000, view="TASK_VIEW_FULL"))
    assert page.tasks[0].spec.task_id == task_id  # a page ends when it is large enough, whatever was asked for
    assert (len(page.tasks), bool(page.next_page_token)) == (1, True)


async def test_a_fleet_with_much_to_say_is_told_in_parts(stubs):
    """40 registrations of 200 KiB: lists end their pages early, and a watch tells them in several messages."""
    name = unique("wordy")
    capabilities = [{"name": f"c{number}", "description": "d" * 20_000} for number in range(10)]
    for number in range(40):
        registration = {"agent_id": name, "boot_id": "b", "instance_id": f"{name}-{number:02}"}
        await stubs.registry.Register(pb.RegisterRequest(registration={**registration, "capabilities": capabilities}))
    seen: list[str] = []
    token = ""
    while token or not seen:
        request = pb.ListAgentsRequest(filter={"agent_id": name}, page_size=1_000, page_token=token)
        page = await stubs.registry.ListAgents(request)
        assert page.ByteSize() < MIB
        seen += [one.registration.instance_id for one in page.agents]
        token = page.next_page_token
    assert seen == [f"{name}-{number:02}" for number in range(40)]
    watch = stubs.registry.WatchAgents(pb.WatchAgentsRequest(filter={"agent_id": name}), timeout=TIMEOUT)
    parts = [await watch.read()]
    while not parts[-1].in_sync:
        parts.append(await watch.read())
    watch.cancel()
    assert [part.reset for part in parts] == [True] + [False] * (len(parts) - 1)
    assert max(part.ByteSize() for part in parts) < MIB
    assert [one.registration.instance_id for part in parts for one in part.agents] == seen


async def test_many_checkpoints_and_long_failures_fit_into_frames(stubs, agent, caller):
    """40 attempts leave 256 KiB each and fail with long texts, all in one turn of the loop; 10 MiB in a frame would end
    the stream of whoever gets it."""
    ids = [unique("heap") for _ in range(40)]
    retry = {"delays": [{"seconds": 30}]}
    kind = unique("heap")
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    await first.join(kind, max_concurrency=40)
    for number, task_id in enumerate(ids):
        await caller.submit(number, "INTEREST_EVENTS", task_id=task_id, selector={"agent_type": kind}, retry=retry)
    for _ in ids:
        offer = await first.next("offers")
        await first.send(progress=[{"link": 1, "key": key_of(offer), "checkpoint": b"c" * (256 << 10)}])
    await caller.until(lambda: sum(event.HasField("progress") for event in caller.seen["events"]) == 40)
    await first.close()
    await second.join(kind, max_concurrency=40)
    offers = [await second.next("offers") for _ in ids]
    assert {len(offer.checkpoint) for offer in offers} == {256 << 10}
    error = {"message": "m" * 4_000, "metadata": {f"k{number}": "v" * 1_000 for number in range(16)}}
    await second.send(results=[{"link": 1, "key": key_of(offer), "error": error} for offer in offers])
    for task_id in ids:
        assert (await caller.complete(task_id)).error.message == "m" * 4_000
    assert max(frame.ByteSize() for frame in caller.frames) < 2 * MIB
    await second.close()


async def test_with_a_small_limit_for_payloads_frames_still_fit(tmp_path):
    async with running(tmp_path, server__payload_limit=65_536) as node, Stubs(node.port) as stubs:
        agent, caller = AgentByHand(stubs), CallerByHand(stubs)
        await agent.join(unique("small"), max_concurrency=20)
        assert (await caller.open()).payload_limit == 65_536
        spec = {"selector": {"instance_id": agent.instance_id}, "payload": {"data": b"x" * 65_536}}
        ids = [unique("small") for _ in range(20)]
        await caller.send(submits=[{"reference": 1, "task": {**spec, "task_id": task_id}} for task_id in ids[:7]])
        await caller.send(submits=[{"reference": 1, "task": {**spec, "task_id": task_id}} for task_id in ids[7:14]])
        await caller.send(submits=[{"reference": 1, "task": {**spec, "task_id": task_id}} for task_id in ids[14:]])
        offers = [await agent.next("offers") for _ in ids]
        for offer in offers:
            await agent.send(results=[{"link": 1, "key": key_of(offer), "output": {"data": b"y" * 65_536}}])
        for task_id in ids:
            assert len((await caller.complete(task_id)).output.data) == 65_536
        await agent.close()
        await caller.close()


@pytest.mark.e2e
async def test_a16_a_bomb_of_zeros_is_refused_and_costs_little():
    """200 MB that gzip makes 200 KB of, to a server in a process of its own, whose peak of memory is looked at."""
    with LocalServer() as server:
        peak = Path(f"/proc/{server.pid}/status")
        async with Stubs(server.port) as stubs:
            await golden(stubs)
            before = high_water(peak)
            for path in ("DispatchService/Dispatch", "AgentService/Attach", "ResultService/ReportResultStream"):
                bomb = bytes(200_000_000)
                call = raw(stubs, f"/agentreach.v1.{path}", bomb, compression=grpc.Compression.Gzip)
                code, reason, text = await refusal(call)
                assert (code, reason) == ("RESOURCE_EXHAUSTED", ""), text
                assert high_water(peak) - before <= 16 * MIB
            await golden(stubs)
        assert "Traceback" not in server.log_text()


def high_water(status: Path) -> int:
    """The most memory that a process ever had, in bytes."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
