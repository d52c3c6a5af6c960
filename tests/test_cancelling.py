"""Tasks that are cancelled while a call of theirs fails, as `grpc.aio` has it: who tries again after a failure ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from agentreach.v1 import task_pb2
from reach.cancelling import finished, heed_cancellation
from reach.cluster.etcd_api.connection import Access
from reach.cluster.etcd_api.connection import Connection as EtcdConnection
from reach.sdk.channel import Target
from reach.sdk.connection import Connection
from reach.sdk.unary import UnaryCalls
from tests.sdk.test_connection import Peer

AT = "127.0.0.1:1"
DOWN = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "connection refused")


class Call:
    """A call that fails in the moment its task is cancelled, so that the failure is all that its task hears."""

    def __init__(self) -> None:
        self.under_way = asyncio.Event()

    async def read(self) -> Any:
        self.under_way.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise DOWN from None

    write = read

    def __await__(self) -> Any:
        return self.read().__await__()

    def cancel(self) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Call:
        return self


def stream_of_the_sdk(call: Call) -> Coroutine[Any, Any, Any]:
    target = cast("Target", SimpleNamespace(rotation=lambda: Target(AT, None, None).rotation(), metadata=()))
    channel = SimpleNamespace(stream_stream=lambda *_: call, close=lambda: asyncio.sleep(0), get_state=lambda: None)
    target.aio_channel = lambda _: channel  # type: ignore[assignment, method-assign, return-value]
    return Connection(target, "/x/y", bytes, Peer()).run()


def call_of_the_sdk(call: Call) -> Coroutine[Any, Any, Any]:
    calls = UnaryCalls(Target(AT, None, None))
    return calls.call(lambda _: SimpleNamespace(Ask=call), "Ask", None, timeout=60)


def call_of_etcd(call: Call) -> Coroutine[Any, Any, Any]:
    connection = EtcdConnection(Access((AT,)))
    connection._channels = [cast("Any", SimpleNamespace(unary_unary=lambda *_, **__: call))]
    return connection.call("/x/y", task_pb2.TaskSpec(), task_pb2.TaskSpec, read=True, call_s=60)


@pytest.mark.parametrize("begin", [stream_of_the_sdk, call_of_the_sdk, call_of_etcd])
async def test_who_is_cancelled_while_a_call_fails_does_not_try_again(
    begin: Callable[[Call], Coroutine[Any, Any, Any]],
) -> None:
    call = Call()
    asking = asyncio.create_task(begin(call))
    await call.under_way.wait()
    asking.cancel()
    done, _ = await asyncio.wait({asking}, timeout=5)
    if not done:
        asking.cancel()
    assert done, "it goes on"
    assert asking.cancelled()


async def test_what_was_cancelled_before_is_not_heeded_again() -> None:
    """Who cleans up after a cancellation makes calls, too."""

    async def cleaned_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heed_cancellation(since=1)
        return "clean"

    task = asyncio.create_task(cleaned_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "clean"


async def test_what_must_be_finished_is_and_then_its_task_ends() -> None:
    told: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.05)
        told.append("done")

    async def asked(what: Awaitable[None]) -> None:
        await what
        told.append("went on")

    task = asyncio.create_task(asked(finished(work())))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["done"]
