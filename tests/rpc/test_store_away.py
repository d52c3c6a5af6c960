"""Calls that change what is kept, while the store that nodes share is away: they wait, for 5 s (CLU-4)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from reach.core.placement import shard_of_session
from reach.runtime import patience
from reach.runtime.claims import SURE_MS
from tests.rpc.nodes import agent_of, owned, serve, spec, until
from tests.rpc.peers import TIMEOUT, pb, refusal, unique
from tests.rpc.shared_nodes import SharedCluster, SharedMember, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two") as cluster:
        yield cluster


def away(node: SharedMember) -> None:
    """The store of a node is away, and has been for a while."""
    node.store.cut_off = True
    node.claims._confirmed_ms = node.host.clock.now_ms() - SURE_MS - 1


async def back(node: SharedMember) -> None:
    node.store.cut_off = False
    node.claims._stirred.set()
    await until(lambda: not node.claims.is_in_doubt())


async def register(nodes: SharedCluster, agent_type: str) -> Any:
    registration: dict[str, Any] = {
        "agent_id": "a",
        "agent_type": agent_type,
        "instance_id": unique("i"),
        "boot_id": "b",
    }
    return await nodes.stubs("two").registry.Register(pb.RegisterRequest(registration=registration), timeout=TIMEOUT)


async def delete_session(nodes: SharedCluster, agent_type: str) -> Any:
    tenant, name = nodes.session_of("one")
    await until(lambda: nodes["one"].owners.node_of(shard_of_session((tenant, name))) is None)
    app, user, session = name.split(":")
    key = {"app_id": app, "user_id": user, "session_id": session}
    agent = await agent_of(nodes, agent_type, "one")
    serving = asyncio.ensure_future(serve(agent))
    request = pb.DispatchRequest(task=spec(agent_type, session=key), wait={"seconds": 15})
    await nodes.stubs("one").dispatch.Dispatch(request, timeout=TIMEOUT)
    await serving
    away(nodes["one"])
    return await nodes.stubs("two").session.DeleteSession(pb.DeleteSessionRequest(key=key), timeout=TIMEOUT)


async def cancel(nodes: SharedCluster, agent_type: str) -> Any:
    task = spec(agent_type)
    nodes["one"].store.cut_off = False
    await back(nodes["one"])
    await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
    away(nodes["one"])
    return await nodes.stubs("one").dispatch.CancelTask(pb.CancelTaskRequest(task_id=task["task_id"]), timeout=TIMEOUT)


Call = Callable[[SharedCluster, str], Awaitable[Any]]


@pytest.mark.parametrize("call", [register, delete_session, cancel])
@pytest.mark.parametrize("comes_back", [True, False])
async def test_CLU_4_a_durable_call_waits_for_the_store(
    nodes: SharedCluster, monkeypatch: pytest.MonkeyPatch, call: Call, comes_back: bool
) -> None:
    one = nodes["one"]
    agent_type = await owned_by(nodes, "one", owned)
    if not comes_back:
        monkeypatch.setattr(patience, "WAIT_MS", 200)
    if call is register:
        away(one)
    asked = asyncio.ensure_future(call(nodes, agent_type))
    await until(lambda: bool(one.reach.patience._waiting) or asked.done())
    if comes_back:
        assert not asked.done()
        await back(one)
        await asked
    else:
        assert (await refusal(asked))[:2] == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        await back(one)
