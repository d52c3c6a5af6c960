"""Handlers of another contract on our port: bytes that do not decode, errors of ours and faults end there as they do
everywhere. Who calls, and whether there is room, is asked where its calls become ours (`inner_calls.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from reach.errors import InvalidRequest, ReachError, Reason
from reach.rpc.entrance import Entrance, leaf_of
from reach.rpc.interceptors import Context, Handler, abort_with
from reach.telemetry.tracing import current_trace

_MALFORMED: Final = object()


class Method(Protocol):
    """What a servicer has for a method with one request."""

    def __call__(self, request: Any, context: Any, /) -> Any: ...


def handler_of(
    entrance: Entrance,
    name: str,
    behaviour: Callable[[Any, Any], Any],
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    was_read: Callable[[], bool],
) -> Handler:
    """The handler of one method with one request.

    Args:
        entrance: Of the node: it counts and logs faults.
        name: Of the method, for the log.
        behaviour: A coroutine function, or an asynchronous generator function.
        decode: Makes the request of bytes.
        encode: Makes bytes of an answer.
        was_read: Whether the behaviour came as far as to know what is asked. What fails before is the caller's mistake.
    """
    streams = inspect.isasyncgenfunction(behaviour)

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except (DecodeError, ValueError):
            return _MALFORMED

    def told(failure: Exception, context: Context) -> ReachError:
        """What the caller is told. An error of ours was counted where the call became ours."""
        if isinstance(failure, ReachError):
            return failure
        if not was_read():
            return InvalidRequest("the request could not be read", Reason.MALFORMED_MESSAGE)
        return entrance.failed(name, failure, context.peer())

    async def unary(request: object, context: Context) -> object:
        return await _guarded(context, told, lambda: behaviour(_whole(request), context))

    async def streaming(request: object, context: Context) -> None:
        async def written() -> None:
            answers: AsyncIterator[Any] = behaviour(_whole(request), context)
            async with aclosing(answers):  # type: ignore[type-var]
                async for answer in answers:
                    await context.write(answer)

        await _guarded(context, told, written)

    if streams:
        return grpc.unary_stream_rpc_method_handler(streaming, decoded, encode)
    return grpc.unary_unary_rpc_method_handler(unary, decoded, encode)


def _whole(request: object) -> Any:
    if request is _MALFORMED:
        raise InvalidRequest("the message could not be decoded", Reason.MALFORMED_MESSAGE)
    return request


async def _guarded(
    context: Context, told: Callable[[Exception, Context], ReachError], act: Callable[[], Awaitable[Any]]
) -> Any:
    """Runs a call to its end, whatever that is."""
    ended: BaseException | None = None
    try:
        return await act()
    except BaseException as failure:  # noqa: BLE001 - each ends the call in its own way, or is raised again
        found = leaf_of(failure, grpc.aio.AbortError)
        if isinstance(found, grpc.aio.AbortError | grpc.aio.InternalError) or not isinstance(found, Exception):
            ended = found
        else:
            ended = await abort_with(context, told(found, context), current_trace())
    ended.__context__ = ended.__cause__ = None
    ended = ended.with_traceback(None)  # as `interceptors._forgotten` says: it is kept with the call
    try:
        raise ended
    finally:
        del ended
