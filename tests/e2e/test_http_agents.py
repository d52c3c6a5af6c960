"""Agents that speak plain HTTP, as real processes of the example of the docs: no SDK, no stubs (REG-6).

A task of 40 s (start-to-close 120 s) is scaled down, unless COMPUTATION_SECONDS says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import task_pb2
from tests.e2e.conftest import StartAgents
from tests.e2e.plain import DEADLINE, Plain, spec, timeouts
from tests.e2e.processes import Server, eventually, tell
from tests.rpc.peers import Stubs
from tests.transports.endpoint_agent import eventually as later
from tests.transports.http_agent import Heard, HttpAgent, answer, serving
from tests.transports.test_http_agents import given, result_of

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_agent.py"
SECONDS = float(os.environ.get("COMPUTATION_SECONDS", "1"))
SUCCEEDED, RUNNING = task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_RUNNING
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    quick = {"INTERVAL": "0.5", "RETRY_INTERVAL": "0.2", "TIMEOUT": "0.5", "CHECK_INTERVAL": "1"}
    with Server(tmp_path / "data", {f"AGENT_REACH_PROBE_{name}": text for name, text in quick.items()}) as made:
        yield made
        assert not made.tracebacks()


@pytest.fixture
def start(server: Server, plain: Plain) -> Iterator[Start]:
    """Starts one example and waits until it takes work."""
    with ExitStack() as stack:

        def run(instance: str, *, wait: bool = True, **environment: str) -> subprocess.Popen[bytes]:
            ours = {"REACH_HTTP": f"http://127.0.0.1:{server.admin_port}", "PORT": "0", "INSTANCE": instance}
            made = subprocess.Popen(
                [sys.executable, str(EXAMPLE)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ours, **environment},
            )
            stack.callback(made.wait)
            stack.callback(made.kill)
            if wait:
                eventually(lambda: instance in plain.free(), f"{instance} takes work")
            return made

        yield run


def call(server: Server, body: dict[str, Any]) -> Any:
    url = f"http://127.0.0.1:{server.admin_port}/task/dispatch"
    request = urllib.request.Request(url, json.dumps({"agent_id": "http-agent", **body}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def long_task(task_id: str) -> task_pb2.TaskSpec:
    made = task_pb2.TaskSpec(task_id=task_id, method="report", timeouts=timeouts(start_to_close=3 * SECONDS))
    made.selector.agent_id = "http-agent"
    made.payload.text = "x"
    return made


def test_REG_6_it_answers_streams_and_takes_its_time(server: Server, plain: Plain, start: Start):
    start("one", REPORT_SECONDS=str(SECONDS))
    assert call(server, {"payload": "Ada", "wait_ms": 9_000})["data"] == {"agent_output": "Hello, Ada!"}
    assert call(server, {"method": "count", "payload": "", "wait_ms": 9_000})["data"] == {"agent_output": "1 to 5"}
    begun = time.monotonic()
    plain.dispatch(long_task("long"))
    result = plain.result("long", SECONDS + DEADLINE)
    took = time.monotonic() - begun
    assert (result.state, result.attempts, result.output.text) == (SUCCEEDED, 1, "It took a while.")
    assert took >= SECONDS
    tell(f"REG-6: an agent that answers 202 needed {took:.1f} s")


def test_REG_6_a_task_goes_elsewhere_when_its_process_is_killed(plain: Plain, start: Start):
    first = start("first", REPORT_SECONDS="60")
    made = long_task("moves")
    made.timeouts.CopyFrom(timeouts(start_to_close=60))
    plain.dispatch(made)
    eventually(lambda: plain.get("moves").state == task_pb2.TASK_STATE_RUNNING, "it runs")
    start("second", REPORT_SECONDS="0.1")
    first.kill()
    result = plain.result("moves", DEADLINE)
    assert (result.state, result.attempts, result.instance_id) == (SUCCEEDED, 2, "second")


def test_HLT_4_who_restarts_and_loads_a_model_gets_no_work_before_it_is_ready(
    plain: Plain, server: Server, start: Start
):
    start("one").kill()
    eventually(lambda: "one" not in plain.free(), "it is out")
    start("one", wait=False, LOAD_SECONDS="1")
    begun = time.monotonic()
    eventually(lambda: plain.agents()["one"].blocked_by == "not_ready", "it is there and loads")
    told = call(server, {"payload": "Ada", "wait_ms": 15_000})
    assert told["data"] == {"agent_output": "Hello, Ada!"}
    assert time.monotonic() - begun > 0.7, "not before it was ready"


async def test_DLV_3_what_a_restart_of_the_server_does_to_attempts(
    server: Server, plain: Plain, start: Start, start_agents: StartAgents
):
    """What was accepted goes on, and so does what an agent of the SDK is joined to again. An answer that nobody heard
    is waited for until its time is over, for nobody knows whether there is one; then the task runs again."""
    calls: list[float] = []

    async def slow(agent: HttpAgent, heard: Heard) -> bytes:
        calls.append(time.monotonic())
        if len(calls) == 1:
            await heard.hung_up()
        return answer({"result": len(calls)})

    await asyncio.to_thread(partial(start, "one", REPORT_SECONDS="2"))
    (ours,) = await asyncio.to_thread(start_agents, 1, "--listen", "http://127.0.0.1:0")
    agent = HttpAgent(slow=slow)
    async with serving(agent), Stubs(server.port) as stubs:
        await agent.register(stubs)
        unheard = await given(stubs, agent, "slow", timeouts={"start_to_close": {"seconds": 3}})
        accepted = long_task("accepted")
        accepted.timeouts.CopyFrom(timeouts(start_to_close=60))
        plain.dispatch(accepted)
        plain.dispatch(spec("sleep", {"seconds": 1.5}, "joined"))
        await later(lambda: calls and all(plain.get(one).state == RUNNING for one in ("accepted", "joined")))
        await asyncio.to_thread(server.restart)
        done = await result_of(stubs, unheard)
        assert (done.output.text, done.attempts, done.instance_id) == ("2", 2, agent.instance_id)
        assert calls[1] - calls[0] >= 3
    result = plain.result("joined", DEADLINE)
    assert (result.state, result.attempts, result.instance_id) == (SUCCEEDED, 1, ours.instance())
    result = plain.result("accepted", DEADLINE)
    assert (result.state, result.attempts, result.output.text) == (SUCCEEDED, 1, "It took a while.")
