"""Agents that are dialled, made of nothing but grpcio and the generated stubs, as one without the SDK writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agentreach.v1 import endpoint_pb2_grpc
from tests.rpc.peers import Stubs, pb, unique

Act = Callable[["EndpointAgent", Any, Any], AsyncIterator[Any]]


class EndpointAgent(endpoint_pb2_grpc.AgentEndpointServiceServicer):
    """Does what `acts` says for the method of a task; all else is answered with `done`."""

    def __init__(self, **acts: Act) -> None:
        self.acts = acts
        self.agent_type = self.agent_id = unique("dialled")
        self.instance_id = unique("instance")
        self.boot_id = self.said_boot = unique("boot")
        self.status: dict[str, Any] = {"ready": True}
        self.runs: list[Any] | None = None
        """Attempts that Check names; None: those whose Execute is open."""
        self.check_error: grpc.StatusCode | None = None
        self.answers_checks = asyncio.Event()
        self.answers_checks.set()
        self.port = 0
        self.executed: list[Any] = []
        """Offers."""
        self.open: dict[str, Any] = {}
        self.cancelled: list[Any] = []
        self.checks: list[Any] = []
        self.asked: list[Any] = []
        """Sessions that were to be handed over."""
        self.snapshot = b""
        self.metadata: list[dict[str, Any]] = []
        self.health = health.aio.HealthServicer()

    async def Execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """See the contract."""
        offer = request.offer
        self.executed.append(offer)
        self.metadata.append(dict(context.invocation_metadata()))
        self.open[offer.task.task_id] = offer
        try:
            act = self.acts.get(offer.task.method)
            if act is None:
                yield pb.ExecuteResponse(result={"output": {"text": "done"}})
                return
            async for frame in act(self, offer, context):
                yield frame
        finally:
            self.open.pop(offer.task.task_id, None)

    async def PrepareHandoff(self, request: Any, context: Any) -> Any:
        """See the contract."""
        self.asked.append(request)
        return pb.PrepareHandoffResponse(snapshot=self.snapshot)

    async def Cancel(self, request: Any, context: Any) -> Any:
        """See the contract."""
        self.cancelled.append(request.key)
        return pb.CancelResponse()

    async def Check(self, request: Any, context: Any) -> Any:
        """See the contract."""
        self.checks.append(request)
        await self.answers_checks.wait()
        if self.check_error is not None:
            await context.abort(self.check_error, "no checks here")
        runs = self.runs
        if runs is None:
            runs = [{"task_id": offer.task.task_id, "attempt": offer.attempt} for offer in self.open.values()]
        return pb.CheckResponse(boot_id=self.said_boot, status=self.status, running=runs)

    def registration(self, **fields: Any) -> Any:
        """What it registers with."""
        return pb.RegisterRequest(
            registration={
                "agent_id": self.agent_id,
                "agent_type": self.agent_type,
                "instance_id": self.instance_id,
                "boot_id": self.boot_id,
                "max_concurrency": 4,
                "endpoints": [{"url": f"grpc://127.0.0.1:{self.port}"}],
                **fields,
            }
        )

    async def register(self, stubs: Stubs, **fields: Any) -> Any:
        """Registers; the answer."""
        return await stubs.registry.Register(self.registration(**fields), timeout=20)


@asynccontextmanager
async def serving(agent: EndpointAgent, port: int = 0, *, with_health: bool = True) -> AsyncIterator[grpc.aio.Server]:
    """Serves an agent."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    endpoint_pb2_grpc.add_AgentEndpointServiceServicer_to_server(agent, server)
    if with_health:
        health_pb2_grpc.add_HealthServicer_to_server(agent.health, server)
        await agent.health.set("", health_pb2.HealthCheckResponse.SERVING)
    agent.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


async def ask(stubs: Stubs, agent: EndpointAgent, method: str, **spec: Any) -> Any:
    """Gives the agent a task and waits for its result."""
    task = {
        "task_id": unique("task"),
        "selector": {"agent_type": agent.agent_type},
        "method": method,
        "payload": {"text": "ping"},
        "retry": {"name": "never"},
        **spec,
    }
    answer = await stubs.dispatch.Dispatch(pb.DispatchRequest(task=task, wait={"seconds": 15}), timeout=20)
    return answer.result


async def eventually(condition: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = 15.0) -> Any:
    """Waits until a condition holds, and returns what it gave."""
    async with asyncio.timeout(seconds):
        while True:
            value: Any = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.01)
