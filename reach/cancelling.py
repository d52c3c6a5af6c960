"""Tasks that are cancelled: whether one was, and what has to be finished all the same.

`grpc.aio` may answer the cancellation of a task that awaits a call with how that call ended, if both happen in one turn
of the loop (in `grpc/aio/_call.py`, `_prepare_rpc` and `_invoke` return as if nothing had been). Whoever tries again
after a failed call would then go on for ever, and who waits for the end of the task would wait as long: ask
`heed_cancellation` first. The other way round, a call that is cancelled by itself raises CancelledError in a task that
is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def cancellations() -> int:
    """How often the current task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def heed_cancellation(since: int = 0) -> None:
    """Ends the current task if it was asked to end more often than `since`. Raises CancelledError."""
    if cancellations() > since:
        raise asyncio.CancelledError


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Does work to its end; who is cancelled meanwhile is so after it.

    The handler of a call is cancelled when its caller hangs up. What the core did by then stays, so what belongs to it
    has to be done as well: an instance that is registered must be probed, whether or not anybody waits for the answer.
    """
    doing = asyncio.create_task(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise
