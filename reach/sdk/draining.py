"""The end of an agent that was told to stop: in order, and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from reach.sdk.link import Link

if TYPE_CHECKING:
    from reach.sdk.endpoint import EndpointLink

AnyLink: TypeAlias = "Link | EndpointLink"
GOODBYE_S: Final = 2.0
"""How long the last words may take after the grace."""
HAND_OVER_S: Final = 5.0
"""How long its sessions may take to be handed over."""


async def drain(link: AnyLink, runner: asyncio.Task[None], grace_s: Callable[[], float]) -> None:
    """Takes nothing new, lets what runs finish for `grace_s` seconds, gives back the rest, and says goodbye; not longer
    than `runner`, which is the link's, lives. The grace may become 0 meanwhile: whoever waits has had enough."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_s()
    link.attempts.draining = True
    for attempt in link.attempts.questions.attempts():
        link.attempts.give_back(attempt, "the agent drains while it waits for input")
    link.beat()
    await _wait(link.attempts.idle, end - loop.time(), runner)
    link.attempts.release("the agent drains and its grace is over")
    left = GOODBYE_S if link.connection.up else max(GOODBYE_S, end - loop.time())
    if grace_s() == 0.0:
        left = min(left, GOODBYE_S)
    await _wait(link.outcomes.settled, left, runner)
    if link.connection.up:
        await asyncio.wait({asyncio.ensure_future(link.hand_over())}, timeout=HAND_OVER_S)
        link.say_goodbye()
        await link.connection.end(GOODBYE_S)


async def _wait(event: asyncio.Event, timeout: float, runner: asyncio.Task[None]) -> None:
    """Waits for the event, but not longer than `timeout` seconds, nor than the link lives."""
    if event.is_set() or timeout <= 0:
        return
    waits = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waits, runner}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waits.cancel()
