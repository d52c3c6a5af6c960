"""What happens to every call before and after its servicer: who is it, may it, is there room, and how does it end.

One interceptor, because each link of a chain costs a coroutine per call. The first call of a method wraps its handler,
the wrapped one is kept; so a call pays only for what the wrapper does, about 15 µs:

1. trace: the W3C `traceparent` is read, or a root is made; the trace id goes back as `x-trace-id` (trailing metadata of
   unary answers and of refusals, initial metadata of streams).
2. authentication and authorisation: `principal_of(context)` and `current_trace()` are set for the servicer.
3. admission: each class of calls has its own limit, so that open streams never starve beats or health (A11).
4. the end: a `ReachError` becomes its rich status; bytes that do not decode are MALFORMED_MESSAGE; what nobody expected
   is logged once under an error id, and the caller gets that id and nothing else.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from reach.errors import Internal, InvalidRequest, ReachError, Reason, ResourceExhausted
from reach.rpc.access import OF_PEERS, TABLE, Access, Admission
from reach.rpc.principal import Authenticator, set_principal
from reach.telemetry.logs import RepeatedLogger, frames_of
from reach.telemetry.tracing import TraceContext, Tracing, current_trace, set_current_trace
from reach.wire.status import TABLE as CODES
from reach.wire.status import status_of

if TYPE_CHECKING:
    from reach.rpc.proxy import Proxy

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

TRACE_KEY: Final = "x-trace-id"
_RETRY_AFTER_MS: Final = 1000
PEER_CALLS: Final = 20_000
"""Calls of other nodes that are open, where nothing else is said: each of them is bounded at the node that makes it."""

_log: Final = logging.getLogger(__name__)
_refusals: Final = RepeatedLogger(_log)


async def abort_with(context: Context, error: ReachError, trace: TraceContext | None = None) -> BaseException:
    """Ends a call with the status of an error. The only place that calls `abort`. Returns what is to be raised, which
    knows nothing of the call any more: see `_forgotten`."""
    status = status_of(error)
    trailing = tuple(status.trailing_metadata or ())
    if trace is not None:
        trailing = (*trailing, (TRACE_KEY, trace.trace_id))
    try:
        await context.abort(status.code, status.details, trailing)
    except BaseException as ended:  # noqa: BLE001 - it is raised by the caller
        return _forgotten(ended)


def _forgotten(ended: BaseException) -> BaseException:
    """An exception without the frames that it came through.

    gRPC keeps the exception that ended a call with the call. Its traceback has our frames, they have the context, and
    that has the call: a ring of 8 KB and more for each call that fails, which only a full collection finds, and those
    are rare by intention. 16,000 streams with bad reports took 130 MB until this was cut.
    """
    ended.__context__ = ended.__cause__ = None
    return ended.with_traceback(None)


class Gate:
    """Room for calls of one class."""

    __slots__ = ("held", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.held = 0

    def full(self) -> ResourceExhausted:
        """What a call that finds no room gets."""
        return ResourceExhausted(
            f"the server holds {self.limit} calls of the class '{self.name}' already",
            Reason.TOO_MANY_STREAMS,
            retry_after_ms=_RETRY_AFTER_MS,
            limit=str(self.limit),
            admission=self.name,
        )


class _Malformed:
    """Stands for a unary request that did not decode, until its wrapper can say so."""


_MALFORMED: Final = _Malformed()


def _malformed() -> InvalidRequest:
    return InvalidRequest("the message could not be decoded", Reason.MALFORMED_MESSAGE)


def _ignore_call(method: str, code: str) -> None:
    """Nobody counts."""


def _ignore_refusal(reason: Reason) -> None:
    """Nobody counts."""


class Interceptor(grpc.aio.ServerInterceptor):
    """See the module. It must be the only interceptor, or the last: handlers are kept from their first call on."""

    def __init__(
        self,
        authenticator: Authenticator,
        tracing: Tracing,
        limits: Mapping[Admission, int],
        called: Callable[[str, str], None] = _ignore_call,
        refused: Callable[[Reason], None] = _ignore_refusal,
    ) -> None:
        """`called` is told of each call that ended: its method ("DispatchService/Dispatch") and code ("OK");
        `refused` of each that ended with an error of ours: why."""
        self._authenticator = authenticator
        self._tracing = tracing
        self._called = called
        self._refused = refused
        self.gates: Final = {one: Gate(one.value, limits.get(one, PEER_CALLS)) for one in Admission}
        self.proxy: Proxy | None = None
        """Brings calls to the nodes that they belong to; None on a node that is alone. To be set before it serves."""
        self._handlers: dict[str, Handler] = {}
        self._unknown: Handler = grpc.stream_stream_rpc_method_handler(self._refuse_unknown)

    def open_calls(self) -> dict[str, int]:
        """Calls that are open, by admission class, for metrics."""
        return {name.value: gate.held for name, gate in self.gates.items()}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Called by gRPC for each call."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is not None:
            return handler
        found = await continuation(handler_call_details)
        access = TABLE.get(method) or (OF_PEERS.get(method) if self.proxy is not None else None)
        if found is None:
            return self._unknown
        if access is None:
            return grpc.stream_stream_rpc_method_handler(self._refuse_closed)
        # Only names of the table are kept, so this map is bounded whatever callers ask for.
        handler = self._handlers[method] = self._wrapped(method, access, found)
        return handler

    # -- before the servicer ------------------------------------------------------------------------------------------

    def _enter(self, context: Context, access: Access, gate: Gate) -> TraceContext:
        """Who is it, may it, is there room. Raises what refuses the call; `refused` then ends it."""
        authorization = traceparent = ""
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                authorization = str(value)
            elif key == "traceparent":
                traceparent = str(value)
        trace = self._tracing.accept(traceparent)
        set_current_trace(trace)
        if access.scopes:
            principal = self._authenticator.authenticate(authorization, context.auth_context)
            if access.scopes.isdisjoint(principal.scopes):
                wanted = ", ".join(sorted(access.scopes))
                raise InvalidRequest(f"this call needs one of the scopes: {wanted}", Reason.PERMISSION_DENIED)
            set_principal(principal)
        if gate.held >= gate.limit:
            raise gate.full()
        gate.held += 1
        return trace

    # -- around the servicer ------------------------------------------------------------------------------------------

    def _wrapped(self, method: str, access: Access, handler: Handler) -> Handler:
        name = _short(method)
        one, many = (
            (grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler)
            if handler.request_streaming
            else (grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler)
        )
        make = many if handler.response_streaming else one
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            raise TypeError(f"{name} must be served by a coroutine function or an asynchronous generator")
        encode = handler.response_serializer
        if self.proxy is not None and method in TABLE and not handler.request_streaming:
            behaviour = (self.proxy.streaming if handler.response_streaming else self.proxy.unary)(method, behaviour)
            encode = _encoding_items(encode) if encode is not None else None
        wrap = self._streaming if handler.response_streaming else self._unary
        decode = handler.request_deserializer
        if decode is not None:
            decode = _decoding_items(decode) if handler.request_streaming else _decoding_one(decode)
        if encode is not None and handler.request_streaming and handler.response_streaming:
            encode = _encoding_items(encode)
        return make(wrap(name, access, behaviour), decode, encode)

    def _unary(self, name: str, access: Access, behaviour: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """The wrapper of a method with one response. This one is hot: submits of simple callers go through it."""
        gate, enter, called = self.gates[access.admission], self._enter, self._called

        async def answer(request: object, context: Context) -> object:
            entered = False
            response: object = None
            ended: BaseException | None = None
            try:
                trace = enter(context, access, gate)
                entered = True
                if request is _MALFORMED:
                    raise _malformed()
                context.set_trailing_metadata(((TRACE_KEY, trace.trace_id),))
                response = await behaviour(request, context)
            except BaseException as failure:  # noqa: BLE001 - each ends the call in its own way, or is raised again
                if entered:
                    gate.held -= 1  # before the client hears of the end: it may call again at once
                ended = await self._end(name, context, failure)
            if ended is None:
                gate.held -= 1
                called(name, "OK")
                return response
            del request, context
            try:
                raise ended
            finally:
                del ended  # its traceback has this frame

        return answer

    def _streaming(self, name: str, access: Access, behaviour: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """The wrapper of a method with a stream of responses.

        It writes what a generator yields, instead of being one itself: when the client goes, the generator is closed
        here and now, not when somebody collects it (A17).
        """
        gate, enter, called = self.gates[access.admission], self._enter, self._called
        yields = inspect.isasyncgenfunction(behaviour)

        async def answer(request: object, context: Context) -> None:
            entered = False
            ended: BaseException | None = None
            try:
                trace = enter(context, access, gate)
                entered = True
                if request is _MALFORMED:
                    raise _malformed()
                await context.send_initial_metadata(((TRACE_KEY, trace.trace_id),))
                if yields:
                    async with aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)
                else:
                    await behaviour(request, context)
            except BaseException as failure:  # noqa: BLE001 - each ends the call in its own way, or is raised again
                if entered:
                    gate.held -= 1  # before the client hears of the end: it may call again at once
                ended = await self._end(name, context, failure)
            if ended is None:
                gate.held -= 1
                called(name, "OK")
                return
            del request, context
            try:
                raise ended
            finally:
                del ended  # its traceback has this frame

        return answer

    # -- after the servicer -------------------------------------------------------------------------------------------

    async def _end(self, name: str, context: Context, failure: BaseException) -> BaseException:
        """Ends a call that failed. Returns what is to be raised."""
        found = _leaf(failure)
        if isinstance(found, grpc.aio.AbortError):
            self._called(name, _code_of(context))
            return _forgotten(found)
        if isinstance(found, grpc.aio.InternalError) or not isinstance(found, Exception):
            # The client, its connection or the server's loop is gone: there is nobody to tell.
            self._called(name, "CANCELLED")
            return _forgotten(found)
        error = found if isinstance(found, ReachError) else _unexpected(name, found)
        for one in (failure, *_leaves(failure)):  # a TaskGroup's frame has the group, whose traceback has the frame
            traceback.clear_frames(one.__traceback__)
        if error.reason in (Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED):
            fields = {"method": name, "reason": error.reason, "peer": context.peer()}
            _refusals.warning(f"{name} {error.reason}", "a call was refused", **fields)
        self._called(name, CODES[error.reason].code.name)
        self._refused(error.reason)
        return await abort_with(context, error, current_trace())

    async def _refuse_unknown(self, requests: object, context: Context) -> None:
        """No such method. Its name is a caller's text: it is neither logged nor counted."""
        error = InvalidRequest("there is no such method", Reason.NOT_IMPLEMENTED)
        ended = await abort_with(context, error, self._tracing.root())
        del requests, context
        try:
            raise ended
        finally:
            del ended

    async def _refuse_closed(self, requests: object, context: Context) -> None:
        """A method that is served but not in the table."""
        error = InvalidRequest("this method is open to nobody", Reason.PERMISSION_DENIED)
        ended = await abort_with(context, error, self._tracing.root())
        del requests, context
        try:
            raise ended
        finally:
            del ended


def _decoding_one(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """For unary requests, which gRPC decodes before any code of ours runs: the wrapper looks at what came."""

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except (DecodeError, ValueError):
            return _MALFORMED

    return decoded


def _decoding_items(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """For streams, which are decoded while the servicer reads: it is raised there, and ends the stream."""

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except (DecodeError, ValueError):
            raise _malformed() from None

    return decoded


def _encoding_items(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """For streams that carry many tasks: their frames come as bytes."""
    return lambda frame: frame if type(frame) is bytes else encode(frame)


def _leaf(failure: BaseException) -> BaseException:
    """What to tell of a failure in a TaskGroup: the abort or the error of ours in it, if there is one."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    leaves = list(_leaves(failure))
    for kind in (grpc.aio.AbortError, ReachError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return failure


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for part in failure.exceptions:
            yield from _leaves(part)
    else:
        yield failure


def _unexpected(name: str, failure: Exception) -> Internal:
    """Logs a fault of ours. Not its text, for that may hold a payload or a secret: its type and where it was raised."""
    error_id = secrets.token_hex(8)
    inner = next(_leaves(failure))
    fields = {
        "error_id": error_id,
        "method": name,
        "error": type(inner).__name__,
        "frames": frames_of(inner) or frames_of(failure),
    }
    _log.error("a call failed unexpectedly", extra=fields)
    return Internal(f"internal fault; the server's log holds it as {error_id}", error_id=error_id)


def _code_of(context: Context) -> str:
    """The code that a servicer aborted with."""
    code = context.code()
    for known in grpc.StatusCode:
        if code in (known, known.value[0]):
            return known.name
    return "UNKNOWN"


def _short(method: str) -> str:
    """Of "/agentreach.v1.DispatchService/Dispatch" the part "DispatchService/Dispatch"."""
    return method.rpartition(".")[2]
