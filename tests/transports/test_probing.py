"""Probes and checks share a channel, and do not end each other (HLT-3, HLT-4)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from agentreach.v1 import endpoint_pb2
from reach.transports.probing import HEALTH, ProbeChannel

pytestmark = pytest.mark.asyncio


class Channel:
    """As gRPC's: whoever closes it cancels those who wait."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[bytes]] = {}
        self.closed = False

    def unary_unary(self, method: str) -> Any:
        async def call(request: bytes, **_: Any) -> bytes:
            self.waiting[method] = asyncio.get_running_loop().create_future()
            return await self.waiting[method]

        return call

    async def close(self) -> None:
        self.closed = True
        for future in self.waiting.values():
            future.cancel()


class Route:
    """Leads to channels by hand."""

    metadata = ()
    ips = ()

    def __init__(self) -> None:
        self.made: list[Channel] = []

    def channel(self, *, keepalive: bool) -> Channel:
        self.made.append(Channel())
        return self.made[-1]


def timed_out() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, nothing, nothing, "Deadline Exceeded")


async def test_HLT_4_a_probe_that_fails_leaves_a_check_that_is_under_way():
    """Found by the simulation: the check was cancelled with the channel, and its target was never checked again."""
    route = Route()
    line = ProbeChannel(route, 2.0)  # type: ignore[arg-type]
    check = asyncio.create_task(line.check([], "acme"))
    probe = asyncio.create_task(line.probe())
    await asyncio.sleep(0)
    (first,) = route.made
    first.waiting[HEALTH].set_exception(timed_out())
    assert (await probe).error == "no answer in time"
    assert not first.closed, "somebody waits for an answer on it"
    (asked,) = [future for method, future in first.waiting.items() if method != HEALTH]
    asked.set_result(endpoint_pb2.CheckResponse(boot_id="b1").SerializeToString())
    answer = (await check).answer
    assert answer is not None
    assert answer.boot_id == "b1"
    assert first.closed, "nobody uses it any more"
    asyncio.get_running_loop().call_soon(lambda: route.made[-1].waiting[HEALTH].set_result(b""))
    assert (await line.probe()).ok
    assert len(route.made) == 2, "the next one has a channel of its own"
    await line.close()
    assert route.made[-1].closed
