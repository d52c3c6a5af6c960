"""The Node SDK against a real server (API-5): what is promised of the Python SDK in the same faults holds for it.

Needs node, and `make node`; skipped, loudly, where they are not. NODE_TASKS=1000 is the full size, NODE_CLUSTER=1 also
kills a node of a cluster.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from reach import SyncClient
from tests.e2e.plain import Plain
from tests.e2e.processes import Server, eventually
from tests.node_sdk import NODE, SDK, needs_the_sdk

HERE = Path(__file__).parent / "node"
TASKS = int(os.environ.get("NODE_TASKS", "120"))

pytestmark = [pytest.mark.e2e, needs_the_sdk]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def node(server: Server) -> Iterator[Start]:
    """Starts a program of `tests/e2e/node`; what still runs at the end is killed."""
    with ExitStack() as stack:
        yield partial(launched, stack, server.address)


def launched(stack: ExitStack, address: str, script: str, *arguments: object) -> subprocess.Popen[str]:
    """A program of `tests/e2e/node`, until the stack ends."""
    environment = {**os.environ, "AGENT_REACH_ADDR": address}
    command = [NODE, str(HERE / script), *map(str, arguments)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=environment)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    """SIGKILL, if it has not ended."""
    process.kill()
    process.communicate()


@pytest.fixture
def agents(node: Start, plain: Plain, log: Path) -> Callable[[int], list[subprocess.Popen[str]]]:
    """Starts agents `node-worker` and waits until all take work."""

    def start(count: int) -> list[subprocess.Popen[str]]:
        known = set(plain.free())
        made = [node("agent.mjs", "node-worker", log) for _ in range(count)]
        eventually(lambda: len(set(plain.free()) - known) >= count, f"{count} agents take work")
        return made

    return start


def conditions(plain: Plain) -> list[str]:
    """The evidence of all conditions of all agents."""
    return [one.evidence for agent in plain.agents().values() for one in agent.conditions]


def begins(log: Path) -> Counter[str]:
    """How often each task began."""
    return Counter(line.split()[0] for line in log.read_text().splitlines() if not line.endswith("aborted"))


def at_it(names: Iterable[str], log: Path) -> int:
    """How many tasks of each caller have begun, at least."""
    return min(sum(task.startswith(f"{name}-") for task in begins(log)) for name in names)


@pytest.mark.slow
def test_API_5_tasks_of_node_callers_at_node_agents_outlive_kill_9_of_the_server(server, node, agents, log):
    """Nothing is lost, nothing is done or told twice; streams are whole."""
    agents(2)
    half = TASKS // 2
    callers = [node("caller.mjs", "node-worker", name, half, 24) for name in ("one", "two")]
    eventually(lambda: log.exists() and len(begins(log)) > TASKS // 4, "they are at it")
    server.kill()
    assert all(caller.poll() is None for caller in callers), "it must last longer than this"
    time.sleep(0.3)
    server.start()
    lines = [json.loads(line) for caller in callers for line in caller.communicate(timeout=120)[0].splitlines()]
    assert Counter(one["task"] for one in lines) == Counter(f"{n}-{i}" for n in ("one", "two") for i in range(half))
    assert [one for one in lines if one["state"] != "SUCCEEDED" or not one["right"]] == []
    # The offer of an attempt may have died with the server: then the task began once all the same, as the next attempt.
    assert sorted(log.read_text().split("\n")[:-1]) == sorted(f"{one['task']} {one['attempts']}" for one in lines)
    assert [caller.returncode for caller in callers] == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.skipif("NODE_CLUSTER" not in os.environ, reason="NODE_CLUSTER=1 tests the Node SDK with a cluster")
def test_CLU_3_node_agents_and_callers_go_on_at_other_nodes_when_theirs_is_killed(nodes, log):
    """They were given one node and have heard of the others there; it does not come back."""
    first, *others = nodes.all.values()
    count = 3 * TASKS  # the first caller is not done when the second begins
    with ExitStack() as stack, Plain(others[0].address) as plain:
        for _ in range(2):
            launched(stack, first.address, "agent.mjs", "node-worker", log)
        eventually(lambda: len(plain.free()) == 2, "both agents take work")
        callers = [launched(stack, first.address, "caller.mjs", "node-worker", name, count, 12) for name in ("x", "y")]
        eventually(lambda: log.exists() and at_it("xy", log) > 10, "they are at it, both")
        first.kill()
        assert all(caller.poll() is None for caller in callers), "it must last longer than this"
        lines = [json.loads(line) for caller in callers for line in caller.communicate(timeout=120)[0].splitlines()]
    assert Counter(one["task"] for one in lines) == Counter(f"{n}-{i}" for n in ("x", "y") for i in range(count))
    assert [one for one in lines if one["state"] != "SUCCEEDED" or not one["right"]] == []
    assert set(begins(log).values()) == {1}


def test_API_5_what_a_node_agent_does_besides(server, node, agents, log, plain):
    """Cancel, effects, questions, checkpoints over a death, a loop that is blocked, drain."""
    first, second = agents(2)
    with SyncClient(server.address) as client:
        answer = client.call("effect", agent_id="node-worker", effects="irreversible", timeout=10)
        assert answer == "charged, token 1"
        handle = client.submit("until-aborted", agent_id="node-worker", task_id="aborted", timeout=10)
        eventually(lambda: client.get_task("aborted").state.name == "RUNNING", "it runs")
        assert client.cancel(handle.task_id).name == "CANCELLED"
        eventually(lambda: log.exists() and "aborted aborted" in log.read_text(), "the handler was told")
        client.submit("ask", agent_id="node-worker", task_id="trip", timeout=10)
        eventually(lambda: client.get_task("trip").state.name == "WAITING", "it asks")
        client.send_input("trip", "Friday")
        assert client.wait_for_result("trip", 10).text == "booked for Friday"

        result = client.send("checkpointed", agent_id="node-worker", timeout=20)
        assert (result.text, result.attempts) == ("went on behind half", 2)
        eventually(lambda: first.poll() is not None or second.poll() is not None, "one is dead")
        alive = second if first.poll() is not None else first

        blocked = client.submit("block", "3000", agent_id="node-worker", start_to_close=20, timeout=10)
        eventually(lambda: "loop stalled" in " ".join(conditions(plain)), "the server knows that its loop is blocked")
        assert client.wait_for_result(blocked.task_id, 10).ok

        late = client.submit("stream", "one two three four five six seven eight", agent_id="node-worker", timeout=10)
        eventually(lambda: client.get_task(late.task_id).state.name == "RUNNING", "it runs")
        alive.send_signal(signal.SIGTERM)
        assert client.wait_for_result(late.task_id, 10).text == "one two three four five six seven eight"
        assert alive.wait(10) == 0
    assert plain.free() == []


def test_API_5_the_programs_of_the_readme_run(server, plain):
    """The agent and the caller, as they are written."""
    agent, caller = re.findall(r"^```js\n(.*?)^```$", (SDK / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "AGENT_REACH_ADDR": server.address}
    command = [NODE, "--input-type=module", "-e"]
    running = subprocess.Popen([*command, agent], cwd=SDK, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        eventually(plain.free, "the agent takes work")
        ran = subprocess.run(
            [*command, caller], cwd=SDK, env=environment, capture_output=True, text=True, timeout=30, check=True
        )
    finally:
        running.send_signal(signal.SIGTERM)
        _, warned = running.communicate(timeout=10)
        assert (running.returncode, warned) == (0, "")
    two, one = "line 1: 2 words", "line 2: 1 words"
    assert ran.stdout.split("\n") == [two, "", two, one, "SUCCEEDED", "line 1: 1 words", "", ""]
