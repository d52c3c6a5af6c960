"""Handlers: the functions of an agent, whatever kind they are, and how each kind is run.

| kind | runs | its pieces |
|---|---|---|
| `def` | in a thread | one answer |
| `async def` | on the loop | one answer |
| `def` with `yield` | in a thread | a delta for each piece |
| `async def` with `yield` | on the loop | a delta for each piece |
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from reach.sdk.inheritance import CURRENT
from reach.sdk.payloads import JSON_MEDIA_TYPE, Answer, Delta, Progress, json_text

if TYPE_CHECKING:
    from reach.sdk.attempt import Attempt
    from reach.sdk.attempts import Attempts
    from reach.sdk.task import Task

DEFAULT_METHOD: Final = "default"

Function = Callable[..., Any]


class Kind(Enum):
    """How a handler is run."""

    CALL = 0
    COROUTINE = 1
    ASYNC_GENERATOR = 2


class Handler:
    """One handler and its figures."""

    __slots__ = ("concurrency", "expected_latency", "function", "inflight", "kind", "latency", "name", "threaded")

    def __init__(
        self, name: str, function: Function, expected_latency: float | None = None, concurrency: int | None = None
    ) -> None:
        self.name = name
        self.function = function
        self.kind = kind_of(function)
        self.threaded = self.kind is Kind.CALL
        self.expected_latency = expected_latency
        self.concurrency = concurrency
        self.inflight = 0
        self.latency = 0.0
        """Seconds, lately."""


def kind_of(function: Function) -> Kind:
    """What a function is, also through `functools.partial` and objects that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.isasyncgenfunction(function):
        return Kind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return Kind.COROUTINE
    return Kind.CALL


async def run_coroutine(attempts: Attempts, attempt: Attempt, task: Task, awaitable: Awaitable[Any]) -> None:
    """Waits for a handler and reports what became of it. Does not raise."""
    CURRENT.set(task)
    try:
        value = await awaitable
    except asyncio.CancelledError:
        attempts.cancelled(attempt)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported and logged by `fail`
        attempts.fail(attempt, error)
    else:
        attempts.finish(attempt, value)
    finally:
        attempt.runner = None  # its context names the task, which names the attempt: a circle


async def run_pieces(attempts: Attempts, attempt: Attempt, pieces: AsyncIterator[Any]) -> Any:
    """Sends what an asynchronous generator yields; returns the answer, or `FOLDED` if the pieces are the answer."""
    final: Any = FOLDED
    async with aclosing(pieces) as items:  # type: ignore[type-var]
        async for item in items:
            if isinstance(item, Answer):
                final = item
                break
            if isinstance(item, Progress):
                attempts.notes.progress(attempt, item)
                continue
            flow = attempts.flow_of(attempt)
            if flow.spent >= flow.granted:
                await flow.room()
            piece = piece_of(item)
            flow.spent += len(piece.data)
            attempts.delta(attempt, piece)
    return final


def run_in_thread(attempts: Attempts, attempt: Attempt, task: Task, function: Function) -> None:
    """Runs a handler in this thread and hands its outcome to the loop. Does not raise."""
    CURRENT.set(task)
    try:
        value = function(task)
        if isinstance(value, Iterator):
            value = _iterate(attempts, attempt, value)
        elif inspect.iscoroutine(value):
            attempts.post(attempts.run_on_loop, attempt, task, value)
            return
    except BaseException as error:  # noqa: BLE001 - reported and logged by `fail`; a thread has nobody else to tell
        attempts.post(attempts.fail, attempt, error)
    else:
        attempts.post(attempts.finish, attempt, value)


def _iterate(attempts: Attempts, attempt: Attempt, pieces: Iterator[Any]) -> Any:
    try:
        for item in pieces:
            if attempt.cancelled:
                break
            if isinstance(item, Answer):
                return item
            if isinstance(item, Progress):
                attempts.post(attempts.notes.progress, attempt, item)
                continue
            piece = piece_of(item)
            flow = attempts.flow_of(attempt)
            while flow.spent >= flow.granted and not attempt.cancelled:
                flow.room_in_thread()
            flow.spent += len(piece.data)
            attempts.post(attempts.delta, attempt, piece)
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    return FOLDED


def piece_of(item: Any) -> Delta:
    """What a generator yielded, as a delta. Raises TypeError if it is nothing of the kind."""
    if isinstance(item, _PLAIN):
        return Delta(data=item)
    if isinstance(item, Delta):
        if item.mode not in ("append", "replace"):
            raise ValueError(f"the mode of a Delta is 'append' or 'replace', not {item.mode!r}")
        if not isinstance(item.data, _PLAIN):
            return Delta(item.channel, json_text(item.data), item.mode, item.media_type or JSON_MEDIA_TYPE)
        return item
    raise TypeError(f"a handler may yield str, bytes, Delta, Progress and a last Answer, not {type(item).__name__}")


_PLAIN: Final = (str, bytes, bytearray, memoryview)


class _Folded:
    """The answer is what the deltas made."""


FOLDED: Final = _Folded()
