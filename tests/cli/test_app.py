"""`reach` itself: help, exit codes, and that every expected error is a line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import click
import pytest

from reach.cli import app
from reach.cli.exits import MEANINGS, Exit, exit_of
from reach.cli.settings import Settings, checked_address
from reach.errors import (
    AgentError,
    ErrorClass,
    Internal,
    InvalidRequest,
    Reason,
    ResourceExhausted,
    Timeout,
    Unavailable,
)
from reach.errors import error_of as make_error
from tests.cli.conftest import Command


def test_help_lists_the_commands_and_every_exit_code(reach: Command) -> None:
    ran = reach("--help")
    assert ran.code == 0
    for name in ("serve", "demo", "dispatch", "tail", "wait", "cancel", "tasks", "agents", "route", "keys", "version"):
        assert f"\n  {name} " in ran.out
    for code, meaning in MEANINGS.items():
        assert f"  {int(code)} " in ran.out
        assert meaning.split()[0] in ran.out
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize("name", sorted(app.reach.commands))
def test_every_command_has_help(reach: Command, name: str) -> None:
    ran = reach(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: reach {name}")
    command = app.reach.commands[name]
    for inner in getattr(command, "commands", {}):
        assert reach(name, inner, "--help").out.startswith(f"Usage: reach {name} {inner}")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from reach.cli.app import run; run(['--help']); "
        "heavy = {'grpc', 'google', 'rich', 'yaml', 'msgspec', 'sqlite3', 'asyncio', 'uvloop'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_class_of_errors_has_its_code() -> None:
    assert exit_of(InvalidRequest("")) is Exit.WRONG_REQUEST
    assert exit_of(ResourceExhausted("")) is Exit.EXHAUSTED
    assert exit_of(Unavailable("")) is Exit.UNREACHABLE
    assert exit_of(Timeout("")) is Exit.TIMEOUT
    assert exit_of(Internal("")) is Exit.INTERNAL
    assert exit_of(AgentError("")) is Exit.TASK_FAILED
    assert exit_of(make_error(ErrorClass.INVALID_REQUEST, Reason.UNAUTHENTICATED, "")) is Exit.DENIED
    assert exit_of(make_error(ErrorClass.INVALID_REQUEST, Reason.PERMISSION_DENIED, "")) is Exit.DENIED


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("dispatch", "--bogus"),
        ("dispatch", "text without a selector"),
        ("dispatch", "--agent", "a", "text", "--json-payload", "{}"),
        ("dispatch", "--agent", "a", "--json-payload", "{"),
        ("dispatch", "--agent", "a", "@/no/such/file"),
        ("dispatch", "--agent", "a", "--priority", "10"),
        ("dispatch", "--agent", "a", "--session", "a:b"),
        ("dispatch", "--agent", "a", "--output", "/no/such/folder/file"),
        ("agents", "list", "--addr", "http://x:1"),
        ("agents", "list", "--addr", "x:99999"),
        ("agents", "list", "--tls-ca", "/no/such/file"),
        ("agents", "list", "--tls-cert", __file__),
        ("keys", "create", "--app", "a"),
        ("serve", "--port", "x"),
    ],
)
def test_wrong_usage_is_2(reach: Command, arguments: tuple[str, ...]) -> None:
    ran = reach(*arguments)
    assert ran.code == Exit.WRONG_REQUEST
    assert "Error: " in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("command", ["agents list", "tasks show t", "cancel t", "version --server"])
def test_no_server_is_3_and_says_what_to_do(reach: Command, command: str) -> None:
    address = nobody()
    ran = reach(*command.split(), "--addr", address)
    assert ran.code == Exit.UNREACHABLE
    assert f"cannot reach Agent-Reach at {address}" in ran.err
    assert "`reach serve` starts a server" in ran.err


def test_the_port_of_http_is_told_with_what_to_do(reach: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            while True:
                try:
                    peer, _ = door.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(3)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        ran = reach("agents", "list", "--addr", f"127.0.0.1:{door.getsockname()[1]}")
        door.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert ran.code == Exit.UNREACHABLE
    assert "an HTTP server answers there: gRPC has a port of its own, 8900" in ran.err


def test_no_server_for_a_stream(reach: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.cli.settings.CONNECT_TIMEOUT_S", 0.3)
    monkeypatch.setenv("AGENT_REACH_ADDR", nobody())
    for command in (("dispatch", "--agent", "a", "x"), ("wait", "t"), ("tail", "t")):
        ran = reach(*command)
        assert ran.code == Exit.UNREACHABLE
        assert len(ran.err.splitlines()) == 2, ran.err


def test_errors_for_programs(reach: Command) -> None:
    ran = reach("agents", "list", "--json", "--addr", nobody())
    assert ran.out == ""
    error = json.loads(ran.err)["error"]
    assert error["class"] == "UNAVAILABLE"
    assert error["exit_code"] == ran.code == Exit.UNREACHABLE


def test_a_bug_is_7(reach: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Settings) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Settings, "connect", broken)
    ran = reach("agents", "list")
    assert ran.code == Exit.INTERNAL
    assert "please report it" in ran.err


def test_addresses() -> None:
    assert checked_address("") == ""
    assert checked_address(" h:1 ") == "h:1"
    assert checked_address("h") == "h:8900"
    assert checked_address("::1") == "[::1]:8900"
    assert checked_address("[::1]") == "[::1]:8900"
    assert checked_address("[::1]:5") == "[::1]:5"
    for text in ("http://h:1", "h:1/x", "h:0", "h:x", "h:", "a b:1"):
        with pytest.raises(click.UsageError):
            checked_address(text)


def test_options_may_stand_before_and_behind(monkeypatch: pytest.MonkeyPatch, reach: Command) -> None:
    seen: list[Settings] = []

    def connect(settings: Settings) -> None:
        seen.append(settings)
        raise Unavailable("enough")

    monkeypatch.setattr(Settings, "connect", connect)
    reach("--addr", "a:1", "--json", "agents", "list")
    reach("agents", "list", "--addr", "a:1", "--json")
    reach("--addr", "b:2", "agents", "list", "--addr", "a:1")
    monkeypatch.setenv("AGENT_REACH_ADDR", "a:1")
    reach("agents", "list")
    assert [one.address for one in seen] == ["a:1"] * 4
    assert [one.json for one in seen] == [True, True, False, False]


def test_agent_reads_as_well_as_agents(reach: Command) -> None:
    assert reach("agent", "echo", "--help").code == Exit.OK
    assert "\n  agent " not in reach("--help").out


def test_version(reach: Command) -> None:
    from reach.version import VERSION

    assert reach("version").out.startswith(f"reach {VERSION} ")
    assert reach("--version").out == f"reach {VERSION}\n"
    assert reach("version", "--json").data["version"] == VERSION


def test_a_reader_that_has_enough_is_no_error() -> None:
    code = f"{sys.executable} -m reach.cli config reference | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True, check=False)
    assert done.stdout == "# Configuration\n"
    assert done.stderr == ""


@pytest.mark.e2e
def test_ctrl_c_is_130() -> None:
    command = [sys.executable, "-m", "reach.cli", "dispatch", "--agent", "a", "x", "--addr", nobody()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    time.sleep(1.5)  # it is trying to connect by then, for 10 s; nothing it prints says when
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in err
