"""A session whose pool is another node's stays there, whichever node is asked, wherever there is more room (RTE-1)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from reach.core.model import PoolKey
from reach.runtime import far_pins
from reach.runtime.far_pins import FarPins
from tests.rpc.nodes import owned, until
from tests.rpc.peers import TIMEOUT, AgentByHand, CallerByHand, pb, refusal, unique
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOORS = ("one", "two", "three")
SLOTS = 8


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), *DOORS, router__queue_limit=1) as cluster:
        yield cluster


class Talk:
    """A session with what has one capability, of which two nodes have an agent each."""

    def __init__(self, nodes: SharedCluster) -> None:
        self._nodes = nodes
        self.capability = unique("skill")
        self.key = {"app_id": "a", "user_id": unique("u"), "session_id": "s"}
        self.agents: dict[str, AgentByHand] = {}
        self.types: dict[str, str] = {}

    async def begin(self, *owners: str) -> None:
        for owner in owners:
            agent_type = self.types[owner] = await owned_by(self._nodes, owner, owned)
            agent = self.agents[owner] = AgentByHand(self._nodes.stubs(owner))
            skills = [{"name": self.capability}]
            await agent.join(unique("agent"), agent_type=agent_type, capabilities=skills, max_concurrency=SLOTS)

    def spec(self, **fields: Any) -> dict[str, Any]:
        names = {"task_id": unique("turn"), "selector": {"capability": self.capability}, "session": self.key}
        return {**names, "payload": {"text": "hello"}, **fields}

    async def turn(self, door: str) -> str:
        """One turn at a node; the owner of the pool that has it."""
        task = self.spec()
        await self._nodes.stubs(door).dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        return self.where(task["task_id"])

    def where(self, task_id: str) -> str:
        (found,) = (
            node.host.tasks["default", task_id].pool.key.agent_type
            for node in self._nodes.nodes.values()
            if task_id in node.tasks()
        )
        return next(owner for owner, agent_type in self.types.items() if agent_type == found)

    async def crowd(self, owner: str, count: int) -> None:
        """Others keep the agent of a node busy: there is more room elsewhere, and all nodes know it."""
        for _ in range(count):
            task = {"task_id": unique("other"), "selector": {"agent_type": self.types[owner]}, "payload": {"text": "x"}}
            await self._nodes.stubs(owner).dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)


async def test_RTE_1_a_conversation_stays_in_its_pool_at_whatever_node_its_turns_come_in(nodes):
    talk = Talk(nodes)
    await talk.begin("two", "three")
    first = await talk.turn("one")
    await talk.crowd(first, SLOTS - 4)
    for door in (*DOORS, *DOORS):
        assert await talk.turn(door) == first


async def test_RTE_1_a_node_asks_once_for_a_session_and_several_turns_wait_for_one_answer(nodes):
    talk = Talk(nodes)
    await talk.begin("two", "three")
    first = await talk.turn("two")
    await talk.crowd(first, 2)
    level_1 = nodes["one"].host.level_1
    asked: list[Any] = []
    real = level_1.far_pins._ask

    async def ask(name: Any, pools: Any) -> Any:
        asked.append((name, len(pools)))
        return await real(name, pools)

    level_1.far_pins._ask = ask
    caller = CallerByHand(nodes.stubs("one"))
    submits = [
        {"reference": number, "interest": "INTEREST_ACCEPTANCE", "task": talk.spec(task_id=unique("turn"))}
        for number in range(1, 4)
    ]
    await caller.send(submits=submits)
    names = [(await caller.next("acknowledgements")).task_id for _ in submits]
    assert {talk.where(name) for name in names} == {first}
    assert await talk.turn("one") == first
    assert len(asked) == 1
    assert asked[0][1] == 2
    level_1.far_pins._ask = real
    await caller.close()


async def test_RTE_1_who_does_not_answer_holds_nobody_up_for_long(nodes, monkeypatch):
    """A turn is placed by what is known; what is asked meanwhile of the task finds it."""
    talk = Talk(nodes)
    await talk.begin("one", "two")
    await talk.crowd("two", SLOTS + SLOTS // 2)
    monkeypatch.setattr(far_pins, "ASK_SECONDS", 0.2)
    pins = nodes["one"].host.level_1.far_pins
    monkeypatch.setattr(pins, "_ask", lambda name, pools: asyncio.Event().wait())
    assert await talk.turn("one") == "one"
    caller = CallerByHand(nodes.stubs("one"))
    talk.key = {**talk.key, "user_id": unique("u")}
    monkeypatch.setattr(far_pins, "ASK_SECONDS", 60.0)
    task = talk.spec()
    await caller.submit(1, "INTEREST_OUTCOME", **task)
    await until(lambda: bool(pins._asking))
    await caller.send(cancels=[{"reference": 2, "task_id": task["task_id"]}])
    assert (await caller.next("cancelled")).task_id == task["task_id"]
    await caller.close()


async def test_RTE_1_a_conversation_waits_for_room_in_its_pool_and_is_not_moved(nodes):
    """A full queue is over soon; another agent knows nothing of what was said."""
    talk = Talk(nodes)
    await talk.begin("two", "three")
    first = await talk.turn("one")
    await talk.crowd(first, SLOTS - 1 + SLOTS // 2 + 1)  # as many as may be overcommitted, and one that waits
    for door in DOORS:
        call = nodes.stubs(door).dispatch.Dispatch(pb.DispatchRequest(task=talk.spec()), timeout=TIMEOUT)
        assert (await refusal(call))[:2] == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")


async def test_what_is_remembered_of_sessions_is_bounded_and_gets_old(nodes, monkeypatch):
    clock = nodes["one"].host.clock
    late_ms = 0
    pins = FarPins(_Clock(lambda: clock.now_ms() + late_ms), _nobody, lambda work: work.close())  # type: ignore[arg-type]
    monkeypatch.setattr(far_pins, "KNOWN", 2)
    monkeypatch.setattr(far_pins, "ASKED", 1)
    pool = PoolKey("acme", "chat")
    for name in ("a", "b", "a", "c"):
        pins.placed(("acme", name), pool)
    assert [pins.pools_of(("acme", name)) for name in "abc"] == [{pool}, None, {pool}]
    late_ms = far_pins.KNOWN_MS
    assert pins.pools_of(("acme", "a")) is None
    assert pins.ask(("acme", "x"), [pool], print)
    assert pins.ask(("acme", "x"), [pool], print)
    assert not pins.ask(("acme", "y"), [pool], print)


class _Clock:
    def __init__(self, now_ms: Any) -> None:
        self.now_ms = now_ms


async def _nobody(name: Any, pools: Any) -> Any:
    raise AssertionError
