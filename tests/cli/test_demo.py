"""`reach demo` end to end: everything works, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The demo, with a folder of its own for temporary files, so that its processes can be told from others."""
    elsewhere = {"TMPDIR": str(folder), "AGENT_REACH_ADDR": "127.0.0.1:1", "AGENT_REACH_API_KEY": "not-for-it"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "reach.cli", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **elsewhere},
    )


def left_behind(folder: Path) -> list[str]:
    """Files and processes of a demo. Its processes have its folder in their environment."""
    found = [path.name for path in folder.iterdir() if path.name.startswith("reach-demo-")]
    mark = f"TMPDIR={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_the_demo(tmp_path: Path) -> None:
    began = time.monotonic()
    out, err = start(tmp_path, "--json").communicate(timeout=60)
    took = time.monotonic() - began
    figures = json.loads(out)
    assert err == ""
    assert list(figures) == ["tasks", "succeeded", "failed", "lost", "transfers", "p50_ms", "p95_ms"]
    assert figures["tasks"] == figures["succeeded"] >= 8
    assert (figures["failed"], figures["lost"]) == (0, 0)
    assert figures["transfers"] >= 1
    assert 0 < figures["p50_ms"] <= figures["p95_ms"] < 30_000
    assert took < 30
    assert not left_behind(tmp_path)


def test_the_demo_for_people_with_files_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(" ".join(f"Note {number} is about reach and agents." for number in range(20)))
    (tmp_path / "code.py").write_text("def f(x=[]):\n    return x\n")
    (tmp_path / "grpc.py").write_text("raise SystemExit('a file of the working folder was taken for a module')\n")
    process = start(tmp_path, "notes.md", "code.py")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "SIGKILL to doc-summarizer-" in out
    assert "✗ attempt 1 lost: INSTANCE_LOST" in out
    assert "→ attempt 2, doc-summarizer-" in out
    assert "mutable" in out
    assert "6 tasks: 6 succeeded, 0 failed, 0 lost; 1 moved to another instance" in out
    assert "\x1b" not in out
    assert not left_behind(tmp_path)


def test_a_task_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    process = start(tmp_path, "--json", "broken.py")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out)["failed"] == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("line", ["▸ server at", "▸ SIGKILL"])
def test_it_cleans_up_when_it_is_interrupted(tmp_path: Path, number: signal.Signals, code: int, line: str) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    while not process.stdout.readline().startswith(line):
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not left_behind(tmp_path)


def test_keep(tmp_path: Path) -> None:
    process = start(tmp_path, "--keep")
    assert process.stderr is not None
    while "AGENT_REACH_ADDR=" not in (text := process.stderr.readline()):
        assert process.poll() is None
    address = text.strip().rpartition("=")[2]
    command = [sys.executable, "-m", "reach.cli", "--addr", address, "--json", "agents", "list"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["agents"]
    assert "order-reports-1" in {agent["registration"]["instance_id"] for agent in listed}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert not left_behind(tmp_path)
