"""A task asks its caller, over real streams and calls (DLV-1): the SDK's agents of all kinds, restarts, plain stubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from reach import Agent, Client, InvalidRequest, Reason, Task, TaskState
from reach.wire.status import error_from_rpc
from tests.rpc.peers import Stubs, pb, running
from tests.transports.endpoint_agent import eventually

pytestmark = pytest.mark.asyncio

ATTACHED, LISTENING = "attached", "listening"


def waiter(addr: str, way: str = ATTACHED, **fields: Any) -> Agent:
    where: Any = {"listen": "127.0.0.1:0"} if way == LISTENING else {}
    agent = Agent("waiter", addr=addr, max_concurrency=1, **where, **fields)

    @agent.route("book")
    async def book(task: Task) -> str:
        day = await task.ask("Which day?")
        people = await task.ask({"how many": ["1", "2"]}, name="people")
        again = await task.ask("asked twice", name="people")
        return f"{day.text}/{people.value}/{again.value} in attempt {task.attempt}"

    @agent.route("book_in_thread")
    def book_in_thread(task: Task) -> str:
        return f"{task.ask_blocking('Which day?').text} in a thread"

    @agent.route("log_in")
    async def log_in(task: Task) -> AsyncIterator[str]:
        yield "before "
        yield (await task.ask("password?", auth=True, timeout=30)).text
        yield " after"

    @agent.route("both")
    async def both(task: Task) -> str:
        first, second = await asyncio.gather(task.ask("a?"), task.ask("b?"))
        return first.text + second.text

    @agent.route("echo")
    async def echo(task: Task) -> str:
        return task.text

    return agent


@asynccontextmanager
async def serving(tmp_path: Path, way: str, **settings: Any) -> AsyncIterator[tuple[Any, Agent, Client]]:
    async with running(tmp_path, **settings) as node:
        agent = waiter(f"127.0.0.1:{node.port}", way)
        async with agent, Client(f"127.0.0.1:{node.port}") as client:
            await agent.register(10)
            await eventually(lambda: not node.reach.instance("default", agent.instance_id)[1].blocked_by)
            yield node, agent, client


async def until_waiting(client: Client, task_id: str, question: str = "") -> Any:
    """What the task asks, once it does."""
    async with asyncio.timeout(10):
        while True:
            info = await client.get_task(task_id)
            if info.waiting is not None and info.waiting.question != question:
                return info
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", [ATTACHED, LISTENING])
async def test_DLV_1_the_caller_is_asked_and_answers(tmp_path, way):
    async with serving(tmp_path, way) as (node, agent, client):
        answers = {"Which day?": "today", '{"how many":["1","2"]}': 2}
        kinds = []
        async with asyncio.timeout(10):
            async for event in client.stream("book", "", agent_id="waiter"):
                kinds.append(event.kind)
                if event.kind == "waiting":
                    info = await client.get_task(event.task_id)
                    assert info.state is TaskState.WAITING
                    assert info.waiting is not None
                    assert (info.waiting.prompt.text, info.waiting.question) == (event.text, event.question)
                    assert event.until > event.time + 3_500
                    assert await client.call("echo", "meanwhile", agent_id="waiter", timeout=5) == "meanwhile"
                    state = await client.send_input(event.task_id, answers[event.text], question=event.question)
                    assert state is TaskState.RUNNING
                if event.result is not None:
                    assert event.result.text == "today/2/2 in attempt 1"
        asked = ["waiting", "input_given"]
        assert kinds == ["accepted", "started", *asked, *asked, "complete"]
        assert agent._figures.inflight == 0
        assert node.reach.instance("default", agent.instance_id)[1].inflight == 0


@pytest.mark.parametrize("way", [ATTACHED, LISTENING])
async def test_DLV_1_a_thread_and_a_generator_ask_too(tmp_path, way):
    async with serving(tmp_path, way) as (_, _agent, client):
        handles = [await client.submit("book_in_thread", "", agent_id="waiter") for _ in range(3)]
        for number, handle in enumerate(handles):
            await until_waiting(client, handle.task_id)
            await client.send_input(handle.task_id, f"day {number}")
        results = [(await handle.result(10)).text for handle in handles]
        assert results == [f"day {number} in a thread" for number in range(3)]
        handle = await client.submit("log_in", "", agent_id="waiter")
        info = await until_waiting(client, handle.task_id)
        assert info.message.waiting_for == pb.WAITING_FOR_AUTH
        assert 25 < info.waiting.until.seconds - info.message.accepted_at.seconds < 35
        await client.send_input(handle.task_id, "secret")
        assert (await handle.result(10)).text == "before secret after"


async def test_DLV_1_questions_of_one_handler_come_one_after_the_other(tmp_path):
    async with serving(tmp_path, ATTACHED) as (_, _agent, client):
        handle = await client.submit("both", "", agent_id="waiter")
        first = await until_waiting(client, handle.task_id)
        await client.send_input(handle.task_id, "1")
        await until_waiting(client, handle.task_id, first.waiting.question)
        await client.send_input(handle.task_id, "2")
        assert (await handle.result(10)).text == "12"


async def test_DLV_1_answers_in_vain_say_why(tmp_path):
    async with serving(tmp_path, ATTACHED) as (_, _agent, client):
        handle = await client.submit("book", "", agent_id="waiter")
        await until_waiting(client, handle.task_id)

        async def refused(*args: Any, **fields: Any) -> Reason:
            with pytest.raises(InvalidRequest) as error:
                await client.send_input(*args, **fields)
            return error.value.reason

        assert await refused("nobody", "x") is Reason.TASK_NOT_FOUND
        assert await refused("", "x") is Reason.INVALID_FIELD
        assert await refused(handle.task_id, "x" * (256 * 1024 + 1)) is Reason.PAYLOAD_TOO_LARGE
        assert await refused(handle.task_id, "x", question="another") is Reason.WRONG_STATE
        assert await refused(handle.task_id, "x", input_id="i" * 300) is Reason.INVALID_FIELD
        await client.send_input(handle.task_id, "today", input_id="one")
        await until_waiting(client, handle.task_id)
        await client.send_input(handle.task_id, "today", input_id="one")
        assert await refused(handle.task_id, "tomorrow", input_id="one") is Reason.INPUT_ID_REUSED
        await client.cancel(handle.task_id)
        await client.send_input(handle.task_id, "today", input_id="one")
        assert await refused(handle.task_id, "late") is Reason.WRONG_STATE


@pytest.mark.parametrize("way", [ATTACHED, LISTENING])
async def test_DLV_2_a_restart_of_the_server_keeps_question_and_answers(tmp_path, way):
    kept: Any = {"storage__type": "sqlite"}
    async with running(tmp_path, **kept) as node:
        port = node.port
        agent = waiter(f"127.0.0.1:{port}", way)
        async with agent, Client(f"127.0.0.1:{port}") as client:
            await agent.register(10)
            handle = await client.submit("book", "", agent_id="waiter")
            first = await until_waiting(client, handle.task_id)
            await client.send_input(handle.task_id, "today", input_id="one")
            second = await until_waiting(client, handle.task_id, first.waiting.question)
            await node.stop()
            async with running(tmp_path, **kept, server__port=port) as again:
                info = await until_waiting(client, handle.task_id)
                assert info.waiting.question == second.waiting.question == "people"
                assert info.waiting.until == second.waiting.until
                await client.send_input(handle.task_id, "today", input_id="one", timeout=20)
                await eventually(lambda: again.reach.instance("default", agent.instance_id)[1].link is not None)
                await client.send_input(handle.task_id, 4, timeout=20)
                assert (await handle.result(20)).text == "today/4/4 in attempt 1"


async def test_DLV_7_another_instance_gets_the_answers_that_were_given(tmp_path):
    async with running(tmp_path) as node:
        addr = f"127.0.0.1:{node.port}"
        first, second = waiter(addr, instance_id="w1"), waiter(addr, instance_id="w2")
        async with asyncio.timeout(30), Client(addr) as client, AsyncExitStack() as later:
            async with first:
                await first.register(10)
                handle = await client.submit("book", "", agent_id="waiter")
                info = await until_waiting(client, handle.task_id)
                await client.send_input(handle.task_id, "today")
                await until_waiting(client, handle.task_id, info.waiting.question)
                await later.enter_async_context(second)
                await second.register(10)
            info = await client.get_task(handle.task_id)
            while info.attempts < 2 or info.waiting is None:
                await asyncio.sleep(0.02)
                info = await client.get_task(handle.task_id)
            assert info.waiting.question == "people", "what was answered is not asked again"
            await client.send_input(handle.task_id, 6)
            assert (await handle.result(10)).text == "today/6/6 in attempt 2"


async def test_DLV_1_a_stub_of_another_tenant_sees_no_such_task_and_needs_no_input_id(tmp_path):
    async with serving(tmp_path, ATTACHED) as (node, _agent, client), Stubs(node.port) as stubs:
        handle = await client.submit("book_in_thread", "", agent_id="waiter")
        await until_waiting(client, handle.task_id)
        request = pb.SendInputRequest(task_id=handle.task_id, payload={"text": "today"})
        answer = await stubs.dispatch.SendInput(request)
        assert answer.input_id
        assert not answer.repeated_input
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stubs.dispatch.SendInput(request)
        assert error_from_rpc(error.value).reason is Reason.WRONG_STATE
        assert (await handle.result(10)).text == "today in a thread"


async def test_STR_4_a_reader_of_many_large_questions_is_told_them_all(tmp_path):
    """What a question takes of a reader's credit, the reader gives back."""
    async with running(tmp_path) as node:
        agent = Agent("asks", addr=f"127.0.0.1:{node.port}")

        @agent.route("often")
        async def often(task: Task) -> str:
            for number in range(12):
                await task.ask("x" * 60_000, name=f"q{number}")
            return "enough"

        async with agent, Client(f"127.0.0.1:{node.port}") as client, asyncio.timeout(20):
            await agent.register(10)
            asked = 0
            async for event in client.stream("often", "", agent_id="asks"):
                if event.kind == "waiting":
                    asked += 1
                    await client.send_input(event.task_id, "y", question=event.question)
            assert asked == 12
