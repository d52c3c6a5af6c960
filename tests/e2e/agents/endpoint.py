"""An agent that is dialled, in plain grpcio: only the generated stubs, nothing of our SDK. It registers itself once.

Its handlers stop when their call is cancelled, as handlers of grpcio do. It logs as worker.py does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from agentreach.v1 import agent_pb2, attempt_pb2, endpoint_pb2, endpoint_pb2_grpc, registry_pb2, registry_pb2_grpc


class Endpoint(endpoint_pb2_grpc.AgentEndpointServiceServicer):
    """Answers `echo` and `sleep`."""

    def __init__(self, log: str, boot_id: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._boot_id = boot_id
        self._running: dict[tuple[str, int], asyncio.Task[Any] | None] = {}

    def log(self, what: str, **more: Any) -> None:
        """One line."""
        line = {"at": time.time(), "pid": os.getpid(), "what": what, **more}
        os.write(self._log, json.dumps(line).encode() + b"\n")

    async def Execute(
        self, request: endpoint_pb2.ExecuteRequest, context: Any
    ) -> AsyncIterator[endpoint_pb2.ExecuteResponse]:
        """One task."""
        task, attempt = request.offer.task, request.offer.attempt
        self._running[task.task_id, attempt] = asyncio.current_task()
        self.log("begin", task=task.task_id, attempt=attempt)
        try:
            yield endpoint_pb2.ExecuteResponse(accept=attempt_pb2.AttemptAccept())
            if task.method == "sleep":
                await asyncio.sleep(json.loads(task.payload.text)["seconds"])
            answer = endpoint_pb2.ExecuteResponse()
            answer.result.output.text = task.payload.text
            self.log("end", task=task.task_id, attempt=attempt)
            yield answer
        finally:
            del self._running[task.task_id, attempt]

    async def Cancel(self, request: endpoint_pb2.CancelRequest, context: Any) -> endpoint_pb2.CancelResponse:
        """Stops one attempt."""
        running = self._running.get((request.key.task_id, request.key.attempt))
        if running is not None:
            running.cancel()
        return endpoint_pb2.CancelResponse()

    async def PrepareHandoff(self, request: endpoint_pb2.PrepareHandoffRequest, context: Any) -> Any:
        """It knows nothing of sessions."""
        return endpoint_pb2.PrepareHandoffResponse()

    async def Check(self, request: endpoint_pb2.CheckRequest, context: Any) -> endpoint_pb2.CheckResponse:
        """What runs."""
        running = [attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt) for task_id, attempt in self._running]
        return endpoint_pb2.CheckResponse(boot_id=self._boot_id, running=running)


async def main() -> None:
    """Serves and registers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--addr", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--no-health", action="store_true")
    given = parser.parse_args()
    boot_id = os.urandom(8).hex()
    agent = Endpoint(given.log, boot_id)
    server = grpc.aio.server()
    endpoint_pb2_grpc.add_AgentEndpointServiceServicer_to_server(agent, server)
    if not given.no_health:
        healthy = health.aio.HealthServicer()
        await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    port = server.add_insecure_port(given.listen)
    await server.start()
    registration = agent_pb2.Registration(
        agent_id="worker", agent_type="worker", instance_id=given.instance, boot_id=boot_id, max_concurrency=16
    )
    registration.endpoints.add(url=f"grpc://127.0.0.1:{port}")
    async with grpc.aio.insecure_channel(given.addr) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        await stub.Register(registry_pb2.RegisterRequest(registration=registration))
    agent.log("up", instance=given.instance)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
