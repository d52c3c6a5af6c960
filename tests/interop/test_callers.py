"""Frameworks that nobody here wrote call our agents over A2A, from nothing but the URL of a card (API-3).

Not part of CI's run, which has none of them: `make interop`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.plain import Plain
from tests.e2e.processes import AgentProcess, Server, eventually, tell
from tests.interop.frameworks import FRAMEWORKS, Framework

pytestmark = pytest.mark.e2e

ECHO = """\
from collections.abc import AsyncIterator
from reach import Agent, Task

agent = Agent("echoer", capabilities=["echoing"])

@agent.route()
async def echo(task: Task) -> AsyncIterator[str]:
    before = [turn.request.text for turn in task.context.turns] if task.context else []
    yield " | ".join([*before, ""]).lstrip()
    for word in task.text.split():
        yield f"{word} "

agent.run()
"""


@pytest.fixture(params=[one for one in FRAMEWORKS if one.caller.exists()], ids=lambda one: one.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    """Each of them that is installed and calls."""
    one: Framework = request.param
    if not one.python.exists():
        pytest.skip(f"{one.name} is not installed: python -m tests.interop.frameworks {one.name}")
    return one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with one agent."""
    program = tmp_path / "echoer.py"
    program.write_text(ECHO)
    with Server(tmp_path / "data") as made, Plain(made.address) as plain:

        class Echoer(AgentProcess):
            script = str(program)

        with Echoer(made.address, tmp_path / "log", environment={"AGENT_REACH_ADDR": made.address}):
            eventually(plain.free, "the agent takes work")
            yield made
        assert not made.tracebacks()


def test_API_3_a_framework_calls_an_agent_and_goes_on_with_its_conversation(
    framework: Framework, server: Server
) -> None:
    url = f"http://127.0.0.1:{server.admin_port}/a2a/t.echoer"
    command = [str(framework.python), "-W", "ignore", str(framework.caller), url, "my name is Ada", "who am I"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    tell(f"{framework.name}: {told}")
    assert "echoer" in told["card"]
    answers = [" ".join(one.split()) for one in told["answers"]]
    assert answers[0] == "my name is Ada"
    assert answers[1].endswith("who am I")
    if framework.name != "strands":  # each call of Strands is a conversation of its own
        assert answers[1] == "my name is Ada | who am I"
