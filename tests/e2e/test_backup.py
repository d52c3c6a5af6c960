"""`reach backup` of a server under load, and `reach restore`: all that was acknowledged before is there (CLU-4)."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from reach import Client, TaskState
from reach.cli.app import run
from tests import postgres
from tests.e2e.plain import DEADLINE
from tests.e2e.processes import AgentProcess, Server, begins

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def reach(*arguments: str) -> Any:
    """What a command says, as JSON."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = run([*arguments, "--json"])
    return {"code": code, **json.loads(out.getvalue())}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_CLU_4_what_was_acknowledged_before_a_backup_under_load_is_there_after_a_restore(
    tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "agents.log"
    if kind == "sqlite":
        places = [("--data", str(tmp_path / name)) for name in ("before", "after")]
        journals: list[tuple[str, ...]] = [(), ()]
    else:
        databases = [await asyncio.to_thread(lambda: postgres.server().database()) for _ in range(2)]
        journals = [("--journal", one) for one in databases]
        places = [(one[0], one[1]) for one in journals]
    ended: list[str] = []
    open_ones: list[str] = []
    going = True
    with Server(tmp_path / "before", arguments=journals[0]) as server, AgentProcess(server.address, log) as agent:
        await asyncio.to_thread(agent.instance)

        async def work(name: str) -> None:
            number = 0
            async with Client(server.address) as client:
                while going:
                    number += 1
                    task_id = f"{name}-{number}"
                    if number % 5 == 0:
                        await client.submit("sleep", {"seconds": 60}, agent_type="nobody", task_id=task_id)
                        open_ones.append(task_id)
                    else:
                        result = await client.send("echo", task_id, agent_type="worker", task_id=task_id)
                        assert result.state is TaskState.SUCCEEDED
                        ended.append(task_id)

        async with asyncio.TaskGroup() as workers:
            for name in "abcd":
                workers.create_task(work(name))
            while len(ended) < 100 or not open_ones:  # noqa: ASYNC110 - what the workers do is what counts
                await asyncio.sleep(0.01)
            before, waiting = list(ended), list(open_ones)
            said = await asyncio.to_thread(reach, "backup", str(tmp_path / "backup"), *places[0])
            assert said["code"] == 0
            seen = len(ended)
            await asyncio.sleep(0.2)  # time for some more
            assert len(ended) > seen, "work goes on"
            going = False
        assert not server.tracebacks()
    assert said["counts"]["tasks"] >= len(before) + len(waiting)
    put = await asyncio.to_thread(reach, "restore", str(tmp_path / "backup"), *places[1])
    assert put["code"] == 0
    assert put["waiting"] >= len(waiting)
    again = await asyncio.to_thread(reach, "restore", str(tmp_path / "backup"), *places[1])
    assert (again["code"], "not restored" in again["error"]["message"]) == (3, True)
    with Server(tmp_path / "after", arguments=journals[1]) as server:
        async with Client(server.address) as client:
            for task_id in before:
                result = await client.wait_for_result(task_id, timeout=DEADLINE)
                assert (result.state, result.text) == (TaskState.SUCCEEDED, task_id)
            for task_id in waiting:
                assert (await client.get_task(task_id)).state is TaskState.PENDING
            begun = begins(log)
            with AgentProcess(server.address, log) as agent:
                await asyncio.to_thread(agent.instance)
                assert (await client.send("echo", "new", agent_type="worker")).text == "new"
        assert not server.tracebacks()
    assert all(len(lines) == 1 for lines in begun.values())
