"""The trace goes from the caller to the handler, and on to what the handler asks for."""

from __future__ import annotations

import asyncio
import sys

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from reach import Client, SyncClient
from tests.sdk.test_agent import running

TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
MADE = f"00-{'3' * 32}-{'4' * 16}-01"


async def test_the_callers_span_is_the_tasks_parent(server):
    span = NonRecordingSpan(SpanContext(int("3" * 32, 16), int("4" * 16, 16), False, TraceFlags(1)))
    async with Client(server.address) as client:
        with use_span(span):
            sent = asyncio.create_task(client.send("m", task_id="t"))
            await asyncio.sleep(0)
        stream = await server.caller()
        (submit,) = await stream.wait("submits")
        assert submit.task.trace.traceparent == MADE
        stream.complete("t")
        await sent


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("telemetry", [False, True])
async def test_a_handler_works_inside_the_callers_trace(server, monkeypatch, threaded, telemetry):
    if not telemetry:
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    seen = []

    def look() -> None:
        span = trace.get_current_span().get_span_context()
        seen.append((span.trace_id, span.is_remote))

    async def coroutine(task):
        look()
        async with Client(server.address) as client:
            return (await client.send("m", task_id="inner")).text

    def plain(task):
        look()
        with SyncClient(server.address) as client:
            return client.send("m", task_id="inner").text

    handler = plain if threaded else coroutine
    async with running(server, handler) as (_, stream):
        stream.offer("t", method=handler.__name__, task={"trace": {"traceparent": TRACE}})
        caller = await server.caller()
        (submit,) = await caller.wait("submits")
        assert submit.task.trace.traceparent == TRACE
        caller.complete("inner", "done")
        assert (await stream.result("t")).output.text == "done"
    assert seen == [(int("1" * 32, 16), True) if telemetry else (0, False)]


async def test_a_trace_that_is_none(server):
    async def handler(task):
        return task.trace

    async with running(server, handler) as (_, stream):
        stream.offer("t", method="handler", task={"trace": {"traceparent": "00-xyz-1"}})
        assert (await stream.result("t")).output.text == "00-xyz-1"
