"""How handlers that are coroutines begin: together, and yet each as if it were alone."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from typing import Any

import pytest

from reach import Agent
from reach.sdk import attempts
from reach.sdk.task import Task
from tests.sdk.test_agent import running

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def offers(*task_ids: str, text: str = "") -> list[Any]:
    """Offers for one frame."""
    return [
        {"link": 1, "attempt": 1, "fencing_token": 1, "task": {"task_id": task_id, "payload": {"text": text}}}
        for task_id in task_ids
    ]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def key_of(task_id: str) -> dict[str, Any]:
    return {"task_id": task_id, "attempt": 1}


async def test_those_that_wait_for_nothing_share_a_task_but_no_context(server):
    seen: list[tuple[str, Any]] = []

    async def handler(task):
        seen.append((COLOUR.get(), asyncio.current_task()))
        COLOUR.set(task.task_id)
        return task.task_id

    async with running(server, handler) as (_, stream):
        stream.send(offers=offers("a", "b", "c"))
        for task_id in ("a", "b", "c"):
            assert (await stream.result(task_id)).output.text == task_id
        assert not stream.items("accepts")
    assert [colour for colour, _ in seen] == ["none"] * 3
    assert len({id(runner) for _, runner in seen}) == 1


async def test_those_that_wait_run_side_by_side_each_in_its_task_and_context(server):
    gate = asyncio.Event()
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}

    async def handler(task):
        COLOUR.set(task.task_id)
        before[task.task_id] = asyncio.current_task()
        if not task.task_id.startswith("quick"):
            await gate.wait()
            await asyncio.sleep(0)
        after[task.task_id] = asyncio.current_task()
        return COLOUR.get()

    names = ("quick", "a", "quick-2", "b", "c")
    async with running(server, handler) as (_, stream):
        stream.send(offers=offers(*names))
        accepts = await stream.wait("accepts", 3)
        assert sorted(accept.key.task_id for accept in accepts) == ["a", "b", "c"]
        assert sum(bool(frame.accepts) for frame in stream.frames) <= 2, "they are accepted together"
        assert set(before) == set(names)
        gate.set()
        for name in names:
            assert (await stream.result(name)).output.text == name
    assert before == after
    assert len({id(before[name]) for name in ("a", "b", "c")}) == 3


async def test_time_limits_and_cancellation_meet_the_handler_alone(server):
    async def handler(task):
        if task.task_id == "late":
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                return "in time"
        if task.task_id == "suicide":
            this_task().cancel()
        elif task.task_id == "broken":
            raise ValueError("no")
        return "ok"

    async with running(server, handler) as (_, stream):
        stream.send(offers=offers("suicide", "broken", "fine", "late", "other"))
        texts = {name: (await stream.result(name)).output.text for name in ("suicide", "fine", "late", "other")}
        assert texts == {"suicide": "ok", "fine": "ok", "late": "in time", "other": "ok"}
        assert (await stream.result("broken")).error.message == "ValueError: no"


async def test_a_handler_that_cancels_itself_and_waits(server):
    async def handler(task):
        this_task().cancel()
        await asyncio.sleep(60)

    async with running(server, handler) as (_, stream):
        stream.send(offers=offers("a"))
        assert "cancelled itself" in (await stream.result("a")).error.message


async def test_cancelled_while_it_waits_and_goes_on(server):
    ended: list[str] = []

    async def handler(task):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(COLOUR.get())

    async with running(server, handler) as (_, stream):
        stream.send(offers=offers("a", "b"))
        await stream.wait("accepts", 2)
        stream.send(cancels=[{"link": 1, "key": key_of("a")}])
        await stream.until(lambda: stream.items("results"))
        assert ended == ["none"]
        assert (await stream.result("a")).error.message == "the attempt was cancelled"
        stream.send(cancels=[{"link": 1, "key": key_of("b")}])
        await stream.result("b")


async def test_cancelled_before_it_begins(server):
    """An offer and its cancel in one frame: the handler is not called, and it is over for the agent too."""
    called: list[str] = []

    async def handler(task):
        called.append(task.task_id)
        return "ok"

    async with running(server, handler) as (agent, stream):
        stream.send(offers=offers("a", "b"), cancels=[{"link": 1, "key": key_of("a")}])
        assert (await stream.result("a")).error.message == "the attempt was cancelled"
        assert (await stream.result("b")).output.text == "ok"
        assert called == ["b"]
        link: Any = agent._running_link()
        assert link.attempts.idle.is_set()
        assert link.attempts.figures.inflight == 0


async def test_told_early_in_the_first_step(server):
    gate = asyncio.Event()
    heard: list[str] = []
    agent: Agent

    async def handler(task):
        if task.task_id == "a":
            await agent.report_result(task.task_id, task.attempt, "early")
        await gate.wait()
        heard.append(task.task_id)
        return "late"

    async with running(server, handler) as (agent, stream):
        stream.send(offers=offers("a", "b"))
        assert (await stream.result("a")).output.text == "early"
        gc.collect()  # nobody but the agent holds the task of a handler that goes on unheard
        gate.set()
        assert (await stream.result("b")).output.text == "late"
        await stream.until(lambda: sorted(heard) == ["a", "b"])


async def test_those_that_wait_are_accepted_in_one_frame(server):
    gate = asyncio.Event()

    async def handler(task):
        await gate.wait()
        return "ok"

    async with running(server, handler) as (_, stream):
        stream.send(offers=offers("a", "b", "c", "d"))
        await stream.wait("accepts", 4)
        assert [len(frame.accepts) for frame in stream.frames if frame.accepts] == [4]
        gate.set()
        for name in ("a", "b", "c", "d"):
            await stream.result(name)


async def test_what_has_ended_leaves_no_garbage(server):
    """What an attempt held goes when it ends, not when the collector comes: frames of offers are large."""
    held: dict[str, weakref.ref[Any]] = {}

    async def handler(task):
        if task.task_id.startswith("waits"):
            await asyncio.sleep(0.001)
        mark = task.mark = _Mark()  # it goes when the task goes
        held[task.task_id] = weakref.ref(mark)
        return "ok"

    class MarkedTask(Task):
        """Can hold more than its parts."""

    names = ("a", "waits-b", "c", "waits-d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "Task", MarkedTask)
        async with running(server, handler) as (_, stream):
            gc.collect()
            gc.disable()
            try:
                stream.send(offers=offers(*names))
                for name in names:
                    assert (await stream.result(name)).output.text == "ok"
                stream.send(offers=offers("last"))  # what ran last may still be named by the loop that ran it
                await stream.result("last")
                await stream.settle()
                assert [name for name in names if held[name]() is not None] == []
            finally:
                gc.enable()


class _Mark:
    """Something that can be told to be gone."""
