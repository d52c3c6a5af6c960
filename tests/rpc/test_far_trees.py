"""Trees whose tasks are at several nodes: how far a cancel reaches, and whose budget counts (DLV-6, DLV-11, CLU-1)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentreach.v1 import task_pb2
from reach.core.model import TaskState
from tests.rpc.nodes import owned, spec, until
from tests.rpc.peers import TIMEOUT, pb, refusal
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: Any) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


async def chain(nodes: SharedCluster, **fields: Any) -> list[dict[str, Any]]:
    """A task at node one, which asks for one at two, which asks for one at three."""
    tasks: list[dict[str, Any]] = []
    for node in ("one", "two", "three"):
        task = spec(await owned_by(nodes, node, owned), **fields)
        if tasks:
            task |= {"parent_task_id": tasks[-1]["task_id"], "root_task_id": tasks[0]["task_id"]}
        await nodes.stubs("two").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        tasks.append(task)
    return tasks


def state_of(nodes: SharedCluster, node: str, task: dict[str, Any]) -> TaskState:
    return nodes[node].host.tasks["default", task["task_id"]].state


async def test_DLV_11_a_cancel_reaches_what_was_asked_for_at_other_nodes(nodes):
    for entry in ("one", "three"):
        root, child, grandchild = await chain(nodes)
        cancel = pb.CancelTaskRequest(task_id=root["task_id"])
        await nodes.stubs(entry).dispatch.CancelTask(cancel, timeout=TIMEOUT)
        await until(lambda: state_of(nodes, "two", child) is TaskState.CANCELLED)  # noqa: B023
        await until(lambda: state_of(nodes, "three", grandchild) is TaskState.CANCELLED)  # noqa: B023
        late = spec(child["selector"]["agent_type"], parent_task_id=root["task_id"], root_task_id=root["task_id"])
        call = nodes.stubs("two").dispatch.Dispatch(pb.DispatchRequest(task=late), timeout=TIMEOUT)
        assert (await refusal(call))[1] == "PARENT_CANCELLED"


@pytest.mark.parametrize("mark", [True, False])
async def test_DLV_11_all_nodes_hear_what_is_still_to_be_refused_and_what_is_not(nodes, mark, monkeypatch):
    heard: list[tuple[str, tuple[str, str], bool]] = []
    for name in ("two", "three"):
        monkeypatch.setattr(
            nodes[name].host.trees,
            "cancelled_elsewhere",
            lambda key, *, mark, name=name: heard.append((name, key, mark)),
        )
    nodes["one"].peers.tell_cancelled(("default", "some task"), mark)
    await until(lambda: len(heard) == 2)
    assert sorted(heard) == [(name, ("default", "some task"), mark) for name in ("three", "two")]


async def test_DLV_6_the_budget_of_an_asker_at_another_node_bounds_what_it_asks_for(nodes):
    _, child, grandchild = await chain(nodes, budget={"tokens": 100, "max_hops": 2})
    assert budget_at(nodes, "two", child) == (100, 1)
    assert budget_at(nodes, "three", grandchild) == (100, 0)
    more = spec(child["selector"]["agent_type"], budget={"tokens": 500})
    more |= {"parent_task_id": child["task_id"], "root_task_id": child["root_task_id"]}
    await nodes.stubs("three").dispatch.Dispatch(pb.DispatchRequest(task=more), timeout=TIMEOUT)
    assert budget_at(nodes, "two", more) == (100, 0)
    last = spec(child["selector"]["agent_type"])
    last |= {"parent_task_id": grandchild["task_id"], "root_task_id": child["root_task_id"]}
    call = nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=last), timeout=TIMEOUT)
    assert (await refusal(call))[1] == "BUDGET_SPENT"


def budget_at(nodes: SharedCluster, node: str, task: dict[str, Any]) -> tuple[int, int]:
    budget = task_pb2.TaskSpec.FromString(nodes[node].host.tasks["default", task["task_id"]].spec).budget
    return budget.tokens, budget.max_hops
