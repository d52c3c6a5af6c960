"""Connections to A2A agents that break while the agent goes on: the same remote task is followed (API-3, GOV-5)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from a2a.client.errors import A2AClientError

from reach.core.endpoint import Endpoint
from reach.errors import ErrorClass, Reason
from reach.transports.a2a.told import BrokenProtocol
from reach.transports.seam import Failed
from tests.a2a_agent import serving
from tests.rpc.peers import pb
from tests.transports.a2a.test_line import offered, text_of, way_of

pytestmark = pytest.mark.asyncio


def fault_of(failure):
    """What became of an attempt that failed."""
    assert failure.value.fault is not None
    return failure.value.fault


class Wire:
    """What is between us and an agent; cuts all connections at once."""

    def __init__(self, port):
        self.port = port
        self.writers = set()

    async def carry(self, reader, writer):
        """One connection."""
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers |= {writer, back}
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer), return_exceptions=True)

    async def _copy(self, reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    def cut(self):
        """All of them."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@asynccontextmanager
async def wired(served):
    """A line to an agent by a wire; (line, wire)."""
    wire = Wire(served.port)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    path = served.card.supported_interfaces[0].url.rpartition(":")[2].partition("/")[2]
    port = server.sockets[0].getsockname()[1]
    served.card.supported_interfaces[0].url = f"http://127.0.0.1:{port}/{path}"
    line = way_of(served).line(Endpoint(""), pb.Reporter())
    try:
        yield line, wire
    finally:
        await line.close()
        wire.cut()
        server.close()


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("legacy", [False, True])
async def test_API_3_a_stream_that_is_cut_goes_on_as_the_same_task(binding, legacy, monkeypatch):
    async with serving(binding, legacy=legacy) as served, wired(served) as (line, wire):
        subscribed, subscribe = [], line.calls.subscribe

        def counted(task):
            subscribed.append(task)
            return subscribe(task)

        monkeypatch.setattr(line.calls, "subscribe", counted)
        call = line.execute(offered("hold"), 10)
        frames = []
        while (frame := await call.read()) is not None:
            frames.append(frame)
            if text_of(frames) == "begun ":
                wire.cut()
                asyncio.get_running_loop().call_later(0.3, served.executor.go_on.set)
        assert text_of(frames) == "begun ended"
        assert frames[-1].result.output.text == "begun ended"
        assert len(served.executor.messages) == 1
        assert len(subscribed) == 1


async def test_API_3_what_was_accepted_is_resumed_by_its_handle():
    async with serving() as served, wired(served) as (line, _):
        request = offered("hold")
        call = line.execute(request, 10)
        handle = (await call.read()).accept.handle
        call.cancel()
        other = way_of(served).line(Endpoint(""), pb.Reporter())  # of another node
        resumed = other.resume(request, handle, 10)
        assert resumed is not None
        served.executor.go_on.set()
        frames = []
        while (frame := await resumed.read()) is not None:
            frames.append(frame)
        assert frames[-1].result.output.text == "begun ended"
        assert len(served.executor.messages) == 1
        await other.close()


@pytest.mark.parametrize("how", ["cut", "front", "hangs"])
async def test_HAZ4_what_was_accepted_and_cannot_be_asked_just_now_is_asked_again(how, monkeypatch):
    monkeypatch.setattr("reach.transports.a2a.calls.GET_S", 0.2)
    async with serving() as served, wired(served) as (line, _):
        request = offered("hold")
        call = line.execute(request, 10)
        handle = (await call.read()).accept.handle
        call.cancel()
        tries, get = [], line.calls._transport.get_task

        async def asked(*args, **named):
            tries.append(how)
            if len(tries) > 2:
                return await get(*args, **named)
            if how == "hangs":
                await asyncio.sleep(60)
            raise _failure_of(503 if how == "front" else 0)

        monkeypatch.setattr(line.calls._transport, "get_task", asked)
        resumed = line.resume(request, handle, 10)
        served.executor.go_on.set()
        frames = []
        while (frame := await resumed.read()) is not None:
            frames.append(frame)
        assert frames[-1].result.output.text == "begun ended"
        assert len(served.executor.messages) == 1
        assert len(tries) >= 3


async def test_API_3_who_cannot_be_asked_for_long_is_given_up(monkeypatch):
    monkeypatch.setattr("reach.transports.a2a.attempt.POLL_MOST_S", 0.0)
    monkeypatch.setattr("reach.transports.a2a.attempt.POLL_FIRST_S", 0.0)
    async with serving() as served, wired(served) as (line, _):
        tries = []

        async def asked(*args, **named):
            tries.append(1)
            raise _failure_of(503)

        monkeypatch.setattr(line.calls._transport, "get_task", asked)
        with pytest.raises(Failed) as failure:
            await line.resume(offered("hold"), '["a2a/1","one","c",0]', 10).read()
        assert fault_of(failure).reason is Reason.AGENT_UNAVAILABLE
        assert not failure.value.unbegun
        assert len(tries) == 7


def _failure_of(status):
    """As the SDK tells of an answer with that status; 0: of a connection that broke."""
    request = httpx.Request("POST", "http://agent/")
    cause: Exception = httpx.ReadError("it broke", request=request)
    if status:
        cause = httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))
    failure = A2AClientError("no")
    failure.__cause__ = cause
    return failure


async def test_API_3_a_remote_task_that_is_no_longer_known_is_lost(monkeypatch):
    async with serving() as served, wired(served) as (line, _):
        gets, get = [], line.calls.get

        async def counted(task):
            gets.append(task)
            return await get(task)

        monkeypatch.setattr(line.calls, "get", counted)
        line.contexts.began(("", "a:u:s"), "c", [], "t")
        call = line.resume(offered("hold"), '["a2a/1","no-such-task","c",0]', 10)
        assert call is not None
        with pytest.raises(Failed) as failure:
            await call.read()
        assert fault_of(failure).reason is Reason.INSTANCE_LOST
        assert not failure.value.unbegun
        assert len(line.contexts) == 0  # of another process
        assert gets == ["no-such-task"]


async def test_API_3_nobody_there_is_a_loss_of_all():
    async with serving() as served:
        line = way_of(served).line(Endpoint(""), pb.Reporter())
    with pytest.raises(Failed) as failure:
        await line.execute(offered("hello"), 10).read()
    assert (failure.value.fault, failure.value.lost, failure.value.unbegun) == (None, "connection refused", True)
    await line.close()


async def test_API_3_a_time_limit_is_a_limit():
    async with serving() as served, wired(served) as (line, _):
        call = line.execute(offered("hold"), 0.5)
        assert [text_of([await call.read()]) for _ in range(2)] == ["", "begun "]
        with pytest.raises(Failed) as failure:
            await call.read()
        assert fault_of(failure).error_class is ErrorClass.TIMEOUT


ENDLESS = {
    "a line": b"content-type: text/event-stream\r\n\r\ndata: ",
    "a document": b"content-type: application/json\r\n\r\n",
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_GOV_5_answers_without_an_end_are_given_up(kind):
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + ENDLESS[kind])
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65_536)
                sent += 65_536
                await writer.drain()

    agent = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with serving() as served:
        served.card.supported_interfaces[0].url = f"http://127.0.0.1:{agent.sockets[0].getsockname()[1]}/"
        line = way_of(served).line(Endpoint(""), pb.Reporter())
        with pytest.raises(Failed) as failure:
            await line.execute(offered("hello"), 10).read()
        assert fault_of(failure).reason is Reason.RESULT_TOO_LARGE
        assert sent < 32 << 20
        await line.close()
    agent.close()


async def test_GOV_5_the_task_of_an_agent_that_breaks_the_protocol_is_cancelled(monkeypatch):
    async with serving() as served, wired(served) as (line, _):
        call = line.execute(offered("hold"), 10)
        await call.read()
        told = []

        async def cancelled(task):
            told.append(task)

        def broken(_event):
            raise BrokenProtocol("it says what A2A does not allow")

        monkeypatch.setattr(line.calls, "cancel", cancelled)
        monkeypatch.setattr(call.told, "take", broken)
        with pytest.raises(Failed) as failure:
            await call.read()
        assert fault_of(failure).error_class is ErrorClass.AGENT_ERROR
        assert told == [call.told.task], "nobody will hear the end of it"


async def test_HAZ4_a_node_that_has_called_nobody_cancels_by_the_handle(monkeypatch):
    async with serving() as served, wired(served) as (line, _):
        told = []

        async def cancelled(task):
            told.append(task)

        monkeypatch.setattr(line.calls, "cancel", cancelled)
        key = pb.AttemptKey(task_id="t", attempt=1)
        await line.cancel(key, '["a2a/1","of-theirs","c",0]')
        await line.cancel(key, "")
        assert told == ["of-theirs"]
