"""`reach agents watch`, `show` and `list` with what REG-9 wants to be seen."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from reach.cli.exits import Exit
from reach.testing.server import LocalServer
from tests.cli.conftest import Command, EchoAgent

pytestmark = pytest.mark.e2e

Start = Callable[..., EchoAgent]


@pytest.fixture(scope="module", autouse=True)
def first(echo_agents: Start) -> EchoAgent:
    return echo_agents("watched", "--capability", "echoing")


def test_REG_9_show_has_scores_evidence_and_history(on: Command) -> None:
    on("agents", "drain", "watched", "--deadline", "40s")
    out = on("agents", "show", "watched").out
    on("agents", "drain", "watched", "--undo")
    facts = dict(line.split(None, 1) for line in out.splitlines() if " " in line)
    assert facts["routed"] == "no: draining"
    assert facts["availability"].startswith("DRAINING for ")
    assert facts["slots"].startswith("0 of ")
    assert "running" in facts["reports"]
    when, state, why = ("WHEN", "STATE", "WHY")
    assert [when, state, why] == next(line.split() for line in out.splitlines() if line.startswith("WHEN"))
    assert "drained; its sessions may stay for 40000 ms" in out
    assert on("agents", "show", "watched", "--json").data["history"][-1]["state"] == "READY"


def test_REG_9_list_has_the_columns(on: Command) -> None:
    titles, row = on("agents", "list", "--agent", "watched").out.splitlines()
    assert titles.split() == "INSTANCE TYPE HEALTH STATE SLOTS SCORE BEAT CONDITIONS CAPABILITIES ROUTED".split()
    assert row.split()[:4] == ["watched", "watched", "HEALTHY", "READY"]


def test_REG_9_watch_tells_what_comes_changes_and_goes(server: LocalServer, echo_agents: Start) -> None:
    command = [sys.executable, "-m", "reach.cli", "agents", "watch", "--addr", server.address, "--for", "40s"]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None

        def until(*words: str) -> None:
            assert process.stdout is not None
            while not lines or not all(word in lines[-1] for word in words):
                line = process.stdout.readline()
                assert line, lines
                lines.append(line.split(None, 1)[1].rstrip())

        until("+ watched watched HEALTHY READY")
        late = echo_agents("late", "--type", "watched")
        until("+ late watched")
        late.end()
        until("~ late", "OFFLINE", "not routed")
        process.send_signal(signal.SIGINT)
    assert process.returncode == Exit.INTERRUPTED


def test_REG_9_watch_for_programs_and_by_filter(on: Command) -> None:
    ran = on("agents", "watch", "--agent", "watched", "--for", "0.5s", "--json")
    assert (ran.code, ran.events[0]["reset"]) == (Exit.OK, True)
    assert ran.events[0]["agents"][0]["registration"]["instance_id"] == "watched"
    assert any(message.get("in_sync") for message in ran.events)
    assert on("agents", "watch", "--agent", "nobody", "--for", "0.3s").out == ""


def test_watch_waits_for_a_server_that_is_away_and_says_so(reach: Command) -> None:
    with LocalServer() as server:
        thread = threading.Timer(1.0, lambda: (server.stop(), server.start()))
        thread.start()
        ran = reach("--addr", server.address, "agents", "watch", "--for", "6s")
        thread.join()
    assert ran.code == Exit.OK
    assert "waiting for it" in ran.err
    assert reach("--addr", server.address, "agents", "watch", "--for", "6s").code == Exit.UNREACHABLE
