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
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.access import OF_PEERS, TABLE, Access, Admission
from reach.rpc.entrance import NO_SHARES, Entrance, Gate, leaf_of, leaves_of, short_name
from reach.rpc.principal import Authenticator
from reach.telemetry.tracing import TraceContext, Tracing, current_trace
from reach.wire.status import status_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

TRACE_KEY: Final = "x-trace-id"


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


class Beside(Protocol):
    """Another contract. Its calls come in as those of other doors do (`inner_calls.py`), so nothing is asked of them
    here."""

    async def handler(self, method: str) -> Handler | None:
        """The handler of a method; None if it is none of this contract."""


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
        shares: Mapping[Admission, int] = NO_SHARES,
    ) -> None:
        self.entrance: Final = Entrance(authenticator, tracing, limits, called, refused, shares)
        self._handlers: dict[str, Handler] = {}
        self._unknown: Handler = grpc.stream_stream_rpc_method_handler(self._refuse_unknown)
        self.beside: Beside | None = None
        """Methods of other contracts on the same port. To be set before it serves."""

    def open_calls(self) -> dict[str, int]:
        """Calls that are open, by admission class, for metrics."""
        return {name.value: gate.held for name, gate in self.entrance.gates.items()}

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
        access = TABLE.get(method) or (OF_PEERS.get(method) if self.entrance.proxy is not None else None)
        if found is None:
            other = None if self.beside is None else await self.beside.handler(method)
            return other or self._unknown
        if access is None:
            return grpc.stream_stream_rpc_method_handler(self._refuse_closed)
        # Only names of the table are kept, so this map is bounded whatever callers ask for.
        handler = self._handlers[method] = self._wrapped(method, access, found)
        return handler

    # -- before the servicer ------------------------------------------------------------------------------------------

    def _enter(self, context: Context, access: Access, gate: Gate) -> tuple[TraceContext, str]:
        """As `Entrance.enter`."""
        authorization = traceparent = ""
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                authorization = str(value)
            elif key == "traceparent":
                traceparent = str(value)
        return self.entrance.enter(authorization, traceparent, context.auth_context, access, gate)

    # -- around the servicer ------------------------------------------------------------------------------------------

    def _wrapped(self, method: str, access: Access, handler: Handler) -> Handler:
        name = short_name(method)
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
        if self.entrance.proxy is not None and not handler.request_streaming:
            behaviour = self.entrance.anywhere(method, behaviour, streams=handler.response_streaming)
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
        entrance = self.entrance
        gate, enter, called = entrance.gates[access.admission], self._enter, entrance.called

        async def answer(request: object, context: Context) -> object:
            whose: str | None = None
            response: object = None
            ended: BaseException | None = None
            try:
                trace, whose = enter(context, access, gate)
                if request is _MALFORMED:
                    raise _malformed()
                context.set_trailing_metadata(((TRACE_KEY, trace.trace_id),))
                response = await behaviour(request, context)
            except BaseException as failure:  # noqa: BLE001 - each ends the call in its own way, or is raised again
                if whose is not None:
                    gate.leave(whose)  # before the client hears of the end: it may call again at once
                ended = await self._end(name, context, failure)
            if ended is None:
                assert whose is not None, "it came in"
                gate.leave(whose)
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
        entrance = self.entrance
        gate, enter, called = entrance.gates[access.admission], self._enter, entrance.called
        yields = inspect.isasyncgenfunction(behaviour)

        async def answer(request: object, context: Context) -> None:
            whose: str | None = None
            ended: BaseException | None = None
            try:
                trace, whose = enter(context, access, gate)
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
                if whose is not None:
                    gate.leave(whose)  # before the client hears of the end: it may call again at once
                ended = await self._end(name, context, failure)
            if ended is None:
                assert whose is not None, "it came in"
                gate.leave(whose)
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
        found = leaf_of(failure, grpc.aio.AbortError)
        if isinstance(found, grpc.aio.AbortError):
            self.entrance.called(name, _code_of(context))
            return _forgotten(found)
        if isinstance(found, grpc.aio.InternalError) or not isinstance(found, Exception):
            # The client, its connection or the server's loop is gone: there is nobody to tell.
            self.entrance.called(name, "CANCELLED")
            return _forgotten(found)
        error = self.entrance.failed(name, found, context.peer())
        for one in (failure, *leaves_of(failure)):  # a TaskGroup's frame has the group, whose traceback has the frame
            traceback.clear_frames(one.__traceback__)
        return await abort_with(context, error, current_trace())

    async def _refuse_unknown(self, requests: object, context: Context) -> None:
        """No such method. Its name is a caller's text: it is neither logged nor counted."""
        error = InvalidRequest("there is no such method", Reason.NOT_IMPLEMENTED)
        ended = await abort_with(context, error, self.entrance.tracing.root())
        del requests, context
        try:
            raise ended
        finally:
            del ended

    async def _refuse_closed(self, requests: object, context: Context) -> None:
        """A method that is served but not in the table."""
        error = InvalidRequest("this method is open to nobody", Reason.PERMISSION_DENIED)
        ended = await abort_with(context, error, self.entrance.tracing.root())
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


def _code_of(context: Context) -> str:
    """The code that a servicer aborted with."""
    code = context.code()
    for known in grpc.StatusCode:
        if code in (known, known.value[0]):
            return known.name
    return "UNKNOWN"
