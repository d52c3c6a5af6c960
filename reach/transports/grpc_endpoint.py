"""Agents that are dialled by gRPC (`grpc://host:port`): the way there, and the connection for their work (`seam`).

The agent serves AgentEndpointService; each attempt is one Execute call, all of them on one channel. A connection that
is refused or reset is a loss of all of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from agentreach.v1 import attempt_pb2, endpoint_pb2, result_pb2
from reach.cancelling import cancellations, heed_cancellation
from reach.core.endpoint import Endpoint
from reach.core.model import Fault
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.transports.probing import SERVICE, ProbeChannel
from reach.transports.seam import Approach, Failed, Way
from reach.wire.sessions import SNAPSHOT_BYTES
from reach.wire.status import DETAILS_KEY, bounded_text, error_from_rpc

log = logging.getLogger(__name__)

MARGIN_BYTES: Final = 256 << 10
"""What a message may have beside one payload of the largest size."""
CANCEL_S: Final = 5.0
"""How long the agent may take to hear that it should stop."""
STATE_LAG_S: Final = (0.0, 0.005, 0.02)
"""When we look whether a channel is down, one after the other."""

_C = grpc.StatusCode
_MEANINGS: Final[dict[grpc.StatusCode, tuple[ErrorClass, Reason, str]]] = {
    _C.UNAVAILABLE: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent takes no work now"),
    _C.ABORTED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent gave up"),
    _C.CANCELLED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent ended the call"),
    _C.UNIMPLEMENTED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the endpoint does not serve Execute"),
    _C.UNAUTHENTICATED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    _C.PERMISSION_DENIED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    _C.RESOURCE_EXHAUSTED: (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, "the agent is full"),
    _C.DEADLINE_EXCEEDED: (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE, "the agent ran out of time"),
    _C.INVALID_ARGUMENT: (ErrorClass.INVALID_REQUEST, Reason.INVALID_FIELD, "the agent takes no such task"),
    _C.OUT_OF_RANGE: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent failed"),
    _C.FAILED_PRECONDITION: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent failed"),
    _C.NOT_FOUND: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent failed"),
    _C.ALREADY_EXISTS: (ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "the agent failed"),
}
"""What a status means that the agent ends an Execute with, if it carries none of our details. Any other is a crash."""


_KEEPALIVE: Final = (
    # All three are needed: without ping_timeout_ms a frozen peer is noticed only after a minute.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in truth the time a connection attempt may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # we connect to the addresses that were judged, and nowhere else
    ("grpc.max_metadata_size", 16 << 10),
)


def fault_of_end(failure: grpc.aio.AioRpcError) -> Fault:
    """What became of an attempt whose call ended with an error, while the connection is well."""
    code = failure.code()
    said = bounded_text(failure.details() or "", 1_024)
    if any(key == DETAILS_KEY for key, _ in failure.trailing_metadata() or ()):
        error = error_from_rpc(failure)
        return Fault(error.error_class, error.reason, error.message, dict(error.metadata), error.retry_after_ms)
    if code is _C.RESOURCE_EXHAUSTED and "larger than max" in said:  # gRPC's own words: nothing else tells them apart
        message = f"the agent sent a message that is too large: {said}"
        return Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, message)
    if "RST_STREAM" in said:  # a proxy, or the peer's HTTP/2 layer, not the agent's code
        message = f"the call was reset: {said}"
        return Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, message, {"grpc_code": code.name})
    error_class, reason, what = _MEANINGS.get(code, (ErrorClass.INTERNAL, Reason.AGENT_CRASHED, "the agent broke"))
    message = f"{what}: {said} ({code.name})" if said else f"{what} ({code.name})"
    return Fault(error_class, reason, message, {"grpc_code": code.name})


class Route:
    """How an endpoint is reached (`seam.Way`): judged addresses, TLS, credentials. Makes channels."""

    __slots__ = ("address", "ips", "metadata", "payload_limit", "tls_roots")

    def __init__(self, approach: Approach) -> None:
        self.address = approach.address
        self.ips = approach.ips
        self.metadata = (("authorization", f"Bearer {approach.token}"),) if approach.token else ()
        self.tls_roots = approach.tls_roots
        self.payload_limit = approach.payload_limit

    def channel(self, *, keepalive: bool) -> grpc.aio.Channel:
        """A channel of its own: to the addresses that were judged, under the name that was given."""
        address = self.address
        family = "ipv6" if ":" in self.ips[0] else "ipv4"
        same = [ip for ip in self.ips if (":" in ip) is (family == "ipv6")]
        spots = [f"[{ip}]:{address.port}" if family == "ipv6" else f"{ip}:{address.port}" for ip in same]
        options: list[tuple[str, str | int]] = [
            *_OPTIONS,
            ("grpc.default_authority", address.authority),
            ("grpc.max_receive_message_length", self.payload_limit + MARGIN_BYTES),
            ("grpc.max_send_message_length", -1),
        ]
        if keepalive:
            options += _KEEPALIVE
        target = f"{family}:{','.join(spots)}"
        if not address.tls:
            return grpc.aio.insecure_channel(target, options=options)
        # The certificate must be for the authority, which is the name that was given.
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(self.tls_roots), options=options)

    def takes_over(self, former: Way) -> None:
        """See Way. Nothing is learned."""

    def line(self, endpoint: Endpoint, who: result_pb2.Reporter) -> Connection:
        """See Way."""
        return Connection(self, keepalive=endpoint.keeps_alive)

    def sounder(self, timeout_s: float) -> ProbeChannel:
        """See Way."""
        return ProbeChannel(self, timeout_s)


class Connection:
    """The channel for the work of one endpoint (`seam.Line`)."""

    def __init__(self, route: Route, *, keepalive: bool) -> None:
        self._channel = route.channel(keepalive=keepalive)
        self._metadata = route.metadata
        self._execute: Any = self._channel.unary_stream(f"{SERVICE}Execute")
        self._cancel: Any = self._channel.unary_unary(f"{SERVICE}Cancel")
        parse = endpoint_pb2.PrepareHandoffResponse.FromString
        self._prepare: Any = self._channel.unary_unary(f"{SERVICE}PrepareHandoff", None, parse)
        self._channel.get_state(try_to_connect=True)

    async def is_broken(self) -> bool:
        """Whether the transport is down, so that a call which just ended UNAVAILABLE was not ended by the agent. Calls
        can end a moment before the channel says so."""
        for pause_s in STATE_LAG_S:
            await asyncio.sleep(pause_s)
            if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
                return True
        return False

    def execute(self, request: endpoint_pb2.ExecuteRequest, timeout_s: float | None, handle: str = "") -> GrpcCall:
        """See Line."""
        call = self._execute(request.SerializeToString(), timeout=timeout_s, metadata=self._metadata)
        return GrpcCall(self, call)

    def resume(self, request: endpoint_pb2.ExecuteRequest, handle: str, timeout_s: float | None) -> None:
        """See Line. Agents with the feature `rejoin` are called again instead; others cannot be asked."""

    async def cancel(self, key: attempt_pb2.AttemptKey, handle: str) -> None:
        """See Line. What the agent answers is of no use."""
        request = endpoint_pb2.CancelRequest(key=key).SerializeToString()
        try:
            await self._cancel(request, timeout=CANCEL_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as failure:
            log.debug("a dialled agent does not take a cancel: %s", failure.code())

    async def prepare_handoff(self, request: endpoint_pb2.PrepareHandoffRequest, timeout_s: float) -> bytes:
        """See Line."""
        try:
            answer = await self._prepare(request.SerializeToString(), timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as failure:
            log.debug("a dialled agent does not say what it knows of a session: %s", failure.code())
            return b""
        snapshot: bytes = answer.snapshot
        return snapshot if len(snapshot) <= SNAPSHOT_BYTES else b""

    async def close(self) -> None:
        """Ends all calls."""
        await self._channel.close()


class GrpcCall:
    """One Execute call (`seam.Call`)."""

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: Connection, call: Any) -> None:
        self._connection = connection
        self._call = call

    async def read(self) -> endpoint_pb2.ExecuteResponse | None:
        """See Call."""
        try:
            raw = await self._call.read()
        except grpc.aio.AioRpcError as failure:
            heed_cancellation()
            broken = failure.code() is _C.UNAVAILABLE and await self._connection.is_broken()
            raise self._end_of(failure, broken=broken) from failure
        except asyncio.CancelledError:
            if not self._call.cancelled() or cancellations():
                raise
            return None
        if raw is grpc.aio.EOF:
            return None
        try:
            return endpoint_pb2.ExecuteResponse.FromString(raw)
        except DecodeError:
            raise InvalidRequest("a frame that cannot be read") from None

    def cancel(self) -> None:
        """See Call."""
        self._call.cancel()

    def _end_of(self, failure: grpc.aio.AioRpcError, *, broken: bool) -> Failed:
        if broken:
            details = bounded_text(failure.details() or "", 256)
            return Failed(None, lost=details or "it broke", unbegun=details.startswith("failed to connect"))
        fault = fault_of_end(failure)
        return Failed(fault, unbegun=_is_refusal(failure, fault))


def _is_refusal(failure: grpc.aio.AioRpcError, fault: Fault) -> bool:
    """Whether an agent has certainly refused an attempt. UNAVAILABLE with nothing beside it is what gRPC itself says of
    a connection that breaks, so it says nothing of what the agent has begun."""
    if fault.error_class is ErrorClass.RESOURCE_EXHAUSTED:
        return True
    return fault.error_class is ErrorClass.UNAVAILABLE and bool(failure.trailing_metadata())
