"""Who can really take work now, with real agent processes in a pool of two (HLT-3, HLT-7, HLT-8, case B1)."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, registry_pb2, task_pb2
from tests.e2e.plain import Plain, spec, timeouts
from tests.e2e.processes import Server, eventually, tell

pytestmark = pytest.mark.e2e

LONG = timeouts(start_to_close=120)
BEAT = 1.0
COMPUTATION = int(os.environ.get("COMPUTATION_SECONDS", "8"))
"""How long the long computation takes; start-to-close is 120 s."""
NOISE = 1.0
"""What a busy machine of two shared cores may add to a second or two."""


def on(instance: str, method: str, payload: dict[str, Any], task_id: str = "") -> task_pb2.TaskSpec:
    """A task for this very instance."""
    made = spec(method, payload, task_id, timeouts=LONG)
    made.selector.instance_id = instance
    return made


def look(plain: Plain, instance: str) -> agent_pb2.Agent:
    """One instance, with its history."""
    answer: registry_pb2.GetAgentResponse = plain.call(
        plain.registry.GetAgent, registry_pb2.GetAgentRequest(instance_id=instance)
    )
    return answer.agent


def condition(agent: agent_pb2.Agent, name: str) -> str:
    """The evidence of a condition; empty if it does not hold."""
    number = agent_pb2.ConditionType.Value(f"CONDITION_TYPE_{name}")
    return next((one.evidence for one in agent.conditions if one.type == number), "")


def learn(plain: Plain, instances: list[str], method: str, payload: dict[str, Any]) -> None:
    """Lets the server see how long the tasks of a method usually take."""
    for instance in instances:
        for _ in range(3):
            plain.dispatch(on(instance, method, payload), wait=30)


def test_HLT_8_an_agent_whose_worker_threads_are_all_blocked_is_out_though_it_beats(plain, start_agents):
    """Within twice its usual task time and one beat."""
    one, two = (agent.instance() for agent in start_agents(2, "--heartbeat", str(BEAT), "--slots", "2"))
    usual = 0.8
    learn(plain, [one, two], "hold", {"seconds": usual})
    for number in range(2):
        plain.dispatch(on(one, "hold", {"seconds": 12}, f"hangs-{number}"))
    since = time.monotonic()
    eventually(lambda: look(plain, one).blocked_by == "stalled", "it is out", seconds=2 * usual + BEAT + NOISE)
    took = time.monotonic() - since
    tell(f"out after {took:.2f} s")
    seen = look(plain, one)
    assert seen.health == agent_pb2.HEALTH_HEALTHY
    assert seen.last_heartbeat_age.ToMilliseconds() < 2_500, "its beats go on"
    assert seen.probe_status == "ok", "its loop answers"
    assert "2 tasks running, nothing completed" in condition(seen, "STALLED")
    assert [change.state for change in seen.history if "STALLED" in change.state] == ["STALLED"]
    answers = [plain.dispatch(spec("echo", "hello"), wait=30).result for _ in range(6)]
    assert {answer.instance_id for answer in answers} == {two}
    assert [plain.result(f"hangs-{number}").attempts for number in range(2)] == [1, 1], "its work stayed"
    eventually(lambda: not look(plain, one).blocked_by, "it is back")


@pytest.mark.timeout(60 + 3 * COMPUTATION)
def test_HLT_7_an_agent_in_a_long_computation_that_reports_progress_stays_and_one_that_stops_is_out(
    plain, start_agents
):
    """The usual task takes 0.4 s, these 20 times as long; 100 times with `make long-test`."""
    one, two = (agent.instance() for agent in start_agents(2, "--heartbeat", str(BEAT), "--slots", "2"))
    learn(plain, [one, two], "report", {"seconds": 0.4, "every": 0.2})
    plain.dispatch(on(one, "report", {"seconds": COMPUTATION, "every": 0.4}, "reports"))
    plain.dispatch(on(two, "report", {"seconds": COMPUTATION, "every": 999}, "silent"))
    end = time.monotonic() + COMPUTATION - 1
    out = False
    while time.monotonic() < end:
        assert not look(plain, one).blocked_by
        out = out or look(plain, two).blocked_by == "stalled"
        time.sleep(0.1)
    assert out, "who stops reporting is out"
    assert [plain.result(task_id).attempts for task_id in ("reports", "silent")] == [1, 1]
    eventually(lambda: not look(plain, two).blocked_by, "it is back")


def test_B1_a_blocked_loop_is_stalled_with_its_evidence_fails_its_pings_and_loses_nothing(plain, start_agents):
    one, two = (agent.instance() for agent in start_agents(2, "--heartbeat", "2", "--slots", "4"))
    eventually(lambda: look(plain, one).probe_status == "ok", "it has answered a ping")
    plain.dispatch(on(one, "block", {"seconds": 9}, "blocks"))
    seen = eventually(lambda: (agent := look(plain, one)).blocked_by and agent, "it is out", seconds=6)
    assert (seen.blocked_by, condition(seen, "STALLED").partition(" for ")[0]) == ("stalled", "loop stalled")
    seen = eventually(lambda: (agent := look(plain, one)).last_probe_error and agent, "its pings fail", seconds=9)
    assert seen.health in (agent_pb2.HEALTH_HEALTHY, agent_pb2.HEALTH_SUSPECT)
    assert seen.last_probe_error == "no answer to a ping within 1000 ms"
    assert plain.dispatch(spec("echo", "hello"), wait=30).result.instance_id == two
    assert plain.result("blocks").attempts == 1
    eventually(lambda: not look(plain, one).blocked_by, "it is back")
    eventually(lambda: look(plain, one).probe_status == "ok", "it answers again", seconds=35)


@pytest.fixture
def waking(tmp_path: Path) -> Path:
    """The file that the wake hook of the type `worker` makes."""
    return tmp_path / "wake up"


@pytest.fixture
def server(tmp_path: Path, waking: Path) -> Iterator[Server]:
    """A server with a wake hook for the type `sleeper`."""
    config = tmp_path / "config.yaml"
    command = ["sh", "-c", f"echo $AGENT_REACH_WAKE_ID >> {shlex.quote(str(waking))}"]
    config.write_text(json.dumps({"wake": {"hooks": [{"agent_type": "sleeper", "command": command}]}}))
    with Server(tmp_path / "data", arguments=["--config", str(config)]) as made:
        yield made
        assert not made.tracebacks()


def test_HLT_14_a_task_for_a_type_that_sleeps_wakes_it_once(server, plain, start_agents, waking):
    for number in range(5):
        plain.dispatch(spec("echo", "good morning", f"early-{number}", agent_type="sleeper"))
    eventually(lambda: plain.get("early-0").wake == "acknowledged", "the hook was called")
    assert waking.read_text() == "default/sleeper/1\n"
    assert plain.get("early-0").state == task_pb2.TASK_STATE_PENDING
    start_agents(1, "--agent", "sleeper", "--type", "sleeper")
    assert [plain.result(f"early-{number}").output.text for number in range(5)] == ["good morning"] * 5
    assert waking.read_text() == "default/sleeper/1\n"
