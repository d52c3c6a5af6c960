"""`reach dlq` and `reach tail` without a task."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from reach.testing.server import LocalServer
from tests.cli.conftest import Command, EchoAgent

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def breaking(echo_agents: Callable[..., EchoAgent]) -> EchoAgent:
    return echo_agents("breaks", "--fail-rate", "1", "--fail-as", "crash")


def dead(on: Command, *task_ids: str) -> None:
    for task_id in task_ids:
        assert on("dispatch", "--agent", "breaks", "--task-id", task_id, "hello").code == 1


def test_DLV_10_dead_letters_are_listed_shown_tried_again_and_removed(on: Command) -> None:
    dead(on, "d1", "d2")
    assert {task["spec"]["task_id"] for task in on("dlq", "list", "--json").data["tasks"]} >= {"d1", "d2"}
    out = on("dlq", "list", "--reason", "AGENT_CRASHED").out
    assert "breaks" in out
    assert "AGENT_CRASHED" in out
    assert on("dlq", "list", "--reason", "CANCELLED").out == "None.\n"
    assert "hello" in on("dlq", "show", "d1").out
    tried = on("dlq", "requeue", "d1", "none", "--json")
    assert tried.code == 2
    assert tried.data["refused"]["none"].startswith("TASK_NOT_FOUND")
    new = tried.data["new_task_ids"]["d1"]
    assert on("tasks", "show", new, "--json").data["spec"]["related_task_ids"] == ["d1"]
    assert new in on("dlq", "requeue", "--type", "breaks").out
    assert on("dlq", "purge", "d1", "d2").out == "2 removed.\n"
    assert on("dlq", "purge", "d1", "--json").data == {"purged": 0}
    assert on("dlq", "purge").code == 2
    assert on("dlq", "requeue", "d2", "--all").code == 2
    assert on("dlq", "webhooks").out == "None.\n"


def test_tail_without_a_task_has_a_line_for_each_event(on: Command, server: LocalServer) -> None:
    def later() -> None:
        time.sleep(1.0)
        words = ["--addr", server.address, "dispatch", "--agent", "breaks", "--task-id", "w1", "hello"]
        subprocess.run([sys.executable, "-m", "reach.cli", *words], capture_output=True, check=False)

    work = threading.Thread(target=later)
    work.start()
    lines = [line.split(" ", 1)[1] for line in on("tail", "--type", "breaks", "--timeout", "5s").out.splitlines()]
    work.join()
    told = [line for line in lines if line.startswith("w1 ")]
    assert told[0] == "w1 accepted"
    assert told[1].startswith("w1 offered to breaks")
    assert told[-1].startswith("w1 DEAD_LETTERED by breaks")
    assert "AGENT_CRASHED" in told[-1]
