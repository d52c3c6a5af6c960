"""Bad input in bulk: every method of the contract gets messages with odd values and bytes that are no messages, and
every short order of stream frames is tried. The node survives, and says what is wrong without UNKNOWN or INTERNAL.

`REACH_FUZZ=20` tries twenty times as much; `REACH_FUZZ_SEED=7` tries others.
"""

import asyncio
import logging
import math
import os
import random
import zlib
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format

from reach.telemetry.logs import tells_of_a_client_that_left
from tests.fuzz.hail import OPEN_FOR, Hail, Input
from tests.fuzz.orders import ALPHABETS, count, orders
from tests.fuzz.worker import FuzzWorker
from tests.rpc.hostile import METHODS, broken_bytes, odd_messages
from tests.rpc.peers import AgentByHand, CallerByHand, Stubs, golden, key_of, pb, running

TIMES = int(os.environ.get("REACH_FUZZ", "1"))
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(200 * TIMES)]

SEED = int(os.environ.get("REACH_FUZZ_SEED", "1"))
GOLDEN_EVERY = 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory):
    """A small queue, so that what nobody serves does not pile up."""
    async with running(tmp_path_factory.mktemp("fuzz"), router__queue_limit=200) as made:
        yield made


@pytest.fixture(autouse=True)
def no_tracebacks(caplog):
    yield
    bad = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    bad = [record for record in bad if record.getMessage() != "a task was given up"]
    bad = [record for record in bad if not tells_of_a_client_that_left(record)]
    assert not bad, [(record.getMessage(), vars(record).get("frames"), record.exc_info) for record in bad[:5]]


def messages(path: str, count: int) -> list[bytes]:
    return odd_messages(METHODS[path].input_type, count, SEED + zlib.crc32(path.encode()))


async def rain(stubs: Stubs, given: list[Input]) -> Hail:
    """All of these, with a golden request after every 500."""
    hail = Hail(stubs)
    for start in range(0, len(given), GOLDEN_EVERY):
        await hail.all(given[start : start + GOLDEN_EVERY])
        await golden(stubs)
    assert not hail.wrong, "\n".join(map(str, hail.wrong[:20]))
    return hail


async def test_messages_with_odd_values_in_any_field(stubs):
    calls = []
    for path in METHODS:
        many = 3 if path.endswith(("/Attach", "/DispatchStream", "/Dispatch", "/Register")) else 1
        calls += [Input(path, (message,)) for message in messages(path, 40 * many * TIMES)]
    random.Random(SEED).shuffle(calls)
    hail = await rain(stubs, calls)
    assert {"INVALID_FIELD", "TASK_NOT_FOUND", "AGENT_NOT_FOUND"} <= set(hail.ends)


async def test_bytes_that_are_no_messages(stubs):
    chance = random.Random(SEED)
    calls = []
    for path in METHODS:
        valid = messages(path, 10)
        calls += [Input(path, (broken_bytes(chance, chance.choice(valid)),)) for _ in range(120 * TIMES)]
    chance.shuffle(calls)
    hail = await rain(stubs, calls)
    assert hail.ends["MALFORMED_MESSAGE"] > len(calls) / 10


@pytest.mark.parametrize("path", ALPHABETS, ids=lambda path: path.rpartition("/")[2])
async def test_every_order_of_up_to_three_frames(stubs, path):
    """With a half-close behind the last; `make fuzz` tries those of up to five."""
    async with FuzzWorker(stubs):
        hail = await rain(stubs, list(orders(path, 3)))
    assert hail.sent == count(path, 3)
    assert hail.ends.keys() <= EXPECTED[path] | SLOW


SLOW = {"DEADLINE_EXCEEDED", "lost by the client"}
"""Ends on a machine that is busy: gRPC loses the status of a stream that is ended while its client writes."""
EXPECTED = {
    # Only a second opening ends these.
    "/agentreach.v1.AgentService/Attach": {"OK", "UNEXPECTED_FRAME"},
    "/agentreach.v1.DispatchService/DispatchStream": {
        "OK", "UNEXPECTED_FRAME", "CANCELLED"
    },
    # What is wrong in a beat is refused by itself.
    "/agentreach.v1.HeartbeatService/StreamHeartbeats": {"OK"},
    # One report for each stream: the first thing that is wrong ends it.
    "/agentreach.v1.ResultService/ReportResultStream": {
        "OK", "INVALID_FIELD", "AGENT_NOT_FOUND", "UNKNOWN_ATTEMPT", "STALE_ATTEMPT", "STALE_GENERATION",
        "UNEXPECTED_FRAME",
    },
}  # fmt: skip


async def serve(agent: AgentByHand) -> None:
    """Answers every offer."""
    while True:
        offer = await agent.next("offers")
        await agent.serve(offer, "x")


ITEMS = ("accepts", "deltas", "progress", "results", "effects")


async def test_a_hostile_agent_with_real_work(stubs):
    """An agent that says odd things of attempts that it really has, in any order, before it answers: every task ends
    once, all that callers are told can be read, and the stream lives."""
    chance = random.Random(SEED)
    odd = {
        kind: odd_messages(pb.AttachRequest.DESCRIPTOR.fields_by_name[kind].message_type, 150 * TIMES, SEED)
        for kind in ITEMS
    }
    agent, caller = AgentByHand(stubs), CallerByHand(stubs)
    await agent.join("hostile", max_concurrency=50, instance_id="hostile-1")
    retry = {"delays": [{"nanos": 1_000_000}] * 2}
    ids = [f"hostile-{number}" for number in range(150 * TIMES)]
    for start in range(0, len(ids), 50):
        part = ids[start : start + 50]
        for number, task_id in enumerate(part):
            interest = ("INTEREST_EVENTS", "INTEREST_OUTCOME")[number % 2]
            await caller.submit(number, interest, task_id=task_id, selector={"agent_id": "hostile"}, retry=retry)
        while not all(caller.completed(task_id) for task_id in part):
            offer = await next_of(agent, caller, part)
            if offer is None:
                break
            for _ in range(chance.randrange(4)):
                await agent.call.write(say(chance, odd, offer))
            await agent.send(results=[{"link": 1, "key": key_of(offer), "output": {"text": "at last"}}])
        await golden(stubs)
    for task_id in ids:
        ends = [event for event in caller.events_of(task_id) if event.HasField("complete")]
        assert len(ends) == 1, task_id
        found = (await stubs.dispatch.GetTask(pb.GetTaskRequest(task_id=task_id, view="TASK_VIEW_FULL"))).task
        assert found.state == ends[0].complete.state
        json_format.MessageToJson(found)
        for number in found.result.usage.values():
            assert math.isfinite(number)
    await golden(stubs, agent)
    await agent.close()
    await caller.close()


def say(chance: random.Random, odd: dict[str, list[bytes]], offer: Any) -> Any:
    """A frame with one odd item about a real attempt."""
    kind = chance.choice(ITEMS)
    frame = pb.AttachRequest()
    item = getattr(frame, kind).add()
    item.MergeFromString(chance.choice(odd[kind]))
    item.link = 1
    item.key.CopyFrom(pb.AttemptKey(**key_of(offer)))
    if kind in ("progress", "results"):
        item.ClearField("status")  # it may say that it drains, and then it gets nothing more
    if kind == "deltas":
        item.attempt_sequence = chance.choice((0, 1, 1, 2, 3, 1 << 40, (1 << 64) - 1))
    return frame


async def next_of(agent: AgentByHand, caller: CallerByHand, part: list[str]) -> Any:
    """The next offer, or None when all of these tasks have ended."""
    waiting = asyncio.ensure_future(agent.next("offers"))
    while not waiting.done() and not all(caller.completed(task_id) for task_id in part):
        await asyncio.wait({waiting}, timeout=0.02)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    await asyncio.wait({waiting})
    return None


async def test_after_all_that_nothing_is_left(stubs, node):
    """What callers no longer wait for, and streams that ended, leave no readers, links or open calls behind."""
    await asyncio.sleep(2 * OPEN_FOR)
    await golden(stubs)
    async with asyncio.timeout(20):
        while any(node._grpc._services._streams):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    held = node.metrics.sources.streams()
    assert held["submits"] == 0
    assert held["streams"] <= 1
    assert (await stubs.ops.GetServerInfo(pb.GetServerInfoRequest())).node_id == node.node_id
