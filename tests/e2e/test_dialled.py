"""Agents that are dialled, as real processes: killed, stopped, and at work while the server is killed."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import result_pb2, task_pb2
from tests.e2e.agents.worker import text_of
from tests.e2e.plain import DEADLINE, Plain, spec, timeouts
from tests.e2e.processes import AgentProcess, Server, begins, eventually, read_log, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
LISTEN = ("--listen", "127.0.0.1:0")

Start = Callable[..., AgentProcess]


class PlainEndpoint(AgentProcess):
    """One process of agents/endpoint.py: no SDK in it."""

    script = "endpoint.py"


@pytest.fixture
def settings() -> dict[str, str]:
    return {}


@pytest.fixture
def server(tmp_path: Path, settings: dict[str, str]) -> Iterator[Server]:
    with Server(
        tmp_path / "data", {f"AGENT_REACH_PROBE_{name.upper()}": text for name, text in settings.items()}
    ) as made:
        yield made
        assert not made.tracebacks()


@pytest.fixture
def start(server: Server, plain: Plain, log: Path) -> Iterator[Start]:
    """Starts one agent of agents/endpoint.py and waits until it takes work."""
    with ExitStack() as stack:

        def run(instance: str, *arguments: str) -> AgentProcess:
            made = stack.enter_context(PlainEndpoint(server.address, log, "--instance", instance, *arguments))
            eventually(lambda: instance in plain.free(), f"{instance} takes work")
            return made

        yield run


def out(plain: Plain, instance: str) -> bool:
    return instance not in plain.free()


def runs(log: Path, task_id: str, count: int) -> list[dict[str, Any]]:
    """Its begins, once there are so many."""
    found = begins(log).get(task_id, [])
    return found if len(found) >= count else []


def seconds_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    begun = time.monotonic()
    eventually(condition, what, seconds)
    return time.monotonic() - begun


def test_REG_6_an_agent_without_our_sdk_is_dialled(plain, start, log):
    start("one")
    start("two", "--no-health")
    for number in range(20):
        result = plain.dispatch(spec("echo", f"{number}", f"t{number}"), wait=DEADLINE).result
        assert (result.state, result.output.text, result.attempts) == (SUCCEEDED, f"{number}", 1)
    assert {len(lines) for lines in begins(log).values()} == {1}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings", [{"interval": "1"}], ids=["default but for the first second"])
def test_HLT_3_a_stopped_agent_is_out_after_three_probes_and_back_within_31_s(plain, start):
    agent = start("stopped")
    start("other")
    agent.signal(signal.SIGSTOP)
    left = seconds_until(lambda: out(plain, "stopped"), "it is out")
    assert "UNREACHABLE" not in plain.agents()["other"].blocked_by
    agent.signal(signal.SIGCONT)
    back = seconds_until(lambda: not out(plain, "stopped"), "it is back")
    tell(f"HLT-3: out after {left:.1f} s, back {back:.1f} s after SIGCONT")
    # three probes of 1 s each, and 1 s or less before each
    assert 2.5 < left < 8
    assert back <= 31


@pytest.mark.parametrize(
    "settings",
    [{"interval": "0.5", "retry_interval": "0.2", "timeout": "0.3", "unreachable_interval": "0.5"}],
    ids=["quick"],
)
def test_HLT_3_a_stopped_agent_gets_nothing_and_works_again_afterwards(plain, start, log):
    agent = start("stopped")
    start("other")
    agent.signal(signal.SIGSTOP)
    eventually(lambda: out(plain, "stopped"), "it is out")
    for number in range(10):
        result = plain.dispatch(spec("echo", "x", f"t{number}"), wait=DEADLINE).result
        assert (result.instance_id, result.attempts) == ("other", 1)
    agent.signal(signal.SIGCONT)
    eventually(lambda: not out(plain, "stopped"), "it is back", seconds=3)


@pytest.mark.parametrize(
    "settings",
    [{"interval": "0.5", "retry_interval": "0.2", "timeout": "0.3", "unreachable_interval": "0.5"}],
    ids=["quick"],
)
def test_HLT_6_a_stopped_agent_keeps_its_work_and_goes_on_with_it(plain, start_agents, log):
    """Suspicion bars it from new work; what it has waits for it."""
    (agent,) = start_agents(1, *LISTEN)
    start_agents(1, *LISTEN)
    plain.dispatch(spec("sleep", {"seconds": 1}, "one"))
    plain.dispatch(spec("sleep", {"seconds": 1}, "two"))
    eventually(lambda: len(begins(log)) == 2, "both run")
    agent.signal(signal.SIGSTOP)
    eventually(lambda: out(plain, agent.instance()), "it is out")
    time.sleep(1)
    agent.signal(signal.SIGCONT)
    for task_id in ("one", "two"):
        result = plain.result(task_id)
        assert (result.state, result.attempts) == (SUCCEEDED, 1)
    eventually(lambda: not out(plain, agent.instance()), "it is back")


@pytest.mark.parametrize("settings", [{"interval": "3"}], ids=["interval 3 s"])
def test_HLT_3_a_killed_agent_is_out_within_the_interval(plain, start):
    took = []
    for number in range(3):
        agent = start(f"killed-{number}")
        time.sleep(0.9 * number)
        agent.kill()
        name = f"killed-{number}"
        took.append(seconds_until(partial(out, plain, name), "it is out"))
    tell(f"HLT-3: killed and idle, out after {', '.join(f'{one:.2f}' for one in took)} s")
    assert max(took) <= 3.5


def test_HLT_6_a_killed_agents_task_is_elsewhere_within_100_ms(plain, start, log):
    start("other")
    moved = []
    for number in range(7):
        agent, name = start(f"killed-{number}"), f"t{number}"
        task = spec("sleep", {"seconds": 30}, name)
        while True:
            plain.dispatch(task)
            first = eventually(partial(runs, log, name, 1), "it runs")[0]
            if first["pid"] == agent.pid:
                break
            plain.cancel(task.task_id)
            task.task_id = name = f"{name}+"
        killed = time.time()
        agent.kill()
        again = eventually(partial(runs, log, name, 2), "it runs elsewhere")[1]
        assert again["attempt"] == 2
        moved.append(again["at"] - killed)
        plain.cancel(task.task_id)
    tell(f"HLT-6: elsewhere after {', '.join(f'{1_000 * one:.0f}' for one in sorted(moved))} ms")
    assert statistics.median(moved) <= 0.1


def test_DLV_2_what_runs_at_a_dialled_agent_is_adopted_and_not_run_twice(server, plain, start_agents, log):
    start_agents(1, *LISTEN)
    plain.dispatch(spec("sleep", {"seconds": 3}, "slow", timeouts=timeouts(start_to_close=60)))
    plain.dispatch(spec("stream", {"count": 300, "pause": 0.01}, "stream"))
    eventually(lambda: len(begins(log)) == 2, "both run")
    time.sleep(0.5)
    server.restart()
    plain.get("slow", wait_for_ready=True)
    for task_id in ("slow", "stream"):
        result = plain.result(task_id)
        assert (result.state, result.attempts) == (SUCCEEDED, 1), result
    assert plain.result("stream").output.text == text_of("stream", 300)
    assert [len(lines) for lines in begins(log).values()] == [1, 1]
    assert len(read_log(log, "end")) == 2


def test_DLV_13_a_server_that_is_asked_to_end_leaves_the_work_to_the_next_one(server, plain, start_agents, log):
    start_agents(1, *LISTEN)
    plain.dispatch(spec("sleep", {"seconds": 5}, "slow", timeouts=timeouts(start_to_close=60)))
    eventually(lambda: begins(log), "it runs")
    server.terminate()
    assert server.wait(15) == 0
    server.start()
    plain.get("slow", wait_for_ready=True)
    result = plain.result("slow")
    assert (result.state, result.attempts) == (SUCCEEDED, 1)
    assert len(read_log(log, "begin")) == 1


def test_DLV_2_what_ended_while_the_server_was_away_is_told_when_it_is_back(server, plain, start_agents, log):
    start_agents(1, *LISTEN)
    plain.dispatch(spec("stream", {"count": 50, "pause": 0.01}, "done-alone"))
    eventually(lambda: begins(log), "it runs")
    server.kill()
    eventually(lambda: read_log(log, "end"), "it ends")
    server.start()
    result = plain.result("done-alone")
    assert (result.state, result.attempts, result.output.text) == (SUCCEEDED, 1, text_of("done-alone", 50))
    assert len(read_log(log, "begin")) == 1


def test_DLV_2_what_an_agent_does_not_name_after_a_restart_runs_again(server, plain, start, log):
    """A plain grpcio handler stops with its call, so its agent names nothing: the task moves at once."""
    start("one")
    plain.dispatch(spec("sleep", {"seconds": 1}, "again"))
    eventually(lambda: begins(log), "it runs")
    server.restart()
    plain.get("again", wait_for_ready=True)
    result = plain.result("again")
    assert (result.state, result.attempts) == (SUCCEEDED, 2)


def test_DLV_2_an_agent_that_died_with_the_server_loses_its_work_at_once(server, plain, start, log):
    agent = start("one")
    start("two")
    tasks = [f"t{number}" for number in range(8)]
    for task_id in tasks:
        plain.dispatch(spec("sleep", {"seconds": 1}, task_id))
    eventually(lambda: len(begins(log)) == len(tasks), "all run")
    server.kill()
    agent.kill()
    server.start()
    begun = time.monotonic()
    for task_id in tasks:
        assert plain.result(task_id).state == SUCCEEDED
    assert time.monotonic() - begun < 10  # not the grace of 30 s


@pytest.mark.parametrize("settings", [{"interval": "0.5", "retry_interval": "0.5"}], ids=["quick"])
def test_B3_a_dialled_agent_that_is_asked_to_end_finishes_its_work(plain, start_agents, log):
    (agent,) = start_agents(1, *LISTEN)
    plain.dispatch(spec("sleep", {"seconds": 2}, "last"))
    eventually(lambda: begins(log), "it runs")
    agent.signal(signal.SIGTERM)
    result = plain.result("last")
    assert (result.state, result.attempts) == (SUCCEEDED, 1)
    assert agent.wait() == 0
    assert len(read_log(log, "begin")) == 1
    eventually(lambda: not plain.agents(), "it has deregistered")


def test_STR_3_readers_of_a_dialled_agent_see_its_text_once_over_a_restart(server, plain, start_agents, log):
    start_agents(1, *LISTEN)
    plain.dispatch(spec("stream", {"count": 200, "pause": 0.01}, "read"))
    eventually(lambda: begins(log), "it runs")
    time.sleep(0.5)
    server.restart()
    plain.get("read", wait_for_ready=True)
    text = Text().read(plain.results.StreamResult(result_pb2.StreamResultRequest(task_id="read"), timeout=DEADLINE))
    assert (text.kinds[-1], text.result) == ("complete", text_of("read", 200))
