"""OBS-1: a server that is told of a collector sends one connected trace, from the caller through us to the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc
from reach import Agent, Task
from reach.config import Config, Server, Storage, Telemetry
from reach.node import Node
from tests.telemetry.collector import Collector

CALLER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER_SPAN = "00f067aa0ba902b7"


def _config(endpoint: str, folder: Path) -> Config:
    return Config(
        server=Server(port=0, admin_port=0),
        storage=Storage(type="memory", path=str(folder)),
        telemetry=Telemetry(otlp_endpoint=endpoint, sample_ratio=0.0, metrics_interval=1.0),
    )


@pytest.mark.parametrize("through", ["metadata", "task"])
async def test_OBS_1_one_connected_trace(tmp_path: Path, through: str) -> None:
    traceparent = f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"
    seen: list[str] = []
    async with Collector() as collector:
        node = Node(_config(collector.endpoint, tmp_path))
        await node.start()
        address = f"127.0.0.1:{node.port}"
        agent = Agent("echo", addr=address)

        @agent.route()
        async def echo(task: Task) -> str:
            seen.append(task.trace)
            return task.text

        async with agent, grpc.aio.insecure_channel(address) as channel:
            request = dispatch_pb2.DispatchRequest()
            request.task.selector.agent_id = "echo"
            request.task.payload.text = "hello"
            request.wait.seconds = 20
            metadata: tuple[tuple[str, str], ...] = ()
            if through == "metadata":
                metadata = (("traceparent", traceparent),)
            else:
                request.task.trace.traceparent = traceparent
            call = dispatch_pb2_grpc.DispatchServiceStub(channel).Dispatch(request, metadata=metadata)
            answer = await call
            assert answer.result.output.text == "hello", answer
            trailing = dict(await call.trailing_metadata() or ())
        await node.stop()
        spans = {span.name: span for span in collector.spans if span.trace_id.hex() == CALLER_TRACE}
    if through == "metadata":
        assert trailing["x-trace-id"] == CALLER_TRACE
    assert spans.keys() == {"dispatch", "attempt"}
    dispatch, attempt = spans["dispatch"], spans["attempt"]
    assert dispatch.parent_span_id.hex() == CALLER_SPAN
    assert attempt.parent_span_id == dispatch.span_id
    assert seen == [f"00-{CALLER_TRACE}-{attempt.span_id.hex()}-01"], "the agent goes on from the attempt"
    assert {"agentreach.outcome"} <= {one.key for one in attempt.attributes}


async def test_OBS_1_unsampled_tasks_leave_no_span(tmp_path: Path) -> None:
    async with Collector() as collector:
        node = Node(_config(collector.endpoint, tmp_path))
        await node.start()
        agent = Agent("echo", addr=f"127.0.0.1:{node.port}")

        @agent.route()
        async def echo(task: Task) -> str:
            assert not task.trace
            return task.text

        async with agent, grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
            stub = dispatch_pb2_grpc.DispatchServiceStub(channel)
            request = dispatch_pb2.DispatchRequest()
            request.task.selector.agent_id = "echo"
            request.wait.seconds = 20
            for metadata in ((), (("traceparent", f"00-{CALLER_TRACE}-{CALLER_SPAN}-00"),)):
                request.task.task_id = ""
                answer = await stub.Dispatch(request, metadata=metadata)
                assert answer.result.attempts == 1
        await collector.wait_for(lambda seen: bool(seen.metrics))
        await node.stop()
        await asyncio.sleep(0)
        assert collector.spans == []
        assert any("router_delivery" in name for name in collector.metrics), collector.metrics
