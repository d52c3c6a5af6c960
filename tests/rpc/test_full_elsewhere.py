"""A full queue on another node: the task goes to the next pool that can take it, once, and only there (RTE-15)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from reach.core.model import PoolKey
from reach.rpc import link_end, peer_service, proxy, tunnel
from reach.rpc.branches import Branches
from reach.rpc.peer_messages import placing_from
from reach.runtime import rooms
from tests.rpc.nodes import owned, serve, spec, until
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, pb, reason_name, refusal, retry_in, running, unique
from tests.rpc.peers import Stubs as StubsOf
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMIT = 2


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[SharedCluster]:
    made = shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three", router__queue_limit=LIMIT)
    async with made as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def knows_little(nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What node one knows of the room of others is old, as it is for some tenths of a second."""
    monkeypatch.setattr(nodes["one"].peers.rooms, "heard", lambda key, room: None)
    nodes["one"].peers.rooms._heard.clear()
    nodes["one"].peers.rooms._full.clear()


class Ready(NamedTuple):
    """Pools with one capability, an agent in each."""

    capability: str
    types: list[str]
    agents: list[AgentByHand]

    def spec(self, **fields: Any) -> dict[str, Any]:
        return {"task_id": unique("task"), "selector": {"capability": self.capability}, "payload": {"text": "ping"},
                **fields}  # fmt: skip


async def pools_at(nodes: SharedCluster, *owners: str) -> Ready:
    """A pool at each of these nodes, in the order in which level 1 knows them."""
    capability, types, agents = unique("skill"), [], []
    for owner in owners:
        agent_type = await owned_by(nodes, owner, owned)
        agent = AgentByHand(nodes.stubs(owner))
        await agent.join(unique("agent"), agent_type=agent_type, capabilities=[{"name": capability}])
        types.append(agent_type)
        agents.append(agent)
    return Ready(capability, types, agents)


async def fill(nodes: SharedCluster, agent_type: str, owner: str) -> list[str]:
    """Nothing more goes into a pool: one task runs, the others wait."""
    names = []
    for _ in range(LIMIT + 1):
        task = spec(agent_type)
        await nodes.stubs(owner).dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        names.append(task["task_id"])
    return names


def holders(nodes: SharedCluster, task_id: str) -> dict[str, str]:
    """Which nodes have a task, and in which pool."""
    return {
        name: node.host.tasks["default", task_id].pool.key.agent_type
        for name, node in nodes.nodes.items()
        if task_id in node.tasks()
    }


async def dispatch(nodes: SharedCluster, at: str, task: dict[str, Any], **fields: Any) -> Any:
    return await nodes.stubs(at).dispatch.Dispatch(pb.DispatchRequest(task=task, **fields), timeout=TIMEOUT)


@pytest.mark.parametrize("second", ["three", "two", "one"])
async def test_RTE_15_a_call_goes_to_the_next_pool_wherever_it_is(nodes, second):
    ready = await pools_at(nodes, "two", second)
    await fill(nodes, ready.types[0], "two")
    task = ready.spec()
    serving = asyncio.ensure_future(serve(ready.agents[1]))
    answer = await dispatch(nodes, "one", task, wait={"seconds": 15})
    await serving
    assert answer.result.output.text == "pong"
    assert holders(nodes, task["task_id"]) == {second: ready.types[1]}


@pytest.mark.parametrize("second", ["three", "two", "one"])
async def test_RTE_15_a_task_of_a_stream_goes_to_the_next_pool_wherever_it_is(nodes, second):
    ready = await pools_at(nodes, "two", second)
    await fill(nodes, ready.types[0], "two")
    caller = CallerByHand(nodes.stubs("one"))
    await caller.open()
    task = ready.spec()
    await caller.submit(1, "INTEREST_EVENTS", **task)
    assert (await caller.next("acknowledgements")).task_id == task["task_id"]
    await serve(ready.agents[1])
    assert (await caller.complete(task["task_id"])).output.text == "pong"
    assert holders(nodes, task["task_id"]) == {second: ready.types[1]}
    assert [one.sequence for one in caller.events_of(task["task_id"])] == [1, 2, 3]
    await caller.close()


async def test_RTE_15_events_of_a_run_come_from_the_next_pool(nodes):
    ready = await pools_at(nodes, "two", "three")
    await fill(nodes, ready.types[0], "two")
    serving = asyncio.ensure_future(serve(ready.agents[1]))
    events: list[Any] = []
    async for frame in nodes.stubs("one").dispatch.Run(pb.RunRequest(task=ready.spec()), timeout=TIMEOUT):
        events.extend(frame.events)
    await serving
    assert events[-1].complete.output.text == "pong"


async def test_RTE_15_a_caller_that_says_no_more_is_told_of_the_next_pool_of_the_same_node(nodes):
    ready = await pools_at(nodes, "two", "two")
    await fill(nodes, ready.types[0], "two")
    caller = CallerByHand(nodes.stubs("one"))
    task = ready.spec()
    await caller.submit(1, "INTEREST_OUTCOME", **task)
    await caller.half_close()
    await serve(ready.agents[1])
    assert (await caller.complete(task["task_id"])).output.text == "pong"
    assert (await caller.ended())[0].name == "OK"


async def test_RTE_15_when_all_are_full_it_is_refused_with_the_time_to_come_back(nodes):
    ready = await pools_at(nodes, "two", "three", "one")
    for agent_type, owner in zip(ready.types, ("two", "three", "one"), strict=True):
        await fill(nodes, agent_type, owner)
    task = ready.spec()
    call = nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    assert (await refusal(call))[:2] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert retry_in(await call.trailing_metadata()) == 1.0
    caller = CallerByHand(nodes.stubs("one"))
    await caller.submit(7, "INTEREST_OUTCOME", **ready.spec())
    refused = await caller.next("refusals")
    assert (refused.reference, reason_name(refused.error), refused.error.retry_after.seconds) == (7, "QUEUE_FULL", 1)
    assert not holders(nodes, task["task_id"])
    await caller.close()


async def test_RTE_15_what_was_found_full_is_not_asked_again_at_once(nodes, monkeypatch):
    monkeypatch.setattr(rooms, "FOUND_FULL_MS", 60_000)
    ready = await pools_at(nodes, "two", "three")
    await fill(nodes, ready.types[0], "two")
    await dispatch(nodes, "one", ready.spec())
    nodes["one"].host.level_1.moved()  # or what it has sent there makes the other one the better
    asked: list[str] = []
    real = Branches.send

    def send(self: Branches, where: Any, frame: bytes, sent: int = 0) -> None:
        asked.append(where.peer.node_id)
        real(self, where, frame, sent)

    monkeypatch.setattr(Branches, "send", send)
    caller = CallerByHand(nodes.stubs("one"))
    await caller.submit(1, "INTEREST_ACCEPTANCE", **ready.spec())
    await caller.next("acknowledgements")
    assert asked == ["three"]
    await caller.close()


async def test_E_1_an_id_that_went_to_the_next_pool_is_one_task_for_all_who_ask_again(nodes):
    """Also when the first pool has room by then, and at a node that knows nothing of the first time."""
    ready = await pools_at(nodes, "two", "three")
    await fill(nodes, ready.types[0], "two")
    task = ready.spec()
    assert not (await dispatch(nodes, "one", task)).deduplicated
    await serve(ready.agents[0], LIMIT + 1)  # the first pool has room now
    nodes["one"].peers.rooms._full.clear()
    for name in ("one", "two", "three"):
        assert (await dispatch(nodes, name, task)).deduplicated
        await nodes[name].host.settled()
    assert holders(nodes, task["task_id"]) == {"three": ready.types[1]}


async def test_E_1_a_lost_word_of_a_full_pool_is_asked_again_and_makes_one_task(nodes, monkeypatch):
    """The caller hears nothing, comes again elsewhere, and the pool has room by then."""
    ready = await pools_at(nodes, "two", "three")
    await fill(nodes, ready.types[0], "two")
    lost: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(link_end._Channel, "back", lambda self, frame, where: lost.append((self, frame, where)))
        caller = CallerByHand(nodes.stubs("one"))
        task = ready.spec()
        await caller.submit(1, "INTEREST_OUTCOME", **task)
        await until(lambda: bool(lost))
    again = CallerByHand(nodes.stubs("three"))
    await again.submit(1, "INTEREST_ACCEPTANCE", **task)
    await again.next("acknowledgements")
    channel, frame, where = lost[0]
    channel.back(frame, where)  # it was only late
    await serve(ready.agents[1])
    assert (await caller.complete(task["task_id"])).output.text == "pong"
    assert list(holders(nodes, task["task_id"]).values()) == [ready.types[1]]
    for stream in (caller, again):
        await stream.close()


@pytest.mark.parametrize("whose", ["door", "owner"])
async def test_CLU_6_with_a_node_of_before_a_full_pool_refuses_as_it_did(nodes, monkeypatch, whose):
    ready = await pools_at(nodes, "two", "three")
    await fill(nodes, ready.types[0], "two")
    if whose == "door":
        for module in (tunnel, proxy):
            monkeypatch.setattr(module, "spill_of", lambda placing: None)
    else:
        for other in (link_end, peer_service):
            monkeypatch.setattr(other, "placing_from", _without_spill)
    call = nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=ready.spec()), timeout=TIMEOUT)
    assert (await refusal(call))[:2] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    nodes["one"].host.level_1.moved()  # or what it has sent there makes the other one the better
    caller = CallerByHand(nodes.stubs("one"))
    await caller.submit(7, "INTEREST_OUTCOME", **ready.spec())
    assert reason_name((await caller.next("refusals")).error) == "QUEUE_FULL"
    await caller.close()


def _without_spill(message: Any, *, brought: bool) -> Any:
    message.ClearField("spill")
    return placing_from(message, brought=brought)


async def test_RTE_15_a_pool_that_is_the_only_one_refuses_without_a_way_back(nodes, monkeypatch):
    """Its owner is not told of others: what is refused under load makes one way, not two."""
    ready = await pools_at(nodes, "two")
    await fill(nodes, ready.types[0], "two")
    monkeypatch.setattr(link_end._Channel, "back", None)
    caller = CallerByHand(nodes.stubs("one"))
    await caller.submit(1, "INTEREST_OUTCOME", **ready.spec())
    assert reason_name((await caller.next("refusals")).error) == "QUEUE_FULL"
    await caller.close()


async def test_RTE_15_a_burst_in_one_frame_fills_one_pool_after_the_other(tmp_path: Path):
    """Level 1 cannot know what a pool has not read yet: who finds no room there then goes on."""
    async with running(tmp_path, router__queue_limit=1) as node, StubsOf(node.port) as stubs:
        agents = []
        for agent_type in ("a", "b"):
            agent = AgentByHand(stubs)
            await agent.join(agent_type, agent_type=agent_type, capabilities=[{"name": "skill"}])
            agents.append(agent)
        caller = CallerByHand(stubs)
        task = {"selector": {"capability": "skill"}, "payload": {"text": "ping"}}
        submits = [
            {"reference": number, "interest": "INTEREST_ACCEPTANCE", "task": {"task_id": f"t{number}", **task}}
            for number in range(1, 6)
        ]
        await caller.send(submits=submits)
        taken = {(await caller.next("acknowledgements")).task_id for _ in range(4)}
        refused = await caller.next("refusals")
        assert len(taken) == 4
        assert (refused.task_id in taken, reason_name(refused.error)) == (False, "QUEUE_FULL")
        where = [node.host.tasks["default", name].pool.key for name in sorted(taken)]
        assert sorted(where) == [PoolKey("default", "a")] * 2 + [PoolKey("default", "b")] * 2
        for stream in (caller, *agents):
            await stream.close()
