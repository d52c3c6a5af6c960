"""The calls to one A2A agent: three bindings and two versions of the protocol, behind five functions and one error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, NamedTuple

import grpc
import httpx
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.client.transports.base import ClientTransport
from a2a.client.transports.grpc import GrpcTransport
from a2a.client.transports.tenant_decorator import TenantTransportDecorator
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.compat.v0_3.versions import is_legacy_version
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2A_ERROR_REASONS, A2AError
from google.protobuf import json_format

from reach.cancelling import heed_cancellation
from reach.core.model import Fault
from reach.errors import ErrorClass, Reason
from reach.transports.a2a.guarded_http import HEARD, Oversized
from reach.transports.a2a.lenient import LenientJsonRpc, LenientRest
from reach.wire.a2a.errors import our_error
from reach.wire.a2a.words import VERSION, VERSION_KEY
from reach.wire.status import bounded_text

GET_S: Final = 10.0
"""How long GetTask may take."""
SAID_BYTES: Final = 512
RAW_BYTES: Final = 1_024

BINDINGS: Final = {
    "GRPC": (GrpcTransport, CompatGrpcTransport),
    "HTTP+JSON": (LenientRest, CompatRestTransport),
    "JSONRPC": (LenientJsonRpc, CompatJsonRpcTransport),
}
"""What we speak: clients for version 1.0 and for 0.3."""

_GARBAGE: Final = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, json_format.Error,
)  # fmt: skip
"""What the SDK lets through when an answer is not as it should be (pydantic's errors are ValueErrors)."""


class CallFailed(Exception):
    """A call came to nothing.

    Attributes:
        fault: What that means for an attempt.
        reached: False: the agent was not reached, so that it has begun nothing.
        cut: The connection broke, and whether the agent has heard us is not known.
        refused: Nobody listens there.
        reason: Of A2A, where the agent gave one.
    """

    def __init__(
        self, fault: Fault, *, reached: bool = True, cut: bool = False, refused: bool = False, reason: str = ""
    ) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.reached = reached
        self.cut = cut
        self.refused = refused
        self.reason = reason

    @property
    def turned_away(self) -> bool:
        """The agent takes no work now: by the meaning of its answer it has begun nothing."""
        return self.fault.error_class in (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE) and not self.cut


class Interface(NamedTuple):
    """Which interface of an agent is called."""

    url: str
    """For gRPC it is not looked at: the channel leads there."""
    binding: str
    version: str
    tenant: str


class Calls:
    """See the module.

    Args:
        interface: What is called.
        link: The way there: an HTTP client, or a channel of gRPC.
        headers: Sent with each call, in small letters.
    """

    def __init__(
        self, interface: Interface, link: httpx.AsyncClient | grpc.aio.Channel, headers: dict[str, str]
    ) -> None:
        self._headers = dict(headers)
        legacy = is_legacy_version(interface.version)
        kind: Any = BINDINGS[interface.binding][legacy]
        card = AgentCard(capabilities=AgentCapabilities(extended_agent_card=True))
        transport: ClientTransport
        if isinstance(link, httpx.AsyncClient):
            transport = kind(link, card, interface.url)
            if not legacy:
                self._headers[VERSION_KEY] = VERSION
        else:
            transport = kind(link, card)
        self._transport = TenantTransportDecorator(transport, interface.tenant) if interface.tenant else transport

    async def send(self, request: SendMessageRequest, traceparent: str = "") -> StreamResponse:
        """SendMessage. Raises CallFailed."""
        with _failures():
            answer: SendMessageResponse = await self._transport.send_message(request, context=self._with(traceparent))
        said = StreamResponse()
        match answer.WhichOneof("payload"):
            case "task":
                said.task.CopyFrom(answer.task)
            case "message":
                said.message.CopyFrom(answer.message)
        return said

    async def stream(self, request: SendMessageRequest, traceparent: str = "") -> AsyncGenerator[StreamResponse]:
        """SendStreamingMessage. Raises CallFailed."""
        with _failures():
            async with aclosing(
                self._transport.send_message_streaming(request, context=self._with(traceparent))
            ) as events:
                async for event in events:
                    yield event

    async def subscribe(self, task: str) -> AsyncGenerator[StreamResponse]:
        """SubscribeToTask. Raises CallFailed."""
        with _failures():
            request = SubscribeToTaskRequest(id=task)
            async with aclosing(self._transport.subscribe(request, context=self._with())) as events:
                async for event in events:
                    yield event

    async def get(self, task: str) -> Task:
        """GetTask, without its history. Raises CallFailed."""
        request = GetTaskRequest(id=task, history_length=0)
        with _failures():
            async with asyncio.timeout(GET_S):
                return await self._transport.get_task(request, context=self._with())

    async def cancel(self, task: str) -> None:
        """CancelTask. Raises CallFailed."""
        with _failures():
            async with asyncio.timeout(GET_S):
                await self._transport.cancel_task(CancelTaskRequest(id=task), context=self._with())

    async def extended_card(self) -> AgentCard:
        """GetExtendedAgentCard: what it says to those that it knows. Raises CallFailed."""
        with _failures():
            async with asyncio.timeout(GET_S):
                return await self._transport.get_extended_agent_card(
                    GetExtendedAgentCardRequest(), context=self._with()
                )

    def _with(self, traceparent: str = "") -> ClientCallContext:
        headers = {**self._headers, "traceparent": traceparent} if traceparent else self._headers
        return ClientCallContext(service_parameters=dict(headers))

    async def close(self) -> None:
        """Ends all calls, and closes what they went over."""
        await self._transport.close()


@contextmanager
def _failures() -> Iterator[None]:
    """Whatever goes wrong in the SDK as a CallFailed."""
    try:
        yield
    except A2AError as failure:
        raise _failed(failure) from failure
    except TimeoutError as failure:
        fault = Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent gives no answer")
        raise CallFailed(fault, cut=True) from failure
    except httpx.StreamError as failure:
        raise CallFailed(_broken(failure), cut=True) from failure
    except _GARBAGE as failure:
        raise CallFailed(_invalid(failure)) from failure


def _failed(failure: A2AError) -> CallFailed:
    cause = failure.__cause__
    reason = A2A_ERROR_REASONS.get(type(failure), "")
    if reason:
        error = our_error(reason, f"the agent says: {bounded_text(failure.message, SAID_BYTES)}")
        fault = Fault(error.error_class, error.reason, error.message, dict(error.metadata))
        if reason == "METHOD_NOT_FOUND" or (isinstance(cause, httpx.HTTPStatusError) and _is_front(cause)):
            return _by_status(cause) if isinstance(cause, httpx.HTTPStatusError) else CallFailed(fault, reason=reason)
        return CallFailed(fault, reason=reason)
    if isinstance(cause, httpx.HTTPStatusError):
        return _by_status(cause)
    if isinstance(cause, Oversized):
        fault = Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, str(cause))
        return CallFailed(fault)
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        refused = isinstance(_root(cause), ConnectionRefusedError)
        return CallFailed(_broken(cause), reached=False, cut=True, refused=refused)
    if isinstance(cause, httpx.RequestError) or isinstance(failure, A2AClientTimeoutError):
        return CallFailed(_broken(cause or failure), cut=True)
    if isinstance(cause, grpc.aio.AioRpcError):
        heed_cancellation()
        return _by_code(cause)
    return CallFailed(_invalid(failure))


def _root(error: BaseException) -> BaseException:
    """What is at the beginning of a chain of errors; a group of failed addresses counts as its last one."""
    for _ in range(8):
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[-1]
        elif error.__cause__ is not None:
            error = error.__cause__
        elif error.__context__ is not None:
            error = error.__context__
        else:
            break
    return error


def _is_front(cause: httpx.HTTPStatusError) -> bool:
    """Statuses that have a meaning of their own, whatever is said with them."""
    return cause.response.status_code in (401, 403, 429, 502, 503, 504)


_STATUSES: Final = {
    401: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    403: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    404: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "nothing is served at the agent's URL"),
    405: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "nothing is served at the agent's URL"),
    413: (ErrorClass.AGENT_ERROR, Reason.AGENT_REJECTED, "the agent takes no such task"),
    429: (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, "the agent is full"),
    502: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent is not reached by what stands before it"),
    503: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent takes no work now"),
    504: (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE, "the agent ran out of time"),
}


def _by_status(cause: httpx.HTTPStatusError) -> CallFailed:
    status = cause.response.status_code
    found = _STATUSES.get(status)
    if found is None and 300 <= status < 400:
        found = (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent redirects, which is not followed")
    if found is None:
        return CallFailed(_invalid(f"HTTP {status}"))
    error_class, reason, what = found
    after = cause.response.headers.get("retry-after", "")
    later = int(after) * 1_000 if after.isdigit() and len(after) <= 6 else None
    return CallFailed(Fault(error_class, reason, f"{what} (HTTP {status})", {"http_status": str(status)}, later))


_C: Final = grpc.StatusCode
_CODES: Final = {
    _C.UNAUTHENTICATED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    _C.PERMISSION_DENIED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent refused our credentials"),
    _C.UNIMPLEMENTED: (ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, "the agent does not serve A2A there"),
    _C.RESOURCE_EXHAUSTED: (ErrorClass.RESOURCE_EXHAUSTED, Reason.AGENT_BUSY, "the agent is full"),
    _C.DEADLINE_EXCEEDED: (ErrorClass.TIMEOUT, Reason.START_TO_CLOSE, "the agent ran out of time"),
    _C.INVALID_ARGUMENT: (ErrorClass.AGENT_ERROR, Reason.AGENT_REJECTED, "the agent takes no such task"),
}


def _by_code(cause: grpc.aio.AioRpcError) -> CallFailed:
    code, said = cause.code(), bounded_text(cause.details() or "", SAID_BYTES)
    if code is _C.UNAVAILABLE:
        unreached = "failed to connect" in said
        return CallFailed(
            _broken(cause, said), reached=not unreached, cut=True, refused=unreached and "onnection refused" in said
        )
    if code is _C.CANCELLED or "RST_STREAM" in said:
        return CallFailed(_broken(cause, said), cut=True)
    found = _CODES.get(code)
    if found is None:
        return CallFailed(_invalid(f"{code.name}: {said}"))
    error_class, reason, what = found
    return CallFailed(Fault(error_class, reason, f"{what}: {said} ({code.name})", {"grpc_code": code.name}))


def _broken(failure: BaseException, said: str = "") -> Fault:
    said = said or bounded_text(str(failure), SAID_BYTES) or type(failure).__name__
    return Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, f"the connection to the agent broke: {said}")


def invalid(what: str, raw: str = "") -> Fault:
    """The agent answered what A2A does not allow (INVALID_AGENT_RESPONSE)."""
    metadata = {"a2a_reason": "INVALID_AGENT_RESPONSE"}
    if raw:
        metadata["raw"] = bounded_text(raw, RAW_BYTES)
    return Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, f"the agent's answer cannot be read: {what}", metadata)


def _invalid(failure: BaseException | str) -> Fault:
    heard = HEARD.get()
    what = bounded_text(str(failure), SAID_BYTES) or type(failure).__name__
    return invalid(what, bytes(heard).decode("utf-8", "replace") if heard else "")


__all__ = ["BINDINGS", "A2AClientError", "CallFailed", "Calls", "Interface", "invalid"]
