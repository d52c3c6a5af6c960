"""OBS-2: what `/metrics` shows is what happened, on a real node: a counter that nobody feeds says a lie."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, result_pb2, result_pb2_grpc
from reach import Agent, Answer, Client, InvalidRequest, Task, Unavailable
from reach.config import Config, Router, Server, Storage
from reach.node import Node
from reach.telemetry.exposition import prometheus_text


def _total(node: Node, name: str, **labels: str) -> float:
    """The sum of all series of a name that have these labels."""
    found = 0.0
    for line in prometheus_text(node.metrics).decode().splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name and all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items()):
            found += float(match[3])
    return found


async def test_OBS_2_each_counter_is_fed_by_what_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "routes.yaml").write_text("routes: [{intent_prefix: a, require_capability: work}]\n")
    router = Router(routes_file=str(tmp_path / "routes.yaml"))
    storage = Storage(type="sqlite", path=str(tmp_path))
    node = Node(Config(server=Server(port=0, admin_port=0), storage=storage, router=router))
    await node.start()
    address = f"127.0.0.1:{node.port}"
    agents = [
        Agent("worker", addr=address, instance_id=f"worker-{number}", capabilities=["work"]) for number in range(2)
    ]
    first: list[str] = []
    answers: list[Answer] = []

    async def work(task: Task) -> str | Answer:
        if task.text == "busy" and not first:
            first.append(task.task_id)
            raise Unavailable("not now")
        if task.text == "bug":
            raise ValueError("a bug")
        return answers.pop() if task.text == "other" else "done"

    for agent in agents:
        agent.route()(work)
    async with agents[0], agents[1], Client(address) as client, grpc.aio.insecure_channel(address) as channel:
        results = [await client.send(payload=text, agent_id="worker", retry="quick") for text in ("busy", "bug", "ok")]
        assert [result.state.name for result in results] == ["SUCCEEDED", "DEAD_LETTERED", "SUCCEEDED"]
        assert results[0].transfers == 1
        before = _total(node, "agentreach_router_delivery_total")
        assert before == 3
        # A second reader of a task that has ended is no second end.
        assert (await client.wait_for_result(results[2].task_id, timeout=10)).state.name == "SUCCEEDED"
        assert _total(node, "agentreach_router_delivery_total") == before
        assert _total(node, "agentreach_router_delivery_total", outcome="succeeded") == 2
        assert _total(node, "agentreach_router_retry_total", reason="AGENT_UNAVAILABLE") == 1
        assert _total(node, "agentreach_router_dead_letter_total", reason="AGENT_CRASHED") == 1
        given_up = [record for record in caplog.records if record.getMessage() == "a task was given up"]
        assert [vars(record)["task"] for record in given_up] in ([], [results[1].task_id]), "one in 10 s, with its task"
        assert _total(node, "agentreach_router_transfer_total") == 1
        assert _total(node, "agentreach_task_duration_seconds_count") == 3
        assert _total(node, "agentreach_store_commit_total") >= 6
        assert _total(node, "agentreach_store_row_total") >= 8
        assert _total(node, "agentreach_store_commit_duration_seconds_count") >= 6
        assert _total(node, "agentreach_agents", health="HEALTHY") == 2

        # An agent that did something else than it was asked for.
        for intent, executed in (("a.b", "a.b"), ("a.b", "a.c"), ("a.b", ""), (None, "a.c")):
            answers.append(Answer("done", executed_intent=executed))
            asked = {"intent": intent} if intent else {"agent_id": "worker"}
            assert (await client.send(payload="other", **asked)).executed_intent == executed  # type: ignore[arg-type]
        assert _total(node, "agent_route_mismatch_total") == 1

        # Refusals: of an item of a stream, and of a call.
        with pytest.raises(InvalidRequest):
            await client.send(payload="x", agent_id="worker", task_id="a\nb")
        with pytest.raises(grpc.aio.AioRpcError):
            await dispatch_pb2_grpc.DispatchServiceStub(channel).GetTask(dispatch_pb2.GetTaskRequest(task_id="nobody"))
        assert _total(node, "agentreach_router_refusal_total", reason="INVALID_FIELD") == 1
        assert _total(node, "agentreach_router_refusal_total", reason="TASK_NOT_FOUND") == 1
        assert _total(node, "agentreach_rpc_total", method="DispatchService/GetTask", code="NOT_FOUND") == 1

        # A reader that comes when the events are no longer in memory is told of a gap.
        del node.host.tasks["default", results[2].task_id]
        stub = result_pb2_grpc.ResultServiceStub(channel)
        frames = [one async for one in stub.StreamResult(result_pb2.StreamResultRequest(task_id=results[2].task_id))]
        assert [event.WhichOneof("kind") for frame in frames for event in frame.events] == ["gap", "complete"]
        assert _total(node, "agentreach_stream_gap_total") == 1
    await asyncio.sleep(0)
    await node.stop()
