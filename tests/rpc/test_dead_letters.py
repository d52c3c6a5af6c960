"""Dead letters through a whole node (DLV-10): kept with all that happened, tried again once, removed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, ops_pb2, ops_pb2_grpc, task_pb2
from reach import Agent, Task
from reach.config import Config, Server, Storage
from reach.node import Node
from reach.rpc.dead_letters import DeadLetters


class Served:
    """A node with an agent whose `bug` tasks die, until it is mended."""

    def __init__(self, node: Node, channel: grpc.aio.Channel) -> None:
        self.node = node
        self.tasks = dispatch_pb2_grpc.DispatchServiceStub(channel)
        self.ops = ops_pb2_grpc.OpsServiceStub(channel)
        self.mended = False

    async def kill(self, task_id: str, text: str = "bug", **fields: Any) -> None:
        spec = task_pb2.TaskSpec(task_id=task_id, selector=task_pb2.Selector(agent_type="worker"), **fields)
        spec.payload.text = text
        request = dispatch_pb2.DispatchRequest(task=spec)
        request.wait.seconds = 20
        answer = await self.tasks.Dispatch(request)
        assert answer.state == task_pb2.TASK_STATE_DEAD_LETTERED

    async def listed(self, **fields: Any) -> list[str]:
        found: list[str] = []
        request = ops_pb2.ListDeadLettersRequest(**fields)
        while True:
            answer = await self.ops.ListDeadLetters(request)
            found += [task.spec.task_id for task in answer.tasks]
            request.page_token = answer.next_page_token
            if not request.page_token:
                return found

    async def requeue(self, *task_ids: str, **fields: Any) -> Any:
        return await self.ops.RequeueDeadLetters(ops_pb2.RequeueDeadLettersRequest(task_ids=task_ids, **fields))

    async def purge(self, *task_ids: str, **fields: Any) -> int:
        request = ops_pb2.PurgeDeadLettersRequest(task_ids=task_ids, **fields)
        return int((await self.ops.PurgeDeadLetters(request)).purged)

    async def result(self, task_id: str) -> Any:
        return (await self.tasks.WaitForResult(dispatch_pb2.WaitForResultRequest(task_id=task_id))).result

    async def task(self, task_id: str) -> Any:
        return (await self.tasks.GetTask(dispatch_pb2.GetTaskRequest(task_id=task_id))).task


@pytest.fixture(params=["sqlite", "memory"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    node = Node(Config(server=Server(port=0, admin_port=0), storage=Storage(type=request.param, path=str(tmp_path))))
    await node.start()
    address = f"127.0.0.1:{node.port}"
    agent = Agent("worker", addr=address)
    async with grpc.aio.insecure_channel(address) as channel:
        made = Served(node, channel)

        @agent.route()
        async def work(task: Task) -> str:
            if task.text == "bug" and not made.mended:
                raise ValueError("a bug")
            return f"did {task.text}"

        async with agent:
            yield made
    await node.stop()


async def test_DLV_10_a_dead_letter_is_kept_with_payload_attempts_and_reasons(served: Served) -> None:
    for number in range(5):
        await served.kill(f"t{number}")
    assert await served.listed() == [f"t{number}" for number in range(4, -1, -1)]
    assert await served.listed(page_size=2) == [f"t{number}" for number in range(4, -1, -1)]
    assert await served.listed(agent_type="worker", reason="AGENT_CRASHED") == await served.listed()
    assert await served.listed(reason="START_TO_CLOSE") == await served.listed(agent_type="other") == []
    (letter,) = (await served.ops.ListDeadLetters(ops_pb2.ListDeadLettersRequest(page_size=1))).tasks
    assert letter.attempts[0].error.message
    assert not letter.spec.HasField("payload")
    assert (await served.task("t1")).spec.payload.text == "bug"
    del served.node.host.tasks["default", "t1"]
    assert (await served.task("t1")).pool == "worker", "also when it is not in memory any more"


async def test_DLV_10_requeue_makes_a_linked_new_task(served: Served) -> None:
    await served.kill("t1", labels={"a": "b"}, related_task_ids=["r1"])
    served.mended = True
    answer = await served.requeue("t1")
    new = answer.new_task_ids["t1"]
    assert new.startswith("t1~")
    assert (await served.result(new)).output.text == "did bug"
    task = await served.task(new)
    assert list(task.spec.related_task_ids) == ["r1", "t1"]
    assert task.spec.labels == {"a": "b"}
    assert (await served.task("t1")).state == task_pb2.TASK_STATE_DEAD_LETTERED


async def test_DLV_10_requeue_is_done_once_for_each_request_id(served: Served) -> None:
    await served.kill("t1")
    served.mended = True
    first = (await served.requeue("t1")).new_task_ids["t1"]
    assert (await served.requeue("t1")).new_task_ids["t1"] == first
    assert (await served.requeue(all=True)).new_task_ids["t1"] == first
    other = (await served.requeue("t1", request_id="again")).new_task_ids["t1"]
    assert other != first
    assert (await served.requeue("t1", request_id="again")).new_task_ids["t1"] == other


async def test_DLV_10_many_are_tried_again_by_filter(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.rpc.dead_letters.CHUNK", 3)
    for number in range(7):
        await served.kill(f"t{number}")
    served.mended = True
    made: dict[str, str] = {}
    token = ""
    calls = 0
    while True:
        answer = await served.requeue(reason="agent_crashed", page_token=token)
        made.update(answer.new_task_ids)
        assert not answer.refused
        token, calls = answer.next_page_token, calls + 1
        if not token:
            break
    assert set(made) == {f"t{number}" for number in range(7)}
    assert len(set(made.values())) == 7
    assert calls == 3
    assert {(await served.result(new)).output.text for new in made.values()} == {"did bug"}


async def test_DLV_10_what_cannot_be_tried_again_is_told_and_does_not_stop_the_others(served: Served) -> None:
    await served.kill("t1")
    await served.kill("x" * 256)
    done = task_pb2.TaskSpec(task_id="done", selector=task_pb2.Selector(agent_type="worker"))
    request = dispatch_pb2.DispatchRequest(task=done)
    request.wait.seconds = 20
    await served.tasks.Dispatch(request)
    served.mended = True
    answer = await served.requeue("t1", "none", "done", "x" * 256)
    assert set(answer.new_task_ids) == {"t1", "x" * 256}
    assert len(answer.new_task_ids["x" * 256]) == 256
    assert set(answer.refused) == {"none", "done"}
    assert answer.refused["none"].startswith("TASK_NOT_FOUND: ")
    served.node.reach.stopping = True
    answer = await served.requeue("t1", request_id="while it stops")
    assert answer.refused["t1"].startswith("SHUTTING_DOWN: ")
    served.node.reach.stopping = False


async def test_DLV_10_purged_dead_letters_are_gone_and_their_ids_free(served: Served) -> None:
    for number in range(5):
        await served.kill(f"t{number}")
    assert await served.purge("t0", "none") == 1
    assert await served.purge("t0") == 0
    with pytest.raises(grpc.aio.AioRpcError, match="there is no task 't0'"):
        await served.task("t0")
    assert await served.purge(reason="START_TO_CLOSE") == 0
    assert await served.purge(agent_type="worker") == 4
    assert await served.listed() == []
    served.mended = True  # the id is free, and the agent does not answer with what it came to the last time
    spec = task_pb2.TaskSpec(task_id="t0", selector=task_pb2.Selector(agent_type="worker"))
    spec.payload.text = "bug"
    request = dispatch_pb2.DispatchRequest(task=spec)
    request.wait.seconds = 20
    answer = await served.tasks.Dispatch(request)
    assert (answer.state, answer.deduplicated) == (task_pb2.TASK_STATE_SUCCEEDED, False)
    assert answer.result.output.text == "did bug"


async def test_DLV_10_many_that_are_named_are_not_in_memory_together(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reach.rpc.dead_letters.READ_AT_ONCE", 2)
    for number in range(5):
        await served.kill(f"t{number}")
    served.mended = True
    together: list[int] = []
    again = DeadLetters._all_again

    async def counted(self: Any, tasks: Any, request_id: str, answer: Any) -> None:
        together.append(len(tasks))
        await again(self, tasks, request_id, answer)

    monkeypatch.setattr(DeadLetters, "_all_again", counted)
    answer = await served.requeue(*(f"t{number}" for number in range(5)), "none", "t0")
    assert (len(answer.new_task_ids), list(answer.refused)) == (5, ["none"])
    assert together == [2, 2, 1]
    assert await served.purge(*(f"t{number}" for number in range(5)), "t0") == 5


async def test_nothing_named_does_not_mean_all(served: Served) -> None:
    await served.kill("t1")
    for call in (served.requeue, served.purge):
        for arguments in ({}, {"task_ids_and": "all"}):
            with pytest.raises(grpc.aio.AioRpcError, match="say which") as caught:
                await (call("t1", all=True) if arguments else call())
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for bad in ({"reason": "NONE_SUCH"}, {"page_size": 1_001}, {"page_token": "x"}):
        with pytest.raises(grpc.aio.AioRpcError, match=next(iter(bad))):
            await served.ops.ListDeadLetters(ops_pb2.ListDeadLettersRequest(**bad))
    assert await served.listed() == ["t1"]


async def test_GOV_2_operators_acts_are_in_the_audit_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    await served.kill("t1")
    caplog.set_level(logging.INFO, "reach.audit")
    await served.requeue("t1")
    await served.purge("t1", "t2")
    lines: list[Any] = [record for record in caplog.records if record.name == "reach.audit"]
    assert [(line.message, line.tenant, line.task_ids) for line in lines] == [
        ("RequeueDeadLetters", "default", ["t1"]),
        ("PurgeDeadLetters", "default", ["t1", "t2"]),
    ]
    assert (lines[0].requeued, lines[0].refused, lines[1].purged) == (1, 0, 1)
