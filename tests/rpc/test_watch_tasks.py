"""All tasks as they change (`OpsService.WatchTasks`), for their tenant, without payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentreach.v1 import dispatch_pb2_grpc, ops_pb2, ops_pb2_grpc, task_pb2
from reach import Agent, Client, Task, Unavailable
from reach.config import Config, Server, Storage
from reach.core.effects import Turn
from reach.core.model import Requirement
from reach.core.model import Task as CoreTask
from reach.core.pieces import Kind
from reach.node import Node
from reach.runtime import task_watch
from reach.runtime.taken import TAKEN
from reach.runtime.task_watch import TaskNews, TaskWatch, TaskWatchers


class Watched:
    def __init__(self, node: Node, channel: grpc.aio.Channel, client: Client) -> None:
        self.node, self.client = node, client
        self.ops = ops_pb2_grpc.OpsServiceStub(channel)
        self.tasks = dispatch_pb2_grpc.DispatchServiceStub(channel)

    async def watch(self, **fields: Any) -> Any:
        call = self.ops.WatchTasks(ops_pb2.WatchTasksRequest(**fields))
        first: Any = await call.read()
        assert (list(first.events), first.missed) == ([], 0)
        return call

    async def told(self, call: Any, last: str = "last") -> list[tuple[str, str]]:
        """(task, kind) of all events up to the end of the task `last`."""
        found: list[tuple[str, str]] = []
        async with asyncio.timeout(10):
            while (last, "complete") not in found:
                for event in (await call.read()).events:
                    found.append((event.task_id, event.WhichOneof("kind")))
                    assert not event.complete.HasField("output")
        call.cancel()
        return found


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    node = Node(Config(server=Server(port=0, admin_port=0), storage=Storage(path=str(tmp_path))))
    await node.start()
    address = f"127.0.0.1:{node.port}"
    agents = [Agent("worker", addr=address), Agent("other", addr=address)]

    async def work(task: Task) -> str:
        if task.text == "busy" and task.attempt == 1:
            raise Unavailable("not now")
        return "canary"

    for agent in agents:
        agent.route()(work)
    async with agents[0], agents[1], Client(address) as client, grpc.aio.insecure_channel(address) as channel:
        yield Watched(node, channel, client)
    await node.stop()


async def test_each_task_is_told_from_its_acceptance_to_its_end(watched: Watched) -> None:
    call = await watched.watch()
    await watched.client.send(payload="x", agent_id="worker", task_id="one")
    await watched.client.send(payload="busy", agent_id="worker", task_id="two", retry="quick")
    await watched.client.send(payload="x", agent_id="worker", task_id="three", durable=False)
    await watched.client.send(payload="x", agent_id="other", task_id="last")
    told = await watched.told(call)
    plain = ["accepted", "started", "complete"]
    assert [kind for task_id, kind in told if task_id == "one"] == plain
    assert [kind for task_id, kind in told if task_id == "two"] == [*plain[:2], "retrying", *plain[1:]]
    assert [kind for task_id, kind in told if task_id == "three"] == plain[1:]
    assert [kind for task_id, kind in told if task_id == "last"] == plain


async def test_a_watch_has_filters(watched: Watched) -> None:
    session = {"app_id": "a", "user_id": "u", "session_id": "s"}
    calls = [
        await watched.watch(agent_type="other"),
        await watched.watch(session=task_pb2.SessionKey(**session)),
        await watched.watch(root_task_id="root"),
    ]
    client = watched.client
    await client.send(payload="x", agent_id="worker", task_id="root")
    await client.send(payload="x", agent_id="worker", task_id="leaf", parent_task_id="root")
    await client.send(payload="x", agent_id="worker", task_id="talk", session=("a", "u", "s"))
    await client.send(payload="x", agent_id="other", task_id="last", session=("a", "u", "s"), parent_task_id="root")
    told = [{task_id for task_id, _ in await watched.told(call)} for call in calls]
    assert told == [{"last"}, {"talk", "last"}, {"root", "leaf", "last"}]
    for fields in ({"agent_type": "a\nb"}, {"session": task_pb2.SessionKey(app_id="a")}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watched.watch(**fields)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_nothing_is_kept_for_who_has_left(watched: Watched) -> None:
    call = await watched.watch()
    assert len(watched.node.host.task_watchers.open) == 1
    call.cancel()
    async with asyncio.timeout(5):
        while watched.node.host.task_watchers.open:  # noqa: ASYNC110 - the server hears of it in its own time
            await asyncio.sleep(0.01)


async def test_a_watch_ends_with_the_server(watched: Watched) -> None:
    call = await watched.watch()
    stopping = asyncio.ensure_future(watched.node.stop())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await stopping


def news(task_id: str, tenant: str = "acme") -> TaskNews:
    return TaskNews(CoreTask(tenant, task_id, b"", Requirement()), (1, 0, 1, int(Kind.ACCEPTED), None))


async def test_P11_tenants_see_their_own_tasks_only() -> None:
    watch = TaskWatch("acme")
    watch.tell(news("theirs", "globex"))
    watch.tell(news("ours"))
    told, _, _ = await watch.take(10, 0.0)
    assert [one.task.task_id for one in told] == ["ours"]


async def test_F10_a_slow_watcher_is_told_how_much_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_watch, "MOST_HELD", 5)
    watch = TaskWatch("acme")
    for number in range(12):
        watch.tell(news(str(number)))
    told, missed, _ = await watch.take(3, 0.0)
    assert (len(told), missed) == (3, 0)
    told, missed, _ = await watch.take(3, 0.0)
    assert ([one.task.task_id for one in told], missed) == (["3", "4"], 7)
    assert await watch.take(3, 0.0) == ([], 0, None)


def test_a_task_whose_id_was_taken_never_was() -> None:
    """C1: what the journal gave to another is not told."""
    watchers = TaskWatchers()
    found: list[TaskNews] = []

    class Told(TaskWatch):
        def tell(self, news: TaskNews) -> None:
            found.append(news)

    turn = Turn(1, 1)
    kept, taken = news("kept").task, news("taken").task
    kept.row, taken.row = 1, TAKEN
    turn.accepted.extend([kept, taken])
    with watchers.watching(Told.__new__(Told)):
        watchers.saw(turn)
    assert [one.task.task_id for one in found] == ["kept"]
