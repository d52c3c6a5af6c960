"""Every example in the documents runs, against a real server, in the order of the page.

A comment in front of a block says what it is:

    <!-- example: agent NAME -->          an agent; started, and used by what follows. `= PATH`: the block is that file
    <!-- example: script -->              a program that ends
    <!-- example: output -->              what the program before printed
    <!-- example: shell -->               commands that end well
    <!-- example: fragment -->            Python that is no program by itself; it must compile
    <!-- example: file NAME -->           a file of rules: skills.yaml, routes.yaml; the server of the page has it, and
                                          `$RULES` is its folder

A Python block without a comment is an error: nobody would notice when it breaks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reach.testing.server import LocalServer

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md", "docs/routing.md", "docs/a2a.md"]
RULES = {
    "skills.yaml": "AGENT_REACH_ROUTER_VOCABULARY_FILE",
    "routes.yaml": "AGENT_REACH_ROUTER_ROUTES_FILE",
}
_BLOCK = re.compile(
    r"^(?:<!-- example: (?P<kind>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(slots=True)
class Block:
    """One block of a page."""

    kind: str
    language: str
    body: str


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    return [Block(found["kind"] or "", found["language"], found["body"]) for found in _BLOCK.finditer(text)]


@pytest.fixture
def server(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """A server of its own for each page, with the rules of the page."""
    for name in list(os.environ):
        if name.startswith("AGENT_REACH_"):
            monkeypatch.delenv(name)
    files = {}
    for block in blocks_of(page):
        if block.kind.startswith("file "):
            name = block.kind.removeprefix("file ")
            files[RULES[name]] = str(tmp_path / name)
            (tmp_path / name).write_text(block.body)
    with LocalServer(environment=files) as made:
        yield made


class Page:
    """Runs the blocks of one page."""

    def __init__(self, server: LocalServer, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "AGENT_REACH_ADDR": server.address, "PATH": path, "RULES": str(folder)}
        self.environment["REACH_HTTP"] = f"http://127.0.0.1:{server.admin_port}"
        self.folder = folder
        self.agents: list[subprocess.Popen[bytes]] = []
        self.printed = ""

    def run(self, block: Block) -> None:
        """Runs one block."""
        kind, _, rest = block.kind.partition(" ")
        if kind == "agent":
            name, _, file = rest.partition(" = ")
            if file:
                assert block.body == (ROOT / file).read_text("utf-8"), f"the block is not {file}"
            self.start(name, block.body)
        elif kind == "script":
            self.printed = self.ended([sys.executable, "-c", block.body])
        elif kind == "output":
            assert self.printed == block.body
        elif kind == "shell":
            self.ended(["bash", "-euo", "pipefail", "-c", block.body])
        elif kind == "fragment":
            compile(block.body, "fragment", "exec")
        elif kind != "file":
            assert not kind, f"unknown kind of example: {kind}"
            assert block.language != "python", f"say what this example is:\n{block.body}"

    def ended(self, command: list[str]) -> str:
        """What a command printed; it must end well."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=ROOT, timeout=30, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, agent_id: str, body: str) -> None:
        """Starts an agent and waits until it takes work."""
        file = self.folder / f"{agent_id}.py"
        file.write_text(body)
        self.agents.append(subprocess.Popen([sys.executable, str(file)], env=self.environment, cwd=ROOT))
        end = time.monotonic() + 20
        while self.agents[-1].poll() is None and time.monotonic() < end:
            found = subprocess.run(
                ["reach", "agents", "list", "--agent", agent_id], capture_output=True, text=True, env=self.environment,
                check=True,
            )  # fmt: skip
            if re.search(r" yes$", found.stdout.strip()):
                return
        raise AssertionError(f"agent {agent_id} did not join")

    def end(self) -> None:
        """Ends what was started."""
        for agent in self.agents:
            agent.kill()
            agent.wait()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs(page: str, server: LocalServer, tmp_path: Path) -> None:
    running = Page(server, tmp_path)
    try:
        for block in blocks_of(page):
            running.run(block)
    finally:
        running.end()


def test_the_readme_has_the_exit_codes_and_all_commands() -> None:
    from reach.cli.app import reach
    from reach.cli.exits import MEANINGS

    text = (ROOT / "README.md").read_text("utf-8")
    for code, meaning in MEANINGS.items():
        assert f"| {int(code)} | {meaning} |" in text
    for name in reach.commands:
        if name != "version":
            assert re.search(rf"`{name}[` ]|reach {name} |reach {name}$|make {name}", text, re.MULTILINE), name
