"""The generated stubs, without the SDK: what a client in any language would do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from agentreach.v1 import (
    agent_pb2,
    dispatch_pb2,
    dispatch_pb2_grpc,
    heartbeat_pb2_grpc,
    ops_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    result_pb2_grpc,
    task_pb2,
)
from reach.wire.status import error_from_rpc

DEADLINE = 30.0


class Plain:
    """One channel and all stubs; every call has a deadline."""

    def __init__(self, address: str, api_key: str = "", credentials: grpc.ChannelCredentials | None = None) -> None:
        # A pool of its own: each has a connection of its own, as processes have.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)]
        self.channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )
        self.metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self.dispatching = dispatch_pb2_grpc.DispatchServiceStub(self.channel)
        self.results = result_pb2_grpc.ResultServiceStub(self.channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(self.channel)
        self.heartbeats = heartbeat_pb2_grpc.HeartbeatServiceStub(self.channel)
        self.ops = ops_pb2_grpc.OpsServiceStub(self.channel)

    def call(self, method: Any, request: Any, deadline: float = DEADLINE, *, wait_for_ready: bool = False) -> Any:
        """One unary call."""
        return method(request, timeout=deadline, metadata=self.metadata, wait_for_ready=wait_for_ready)

    def dispatch(self, task: task_pb2.TaskSpec, wait: float = 0.0, **options: Any) -> dispatch_pb2.DispatchResponse:
        """Gives a task; with `wait` also waits for its result."""
        request = dispatch_pb2.DispatchRequest(task=task)
        if wait:
            request.wait.FromMilliseconds(int(wait * 1_000))
        answer: dispatch_pb2.DispatchResponse = self.call(self.dispatching.Dispatch, request, **options)
        return answer

    def get(self, task_id: str, **options: Any) -> task_pb2.Task:
        """One task."""
        request = dispatch_pb2.GetTaskRequest(task_id=task_id)
        answer: dispatch_pb2.GetTaskResponse = self.call(self.dispatching.GetTask, request, **options)
        return answer.task

    def result(self, task_id: str, timeout: float = DEADLINE) -> task_pb2.Result:
        """The result, once there is one."""
        request = dispatch_pb2.WaitForResultRequest(task_id=task_id)
        answer: dispatch_pb2.WaitForResultResponse = self.call(self.dispatching.WaitForResult, request, timeout)
        return answer.result

    def cancel(self, task_id: str) -> dispatch_pb2.CancelTaskResponse:
        """Cancels a task."""
        request = dispatch_pb2.CancelTaskRequest(task_id=task_id)
        answer: dispatch_pb2.CancelTaskResponse = self.call(self.dispatching.CancelTask, request)
        return answer

    def agents(self) -> dict[str, agent_pb2.Agent]:
        """All instances, by id."""
        request = registry_pb2.ListAgentsRequest(page_size=1_000)
        return {one.registration.instance_id: one for one in self.call(self.registry.ListAgents, request).agents}

    def free(self) -> list[str]:
        """The instances that take work."""
        return sorted(name for name, agent in self.agents().items() if not agent.blocked_by)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def spec(
    method: str, payload: Any = "", task_id: str = "", agent_type: str = "worker", **fields: Any
) -> task_pb2.TaskSpec:
    """A task. What is not text is sent as JSON."""
    made = task_pb2.TaskSpec(task_id=task_id, method=method, **fields)
    made.selector.agent_type = agent_type
    made.payload.text = payload if isinstance(payload, str) else json.dumps(payload)
    return made


def timeouts(**seconds: float) -> task_pb2.Timeouts:
    """Time limits in seconds."""
    made = task_pb2.Timeouts()
    for name, value in seconds.items():
        getattr(made, name).FromMilliseconds(int(value * 1_000))
    return made


@contextmanager
def refused(reason: str, code: grpc.StatusCode | None = None) -> Iterator[None]:
    """What is inside must be refused for this reason."""
    with pytest.raises(grpc.RpcError) as refusal:
        yield
    failure: Any = refusal.value
    assert error_from_rpc(failure).reason.name == reason, f"{failure.code()}: {failure.details()}"
    assert code is None or failure.code() is code
