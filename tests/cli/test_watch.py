"""`reach agents watch`, `show` and `list` with what REG-9 wants to be seen."""

from __future__ import annotations

import threading
import time
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


def test_REG_9_watch_tells_what_comes_changes_and_goes(on: Command, echo_agents: Start) -> None:
    def happen() -> None:
        time.sleep(0.7)
        echo_agents("late", "--type", "watched").end()

    thread = threading.Thread(target=happen)
    thread.start()
    ran = on("agents", "watch", "--for", "4s")
    thread.join()
    assert ran.code == Exit.OK
    lines = [line.split(None, 1)[1] for line in ran.out.splitlines()]
    assert lines[0].startswith("+ watched watched HEALTHY READY")
    assert any(line.startswith("+ late watched") for line in lines)
    assert any(line.startswith("~ late") and "OFFLINE" in line for line in lines), lines
    assert "1 instances; watching" in ran.err


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
