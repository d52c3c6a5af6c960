"""The client for programs without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reach import AgentError, InvalidRequest, Reason, SyncClient, TaskState, Timeout, Unavailable
from reach.wire.status import error_to_proto
from tests.sdk.fake_server import CallerStream, FakeServer, refusal


async def served(
    server: FakeServer, use: Callable[[SyncClient], object], serve: Callable[[CallerStream], Coroutine[Any, Any, None]]
):
    """Runs `use` in a thread, and `serve` on each stream here."""

    def work() -> object:
        with SyncClient(server.address) as client:
            return use(client)

    using = asyncio.create_task(asyncio.to_thread(work))
    stream = await server.caller()
    serving = asyncio.create_task(serve(stream))
    try:
        return await asyncio.wait_for(using, 10)
    finally:
        serving.cancel()


async def echo(stream: CallerStream) -> None:
    seen = 0
    while True:
        submits = await stream.wait("submits", seen + 1, 30)
        for submit in submits[seen:]:
            reference = {"reference": submit.reference, "task_id": submit.task.task_id, "state": 1}
            stream.send(acknowledgements=[reference])
            if submit.task.payload.text == "fail":
                stream.complete(submit.task.task_id, state=6, error=error_to_proto(AgentError("no")))
            elif submit.task.payload.text != "silence":
                stream.delta(submit.task.task_id, 2, "a")
                stream.delta(submit.task.task_id, 3, "b")
                stream.complete(submit.task.task_id, submit.task.payload.text, sequence=4)
        seen = len(submits)


async def test_send_call_and_errors(server):
    def use(client: SyncClient):
        assert client.send("m", "x").text == "x"
        assert client.call("m", "y", timeout=5) == "y"
        with pytest.raises(AgentError):
            client.call("m", "fail")
        with pytest.raises(Timeout):
            client.send("m", "silence", timeout=0.1)
        with pytest.raises(InvalidRequest):
            client.send("m", object())
        return client.address

    assert await served(server, use, echo) == server.address


async def test_streams(server):
    def use(client: SyncClient):
        assert [event.kind for event in client.stream("m", "ab")] == ["delta", "delta", "complete"]
        assert "".join(client.stream_text("m", "ab")) == "ab"
        for event in client.stream("m", "ab"):
            assert event.text == "a"
            break
        handle = client.submit("m", "silence")
        assert handle.state is TaskState.PENDING
        with pytest.raises(Timeout):
            handle.result(timeout=0.1)

    await served(server, use, echo)


async def test_many_threads_share_one(server):
    def use(client: SyncClient):
        with ThreadPoolExecutor(16) as pool:
            texts = [str(number) for number in range(200)]
            return [result.text for result in pool.map(lambda text: client.send("m", text), texts)] == texts

    assert await served(server, use, echo)
    assert threading.active_count() < 100


async def test_unary(server):
    server.get_task = lambda _id: InvalidRequest("no such task", Reason.TASK_NOT_FOUND)

    def use(client: SyncClient):
        with pytest.raises(InvalidRequest) as caught:
            client.get_task("t")
        with pytest.raises(InvalidRequest):
            client.cancel("t")
        return caught.value.reason

    async def serve(stream: CallerStream):
        (cancel,) = await stream.wait("cancels")
        stream.send(refusals=[refusal(InvalidRequest("?", Reason.TASK_NOT_FOUND), reference=cancel.reference)])

    assert await served(server, use, serve) is Reason.TASK_NOT_FOUND


def test_a_client_that_was_not_used_closes():
    SyncClient("127.0.0.1:1").close()


def test_nobody_there():
    with SyncClient("127.0.0.1:1", connect_timeout=0.2) as client, pytest.raises(Unavailable, match="reach serve"):
        client.send("m")
