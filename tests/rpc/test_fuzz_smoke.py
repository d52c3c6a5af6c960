"""Bad input in bulk: every method of the contract gets messages with odd values and bytes that are no messages, and
every short order of stream frames is tried. The node survives, and says what is wrong without UNKNOWN or INTERNAL.

`REACH_FUZZ=20` tries twenty times as much; `REACH_FUZZ_SEED=7` tries others.
"""

import asyncio
import itertools
import logging
import math
import os
import random
import zlib
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tests.rpc.hostile import METHODS, broken_bytes, odd_messages
from tests.rpc.peers import AgentByHand, CallerByHand, Stubs, golden, key_of, pb, refusal, running

TIMES = int(os.environ.get("REACH_FUZZ", "1"))
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(200 * TIMES)]

SEED = int(os.environ.get("REACH_FUZZ_SEED", "1"))
GOLDEN_EVERY = 500
AT_ONCE = 40
FORBIDDEN = {"UNKNOWN", "INTERNAL", "DATA_LOSS"}
OPEN_FOR = 0.3
"""Seconds until calls that wait for ever are left."""


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
    assert not bad, [(record.getMessage(), vars(record).get("frames"), record.exc_info) for record in bad[:5]]


class Hail:
    """Sends bytes to methods, many at a time, and looks at how each call ends."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs
        self._room = asyncio.Semaphore(AT_ONCE)
        self.wrong: list[str] = []
        self.ends: dict[str, int] = {}

    async def send(self, path: str, frames: list[bytes], what: str = "") -> None:
        """One call with these messages, read until it ends or for `OPEN_FOR`."""
        async with self._room:
            call = self._call(path, frames)
            try:
                code, reason, text = await refusal(call)
                if text == "Internal error from Core":
                    pass  # the client lost the status, see error_from_rpc
                elif code in FORBIDDEN:
                    self.wrong.append(f"{path} {what or frames!r:.300}: {code} {text}")
                elif code not in ("OK", "CANCELLED", "DEADLINE_EXCEEDED"):
                    self.ends[reason] = self.ends.get(reason, 0) + 1
                    if not reason and "larger than max" not in text:
                        self.wrong.append(f"{path} {what or frames!r:.300}: {code} without a reason: {text}")
            finally:
                call.cancel()

    def _call(self, path: str, frames: list[bytes]):
        method = METHODS[path]
        kind = ("stream" if method.client_streaming else "unary") + "_" + (
            "stream" if method.server_streaming else "unary"
        )  # fmt: skip

        async def several():
            for frame in frames:
                yield frame

        make = getattr(self._stubs.channel, kind)(path, request_serializer=bytes, response_deserializer=bytes)
        return make(several() if method.client_streaming else frames[0], timeout=OPEN_FOR)

    async def all(self, calls: list[tuple[str, list[bytes]]]) -> None:
        """Many of them, with a golden request in between."""
        for batch in _batches(calls, GOLDEN_EVERY):
            await asyncio.gather(*(self.send(path, frames) for path, frames in batch))
            await golden(self._stubs)
        assert not self.wrong, "\n".join(self.wrong[:20])


def _batches(calls, size):
    return [calls[start : start + size] for start in range(0, len(calls), size)]


def messages(path: str, count: int) -> list[bytes]:
    return odd_messages(METHODS[path].input_type, count, SEED + zlib.crc32(path.encode()))


async def test_messages_with_odd_values_in_any_field(stubs):
    calls = []
    for path in METHODS:
        many = 3 if path.endswith(("/Attach", "/DispatchStream", "/Dispatch", "/Register")) else 1
        calls += [(path, [message]) for message in messages(path, 40 * many * TIMES)]
    random.Random(SEED).shuffle(calls)
    hail = Hail(stubs)
    await hail.all(calls)
    assert {"INVALID_FIELD", "TASK_NOT_FOUND", "AGENT_NOT_FOUND", "NOT_IMPLEMENTED"} <= set(hail.ends)


async def test_bytes_that_are_no_messages(stubs):
    chance = random.Random(SEED)
    calls = []
    for path in METHODS:
        valid = messages(path, 10)
        calls += [(path, [broken_bytes(chance, chance.choice(valid))]) for _ in range(120 * TIMES)]
    chance.shuffle(calls)
    hail = Hail(stubs)
    await hail.all(calls)
    assert hail.ends["MALFORMED_MESSAGE"] > len(calls) / 10


KEY = {"task_id": "fuzz-task", "attempt": 1}
ATTACH = {
    "opening": {"opening": {"protocol_version": "1"}},
    "hello": {"hellos": [{"link": 1, "registration": {"agent_id": "fuzz", "boot_id": "b", "instance_id": "fuzz-1"}}]},
    "other hello": {"hellos": [{"link": 1, "registration": {"agent_id": "fuzz", "boot_id": "b", "instance_id": "x"}}]},
    "beat": {"beats": [{"link": 1, "status": {"inflight": 1}}]},
    "accept": {"accepts": [{"link": 1, "key": KEY}]},
    "delta": {"deltas": [{"link": 1, "key": KEY, "attempt_sequence": 1, "delta": {"payload": {"text": "x"}}}]},
    "result": {"results": [{"link": 1, "key": KEY, "output": {"text": "x"}}]},
    "fold": {"results": [{"link": 1, "key": KEY, "folded": {"last_attempt_sequence": 1}}]},
    "effect": {"effects": [{"link": 1, "key": KEY, "effect": "e"}]},
    "goodbye": {"goodbyes": [{"link": 1}]},
}
DISPATCH = {
    "opening": {"opening": {"protocol_version": "1"}},
    "submit": {"submits": [{"reference": 1, "task": {"task_id": "fuzz-task", "selector": {"agent_id": "fuzz"}}}]},
    "events": {
        "submits": [
            {
                "reference": 2,
                "task": {"task_id": "fuzz-2", "selector": {"agent_id": "fuzz"}},
                "interest": "INTEREST_EVENTS",
            }
        ]
    },
    "bad submit": {"submits": [{"reference": 3, "task": {"task_id": "\n"}}]},
    "subscribe": {"subscribes": [{"reference": 4, "task_id": "fuzz-task", "interest": "INTEREST_EVENTS"}]},
    "unsubscribe": {"unsubscribes": [{"task_id": "fuzz-task"}]},
    "cancel": {"cancels": [{"reference": 5, "task_id": "fuzz-2"}]},
    "credit": {"credits": [{"task_id": "fuzz-task", "bytes": (1 << 64) - 1}]},
}


@pytest.mark.parametrize(
    ("path", "alphabet"),
    [("/agentreach.v1.AgentService/Attach", ATTACH), ("/agentreach.v1.DispatchService/DispatchStream", DISPATCH)],
    ids=["Attach", "DispatchStream"],
)
async def test_every_order_of_up_to_three_frames(stubs, path, alphabet):
    """With a half-close behind the last; the other half of the orders begins with nothing at all."""
    kind = GetMessageClass(METHODS[path].input_type)
    frames = {name: kind(**fields).SerializeToString() for name, fields in alphabet.items()}
    hail = Hail(stubs)
    worker = AgentByHand(stubs)
    await worker.join("fuzz", instance_id="fuzz-worker")
    serving = asyncio.create_task(serve(worker))
    orders = [order for length in range(4) for order in itertools.product(frames, repeat=length)]
    for batch in _batches(orders, GOLDEN_EVERY):
        await asyncio.gather(*(hail.send(path, [frames[name] for name in order], " → ".join(order)) for order in batch))
        await golden(stubs)
    serving.cancel()
    await asyncio.wait({serving})
    await worker.close()
    assert not hail.wrong, "\n".join(hail.wrong[:20])
    assert hail.ends.keys() <= {"UNEXPECTED_FRAME"}  # only a second opening ends a stream


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
