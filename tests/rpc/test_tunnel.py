"""Streams at a node that does not own what they speak of (CLU-1): items go to the owner, and its answers come back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from reach.core.model import PoolKey, TaskState
from reach.core.pool import Pool
from tests.rpc.nodes import Cluster, agent_of, cluster, owned, serve, spec, until
from tests.rpc.peers import AgentByHand, CallerByHand, key_of, kind_of, reason_name, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


async def caller_at(nodes: Cluster, name: str) -> CallerByHand:
    made = CallerByHand(nodes.stubs(name))
    await made.open()
    return made


async def test_CLU_1_tasks_of_one_stream_go_to_several_owners(nodes):
    types = {name: owned(nodes, name) for name in ("one", "two", "three")}
    agents = [await agent_of(nodes, agent_type, name) for name, agent_type in types.items()]
    serving = [asyncio.ensure_future(serve(agent, 20)) for agent in agents]
    caller = await caller_at(nodes, "one")
    tasks = [spec(agent_type) for agent_type in types.values() for _ in range(20)]
    await caller.send(
        submits=[{"reference": at, "task": task, "interest": "INTEREST_OUTCOME"} for at, task in enumerate(tasks)]
    )
    for task in tasks:
        assert (await caller.complete(task["task_id"])).output.text == "pong"
    await asyncio.gather(*serving)
    assert len(caller.seen["events"]) == len(tasks)
    assert len({frame.welcome.node_id for frame in caller.frames if frame.HasField("welcome")}) == 1
    await caller.close()
    for agent in agents:
        await agent.close()


async def test_CLU_1_deltas_come_through_in_order_and_credit_goes_back(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "two")
    caller = await caller_at(nodes, "one")
    task = spec(agent_type)
    await caller.submit(1, "INTEREST_EVENTS", **task)
    offer = await agent.next("offers")
    await agent.accept(offer)
    pieces = [str(number % 10) * 40_000 for number in range(1, 21)]
    for number, piece in enumerate(pieces, 1):  # 800 KB: far more than the 256 KiB that a reader begins with
        await agent.delta(offer, number, piece)
        await caller.until(lambda number=number: len(deltas(caller, task)) >= number)
        await caller.send(credits=[{"task_id": task["task_id"], "bytes": len(piece)}])
    await agent.finish(offer, "done")
    await caller.complete(task["task_id"])
    assert deltas(caller, task) == pieces
    events = caller.events_of(task["task_id"])
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    await caller.close()
    await agent.close()


def pool_of(nodes: Cluster, name: str, agent_type: str) -> Pool:
    return next(pool for pool in nodes[name].host.pools() if pool.key.agent_type == agent_type)


def deltas(caller: CallerByHand, task: dict[str, Any]) -> list[str]:
    return [event.delta.payload.text for event in caller.events_of(task["task_id"]) if kind_of(event) == "delta"]


async def test_CLU_1_subscribe_cancel_and_unsubscribe_follow_the_task(nodes):
    agent_type = owned(nodes, "three")
    agent = await agent_of(nodes, agent_type, "three")
    giver, reader = await caller_at(nodes, "one"), await caller_at(nodes, "two")
    task, other = spec(agent_type), spec(agent_type)
    for at, one in enumerate((task, other)):
        await giver.submit(at, "INTEREST_ACCEPTANCE", **one)
    await giver.until(lambda: len(giver.seen["acknowledgements"]) == 2)
    names = task["task_id"], other["task_id"]
    for at, name in enumerate(names):
        await reader.send(subscribes=[{"reference": at, "task_id": name, "interest": "INTEREST_EVENTS"}])
        await reader.until(lambda name=name: reader.events_of(name))
    await reader.send(unsubscribes=[{"task_id": names[1]}])
    known = nodes["three"].host.tasks["default", names[1]]
    await until(lambda: not known.log.readers)
    await reader.send(cancels=[{"reference": 7, "task_id": name} for name in names])
    await reader.until(lambda: len(reader.seen["cancelled"]) == 2)
    assert {one.state for one in reader.seen["cancelled"]} == {int(TaskState.CANCELLED)}
    assert (await reader.complete(names[0])).state == int(TaskState.CANCELLED)
    assert reader.completed(names[1]) is None
    for stream in (giver, reader, agent):
        await stream.close()


async def test_CLU_1_refusals_of_the_owner_are_items_of_the_stream(nodes):
    agent_type = owned(nodes, "two")
    caller = await caller_at(nodes, "one")
    task = spec(agent_type)
    await caller.submit(1, "INTEREST_ACCEPTANCE", **task)
    await caller.next("acknowledgements")
    await caller.submit(2, "INTEREST_ACCEPTANCE", **{**task, "payload": {"text": "something else"}})
    refused = await caller.next("refusals")
    assert (refused.reference, reason_name(refused.error)) == (2, "TASK_ID_REUSED")
    await caller.send(subscribes=[{"reference": 3, "task_id": "nowhere"}])
    refused = await caller.next("refusals")
    assert (refused.reference, reason_name(refused.error)) == (3, "TASK_NOT_FOUND")
    await caller.close()


async def test_CLU_1_a_caller_that_half_closes_hears_of_all_that_it_asked_for_elsewhere(nodes):
    types = [owned(nodes, "two"), owned(nodes, "three")]
    agents = [await agent_of(nodes, agent_type, name) for agent_type, name in zip(types, ("two", "three"), strict=True)]
    caller = await caller_at(nodes, "one")
    tasks = [spec(agent_type) for agent_type in types]
    for at, task in enumerate(tasks):
        await caller.submit(at, "INTEREST_OUTCOME", **task)
    await caller.half_close()
    for agent in agents:
        await agent.accept(await agent.next("offers"))
    await asyncio.sleep(0.2)
    for agent in agents:
        await agent.finish(agent.seen["offers"][0], "late")
    for task in tasks:
        assert (await caller.complete(task["task_id"])).output.text == "late"
    assert (await caller.ended())[0].name == "OK"
    for agent in agents:
        await agent.close()


async def test_CLU_1_tasks_that_go_with_their_caller_are_cancelled_at_their_owner(nodes):
    agent_type = owned(nodes, "two")
    caller = await caller_at(nodes, "one")
    task = spec(agent_type, cancel_with_caller=True)
    await caller.submit(1, "INTEREST_EVENTS", **task)
    await caller.until(lambda: caller.events_of(task["task_id"]))
    known = nodes["two"].host.tasks["default", task["task_id"]]
    await caller.close()
    await until(lambda: known.state is TaskState.CANCELLED)


async def test_CLU_1_an_item_that_is_at_home_nowhere_comes_back_a_few_times_and_is_refused(nodes):
    """One believes that two owns it, two believes that one does."""
    agent_type = owned(nodes, "two")
    nodes.give(agent_type, "one", seen_by=("two", "three"))
    caller = await caller_at(nodes, "one")
    await caller.submit(1, "INTEREST_OUTCOME", **spec(agent_type))
    refused = await caller.next("refusals")
    assert (refused.reference, reason_name(refused.error)) == (1, "OWNER_UNAVAILABLE")
    assert refused.error.retryable
    assert refused.error.HasField("retry_after")
    task = spec(agent_type)
    await caller.submit(2, "INTEREST_ACCEPTANCE", **task)
    await asyncio.sleep(0.2)
    nodes.give(agent_type, "two")  # now they agree
    assert (await caller.next("acknowledgements")).task_id == task["task_id"]
    await caller.close()


async def test_CLU_1_a_shard_that_moves_lets_the_callers_of_its_tasks_begin_anew(nodes):
    agent_type = owned(nodes, "two")
    caller = await caller_at(nodes, "one")
    await caller.submit(1, "INTEREST_ACCEPTANCE", **spec(agent_type))
    await caller.next("acknowledgements")
    nodes.give(agent_type, "three")
    await caller.until(lambda: any(frame.closing for frame in caller.frames))
    assert (await caller.ended())[0].name == "OK"
    other = await caller_at(nodes, "one")
    task = spec(agent_type)
    await other.submit(1, "INTEREST_ACCEPTANCE", **task)
    await other.next("acknowledgements")
    assert task["task_id"] in nodes["three"].tasks()
    await other.close()


async def test_CLU_1_agents_at_any_node_serve_their_owner_several_links_several_owners(nodes):
    types = {name: owned(nodes, name) for name in ("two", "three", "one")}
    agent = await agent_of(nodes, types["two"], "one")
    for link, name in ((2, "three"), (3, "one")):
        welcome = await agent.join(unique("agent"), link, agent_type=types[name], max_concurrency=10)
        assert welcome.link == link
    caller = await caller_at(nodes, "three")
    tasks = [spec(agent_type) for agent_type in types.values() for _ in range(5)]
    for at, task in enumerate(tasks):
        await caller.submit(at, "INTEREST_EVENTS", **task)
    for _ in tasks:
        offer = await agent.next("offers")
        await agent.accept(offer)
        await agent.delta(offer, 1, "a piece")
        await agent.finish(offer, f"link {offer.link}")
    for at, task in enumerate(tasks):
        assert (await caller.complete(task["task_id"])).output.text == f"link {at // 5 + 1}"
        assert deltas(caller, task) == ["a piece"]
    assert [frame.sequence for frame in agent.frames] == list(range(1, len(agent.frames) + 1))
    await agent.send(beats=[{"link": link, "last_frame": agent.frames[-1].sequence} for link in (1, 2, 3)])
    for name, agent_type in types.items():
        instance = next(iter(pool_of(nodes, name, agent_type).instances.values()))
        await until(lambda one=instance: one.frame_marks[1] >= len(tasks) // 3)  # type: ignore[misc]
    await agent.send(goodbyes=[{"link": link} for link in (1, 2, 3)])
    for name, agent_type in types.items():
        pool = pool_of(nodes, name, agent_type)
        await until(lambda pool=pool: not pool.instances)  # type: ignore[misc]
    assert not agent.seen["refusals"]
    await agent.close()
    await caller.close()


@pytest.mark.parametrize("owner", ["one", "two"])
async def test_REG_7_an_offer_that_crosses_the_goodbye_of_its_agent_is_nothing_that_it_did_wrong(nodes, owner):
    """Its outcome is not wanted, and neither out of order; other links of the stream go on."""
    agent_type, stays = owned(nodes, owner), owned(nodes, "two")
    agent, caller = await agent_of(nodes, agent_type, "one"), await caller_at(nodes, "two")
    await agent.join(unique("stays"), link=2, agent_type=stays)
    await caller.submit(1, "INTEREST_OUTCOME", **spec(agent_type))
    offer = await agent.next("offers")
    await agent.send(goodbyes=[{"link": 1}])
    result = {"link": 1, "key": key_of(offer), "released": {"reason": "I leave"}}
    await agent.send(beats=[{"link": 1}], results=[result])
    refused = await agent.next("refusals")
    assert (reason_name(refused.error), refused.key.task_id) == ("UNKNOWN_ATTEMPT", offer.task.task_id)
    await caller.submit(2, "INTEREST_OUTCOME", **spec(stays))
    await agent.serve(await agent.next("offers"), "done")
    assert agent.seen["refusals"] == [refused]
    await agent.close()
    await caller.close()


async def test_CLU_1_an_agent_whose_stream_breaks_at_its_entry_is_lost_to_its_owner_and_comes_back_elsewhere(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "one")
    caller = await caller_at(nodes, "two")
    task = spec(agent_type)
    await caller.submit(1, "INTEREST_OUTCOME", **task)
    offer = await agent.next("offers")
    await agent.accept(offer)
    pool = pool_of(nodes, "two", agent_type)
    await agent.close()
    await until(lambda: all(one.link is None for one in pool.instances.values()))
    again = type(agent)(nodes.stubs("three"))
    running = [{"key": {"task_id": task["task_id"], "attempt": 1}}]
    again.boot_id = agent.boot_id
    welcome = await again.join(
        agent.agent_id, instance_id=agent.instance_id, agent_type=agent_type, running=running, max_concurrency=10
    )
    assert not welcome.unknown
    await again.finish(offer, "kept")
    result = await caller.complete(task["task_id"])
    assert (result.output.text, result.attempts) == ("kept", 1)
    await again.close()
    await caller.close()


async def test_CLU_1_a_shard_that_moves_has_its_agents_open_their_streams_anew(nodes):
    agent_type = owned(nodes, "two")
    agent = await agent_of(nodes, agent_type, "one")
    nodes.give(agent_type, "one")
    await agent.until(lambda: any(frame.reopen for frame in agent.frames))
    again = await agent_of(nodes, agent_type, "one")
    pool = pool_of(nodes, "one", agent_type)
    assert again.instance_id in pool.instances
    await agent.close()
    await again.close()


async def test_CLU_1_a_move_is_no_caller_that_left(nodes):
    agent_type = owned(nodes, "two")
    caller = await caller_at(nodes, "one")
    task = spec(agent_type, cancel_with_caller=True)
    await caller.submit(1, "INTEREST_OUTCOME", **task)
    await until(lambda: task["task_id"] in nodes["two"].tasks())
    known = nodes["two"].host.tasks["default", task["task_id"]]
    nodes.give(agent_type, "three")
    assert (await caller.ended())[0].name == "OK"
    await asyncio.sleep(0.1)
    assert known.state is TaskState.PENDING


async def test_CLU_5_level_1_sends_tasks_to_pools_elsewhere_by_the_room_that_their_owners_tell_of(nodes):
    skill = unique("skill")
    agents, types = {}, {}
    for name in ("two", "three"):
        agent_type = types[name] = owned(nodes, name)
        agents[name] = AgentByHand(nodes.stubs(name))
        await agents[name].join(
            unique("agent"), agent_type=agent_type, max_concurrency=3, capabilities=[{"name": skill}]
        )
    rooms = nodes["one"].peers.rooms
    await until(
        lambda: all(
            sum(one.slots for one in rooms.said(PoolKey("default", agent_type)).profiles.values()) == 3
            for agent_type in types.values()
        )
    )
    caller = await caller_at(nodes, "one")
    tasks = [{"task_id": unique("task"), "selector": {"capability": skill}} for _ in range(6)]
    await caller.send(submits=[{"reference": at, "task": task, "interest": 2} for at, task in enumerate(tasks)])
    for agent in agents.values():  # each gets as many as it has slots, though all came in one frame
        for _ in range(3):
            await agent.accept(await agent.next("offers"))
    assert not any(pool.key.agent_type in types.values() for pool in nodes["one"].host.pools())
    await until(lambda: all(rooms.said(PoolKey("default", one)).profiles for one in types.values()))
    await until(
        lambda: (
            not any(
                room.slots for one in types.values() for room in rooms.said(PoolKey("default", one)).profiles.values()
            )
        )
    )
    await caller.close()
    for agent in agents.values():
        await agent.close()


async def test_CLU_3_what_healthy_nodes_own_goes_on_while_a_stream_waits_for_a_lost_one(nodes):
    lost, healthy = owned(nodes, "two"), owned(nodes, "three")
    caller = await caller_at(nodes, "one")
    await caller.submit(1, "INTEREST_ACCEPTANCE", **spec(lost))
    await caller.next("acknowledgements")
    nodes.give(lost, "nobody")
    await asyncio.sleep(0.2)
    for at in (2, 3):
        await caller.submit(at, "INTEREST_ACCEPTANCE", **spec(healthy))
        assert (await caller.next("acknowledgements")).reference == at
    nodes.give(lost, "one")
    assert (await caller.ended())[0].name == "OK"
