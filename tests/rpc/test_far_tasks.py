"""Lists of tasks tell how each stands, whichever node owns it and whichever is asked (DLV-12, CLU-1)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentreach.internal.v1 import peer_pb2
from tests.rpc.nodes import agent_of, owned, spec
from tests.rpc.peers import TIMEOUT, key_of, pb, unique
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOORS = ("one", "two", "three")
LABEL = "far"
NO_SUCH_CALL = "/agentreach.internal.v1.PeerService/TellNothing"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), *DOORS) as cluster:
        yield cluster


async def stand(nodes: SharedCluster, label: str) -> dict[str, str]:
    """Tasks in several states, of pools of two nodes: what each is to be told as."""
    expected = {}
    for owner in ("two", "three"):
        agent_type = await owned_by(nodes, owner, owned)
        agent = await agent_of(nodes, agent_type, owner)
        for state in ("DELIVERED", "RUNNING", "WAITING", "SUCCEEDED", "PENDING"):
            name = f"{label}-{owner}-{state}"
            kind = agent_type if state != "PENDING" else await owned_by(nodes, owner, owned)
            task = spec(kind, task_id=name, payload={"text": "asked"}, labels={LABEL: label})
            await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
            expected[name] = state
            if state == "PENDING":
                continue
            offer = await agent.next("offers")
            if state == "DELIVERED":
                continue
            await agent.accept(offer)
            if state == "SUCCEEDED":
                await agent.finish(offer, "done")
            elif state == "WAITING":
                asks = {"waiting": {"prompt": {"text": "which?"}}}
                await agent.send(results=[{"link": 1, "key": key_of(offer), **asks}])
                await agent.next("acknowledgements")
            else:
                await agent.delta(offer, 1, "piece")
        await nodes[owner].host.settled()
    return expected


async def listed(nodes: SharedCluster, door: str, label: str, *states: str, **fields: Any) -> Any:
    names = [f"TASK_STATE_{state}" for state in states]
    request = pb.ListTasksRequest(filter={"labels": {LABEL: label}, "states": names}, **fields)
    return await nodes.stubs(door).dispatch.ListTasks(request, timeout=TIMEOUT)


def states_in(answer: Any) -> dict[str, str]:
    return {one.spec.task_id: pb.TaskState.Name(one.state).removeprefix("TASK_STATE_") for one in answer.tasks}


async def test_CLU_1_each_node_tells_of_all_tasks_how_they_stand(nodes):
    label = unique("label")
    expected = await stand(nodes, label)
    for door in DOORS:
        answer = await listed(nodes, door, label)
        assert states_in(answer) == expected
        assert not answer.lost_nodes
        for state in ("DELIVERED", "RUNNING", "WAITING", "PENDING", "SUCCEEDED"):
            some = {name for name, one in expected.items() if one == state}
            assert states_in(await listed(nodes, door, label, state)).keys() == some, (door, state)


async def test_CLU_1_what_is_told_of_tasks_elsewhere_is_all_that_a_list_tells(nodes):
    """What was asked is the journal's, all else the owner's."""
    label = unique("label")
    await stand(nodes, label)
    for view, whole in (("TASK_VIEW_BASIC", False), ("TASK_VIEW_FULL", True)):
        there = {one.spec.task_id: one for one in (await listed(nodes, "two", label, view=view)).tasks}
        here = {one.spec.task_id: one for one in (await listed(nodes, "one", label, view=view)).tasks}
        for name, task in here.items():
            assert (task.spec.payload.text == "asked") is whole
            assert task.spec.labels[LABEL] == label
            if "-two-" in name and "SUCCEEDED" not in name:
                assert task == there[name]
        waiting = here[f"{label}-two-WAITING"]
        assert waiting.attempts[0].instance_id
        assert (waiting.waiting.prompt.text == "which?") is whole


async def test_CLU_1_pages_of_a_list_are_those_of_the_journal(nodes):
    label = unique("label")
    expected = await stand(nodes, label)
    seen: dict[str, str] = {}
    token, pages = "", 0
    while token or not pages:
        answer = await listed(nodes, "one", label, page_size=3, page_token=token)
        seen |= states_in(answer)
        token, pages = answer.next_page_token, pages + 1
    assert seen == expected


async def test_CLU_1_a_node_that_does_not_answer_is_named_and_its_tasks_are_told_as_the_journal_has_them(
    nodes, monkeypatch
):
    label = unique("label")
    expected = await stand(nodes, label)
    monkeypatch.setattr(nodes["three"].host, "settled", _never)
    answer = await listed(nodes, "one", label)
    assert list(answer.lost_nodes) == ["three"]
    told = states_in(answer)
    assert told.keys() == expected.keys()
    assert told[f"{label}-two-RUNNING"] == "RUNNING"
    assert told[f"{label}-three-RUNNING"] == "PENDING"


async def _never() -> None:
    await asyncio.Event().wait()


async def test_CLU_6_a_node_of_before_is_not_lost(nodes, monkeypatch):
    """It does not have the call."""
    label = unique("label")
    await stand(nodes, label)
    peers = nodes["one"].peers
    for name in ("two", "three"):
        connection = peers.connection(nodes.addresses[name])
        encode = peer_pb2.TellTasksRequest.SerializeToString
        monkeypatch.setattr(connection.stub, "TellTasks", connection.channel.unary_unary(NO_SUCH_CALL, encode))
    answer = await listed(nodes, "one", label)
    assert not answer.lost_nodes
    assert states_in(answer)[f"{label}-two-RUNNING"] == "PENDING"


async def test_RTE_13_each_node_tells_the_decisions_of_all_tasks(nodes):
    label = unique("label")
    expected = {name for name, state in (await stand(nodes, label)).items() if state != "PENDING"}
    for door in DOORS:
        ops = nodes.stubs(door).ops
        answer = await ops.ListDecisions(pb.ListDecisionsRequest(page_size=1_000), timeout=TIMEOUT)
        told = {row.task_id: row for row in answer.decisions if row.task_id.startswith(f"{label}-")}
        assert told.keys() == expected, door
        for name, row in told.items():
            (one,) = (await ops.ListDecisions(pb.ListDecisionsRequest(task_id=name), timeout=TIMEOUT)).decisions
            assert one == row
            assert row.decision.chosen_instance_id
