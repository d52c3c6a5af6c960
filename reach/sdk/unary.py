"""Calls that are not made often enough for a stream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import grpc

from reach.cancelling import cancellations, heed_cancellation
from reach.errors import Reason, Timeout, Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

TIMEOUT_S: Final = 10.0
TRY_S: Final = 3.0
"""How long one server may take where there are others."""
LONGEST_WAIT_S: Final = 0.5
"""Between tries while nobody can be reached."""

StubOf = Callable[[grpc.aio.Channel], Any]


class _Open:
    """A channel, and how many calls it carries."""

    __slots__ = ("calls", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0


class UnaryCalls:
    """Single calls, each safe to retry: tried again while the server cannot be reached; where there are several, the
    next one is asked at once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rotation = target.rotation()
        self._open: _Open | None = None

    async def call(self, stub_of: StubOf, method: str, request: Any, timeout: float) -> Any:
        """The answer of a service's method. Raises its error, or Unavailable when the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        before = cancellations()
        while True:
            opened = self._open
            if opened is None:
                opened = self._open = _Open(self._target.aio_channel(self._rotation.current))
            try:
                answer = await self._once(opened, stub_of, method, request, end - loop.time())
            except Unavailable:
                heed_cancellation(before)
                delay = await self._go_on(opened)
                if end - loop.time() <= delay:
                    raise
                await asyncio.sleep(delay)
            else:
                if opened is self._open:
                    self._rotation.worked()
                return answer

    async def _once(self, opened: _Open, stub_of: StubOf, method: str, request: Any, left: float) -> Any:
        limit = left if self._rotation.is_alone else min(left, TRY_S)
        call = getattr(stub_of(opened.channel), method)(
            request, timeout=max(limit, 0.001), metadata=self._target.metadata
        )
        opened.calls += 1
        try:
            return await call
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure)
            if isinstance(error, Timeout) and error.reason is Reason.WAIT_EXPIRED and limit < left:
                raise Unavailable(f"no answer within {limit:g} s", Reason.OWNER_UNAVAILABLE) from None
            raise error from None
        finally:
            call.cancel()
            opened.calls -= 1
            await self._close_unused(opened)

    async def _go_on(self, opened: _Open) -> float:
        """A server did not answer: the next one is asked from now on, or this one anew. Returns how long to wait."""
        if opened is not self._open:  # another call found that out before
            return 0.0
        in_round = self._rotation.failed()
        # A channel that failed sits out a wait of its own, and fails meanwhile.
        if in_round or not self._rotation.is_alone or _has_failed(opened.channel):
            self._open = None
            await self._close_unused(opened)
        return 0.0 if in_round else random.uniform(0.05, LONGEST_WAIT_S)

    async def _close_unused(self, opened: _Open) -> None:
        if not opened.calls and opened is not self._open:
            await opened.channel.close()

    async def close(self) -> None:
        """Ends all calls."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.channel.close()


def _has_failed(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
