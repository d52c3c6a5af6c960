"""How handlers that run on the loop begin.

Many answer without waiting for anything: from memory, or by a short computation. A task of asyncio for each would cost
more than all else that is done for it here. So those that come in one frame begin one after another in one task, each
in a context of its own; the first that waits keeps that task as if it had been alone, and those behind it get one each.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, cast

from reach.sdk.handlers import Kind, run_coroutine, run_pieces
from reach.sdk.inheritance import CURRENT
from reach.sdk.tracing import trace_context

if TYPE_CHECKING:
    from agentreach.v1.task_pb2 import TraceContext
    from reach.sdk.attempt import Attempt
    from reach.sdk.attempts import Attempts
    from reach.sdk.handlers import Handler
    from reach.sdk.task import Task

AnyCoroutine = Coroutine[Any, Any, Any]

Start = tuple["Attempt", "Handler", "Task", "TraceContext | None"]
"""An attempt that begins, what runs it, what that is given, and the caller's trace, if there is one."""


async def run_starts(attempts: Attempts, starts: deque[Start]) -> None:
    """Runs handlers until one waits, and that one to its end; the rest begin in tasks of their own. Does not raise."""
    try:
        waiting = _first_steps(attempts, starts, cast("asyncio.Task[None]", asyncio.current_task()))
    finally:
        for start in starts:
            attempts.start(deque((start,)))
    if waiting is not None:
        attempt, task, rest = waiting
        attempts.accept(attempt)
        await run_coroutine(attempts, attempt, task, rest)


def _first_steps(
    attempts: Attempts, starts: deque[Start], runner: asyncio.Task[None]
) -> tuple[Attempt, Task, Awaitable[Any]] | None:
    """The first that waits, and what is left of it to do; None if no more can begin here."""
    while starts and not runner.cancelling():  # a handler may cancel the task it runs in, and then return
        attempt, handler, task, trace = starts.popleft()
        if attempt.cancelled or attempt.ended:
            attempts.cancelled(attempt)
            continue
        attempt.runner = runner
        CURRENT.set(task)
        context = (trace_context(trace) if trace is not None else None) or copy_context()
        try:
            coroutine = handler.function(task)
            if type(coroutine) is not types.CoroutineType:
                coroutine = _coroutine_of(attempts, attempt, handler, coroutine)
            waits_for = context.run(coroutine.send, None)
        except StopIteration as end:
            attempts.finish(attempt, end.value)
        except asyncio.CancelledError:
            attempts.cancelled(attempt)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - reported and logged by `fail`
            context.run(attempts.fail, attempt, error)
        else:
            return attempt, task, _go_on(context, coroutine, waits_for)
        attempt.runner = None
    return None


def _coroutine_of(attempts: Attempts, attempt: Attempt, handler: Handler, awaitable: Any) -> AnyCoroutine:
    if handler.kind is Kind.ASYNC_GENERATOR:
        return run_pieces(attempts, attempt, awaitable)
    return _wait_for(awaitable)


async def _wait_for(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@types.coroutine
def _go_on(context: Context, coroutine: AnyCoroutine, waits_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a handler that waits for something, in the context that it began in."""
    try:
        while True:
            try:
                value = yield waits_for
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is the handler's
                waits_for = context.run(coroutine.throw, error)
            else:
                waits_for = context.run(coroutine.send, value)
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()
