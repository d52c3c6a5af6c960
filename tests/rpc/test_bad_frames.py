"""Frames in an order that has no meaning, and items that are wrong alone: they are refused, the stream and its other
work go on."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from tests.rpc.peers import AgentByHand, CallerByHand, golden, key_of, kind_of, pb, reason_name, unique

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("no_tracebacks")]

UNKNOWN = {"task_id": "no-such-task", "attempt": 1}


@pytest_asyncio.fixture(loop_scope="module")
async def agent(stubs):
    made = AgentByHand(stubs)
    await made.join(unique("framed"), max_concurrency=8)
    yield made
    await golden(stubs, made)  # whatever was sent, the link still works
    await made.close()


async def refused(stream: Any) -> tuple[str, int, bool]:
    """The next refusal of an agent's stream: reason, link, closed."""
    item = await stream.next("refusals")
    return reason_name(item.error), item.link, item.closed


async def offered(agent: AgentByHand, caller: CallerByHand, **spec: Any) -> Any:
    spec = {"task_id": unique("framed"), "selector": {"instance_id": agent.instance_id}, **spec}
    await caller.submit(1, "INTEREST_EVENTS", **spec)
    return await agent.next("offers")


# -- Attach: the stream -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["beats", "accepts", "deltas", "progress", "results", "effects", "goodbyes"])
async def test_anything_before_the_hello_is_refused_and_the_hello_still_works(stubs, kind):
    agent = AgentByHand(stubs)
    await agent.send(**{kind: [{"link": 1, **({} if kind in ("beats", "goodbyes") else {"key": UNKNOWN})}]})
    item = await agent.next("refusals")
    assert (reason_name(item.error), item.link, item.closed) == ("UNEXPECTED_FRAME", 1, False)
    assert item.key.task_id == ("" if kind in ("beats", "goodbyes") else "no-such-task")
    await agent.join(unique("late-hello"))
    await golden(stubs, agent)
    await agent.close()


async def test_a_second_opening_ends_the_stream(stubs):
    agent = AgentByHand(stubs)
    await agent.join(unique("twice"))
    await agent.send(opening={"protocol_version": "1"})
    code, reason = await agent.ended()
    assert (code.name, reason) == ("FAILED_PRECONDITION", "UNEXPECTED_FRAME")


@pytest.mark.parametrize("version", ["0", "2", "1.0", "x" * 70_000, "\n"])
@pytest.mark.parametrize("make", [AgentByHand, CallerByHand])
async def test_a_version_that_is_not_spoken_ends_the_stream(stubs, make, version):
    stream = make(stubs)
    await stream.send(opening={"protocol_version": version})
    code, reason = await stream.ended()
    assert (code.name, reason) == ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")


PLAIN = {"agent_id": "plain", "boot_id": "b", "ready": True}


async def test_a_stream_without_an_opening_is_taken_for_the_version_of_the_server(stubs):
    agent = AgentByHand(stubs)
    agent.instance_id = unique("plain")
    await agent.send(hellos=[{"link": 1, "registration": {**PLAIN, "instance_id": agent.instance_id}}])
    await agent.next("links")
    assert agent.frames[0].welcome.protocol_version == "1"
    await golden(stubs, agent)
    await agent.close()


async def test_a_half_close_at_any_point_is_a_goodbye(stubs, node):
    async def nothing(agent: AgentByHand) -> None:
        pass

    async def opened(agent: AgentByHand) -> None:
        await agent.send(opening={"protocol_version": "1"})

    async def joined(agent: AgentByHand) -> None:
        await agent.join(unique("half"))

    async def hello_unanswered(agent: AgentByHand) -> None:
        agent.instance_id = unique("half")
        await agent.send(
            hellos=[{"link": 1, "registration": {"agent_id": "h", "boot_id": "b", "instance_id": agent.instance_id}}]
        )

    for act in (nothing, opened, joined, hello_unanswered):
        agent = AgentByHand(stubs)
        await act(agent)
        await agent.half_close()
        assert (await agent.ended())[0].name == "OK"
        if agent.instance_id:
            async with asyncio.timeout(20):
                while node.reach.instance("default", agent.instance_id)[1].link is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    await golden(stubs)


async def test_work_of_an_agent_that_half_closes_moves(stubs, caller):
    kind, task_id = unique("moving"), unique("moving")
    first, second = AgentByHand(stubs), AgentByHand(stubs)
    await first.join(kind)
    await caller.submit(1, "INTEREST_OUTCOME", task_id=task_id, selector={"agent_type": kind})
    await first.next("offers")
    await second.join(kind)
    await first.half_close()
    await second.serve(await second.next("offers"), "moved")
    assert (await caller.complete(task_id)).output.text == "moved"
    await second.close()


# -- Attach: hellos ---------------------------------------------------------------------------------------------------


async def test_hello_again_on_the_same_link_is_an_update(stubs, agent):
    welcome = await agent.join(agent.agent_id, instance_id=agent.instance_id, max_concurrency=9)
    assert (welcome.link, welcome.generation) == (1, 1)
    found = await stubs.registry.GetAgent(pb.GetAgentRequest(instance_id=agent.instance_id))
    assert found.agent.max_concurrency == 9


async def test_hello_again_without_an_id_is_the_instance_that_the_server_named(stubs):
    agent = AgentByHand(stubs)
    registration = {"agent_id": unique("named"), "boot_id": "b", "ready": True}
    await agent.send(hellos=[{"link": 1, "registration": registration}] * 2)
    first, second = await agent.next("links"), await agent.next("links")
    assert first.instance_id == second.instance_id
    await agent.send(hellos=[{"link": 1, "registration": registration}])
    assert (await agent.next("links")).instance_id == first.instance_id
    agent.instance_id = first.instance_id
    await golden(stubs, agent)
    await agent.close()


async def test_a_link_belongs_to_one_instance(stubs, agent):
    other = {"agent_id": agent.agent_id, "boot_id": "b", "instance_id": unique("other")}
    await agent.send(hellos=[{"link": 1, "registration": other}])
    assert await refused(agent) == ("UNEXPECTED_FRAME", 1, False)  # the link stays with who has it
    fresh = AgentByHand(stubs)
    names = [unique("one-frame"), unique("one-frame")]
    await fresh.send(
        hellos=[{"link": 1, "registration": {"agent_id": "f", "boot_id": "b", "instance_id": name}} for name in names]
    )
    assert await refused(fresh) == ("UNEXPECTED_FRAME", 1, False)
    assert (await fresh.next("links")).instance_id == names[0]
    await fresh.close()


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        ({"link": 0, "registration": {"agent_id": "a", "boot_id": "b"}}, "hello.link"),
        ({"link": 2}, "registration.agent_id"),
        ({"link": 2, "registration": {"agent_id": "a\n", "boot_id": "b"}}, "registration.agent_id"),
        (
            {"link": 2, "registration": {"agent_id": "a", "boot_id": "b"}, "running": [{"key": {"task_id": ""}}]},
            "running.key.task_id",
        ),
        (
            {"link": 2, "registration": {"agent_id": "a", "boot_id": "b"}, "status": {"availability": 9}},
            "status.availability",
        ),
    ],
)
async def test_a_hello_that_cannot_be_is_refused_alone(agent, hello, field):
    await agent.send(hellos=[hello])
    item = await agent.next("refusals")
    assert (reason_name(item.error), item.link, item.closed) == ("INVALID_FIELD", hello["link"], True)
    assert item.error.message.startswith(field)


# -- Attach: attempts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["accepts", "deltas", "progress", "results", "effects"])
async def test_attempts_that_nobody_knows_are_to_be_stopped(agent, kind):
    await agent.send(**{kind: [{"link": 1, "key": UNKNOWN}]})
    item = await agent.next("refusals")
    assert (reason_name(item.error), item.key.task_id, item.closed) == ("UNKNOWN_ATTEMPT", "no-such-task", False)


@pytest.mark.parametrize("kind", ["accepts", "deltas", "progress", "results", "effects"])
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ({}, "key.task_id"),
        ({"task_id": "t"}, "key.attempt"),
        ({"task_id": "x" * 65_536, "attempt": 1}, "key.task_id"),
        ({"task_id": "a\n\x1b[0m", "attempt": 1}, "key.task_id"),
        ({"task_id": "t", "attempt": 1, "tenant": "x" * 300}, "key.tenant"),
    ],
)
async def test_keys_that_cannot_be_are_refused_by_name(agent, kind, key, field):
    await agent.send(**{kind: [{"link": 1, "key": key}]})
    item = await agent.next("refusals")
    assert reason_name(item.error) == "INVALID_FIELD"
    assert field in item.error.message
    assert item.ByteSize() < 1_000  # what is too long does not come back


async def test_a_result_before_its_offer_is_refused_and_the_offer_comes(agent, caller):
    task_id = unique("early")
    await agent.send(results=[{"link": 1, "key": {"task_id": task_id, "attempt": 1}, "output": {"text": "guess"}}])
    assert (await refused(agent))[0] == "UNKNOWN_ATTEMPT"
    offer = await offered(agent, caller, task_id=task_id)
    for attempt in (2, 4_294_967_295):
        await agent.send(
            results=[{"link": 1, "key": {"task_id": task_id, "attempt": attempt}, "output": {"text": "no"}}]
        )
        assert (await refused(agent))[0] == "STALE_ATTEMPT"
    await agent.finish(offer, "right")
    assert (await caller.complete(task_id)).output.text == "right"


async def test_of_several_results_the_first_counts_and_all_are_acknowledged(agent, caller):
    offer = await offered(agent, caller)
    results = [{"link": 1, "key": key_of(offer), "output": {"text": text}} for text in ("first", "second")]
    error = {"link": 1, "key": key_of(offer), "error": {"message": "third"}}
    await agent.send(results=[*results, error])
    for _ in range(3):
        assert (await agent.next("acknowledgements")).task_id == offer.task.task_id
    result = await caller.complete(offer.task.task_id)
    assert (result.output.text, result.state) == ("first", pb.TASK_STATE_SUCCEEDED)
    await agent.accept(offer)
    await agent.delta(offer, 1, "late")
    for _ in range(2):
        assert (await refused(agent))[0] == "STALE_ATTEMPT"
    assert [kind_of(event) for event in caller.events_of(offer.task.task_id)] == ["accepted", "started", "complete"]


async def test_a_result_without_an_outcome_breaks_the_protocol_and_ends_the_task(agent, caller):
    offer = await offered(agent, caller)
    await agent.finish(offer)
    result = await caller.complete(offer.task.task_id)
    assert (reason_name(result.error), result.state) == ("PROTOCOL_VIOLATION", pb.TASK_STATE_DEAD_LETTERED)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"progress": {"fraction": float("nan")}}, "INVALID_FIELD"),
        ({"progress": {"fraction": float("inf")}}, "INVALID_FIELD"),
        ({"progress": {"fraction": -0.1}}, "INVALID_FIELD"),
        ({"checkpoint": b"x" * ((256 << 10) + 1)}, "PAYLOAD_TOO_LARGE"),
        ({"status": {"availability": 77}}, "INVALID_FIELD"),
    ],
)
async def test_progress_that_cannot_be_is_refused_alone(agent, caller, item, reason):
    offer = await offered(agent, caller)
    await agent.send(progress=[{"link": 1, "key": key_of(offer), **item}])
    assert (await refused(agent))[0] == reason
    await agent.finish(offer, "fine")


@pytest.mark.parametrize(
    "delta",
    [{"mode": 3}, {"mode": -1}, {"channel": "c" * 257}, {"channel": "\x1b[2J"}, {"payload": {"media_type": "\n"}}],
)
async def test_a_delta_that_cannot_be_is_refused_alone(agent, caller, delta):
    offer = await offered(agent, caller)
    await agent.send(deltas=[{"link": 1, "key": key_of(offer), "attempt_sequence": 1, "delta": delta}])
    assert (await refused(agent))[0] == "INVALID_FIELD"
    await agent.delta(offer, 1, "ok")
    await agent.finish(offer, folded={"last_attempt_sequence": 1})
    assert (await caller.complete(offer.task.task_id)).output.text == "ok"


async def test_another_instance_cannot_speak_of_an_attempt(stubs, agent, caller):
    offer = await offered(agent, caller)
    thief = AgentByHand(stubs)
    await thief.join(agent.agent_id)
    await thief.send(results=[{"link": 1, "key": key_of(offer), "output": {"text": "stolen"}}])
    assert (await refused(thief))[0] == "STALE_ATTEMPT"
    await thief.close()
    await agent.finish(offer, "mine")
    assert (await caller.complete(offer.task.task_id)).output.text == "mine"


# -- DispatchStream ---------------------------------------------------------------------------------------------------


async def test_a_second_opening_ends_a_callers_stream(caller):
    await caller.send(opening={})
    code, reason = await caller.ended()
    assert (code.name, reason) == ("FAILED_PRECONDITION", "UNEXPECTED_FRAME")


async def test_each_bad_item_is_refused_with_its_reference(stubs, agent, caller):
    """Many bad ones and a good one in a single frame: each answer names what it answers."""
    good = {"reference": 1, "task": {"task_id": unique("good"), "selector": {"instance_id": agent.instance_id}}}
    await caller.send(
        submits=[
            {"reference": 11},
            {"reference": 12, "task": {"task_id": "t" * 300, "selector": {"agent_id": "a"}}},
            {"reference": 13, "task": {"selector": {"agent_id": "a"}, "effects": 9}},
            {"reference": 14, "task": {"selector": {"agent_id": "a"}, "protocol_version": "9"}},
            {"reference": 15, "task": {"selector": {"intent": "a.b"}}},
            {"reference": 16, "task": {"selector": {"agent_id": "a"}, "budget": {"tokens": 0}}},
            {"reference": 17, "task": {"selector": {"agent_id": "a"}}, "interest": 9},
            good,
        ],
        subscribes=[
            {"reference": 21},
            {"reference": 22, "task_id": "nobody"},
            {"reference": 23, "task_id": "nobody", "interest": "INTEREST_ACCEPTANCE"},
            {"reference": 24, "task_id": "nobody", "interest": 9},
        ],
        unsubscribes=[{"task_id": "nobody"}, {"task_id": "x" * 70_000}],
        cancels=[
            {"reference": 31},
            {"reference": 32, "task_id": "nobody"},
            {"reference": 33, "task_id": "t", "reason": "\n"},
        ],
        credits=[{"task_id": "nobody", "bytes": (1 << 64) - 1}],
    )
    await agent.serve(await agent.next("offers"), "good")
    await caller.until(lambda: caller.seen["events"])
    await caller.until(lambda: len(caller.seen["refusals"]) == 14)
    reasons = {item.reference: reason_name(item.error) for item in caller.seen["refusals"]}
    invalid = dict.fromkeys((11, 12, 13, 17, 21, 23, 24, 31, 33), "INVALID_FIELD")
    assert reasons == {
        **invalid,
        14: "VERSION_NOT_SUPPORTED",
        15: "NO_ROUTE",
        16: "BUDGET_SPENT",
        22: "TASK_NOT_FOUND",
        32: "TASK_NOT_FOUND",
    }


async def test_a_position_that_does_not_exist_is_refused(agent, caller):
    offer = await offered(agent, caller)
    await caller.send(
        subscribes=[
            {"reference": 5, "task_id": offer.task.task_id, "after_sequence": 99, "interest": "INTEREST_EVENTS"}
        ]
    )
    item = await caller.next("refusals")
    assert (item.reference, reason_name(item.error)) == (5, "SEQUENCE_OUT_OF_RANGE")
    await agent.finish(offer, "x")


async def test_who_unsubscribes_in_the_same_breath_hears_nothing_and_leaves_nothing(node, agent, caller):
    task_id = unique("never-mind")
    spec = {"task_id": task_id, "selector": {"instance_id": agent.instance_id}}
    await caller.send(
        submits=[{"reference": 1, "task": spec, "interest": "INTEREST_OUTCOME"}], unsubscribes=[{"task_id": task_id}]
    )
    offer = await agent.next("offers")
    task = node.host.tasks["default", task_id]
    assert task.waiters == []
    await agent.finish(offer, "x")
    assert caller.events_of(task_id) == []
