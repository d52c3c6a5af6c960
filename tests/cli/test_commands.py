"""Commands against a real server with fake agents."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reach.cli.exits import Exit
from reach.testing.server import LocalServer
from tests.cli.conftest import Command, EchoAgent

pytestmark = pytest.mark.e2e

Start = Callable[..., EchoAgent]


@pytest.fixture(scope="module", autouse=True)
def agents(echo_agents: Start) -> None:
    """What most tests need."""
    echo_agents("echo", "--capability", "echoing", "--tag", "fast")
    echo_agents("slow", "--delay", "1.2s", "--stream", "6")
    echo_agents("bad", "--fail-rate", "1")


def test_an_answer(on: Command) -> None:
    ran = on("dispatch", "--agent", "echo", "hello")
    assert ran.code == Exit.OK
    assert ran.out == "hello\n"
    assert re.fullmatch(r"task \w+ SUCCEEDED · by echo · queued \d+ ms, ran \d+ ms\n", ran.err)


def test_selectors_and_options(on: Command) -> None:
    chosen = ["--capability", "echoing", "--tag", "fast", "--method", "any.thing", "--type", "echo"]
    given = [
        "--priority",
        "0",
        "--class",
        "qa",
        "--retry",
        "never",
        "--volatile",
        "--effects",
        "none",
        "--start-to-close",
    ]
    ran = on("dispatch", *chosen, *given, "2s", "--deadline", "5s", "--quiet", "hello")
    assert (ran.code, ran.out, ran.err) == (Exit.OK, "hello\n", "")


def test_events_for_programs(on: Command) -> None:
    ran = on("dispatch", "--agent", "slow", "abcdef", "--json")
    kinds = [event["kind"] for event in ran.events]
    assert kinds[:2] == ["accepted", "started"]
    assert kinds[-1] == "complete"
    texts = [event["delta"]["payload"]["text"] for event in ran.events if event["kind"] == "delta"]
    assert texts == list("abcdef")
    assert ran.events[-1]["complete"]["state"] == "SUCCEEDED"
    sequences = [event["sequence"] for event in ran.events]
    assert sequences == sorted(set(sequences))
    assert ran.err == ""


def test_pieces_come_before_the_end(server: LocalServer) -> None:
    command = [sys.executable, "-m", "reach.cli", "dispatch", "--addr", server.address, "--agent", "slow", "abcdef"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"a"
        assert process.poll() is None
        assert process.stdout.read() == b"bcdef\n"
    assert process.returncode == Exit.OK


def test_a_task_that_fails_is_1(on: Command) -> None:
    ran = on("dispatch", "--agent", "bad", "x")
    assert ran.code == Exit.TASK_FAILED
    assert ran.out == ""
    assert "FAILED: AGENT_FAILED: the fake agent was told to fail" in ran.err
    task_id = ran.err.split()[1]
    assert on("wait", task_id).code == Exit.TASK_FAILED
    assert on("wait", task_id, "--json").data["error"]["reason"] == "AGENT_FAILED"
    assert on("tail", task_id, "-q").code == Exit.TASK_FAILED


def test_waiting_has_an_end_and_the_task_none(on: Command) -> None:
    ran = on("dispatch", "--agent", "slow", "--timeout", "0.4s", "abcdef")
    assert ran.code == Exit.TIMEOUT
    assert ran.out.endswith("\n")
    goes_on = re.search(r"task (\w+) goes on: `reach tail \1` shows it, `reach cancel \1` ends it", ran.err)
    assert goes_on is not None
    ran = on("tail", goes_on[1])
    assert (ran.code, ran.out) == (Exit.OK, "abcdef\n")


def test_cancel_on_exit(on: Command) -> None:
    ran = on("dispatch", "--agent", "slow", "--timeout", "0.4s", "--cancel-on-exit", "--task-id", "left", "abcdef")
    assert ran.code == Exit.TIMEOUT
    assert "task left CANCELLED" in ran.err
    assert on("tasks", "show", "left", "--json").data["state"] == "CANCELLED"


def test_give_now_and_fetch_later(on: Command) -> None:
    task_id = on("dispatch", "--agent", "slow", "--no-wait", "abcdef").out.strip()
    ran = on("wait", task_id)
    assert (ran.code, ran.out) == (Exit.OK, "abcdef\n")
    assert on("wait", task_id, "--json").data["output"] == {"text": "abcdef"}
    assert on("tail", task_id).out == "abcdef\n"
    events = on("tail", task_id, "--json").events
    third = [event for event in events if event["kind"] == "delta"][2]
    assert on("tail", task_id, "--after", str(third["sequence"]), "-q").out == "def\n"


def test_wait_has_an_end(on: Command) -> None:
    task_id = on("dispatch", "--agent", "slow", "--no-wait", "x", "--json").data["task_id"]
    assert on("wait", task_id, "--timeout", "200ms").code == Exit.TIMEOUT


def test_cancel(on: Command) -> None:
    on("dispatch", "--agent", "slow", "--no-wait", "--task-id", "c1", "x")
    ran = on("cancel", "c1", "--reason", "no longer wanted")
    assert (ran.code, ran.out) == (Exit.OK, "CANCELLED\n")
    assert on("wait", "c1").code == Exit.TASK_FAILED
    on("dispatch", "--agent", "echo", "--task-id", "c2", "x")
    assert on("cancel", "c2", "--json").data["state"] == "SUCCEEDED"


def test_the_same_task_twice_runs_once(on: Command) -> None:
    assert on("dispatch", "--agent", "echo", "--task-id", "same", "x").code == Exit.OK
    ran = on("dispatch", "--agent", "echo", "--task-id", "same", "x")
    assert (ran.code, ran.out) == (Exit.OK, "x\n")
    ran = on("dispatch", "--agent", "echo", "--task-id", "same", "--no-wait", "y")
    assert ran.code == Exit.WRONG_REQUEST
    assert "TASK_ID_REUSED" in ran.err


@pytest.mark.parametrize("command", ["wait none", "tail none", "cancel none", "tasks show none", "agents show none"])
def test_what_is_not_there_is_2(on: Command, command: str) -> None:
    ran = on(*command.split())
    assert ran.code == Exit.WRONG_REQUEST
    assert "'none'" in ran.err
    assert "list` shows" in ran.err


def test_people_are_told_why_a_task_waits(on: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.cli.dispatch._PATIENCE_S", 0.2)
    ran = on("dispatch", "--agent", "nobody", "--timeout", "1s", "--cancel-on-exit", "x")
    assert ran.code == Exit.TIMEOUT
    assert "waiting: no agent 'nobody' is registered (`reach agents list`" in ran.err


def test_binary_content(on: Command, server: LocalServer, tmp_path: Path) -> None:
    raw = bytes(range(256))
    (tmp_path / "in").write_bytes(raw)
    ran = on("dispatch", "--agent", "echo", f"@{tmp_path / 'in'}", "--output", str(tmp_path / "out"))
    assert ran.code == Exit.OK
    assert (tmp_path / "out").read_bytes() == raw
    command = [sys.executable, "-m", "reach.cli", "dispatch", "--addr", server.address, "--agent", "echo", "-"]
    done = subprocess.run(command, input=raw, capture_output=True, check=True)
    assert done.stdout == raw


def test_json_content(on: Command) -> None:
    ran = on("dispatch", "--agent", "echo", "--json-payload", '{"a": [1, "ü"]}', "--no-stream", "-q")
    assert ran.out == '{"a":[1,"ü"]}\n'
    ran = on("dispatch", "--agent", "echo", "--media-type", "text/markdown", "# x", "--json")
    assert ran.events[-1]["complete"]["output"]["media_type"] == "text/markdown"


def test_tasks(on: Command) -> None:
    labels = ["--label", "run=list", "--session", "app:user:s"]
    on("dispatch", "--agent", "echo", *labels, "--task-id", "l1", "x")
    on("dispatch", "--agent", "bad", *labels, "--task-id", "l2", "x")
    on("dispatch", "--agent", "slow", "--task-id", "l3", "--no-wait", "x")
    assert on("tasks", "list").out.splitlines()[0].split() == "TASK STATE TYPE INSTANCE TRIES ACCEPTED TOOK WHY".split()

    def ids(*filters: str) -> list[str]:
        return [task["spec"]["task_id"] for task in on("tasks", "list", "--json", *filters).data["tasks"]]

    assert ids("--label", "run=list") == ["l2", "l1"]
    assert ids("--session", "app:user:s") == ["l2", "l1"]
    assert ids("--label", "run=list", "--state", "failed") == ["l2"]
    assert ids("--type", "slow", "--state", "running", "--state", "delivered") == ["l3"]
    assert ids("--limit", "1") == ["l3"]
    assert ids("--label", "run=other") == []
    assert on("tasks", "list", "--label", "run=other").out == "None.\n"


def test_one_task(on: Command) -> None:
    on("dispatch", "--agent", "echo", "--task-id", "s1", "--label", "a=b", "some text")
    ran = on("tasks", "show", "s1")
    assert ran.code == Exit.OK
    facts = dict(line.split(None, 1) for line in ran.out.split("\n\n")[0].splitlines())
    assert facts["task"] == "s1"
    assert facts["state"] == "SUCCEEDED"
    assert facts["labels"] == "a=b"
    assert facts["payload"] == "some text"
    assert ran.out.split("\n\n")[1].splitlines()[1].split()[:2] == ["1", "echo"]
    assert ran.out.endswith("\n\nsome text\n")
    assert on("tasks", "show", "s1", "--json").data["result"]["output"]["text"] == "some text"


def test_agents(on: Command) -> None:
    ran = on("agents", "list")
    titles, *rows = ran.out.splitlines()
    assert titles.split() == "INSTANCE TYPE HEALTH STATE SLOTS SCORE BEAT CONDITIONS CAPABILITIES ROUTED".split()
    assert {row.split()[0] for row in rows} >= {"echo", "slow", "bad"}
    found = on("agents", "list", "--capability", "echoing", "--json").data["agents"]
    assert [agent["registration"]["instance_id"] for agent in found] == ["echo"]
    assert on("agents", "list", "--tag", "fast", "--health", "healthy").out.count("\n") == 2
    assert on("agents", "list", "--tag", "none").out == "None.\n"
    facts = on("agents", "show", "echo").out
    assert re.search(r"^routed +yes$", facts, re.MULTILINE)
    assert re.search(r"^capabilities +echoing$", facts, re.MULTILINE)
    assert on("agents", "show", "echo", "--json").data["health"] == "HEALTHY"


def test_drain_by_agent_and_back(on: Command) -> None:
    assert on("agents", "drain", "echo").out == "echo drains\n"
    assert "DRAINING" in on("agents", "show", "echo").out
    assert on("agents", "drain", "echo", "--undo", "--json").data == {"instance_ids": ["echo"], "draining": False}
    assert on("agents", "show", "echo", "--json").data["availability"] == "READY"


def test_route_preview(on: Command) -> None:
    ran = on("route", "preview", "--agent", "echo", "x")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in ran.out.split("\n\n")[0].splitlines())
    assert facts["goes to"] == "echo"
    assert facts["policy"] == "balanced"
    titles, row = ran.out.split("\n\n")[1].splitlines()
    signals = "AVAILABILITY CAPACITY LATENCY LOAD MATCH REACH REGION SUCCESS_RATE UNDERLOAD WEIGHT"
    assert titles.split() == f"INSTANCE SCORE {signals} DROPPED".split()
    assert row.split()[0] == "echo"
    decision = on("route", "preview", "--agent", "echo", "x", "--json").data["decision"]
    assert {name.upper() for name in decision["candidates"][0]["signals"]} == set(signals.split())
    assert (decision["picked_by"], decision["cause"]) == ("score", "new")
    assert on("route", "preview", "--agent", "echo", "x", "--json").data["decision"] == decision, (
        "a look leaves no trace"
    )
    assert on("tasks", "list", "--label", "never=sent").out == "None.\n"


def test_RTE_3_a_task_names_its_policy(on: Command) -> None:
    asked = ("route", "preview", "--agent", "echo", "x", "--policy")
    assert on(*asked, "round_robin", "--json").data["decision"]["policy"] == "round_robin"
    refused = on(*asked, "nobody")
    assert refused.code == Exit.WRONG_REQUEST
    assert "there is no policy 'nobody'" in refused.err


def test_RTE_12_route_preview_of_what_nobody_can_do(on: Command) -> None:
    ran = on("route", "preview", "--method", "unheard-of", "x")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in ran.out.splitlines())
    assert facts["goes to"] == "nobody now: it would wait"
    assert facts["because"] == "NO_MATCHING_AGENT: no agent has method 'unheard-of'"
    assert not {"type", "refused"} & facts.keys()


def test_RTE_13_explain(on: Command) -> None:
    on("dispatch", "--agent", "echo", "--task-id", "why-1", "x")
    ran = on("explain", "why-1")
    assert ran.code == Exit.OK
    story, attempt = ran.out.split("\n\n")
    assert re.search(r"^attempt 1 went to echo: .* under balanced, score 0\.\d+", story, re.MULTILINE)
    assert "ended SUCCEEDED after 1 attempt and 0 moves" in story
    titles, row = attempt.splitlines()[1:]
    assert titles.split() == "INSTANCE SCORE AVAILABILITY CAPACITY LATENCY DROPPED".split()
    assert row.split()[0] == "echo"
    told = on("explain", "why-1", "--json").data
    decision = told["task"]["attempts"][0]["decision"]
    assert (decision["policy"], decision["chosen_instance_id"], decision["cause"]) == ("balanced", "echo", "new")
    assert "output" not in told["task"]["result"], "payloads are not told here"
    assert on("explain", "nobody").code == Exit.WRONG_REQUEST


def test_server_info(on: Command, server: LocalServer) -> None:
    info = on("version", "--server", "--json").data["server"]
    assert info["store"] == "sqlite"
    assert info["principal"]["tenant"] == "default"
    assert server.address in on("version", "--server").out


def test_an_agent_dies_and_the_text_is_not_doubled(on: Command, echo_agents: Start) -> None:
    first = echo_agents("twin-1", "--type", "twin", "--delay", "1s", "--stream", "10")
    killer = threading.Timer(0.45, first.end)
    killer.start()
    try:
        # The second instance joins while the first one works.
        late = threading.Thread(target=echo_agents, args=("twin-2", "--type", "twin", "--stream", "10"))
        late.start()
        ran = on("dispatch", "--type", "twin", "--class", "document", "0123456789")
        late.join(20)
    finally:
        killer.cancel()
    assert ran.code == Exit.OK
    assert ran.out.replace("\n", "") == "0123456789"
    assert "attempt 1 failed (INSTANCE_LOST)" in ran.err
    assert "attempt 2 on twin-2" in ran.err
    task_id = re.search(r"task (\w+) SUCCEEDED", ran.err)
    assert task_id is not None
    shown = on("tasks", "show", task_id[1]).out
    assert re.search(r"^ +1  twin-1 .*INSTANCE_LOST", shown, re.MULTILINE)
    assert re.search(r"^ +2  twin-2 .*done", shown, re.MULTILINE)


def on_a_terminal(address: str, *arguments: str) -> tuple[int, str]:
    """A command with a terminal of its own: its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "reach.cli", "--addr", address, *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(ours)
    return process.wait(20), text.decode()


def test_an_agent_cannot_write_to_the_terminal(server: LocalServer) -> None:
    evil = "\x1b[31mred \x1b]0;title\x07 \x9b2J end"
    for arguments in (("dispatch", "--agent", "echo", evil), ("dispatch", "--agent", "slow", evil)):
        code, text = on_a_terminal(server.address, *arguments)
        assert code == 0
        assert "\x1b]0" not in text
        assert "\x1b[31m" not in text
        assert not set(text) & {"\x07", "\x9b"}
        assert "end" in text


def test_progress_is_shown_on_a_terminal(server: LocalServer) -> None:
    code, text = on_a_terminal(server.address, "dispatch", "--agent", "slow", "a\nb\nc\nd\ne\nf\n")
    assert code == 0
    assert "piece 1 of 6" in text
    plain = re.sub(r"\r\x1b\[2K(\x1b\[2m[^\x1b]*\x1b\[0m)?", "", text).replace("\r\n", "\n")
    assert plain.startswith("a\nb\nc\nd\ne\nf\ntask ")


def test_ctrl_c_leaves_the_task(server: LocalServer, on: Command) -> None:
    command = [sys.executable, "-m", "reach.cli", "--addr", server.address, "dispatch", "--agent", "slow"]
    command += ["--task-id", "left-alone", "abcdef"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == "a"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == Exit.INTERRUPTED
    assert err.splitlines()[0].startswith("task left-alone goes on: ")
    assert "Traceback" not in err
    assert on("wait", "left-alone").out == "abcdef\n"


def test_ctrl_c_can_cancel_the_task(server: LocalServer, on: Command) -> None:
    command = [sys.executable, "-m", "reach.cli", "--addr", server.address, "dispatch", "--agent", "slow"]
    command += ["--task-id", "not-left", "--cancel-on-exit", "abcdef"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == "a"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == Exit.INTERRUPTED
    assert json.loads(on("tasks", "show", "not-left", "--json").out)["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [
        ("invalid", "FAILED", "INVALID_FIELD"),
        ("busy", "DEAD_LETTERED", "AGENT_BUSY"),
        ("unavailable", "DEAD_LETTERED", "AGENT_UNAVAILABLE"),
        ("crash", "DEAD_LETTERED", "AGENT_CRASHED"),
    ],
)
def test_faults_of_the_fake_agent(on: Command, echo_agents: Start, how: str, state: str, reason: str) -> None:
    agent = echo_agents(f"faulty-{how}", "--fail-rate", "1", "--fail-as", how)
    ran = on("dispatch", "--agent", f"faulty-{how}", "--retry", "never", "--timeout", "5s", "x")
    agent.end()
    assert ran.code == Exit.TASK_FAILED, ran.err
    assert f"{state}: {reason}" in ran.err


def test_answers_of_the_fake_agent(on: Command, echo_agents: Start) -> None:
    agent = echo_agents("fixed", "--answer", "always this", "--delay", "50ms", "--jitter", "50ms")
    began = time.monotonic()
    assert on("dispatch", "--agent", "fixed", "x", "-q").out == "always this\n"
    assert time.monotonic() - began >= 0.05
    agent.end()


def test_SES_1_sessions_can_be_looked_at_and_forgotten(on: Command) -> None:
    session = "shop:ada:the first"
    on("dispatch", "--agent", "echo", "--session", session, "--said", "name=Ada", "I am Ada")
    on("dispatch", "--agent", "echo", "--session", session, "again")
    (listed,) = on("sessions", "list", "--app", "shop", "--json").data["sessions"]
    assert listed["key"]["session_id"] == "the first"
    assert "shop:ada:the first" in on("sessions", "list").out
    shown = on("sessions", "show", session)
    assert (shown.code, "I am Ada" in shown.out) == (0, True)
    assert re.search(r"^said: name +Ada$", shown.out, re.MULTILINE)
    turns = on("sessions", "show", session, "--json").data["context"]["turns"]
    assert [turn["request"]["text"] for turn in turns] == ["I am Ada", "again"]
    assert on("sessions", "delete", session).code == 0
    gone = on("sessions", "show", session)
    assert (gone.code, "SESSION_NOT_FOUND" in gone.err) == (2, True)
    assert on("sessions", "show", "only:two").code == 2


def test_SES_1_a_session_is_named_as_it_is_listed(on: Command) -> None:
    on("dispatch", "--agent", "echo", "--session", "odd:ad%3Aa:the:first", "hi")
    listed = on("sessions", "list", "--app", "odd").out
    assert "odd:ad%3Aa:the:first" in listed
    assert "ad:a" not in listed
    assert "hi" in on("sessions", "show", "odd:ad%3Aa:the:first").out
    assert on("sessions", "delete", "odd:ad%3Aa:the:first").out == "odd:ad%3Aa:the:first is forgotten\n"
    assert "'odd:ad:a:the:first'" in on("sessions", "show", "odd:ad%3Aa:the:first").err


def test_an_answer_is_not_given_by_mistake(on: Command) -> None:
    answer = on("input", "some-task")
    assert (answer.code, "`reach tasks show some-task` shows what is asked" in answer.err) == (2, True)
