"""Watches and figures of all nodes at any of them (REG-9, CLU-1)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentreach.v1 import event_pb2, ops_pb2, registry_pb2
from reach.rpc import watches
from reach.rpc.merged_watches import AgentMerge, TaskMerge, read_cursor
from reach.rpc.watches import HERE, FanIn, Lost, StartAnew
from reach.runtime.ownership import Peer, Static
from tests.rpc.nodes import Cluster, agent_of, owned, spec, until
from tests.rpc.peers import TIMEOUT, kind_of, pb, unique
from tests.rpc.shared_nodes import SharedCluster, owned_by, shared_cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def nodes(tmp_path_factory: Any) -> AsyncIterator[SharedCluster]:
    async with shared_cluster(tmp_path_factory.mktemp("nodes"), "one", "two", "three") as made:
        yield made


class Watcher:
    """Reads a watch, and keeps what a client would."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.agents: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.cursor = ""
        self.resets = 0
        self.synced = 0
        self.first = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for answer in self.call:
            self.first.set()
            self.lost += answer.lost_nodes
            if hasattr(answer, "events"):
                self.events += [(event.task_id, kind_of(event)) for event in answer.events]
                continue
            if answer.reset:
                self.agents.clear()
                self.resets += 1
            for one in answer.agents:
                self.agents[one.registration.instance_id] = one.registration.version
            for instance_id in answer.removed:
                self.agents.pop(instance_id, None)
            self.synced += answer.in_sync
            self.cursor = answer.cursor or self.cursor

    async def end(self) -> None:
        self.call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


async def watch_tasks(nodes: Cluster, at: str, **fields: Any) -> Watcher:
    watcher = Watcher(nodes.stubs(at).ops.WatchTasks(pb.WatchTasksRequest(**fields)))
    await asyncio.wait_for(watcher.first.wait(), TIMEOUT)
    return watcher


def watch_agents(nodes: Cluster, at: str, tag: str, cursor: str = "") -> Watcher:
    request = pb.WatchAgentsRequest(filter={"tags": [tag]}, cursor=cursor)
    return Watcher(nodes.stubs(at).registry.WatchAgents(request))


async def register(nodes: Cluster, at: str, agent_type: str, tag: str, name: str, version: str = "1") -> None:
    registration = {"agent_id": "w", "agent_type": agent_type, "instance_id": name, "boot_id": "b", "tags": [tag]}
    registration["version"] = version
    await nodes.stubs(at).registry.Register(pb.RegisterRequest(registration=registration), timeout=TIMEOUT)


async def test_CLU_1_tasks_of_all_nodes_are_watched_at_any(nodes):
    types = [await owned_by(nodes, node, owned) for node in ("one", "two", "three")]
    agents = [await agent_of(nodes, kind, "one") for kind in types]
    watchers = [await watch_tasks(nodes, node) for node in nodes.nodes]
    names = []
    for agent, kind in zip(agents, types, strict=True):
        task = spec(kind)
        names.append(task["task_id"])
        await nodes.stubs("two").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        await agent.finish(await agent.next("offers"), "done")
    for watcher in watchers:
        await until(lambda: all((name, "complete") in watcher.events for name in names))  # noqa: B023
        for name in names:
            assert [kind for task_id, kind in watcher.events if task_id == name] == ["accepted", "started", "complete"]
        assert watcher.lost == []
        await watcher.end()
    for agent in agents:
        await agent.close()


async def test_CLU_1_agents_of_all_nodes_are_watched_at_any_while_pools_move(nodes):
    tag = unique("tag")
    types = [await owned_by(nodes, node, owned) for node in ("one", "two", "three")]
    names = [unique("instance") for _ in types]
    for kind, name in zip(types[:2], names[:2], strict=True):
        await register(nodes, "one", kind, tag, name)
    watchers = [watch_agents(nodes, node, tag) for node in nodes.nodes]
    for watcher in watchers:
        await until(lambda: watcher.synced == 1)  # noqa: B023
        assert watcher.agents.keys() == set(names[:2])
        assert watcher.resets == 1
    await register(nodes, "one", types[2], tag, names[2])
    await register(nodes, "one", types[0], tag, names[0], version="2")
    for watcher in watchers:
        await until(lambda: watcher.agents == dict(zip(names, ("2", "1", "1"), strict=True)))  # noqa: B023
    nodes.give(types[1], "three")
    await asyncio.sleep(1.5)  # time for what must not be told
    for watcher in watchers:
        await until(lambda: watcher.agents.keys() == set(names))  # noqa: B023
    await nodes.stubs("two").registry.Deregister(pb.DeregisterRequest(instance_id=names[1]), timeout=TIMEOUT)
    for watcher in watchers:
        await until(lambda: watcher.agents.keys() == {names[0], names[2]})  # noqa: B023
        assert (watcher.resets, watcher.synced) == (1, 1)
        await watcher.end()
    await nodes.stubs("two").registry.Deregister(pb.DeregisterRequest(instance_id=names[2]), timeout=TIMEOUT)
    again = watch_agents(nodes, "two", tag, watchers[0].cursor)
    await until(lambda: again.synced == 1)
    assert again.resets == 0, "it goes on where it was, at another node"
    await until(lambda: not again.agents)
    await again.end()
    fresh = watch_agents(nodes, "two", tag, "n.nonsense")
    await until(lambda: fresh.synced == 1)
    assert (fresh.resets, list(fresh.agents)) == (1, [names[0]])
    await fresh.end()


async def test_CLU_1_a_node_that_is_lost_is_named_and_its_agents_are_told_by_the_heir(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("reach.rpc.watches.LOOK_SECONDS", 0.1)
    async with shared_cluster(tmp_path, "one", "two", "three") as nodes:
        tag, name = unique("tag"), unique("instance")
        kind = await owned_by(nodes, "two", owned)
        await register(nodes, "one", kind, tag, name)
        agents, tasks = watch_agents(nodes, "one", tag), await watch_tasks(nodes, "one")
        await until(lambda: agents.synced == 1)
        assert list(agents.agents) == [name]
        await nodes.lose("two", "three")
        await until(lambda: agents.lost == tasks.lost == ["two"])
        task = spec(kind)
        await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=task), timeout=TIMEOUT)
        await until(lambda: (task["task_id"], "accepted") in tasks.events)
        await register(nodes, "one", kind, tag, name, version="2")
        await until(lambda: agents.agents == {name: "2"})
        await asyncio.sleep(0.5)  # time for what must not be told
        assert agents.agents == {name: "2"}
        assert agents.resets == 1
        await agents.end()
        await tasks.end()


async def test_CLU_1_what_the_server_has_is_counted_over_all_nodes(nodes):
    kinds = [await owned_by(nodes, node, owned) for node in ("one", "two", "three")]
    before = await nodes.stubs("one").ops.GetServerInfo(pb.GetServerInfoRequest(), timeout=TIMEOUT)
    for kind in kinds:
        await register(nodes, "one", kind, "counted", unique("instance"))
        await nodes.stubs("one").dispatch.Dispatch(pb.DispatchRequest(task=spec(kind)), timeout=TIMEOUT)
    for node in nodes.nodes:
        info = await nodes.stubs(node).ops.GetServerInfo(pb.GetServerInfoRequest(), timeout=TIMEOUT)
        assert (info.node_id, list(info.lost_nodes)) == (node, [])
        assert (info.agents, info.open_tasks) == (before.agents + 3, before.open_tasks + 3)


async def test_CLU_1_a_node_that_does_not_answer_is_named_in_the_figures(tmp_path: Path):
    async with shared_cluster(tmp_path, "one", "two") as nodes:
        await nodes["two"].down()
        info = await nodes.stubs("one").ops.GetServerInfo(pb.GetServerInfoRequest(), timeout=TIMEOUT)
        assert list(info.lost_nodes) == ["two"]


def answer(*agents: str, **fields: Any) -> bytes:
    made = registry_pb2.WatchAgentsResponse(**fields)
    for name in agents:
        made.agents.add().registration.instance_id = name
    return made.SerializeToString()


def synced() -> AgentMerge:
    merge = AgentMerge(registry_pb2.WatchAgentsRequest(), "a", ["b"])
    merge.take(HERE, answer("x", reset=True, in_sync=True, cursor="a1"))
    merge.take("b", answer("y", reset=True, in_sync=True, cursor="b1"))
    return merge


async def test_an_instance_is_there_as_long_as_any_node_has_it():
    merge = synced()
    merge.take("b", answer("x", cursor="b2"))
    assert merge.take(HERE, answer(removed=["x"], cursor="a2"))[0].removed == []
    assert merge.take("b", answer(removed=["x"], cursor="b3"))[0].removed == ["x"]


async def test_what_a_node_does_not_tell_again_is_gone():
    merge = synced()
    first = merge.take("b", answer("z", reset=True))
    last = merge.take("b", answer("w", cursor="b9"))
    assert [one.reset for one in (*first, *last)] == [False, False]
    assert [list(one.removed) for one in (*first, *last)] == [[], ["y"]]
    assert read_cursor(last[0].cursor) == {"a": "a1", "b": "b9"}


async def test_what_a_node_had_that_is_gone_for_good_is_gone():
    merge = synced()
    assert [list(one.lost_nodes) for one in merge.take("b", Lost(False))] == [["b"]]
    assert [list(one.removed) for one in merge.take("b", Lost(True))] == [["y"]]


async def test_who_resumes_where_one_node_cannot_gets_all_anew():
    cursor = synced().take("b", answer("q", cursor="b2"))[0].cursor
    merge = AgentMerge(registry_pb2.WatchAgentsRequest(cursor=cursor), "b", ["a"])
    assert (merge.request("a").cursor, merge.request(HERE).cursor) == ("a1", "b2")
    with pytest.raises(StartAnew):
        merge.take("a", answer("x", reset=True))


def tasks_of(*nodes: str) -> TaskMerge:
    return TaskMerge(ops_pb2.WatchTasksRequest(), "a", nodes)


def event(task_id: str) -> bytes:
    return ops_pb2.WatchTasksResponse(events=[event_pb2.TaskEvent(task_id=task_id)]).SerializeToString()


async def test_CLU_1_a_watch_of_tasks_begins_when_all_nodes_watch_and_tells_what_came_meanwhile():
    merge = tasks_of("b", "c")
    assert merge.take(HERE, b"") == []
    assert merge.take("b", event("early")) == []
    first, *rest = merge.take("c", b"")
    assert list(first.lost_nodes) == []
    assert [one.task_id for told in rest for one in told.events] == ["early"]
    assert merge.take("b", b"") == [], "what says nothing is not told"
    assert [one.task_id for told in merge.take("b", event("late")) for one in told.events] == ["late"]


async def test_CLU_1_a_watch_of_tasks_names_who_is_silent_and_who_is_lost():
    merge = tasks_of("b", "c", "d")
    assert merge.take(HERE, b"") == []
    assert merge.take("c", Lost(False)) == []
    assert merge.take("b", event("early")) == []
    told = merge.take(HERE, None)
    assert [list(one.lost_nodes) for one in told] == [["d"], ["c"], []]
    assert merge.take("c", Lost(True)) == [], "it was named already"
    assert [list(one.lost_nodes) for one in merge.take("b", Lost(False))] == [["b"]]
    merge = tasks_of("b")
    merge.take(HERE, b"")
    assert [list(one.lost_nodes) for one in merge.take("b", Lost(False))] == [[], ["b"]], "it need not be waited for"


async def test_CLU_1_a_watch_of_agents_names_who_is_silent_and_who_is_lost():
    merge = AgentMerge(registry_pb2.WatchAgentsRequest(), "a", ["b", "c"])
    merge.take(HERE, answer("x", reset=True, in_sync=True, cursor="a1"))
    (lost,) = merge.take("b", Lost(False))
    assert (list(lost.lost_nodes), lost.in_sync) == (["b"], False)
    (told,) = merge.take(HERE, None)
    assert (list(told.lost_nodes), told.in_sync) == (["c"], True), "it begins without them, and says so"
    assert read_cursor(told.cursor) == {"a": "a1"}
    merge = AgentMerge(registry_pb2.WatchAgentsRequest(cursor=told.cursor), "a", ["b", "c"])
    assert merge.request(HERE).cursor == "", "a cursor without the part of a node leaves nothing out: all is told anew"
    merge = AgentMerge(registry_pb2.WatchAgentsRequest(), "a", ["b"])
    merge.take(HERE, answer("x", reset=True, in_sync=True, cursor="a1"))
    (lost,) = merge.take("b", Lost(False))
    assert (list(lost.lost_nodes), lost.in_sync) == (["b"], True)


async def test_CLU_1_a_watch_does_not_wait_for_a_node_that_says_nothing_at_all(monkeypatch):
    """It is connected, and stands still: after a moment it is named, and the others are told of."""
    monkeypatch.setattr(watches, "FIRST_SECONDS", 0.01)

    async def here(request: Any) -> AsyncIterator[Any]:
        yield ops_pb2.WatchTasksResponse()
        await asyncio.Event().wait()

    async def there(request: Any, where: Any) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    owners: Any = Static("a", {"b": Peer("b", "b:1")})
    async with asyncio.timeout(TIMEOUT), aclosing(FanIn(owners, here, there, tasks_of("b")).messages()) as messages:
        async for message in messages:
            assert list(message.lost_nodes) == ["b"]
            break
