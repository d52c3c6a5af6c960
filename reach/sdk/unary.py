"""Calls of a caller that are not made often enough for the stream."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

import grpc

from agentreach.v1 import dispatch_pb2_grpc
from reach.errors import Unavailable
from reach.sdk.channel import Target
from reach.wire.status import error_from_rpc

TIMEOUT_S: Final = 10.0


class UnaryCalls:
    """A channel for single calls, each safe to retry: tried again while the server cannot be reached."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._channel: grpc.aio.Channel | None = None

    async def call(self, method: str, request: Any, timeout: float) -> Any:
        """The answer of a DispatchService method. Raises its error, or Unavailable when the time is over."""
        if self._channel is None:
            self._channel = self._target.aio_channel()
        stub: Any = dispatch_pb2_grpc.DispatchServiceStub(self._channel)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            left = end - loop.time()
            call = getattr(stub, method)(request, timeout=max(left, 0.001), metadata=self._target.metadata)
            try:
                return await call
            except grpc.aio.AioRpcError as failure:
                error = error_from_rpc(failure)
                delay = random.uniform(0.05, 0.5)
                if not isinstance(error, Unavailable) or left <= delay:
                    raise error from None
                await asyncio.sleep(delay)
            finally:
                call.cancel()

    async def close(self) -> None:
        """Ends all calls."""
        if self._channel is not None:
            await self._channel.close()
