"""The examples in Go and Java, built from stubs of the contract, against a real server (API-5).

Building them takes a minute or two and needs the network the first time, so this is asked for: `make examples`, or
OTHER_LANGUAGES=go,java. What is not here is skipped, loudly.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.plain import Plain
from tests.e2e.processes import Server, eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STUBS = ROOT / "tools" / "stubs.py"
WANTED = os.environ.get("OTHER_LANGUAGES", "").split(",")
SAID = "TASK_STATE_SUCCEEDED Hello, Ada!\nHello, Ada!\nTASK_STATE_SUCCEEDED\n"

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def ran(*command: str | Path, cwd: Path, seconds: float = 400) -> str:
    """What a program printed that ends well."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def build_go(out: Path) -> dict[str, list[str]]:
    """The stubs, and both programs."""
    ran(sys.executable, STUBS, "go", "--out", EXAMPLES / "go", cwd=ROOT)
    assert ran("gofmt", "-l", "agent", "caller", cwd=EXAMPLES / "go") == ""
    ran("go", "vet", "./...", cwd=EXAMPLES / "go")
    ran("go", "build", "-o", f"{out}/", "./agent", "./caller", cwd=EXAMPLES / "go")
    return {name: [str(out / name)] for name in ("agent", "caller")}


def build_java(out: Path) -> dict[str, list[str]]:
    """The stubs by Maven's plugin, and both programs."""
    path = out / "classpath"
    ran("mvn", "-q", "-B", "package", "dependency:build-classpath", f"-Dmdep.outputFile={path}", cwd=EXAMPLES / "java")
    java = ["java", "-cp", f"{EXAMPLES / 'java' / 'target' / 'classes'}:{path.read_text()}"]
    return {"agent": [*java, "example.HelloAgent"], "caller": [*java, "example.Caller"]}


BUILDS = {"go": ("go", build_go), "java": ("mvn", build_java)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with an empty store."""
    with Server(tmp_path / "data") as made:
        yield made


@pytest.mark.parametrize("language", BUILDS)
def test_API_5_an_agent_and_a_caller_from_stubs(language: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """They understand each other, the agent comes back after kill -9 of the server, and it leaves in peace."""
    tool, build = BUILDS[language]
    if language not in WANTED:
        pytest.skip(f"THE {language.upper()} EXAMPLE IS NOT BUILT HERE: `make examples`, or OTHER_LANGUAGES={language}")
    if shutil.which(tool) is None:
        pytest.skip(f"NO {tool}: THE {language.upper()} EXAMPLE IS NOT TESTED")
    programs = build(tmp_path)
    server = request.getfixturevalue("server")
    environment = {**os.environ, "AGENT_REACH_ADDR": server.address}
    agent = subprocess.Popen(programs["agent"], env=environment)
    try:
        with Plain(server.address) as plain:
            for _ in range(2):
                eventually(lambda: [one for one in plain.free() if f"hello-{language}@" in one], "it takes work")
                said = subprocess.run(
                    [*programs["caller"], "Ada"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert said.stdout == SAID, said.stderr
                server.restart()
            eventually(plain.free, "it takes work again")
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
            eventually(lambda: not plain.free(), "it has left")
    finally:
        agent.kill()
        agent.wait()


def test_what_the_examples_need_is_pinned() -> None:
    go = (EXAMPLES / "go" / "go.mod").read_text()
    assert "tool (" in go
    assert (EXAMPLES / "go" / "go.sum").exists()
    pom = (EXAMPLES / "java" / "pom.xml").read_text()
    assert pom.count("<plugin>") == pom.count("</plugin>") == 3
    assert "LATEST" not in pom
    assert "RELEASE" not in pom
