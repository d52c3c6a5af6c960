"""Work that goes on when who asked for it hangs up.

The handler of a call is cancelled when its caller has gone. What the core did by then stays, so what belongs to it has
to be done as well: an instance that is registered must be probed, whether or not anybody still waits for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Does work to its end; who is cancelled meanwhile is so after it."""
    doing = asyncio.create_task(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise
