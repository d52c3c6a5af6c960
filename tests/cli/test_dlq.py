"""`reach dlq` and `reach tail` without a task."""

from __future__ import annotations

import subprocess
import sys
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
    shown = on("dlq", "show", "d1").out
    assert "hello" in shown
    assert "AGENT_CRASHED" in shown.rstrip().splitlines()[-1], "the try that it ended with was not done"
    assert "`reach dlq requeue d1` tries it again" in on("explain", "d1").out
    tried = on("dlq", "requeue", "d1", "none", "--json")
    assert tried.code == 2
    assert tried.data["refused"]["none"].startswith("TASK_NOT_FOUND")
    new = tried.data["new_task_ids"]["d1"]
    assert on("tasks", "show", new, "--json").data["spec"]["related_task_ids"] == ["d1"]
    assert new in on("dlq", "requeue", "--type", "breaks").out
    assert on("dlq", "purge", "d1", "d2").out == "2 removed.\n"
    assert on("dlq", "purge", "d1", "--json").data == {"purged": 0}
    nothing = on("dlq", "purge")
    assert (nothing.code, "Say which: TASK..., or --type" in nothing.err) == (2, True)
    assert on("dlq", "requeue", "d2", "--all").code == 2
    assert on("dlq", "webhooks").out == "None.\n"


def test_tail_without_a_task_has_a_line_for_each_event(on: Command, server: LocalServer) -> None:
    command = [sys.executable, "-m", "reach.cli", "--addr", server.address, "tail", "--type", "breaks"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            assert watching.stderr.readline() == "watching\n"
            dead(on, "w1")
            told: list[str] = []
            while not told or "DEAD_LETTERED" not in told[-1]:
                line = watching.stdout.readline().split(" ", 1)[1].strip()
                told += [line] if line.startswith("w1 ") else []
        finally:
            watching.kill()
    assert told[0] == "w1 accepted"
    assert told[1].startswith("w1 offered to breaks")
    assert told[-1].startswith("w1 DEAD_LETTERED by breaks")
    assert "AGENT_CRASHED" in told[-1]
