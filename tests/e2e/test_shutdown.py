"""SIGTERM (DLV-13, P10, A6, B3) and what a second server is told (one port, one data folder)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from agentreach.v1 import dispatch_pb2, ops_pb2, result_pb2, task_pb2
from reach import Agent, Client
from reach.wire.status import error_from_rpc
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, Plain, refused, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, begins, eventually, read_log, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
LONG = timeouts(start_to_close=120)
INFO = ops_pb2.GetServerInfoRequest()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Server]:
    """A server that drains for 4 s only."""
    with Server(tmp_path / "data", {"AGENT_REACH_SERVER_DRAIN_SECONDS": "4"}) as made:
        yield made
        assert not made.tracebacks()


def test_DLV13_P10_running_work_is_finished_and_nothing_new_is_taken(server, plain, start_agents, log):
    start_agents(1)
    plain.dispatch(spec("sleep", {"seconds": 4}, "runs", timeouts=LONG))
    eventually(lambda: begins(log), "it runs")
    waiting: list[task_pb2.Result] = []
    waiter = threading.Thread(target=lambda: waiting.append(plain.result("runs")))
    waiter.start()
    time.sleep(0.3)
    asked_at = time.monotonic()
    server.terminate()

    def refusal() -> str:
        try:
            plain.dispatch(spec("echo", "x"))
        except grpc.RpcError as error:
            return error_from_rpc(cast("Any", error)).reason.name
        return ""

    assert eventually(refusal, "intake has stopped") == "SHUTTING_DOWN"
    with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
        plain.dispatch(spec("echo", "x", "new"))
    code, took = server.wait(DEADLINE), time.monotonic() - asked_at
    waiter.join()
    assert (code, waiting[0].state, waiting[0].output.text) == (0, SUCCEEDED, "slept 4")
    tell(f"a server with a task of 4 s ended {took:.1f} s after SIGTERM")
    assert took <= 10
    server.start()
    assert plain.get("runs", wait_for_ready=True).state == SUCCEEDED
    with refused("TASK_NOT_FOUND"):
        plain.get("new")


def test_DLV13_CLU3_work_that_lasts_longer_is_handed_to_the_next_server(hasty, tmp_path):
    """It ends within drain_seconds; what still runs goes on at the agent, and the next server takes it over."""
    log = tmp_path / "agents.log"
    with Plain(hasty.address) as plain, AgentProcess(hasty.address, log):
        eventually(plain.free, "the agent takes work")
        plain.dispatch(spec("sleep", {"seconds": 9}, "long", timeouts=LONG))
        plain.dispatch(spec("stream", {"count": 900, "pause": 0.01}, "streamed", timeouts=LONG))
        eventually(lambda: len(begins(log)) == 2, "both run")
        asked_at = time.monotonic()
        hasty.terminate()
        code, took = hasty.wait(DEADLINE), time.monotonic() - asked_at
        tell(f"a server with long tasks ended {took:.1f} s after SIGTERM, drain_seconds is 4")
        assert code == 0
        assert took <= 4 + 1
        assert not read_log(log, "stopped")
        hasty.start()
        plain.get("long", wait_for_ready=True)
        result, streamed = plain.result("long"), plain.result("streamed")
        assert (result.state, result.attempts, result.output.text) == (SUCCEEDED, 1, "slept 9")
        assert (streamed.state, streamed.attempts) == (SUCCEEDED, 1)
        assert streamed.output.text == text_of("streamed", 900)
        assert [len(lines) for lines in begins(log).values()] == [1, 1]


def test_A5_calls_that_wait_end_with_their_own_answer(server, plain, start_agents, log):
    """Ten calls wait 1 s for a task of 3 s; SIGTERM meanwhile: each hears that its own time is over."""
    start_agents(1)
    plain.dispatch(spec("sleep", {"seconds": 3}, "task", timeouts=LONG))
    eventually(lambda: begins(log), "it runs")
    request = dispatch_pb2.WaitForResultRequest(task_id="task")
    request.timeout.seconds = 1
    waiting = [plain.dispatching.WaitForResult.future(request, timeout=DEADLINE) for _ in range(10)]
    time.sleep(0.3)
    server.terminate()
    for one in waiting:
        with refused("WAIT_EXPIRED", grpc.StatusCode.DEADLINE_EXCEEDED):
            one.result()
    assert server.wait(DEADLINE) == 0


def test_A5_calls_that_wait_longer_are_told_to_come_again(hasty, tmp_path):
    """What outlasts the drain ends as UNAVAILABLE: asking again is safe and right."""
    log = tmp_path / "agents.log"
    with Plain(hasty.address) as plain, AgentProcess(hasty.address, log):
        eventually(plain.free, "the agent takes work")
        plain.dispatch(spec("sleep", {"seconds": 60}, "task", timeouts=LONG))
        eventually(lambda: begins(log), "it runs")
        wait = dispatch_pb2.WaitForResultRequest(task_id="task")
        again = dispatch_pb2.DispatchRequest(task=spec("sleep", {"seconds": 60}, "task", timeouts=LONG))
        again.wait.seconds = 60
        waits = plain.dispatching.WaitForResult.future(wait, timeout=DEADLINE)
        dispatches = plain.dispatching.Dispatch.future(again, timeout=DEADLINE)
        streams = plain.results.StreamResult(result_pb2.StreamResultRequest(task_id="task"), timeout=DEADLINE)
        runs = plain.dispatching.Run(dispatch_pb2.RunRequest(task=again.task), timeout=DEADLINE)
        time.sleep(0.3)
        hasty.terminate()
        for call in (waits.result, dispatches.result, lambda: list(streams), lambda: list(runs)):
            with refused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE):
                call()
        assert hasty.wait(DEADLINE) == 0


def test_DLV13_work_of_agents_that_are_not_back_yet_is_not_waited_for(server, plain, start_agents, log):
    """SIGTERM soon after a restart: who is not attached cannot finish anything here. The next server gets it."""
    (agent,) = start_agents(1)
    plain.dispatch(spec("sleep", {"seconds": 2}, "task", timeouts=LONG))
    eventually(lambda: begins(log), "it runs")
    agent.signal(signal.SIGSTOP)
    server.restart()
    asked_at = time.monotonic()
    server.terminate()
    assert server.wait(DEADLINE) == 0
    assert time.monotonic() - asked_at < 5
    server.start()
    agent.signal(signal.SIGCONT)
    plain.get("task", wait_for_ready=True)
    result = plain.result("task")
    assert (result.state, result.attempts, len(begins(log)["task"])) == (SUCCEEDED, 1, 1)


async def test_F12_a_caller_waits_for_the_next_server(server, start_agents, log):
    """A server that drains for 4 s refuses new work. For the SDK it is a server that is lost: asked again later."""
    await asyncio.to_thread(start_agents, 1)
    async with Client(server.address, connect_timeout=1) as client:
        running = asyncio.create_task(
            client.call("sleep", {"seconds": 4}, agent_type="worker", task_id="runs", start_to_close=60)
        )
        await asyncio.to_thread(eventually, lambda: begins(log), "it runs")
        server.terminate()
        await asyncio.sleep(0.3)
        new = asyncio.create_task(client.call("echo", "new", agent_type="worker", task_id="new"))
        assert await asyncio.to_thread(server.wait, DEADLINE) == 0
        assert await running == "slept 4"
        await asyncio.to_thread(server.start)
        assert await asyncio.wait_for(new, DEADLINE) == "new"
    assert len(begins(log)["new"]) == 1


async def test_DLV13_a_reader_is_handed_over_too(hasty, tmp_path):
    """A caller's stream survives a restart by SIGTERM: every piece once."""
    text = Text()
    async with Client(hasty.address, reconnect_timeout=None) as client:
        with AgentProcess(hasty.address, tmp_path / "agents.log"):

            async def read() -> None:
                events = client.stream(
                    "stream", {"count": 600, "pause": 0.01}, agent_type="worker", task_id="s", start_to_close=60
                )
                async for event in events:
                    text.add(event.message)

            reading = asyncio.create_task(read())
            await asyncio.to_thread(eventually, lambda: len(text.value) > 200, "it streams")
            hasty.terminate()
            assert await asyncio.to_thread(hasty.wait, DEADLINE) == 0
            await asyncio.to_thread(hasty.start)
            await asyncio.wait_for(reading, DEADLINE)
    assert text.value == text.result == text_of("s", 600)
    assert text.attempts == {1}


async def test_A6_idle_streams_do_not_hold_up_the_end(server, plain):
    """50 idle agents: told to come back, the process gone within 7 s, and all 50 at the next server."""
    agents = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(50):
            agent = Agent("idle", addr=server.address, instance_id=f"idle-{number}", heartbeat_interval=2.0)

            @agent.route()
            async def handle(task):
                return "done"

            agents.append(await stack.enter_async_context(agent))

        def all_free() -> bool:
            return len(plain.free()) == 50

        await asyncio.to_thread(eventually, all_free, "all take work")
        asked_at = time.monotonic()
        server.terminate()
        code = await asyncio.to_thread(server.wait, DEADLINE)
        took = time.monotonic() - asked_at
        tell(f"a server with 50 idle streams ended {took:.1f} s after SIGTERM")
        assert code == 0
        assert took <= 7
        await asyncio.to_thread(server.start)
        started_at = time.monotonic()
        await asyncio.to_thread(lambda: plain.call(plain.ops.GetServerInfo, INFO, wait_for_ready=True))
        await asyncio.to_thread(eventually, all_free, "all are back")
        tell(f"all 50 were back {time.monotonic() - started_at:.1f} s after the next server")
        assert {agent.generation for agent in agents} == {1}


def test_B3_agent_that_is_asked_to_end_finishes_its_task(server, plain, start_agents, log):
    """A task of 8 s, a heartbeat timeout of 3 s, SIGTERM at the beginning: beats go on, one execution."""
    leaving, _ = start_agents(2, "--heartbeat", "1")
    selector = task_pb2.Selector(agent_type="worker", instance_id=leaving.instance())
    task = spec("sleep", {"seconds": 8}, "task", timeouts=LONG)
    task.selector.CopyFrom(selector)
    plain.dispatch(task)
    eventually(lambda: begins(log), "it runs")
    leaving.signal(signal.SIGTERM)
    eventually(lambda: plain.agents()[leaving.instance()].blocked_by == "draining", "it takes nothing new")
    others = {plain.dispatch(spec("echo", "x"), wait=5).result.instance_id for _ in range(5)}
    assert leaving.instance() not in others
    result = plain.result("task")
    assert (result.state, result.attempts, result.output.text) == (SUCCEEDED, 1, "slept 8")
    assert len(begins(log)["task"]) == 1
    assert leaving.wait() == 0
    eventually(lambda: leaving.instance() not in plain.agents(), "it said goodbye")


def test_C7_agent_gives_back_at_once_what_it_cannot_finish(server, plain, start_agents, log):
    """A second SIGTERM: the work is given back then, not when a lease ends."""
    leaving, other = start_agents(2)
    task = spec("sleep", {"seconds": 3}, "task", timeouts=LONG)
    plain.dispatch(task)
    (first,) = eventually(lambda: begins(log)["task"], "it runs")
    victim = leaving if leaving.pid == first["pid"] else other
    victim.signal(signal.SIGTERM)
    time.sleep(0.3)
    asked_at = time.time()
    victim.signal(signal.SIGTERM)
    again = eventually(lambda: begins(log)["task"][1:], "it runs elsewhere")
    tell(f"handed over {(again[0]['at'] - asked_at) * 1_000:.0f} ms after the second SIGTERM")
    assert again[0]["at"] - asked_at <= 2
    assert victim.wait() == 0
    result = plain.result("task")
    assert (result.state, result.attempts, result.transfers) == (SUCCEEDED, 2, 1)


@pytest.mark.parametrize("what", ["port", "folder"])
def test_second_server_is_refused_in_one_line(server, plain, tmp_path, what):
    second = Server(tmp_path / "other")
    if what == "port":
        second.port = server.port
    else:
        second.folder = server.folder
    ended = subprocess.run(second.command(), capture_output=True, timeout=DEADLINE, check=False)
    lines = (ended.stdout + ended.stderr).decode().splitlines()
    tell(lines)
    assert ended.returncode not in (0, None)
    assert len(lines) == 1
    wanted = str(server.port) if what == "port" else str(server.folder)
    assert wanted in lines[0]
    assert "in use" in lines[0]
    assert plain.call(plain.ops.GetServerInfo, INFO).open_tasks == 0
    assert plain.dispatch(spec("echo", "x", "still")).task_id == "still"
    server.restart()
    assert plain.get("still", wait_for_ready=True).state == task_pb2.TASK_STATE_PENDING
