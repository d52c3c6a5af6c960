"""The first section of the quickstart: an agent and a call with curl, from nothing, in under a minute.

The block is run as it is written, but for the ports. QUICKSTART=full also runs what comes before it, in a copy of the
tree: a virtual environment and `pip install`, which needs the network; else the installed package is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.processes import free_port

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("QUICKSTART") == "full"
MINUTE_S = 60.0
_BLOCK = re.compile(r"^<!-- minute: (\w+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(_BLOCK.findall((ROOT / "docs" / "quickstart.md").read_text("utf-8")))
AGENT = BLOCKS["run"].partition("<<'END'\n")[2].partition("END\n")[0]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell in a folder of its own, that is a copy of the tree where all is to be installed; what it leaves running
    is ended with it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_REACH_")}
    ports = {name: str(free_port()) for name in ("SERVER_PORT", "SERVER_ADMIN_PORT")}
    environment |= {f"AGENT_REACH_{name}": port for name, port in ports.items()}
    environment["AGENT_REACH_ADDR"] = f"127.0.0.1:{ports['SERVER_PORT']}"
    script = BLOCKS["run"].replace("localhost:8800", f"127.0.0.1:{ports['SERVER_ADMIN_PORT']}")
    assert script.count(ports["SERVER_ADMIN_PORT"]) == 1
    folder = tmp_path / "clone"
    if FULL:
        leave_out = shutil.ignore_patterns(".git", ".venv", "node_modules")
        shutil.copytree(ROOT, folder, ignore=leave_out)
        environment.pop("PYTHONPATH", None)
        script = BLOCKS["install"] + script
    else:
        folder.mkdir()
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with (tmp_path / "log").open("w") as log, (tmp_path / "printed").open("w") as printed:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=printed, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.e2e
@pytest.mark.timeout(90)
@pytest.mark.skipif(
    shutil.which("curl") is None, reason="NO CURL, SO THE FIRST EXAMPLE OF docs/quickstart.md IS NOT RUN"
)
def test_API_5_an_agent_and_a_call_with_curl_from_nothing_in_under_a_minute(
    shell: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    shell.wait(MINUTE_S)  # TimeoutExpired after that; what it leaves running goes on
    printed = (tmp_path / "printed").read_text()
    assert "agent_output" in printed, (tmp_path / "log").read_text()
    answer, promised = json.loads(printed[printed.index('{"') :]), json.loads(BLOCKS["prints"])
    for name in promised.keys() - {"task_id"}:
        assert answer[name] == promised[name]


def test_API_5_the_agent_has_ten_lines() -> None:
    compile(AGENT, "hello.py", "exec")
    assert len(AGENT.splitlines()) <= 10
