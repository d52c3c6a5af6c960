"""How a dialled gRPC agent is asked: gRPC health for the probe, Check for the application, on a channel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from agentreach.v1 import attempt_pb2, endpoint_pb2
from reach.transports.refusals import all_refuse
from reach.transports.seam import CheckOutcome, ProbeOutcome
from reach.wire.status import bounded_text

if TYPE_CHECKING:
    from reach.transports.grpc_endpoint import Route

SERVICE: Final = "/agentreach.v1.AgentEndpointService/"
HEALTH: Final = "/grpc.health.v1.Health/Check"
_NOT_THERE: Final = grpc.StatusCode.UNIMPLEMENTED


class _Line:
    """One channel, and how many calls are under way on it."""

    __slots__ = ("calls", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0


class ProbeChannel:
    """A channel for probes and checks of one endpoint. After a failure it is made anew: a channel that waits to connect
    again answers with the failure of before. The former one is closed when no call is under way on it any more, for to
    close a channel cancels whoever waits for it."""

    def __init__(self, route: Route, timeout_s: float) -> None:
        self.route = route
        self._timeout_s = timeout_s
        self._line: _Line | None = None

    async def probe(self) -> ProbeOutcome:
        """One round trip. A server without gRPC health answers UNIMPLEMENTED, and has answered: it is alive."""
        started = asyncio.get_running_loop().time()
        try:
            raw = await self._call(HEALTH, health_pb2.HealthCheckRequest().SerializeToString())
            serving = health_pb2.HealthCheckResponse.FromString(raw).status in (
                health_pb2.HealthCheckResponse.SERVING,
                health_pb2.HealthCheckResponse.UNKNOWN,
            )
        except DecodeError:
            return ProbeOutcome(False, 0.0, "its answer to a health check cannot be read")
        except grpc.aio.AioRpcError as failure:
            if failure.code() in (_NOT_THERE, grpc.StatusCode.NOT_FOUND):
                return ProbeOutcome(True, (asyncio.get_running_loop().time() - started) * 1_000)
            refused = await self._failed(failure)
            return ProbeOutcome(False, 0.0, "connection refused" if refused else _said(failure), refused)
        return ProbeOutcome(True, (asyncio.get_running_loop().time() - started) * 1_000, serving=serving)

    async def check(self, running: Iterable[tuple[str, str, int]], tenant: str) -> CheckOutcome:
        """Asks the agent how it is, and which of these attempts it runs."""
        request = endpoint_pb2.CheckRequest()
        for owner, task_id, attempt in running:
            request.running.append(
                attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant="" if owner == tenant else owner)
            )
        try:
            raw = await self._call(f"{SERVICE}Check", request.SerializeToString())
            return CheckOutcome(endpoint_pb2.CheckResponse.FromString(raw))
        except DecodeError:
            return CheckOutcome(None, "its answer to Check cannot be read")
        except grpc.aio.AioRpcError as failure:
            if failure.code() is _NOT_THERE:
                return CheckOutcome(endpoint_pb2.CheckResponse(), "it does not serve Check", knows=False)
            refused = await self._failed(failure)
            return CheckOutcome(None, "connection refused" if refused else _said(failure), refused)

    async def _call(self, method: str, request: bytes) -> bytes:
        line = self._line
        if line is None:
            line = self._line = _Line(self.route.channel(keepalive=False))
        call: Any = line.channel.unary_unary(method)
        line.calls += 1
        try:
            answer: bytes = await call(request, timeout=self._timeout_s, metadata=self.route.metadata)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not _NOT_THERE and self._line is line:
                self._line = None  # the next call makes another
            raise
        finally:
            line.calls -= 1
            if self._line is not line and not line.calls:
                await line.channel.close()
        return answer

    async def _failed(self, failure: grpc.aio.AioRpcError) -> bool:
        """Whether the connection is refused, by all addresses."""
        if failure.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        return await all_refuse(self.route.ips, self.route.address.port, self._timeout_s)

    async def close(self) -> None:
        """Ends the channel, and cancels the calls that are under way on it."""
        line, self._line = self._line, None
        if line is not None:
            await line.channel.close()


def _said(failure: grpc.aio.AioRpcError) -> str:
    if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return bounded_text(f"{failure.code().name}: {failure.details() or ''}", 256)
