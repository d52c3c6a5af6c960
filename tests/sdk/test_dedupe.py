"""The store of what was done that instances share (DLV-3): once whatever comes again, wherever it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from reach import Agent, Client, InvalidRequest, SqliteDedupe, Task
from reach.sdk import once
from reach.sdk.dedupe import Standing
from tests.rpc.peers import running
from tests.transports.endpoint_agent import eventually

KEY = ("", "t")


def test_DLV_3_a_store_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"gone.done\.db cannot be the store"):
        SqliteDedupe(tmp_path / "gone" / "done.db")
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(InvalidRequest, match="text cannot be the store"):
        SqliteDedupe(tmp_path / "text")


def test_what_was_answered_is_for_the_owner_of_the_file_alone(tmp_path):
    shared = SqliteDedupe(tmp_path / "done.db")
    shared.begin(KEY, 1, "one")
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with pytest.raises(InvalidRequest, match="nowhere"):
        SqliteDedupe(tmp_path / "nowhere" / "done.db")
    shared.close()


class Worker:
    """An agent with a store, and how often its handler ran."""

    def __init__(self, addr: str, path: Path, name: str) -> None:
        self.ran: list[str] = []
        self.go = asyncio.Event()
        self.agent = Agent("worker", addr=addr, instance_id=name, max_concurrency=4, dedupe=SqliteDedupe(path))

        @self.agent.route("work")
        async def work(task: Task) -> str:
            self.ran.append(task.task_id)
            if task.text == "wait":
                await self.go.wait()
            if task.text == "fail" and task.attempt == 1:
                raise ConnectionError
            return f"done by {name}"

        @self.agent.route("pieces")
        async def pieces(task: Task):
            self.ran.append(task.task_id)
            yield "one "
            yield "two"


@pytest.mark.asyncio
async def test_DLV_3_an_agent_that_restarts_answers_what_it_did_before(tmp_path):
    """The server has lost its memory, and gives the task again to a new process."""
    for round_ in range(2):
        async with running(tmp_path / str(round_)) as node:
            addr = f"127.0.0.1:{node.port}"
            worker = Worker(addr, tmp_path / "done.db", f"w{round_}")
            async with worker.agent, Client(addr) as client:
                await worker.agent.register(10)
                target: Any = {"agent_id": "worker"}
                assert await client.call("work", "", task_id="t", timeout=10, **target) == "done by w0"
                assert await client.call("pieces", "", task_id="p", timeout=10, **target) == "one two"
                assert worker.ran == (["t", "p"] if round_ == 0 else [])
                assert await client.call("work", "", task_id=f"new {round_}", timeout=10, **target)
                result = await client.send("work", "fail", task_id=f"f{round_}", timeout=10, **target)
                assert not result.ok
                (left,) = worker.agent._dedupe._db.execute(  # type: ignore[union-attr]
                    "select count(*) from task where task_id like ?", (f"f{round_} %",)
                ).fetchone()
                assert not left, "what was not done may be done by another"


@pytest.mark.asyncio
async def test_DLV_3_an_id_that_was_forgotten_and_given_to_another_task_is_that_tasks(tmp_path):
    """The server keeps results for a while; then the id is free, and what asks for something else is not done yet."""
    for text in ("one", "two", "one"):
        async with running(tmp_path / text) as node:
            addr = f"127.0.0.1:{node.port}"
            worker = Worker(addr, tmp_path / "done.db", text)
            async with worker.agent, Client(addr) as client:
                await worker.agent.register(10)
                assert await client.call("work", text, task_id="t", timeout=10, agent_id="worker") == f"done by {text}"


@pytest.mark.asyncio
async def test_DLV_3_what_another_instance_still_does_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(once, "name_of", lambda task: (task.tenant, task.task_id))
    shared = SqliteDedupe(tmp_path / "done.db")
    shared.begin(("", "t"), 1, "another process")
    async with running(tmp_path) as node:
        addr = f"127.0.0.1:{node.port}"
        worker = Worker(addr, tmp_path / "done.db", "w")
        async with worker.agent, Client(addr) as client:
            await worker.agent.register(10)
            # A later attempt, as after the server gave the first one up.
            waits = await client.submit("work", "", task_id="t", agent_id="worker")
            await asyncio.sleep(0.5)
            assert not worker.ran
            shared.renew("another process")
            shared.release(("", "t"), 1, "another process")
            assert (await waits.result(10)).text == "done by w"
            cancelled = await client.submit("work", "wait", task_id="c", agent_id="worker")
            await eventually(lambda: worker.ran == ["t", "c"])
            await cancelled.cancel()
            await eventually(lambda: shared.begin(("", "c"), 2, "another process").standing is Standing.YOURS)
    shared.close()
