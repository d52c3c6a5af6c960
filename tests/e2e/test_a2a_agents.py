"""A2A agents as real processes: adopted by the command line, killed, and at work while the server is killed (API-3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentreach.v1 import agent_pb2, dispatch_pb2, registry_pb2, result_pb2, task_pb2
from tests.e2e.nodes import Nodes
from tests.e2e.plain import DEADLINE, Plain, spec
from tests.e2e.processes import Server, eventually, tell
from tests.e2e.reading import Text

pytestmark = pytest.mark.e2e

ALL = os.environ.get("A2A") == "all"
"""CI takes one binding; A2A=all all of them, and a cluster."""
BINDINGS = ["JSONRPC", "HTTP+JSON", "GRPC"] if ALL else ["GRPC"]

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
SESSION = {"app_id": "shop", "user_id": "ada", "session_id": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that looks for agents that are gone more often than usual."""
    names = ("INTERVAL", "RETRY_INTERVAL", "UNREACHABLE_INTERVAL")
    with Server(tmp_path / "data", {f"AGENT_REACH_PROBE_{name}": "0.5" for name in names}) as made:
        yield made
        assert not made.tracebacks()


class A2aProcess:
    """One process of tests/a2a_agent.py: the a2a-sdk's own server and a plain executor."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.a2a_agent", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self.card_url: str = json.loads(self._process.stdout.readline())["card_url"]

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Start = Callable[..., A2aProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts agents, and ends them after the test."""
    made: list[A2aProcess] = []

    def run(*arguments: str) -> A2aProcess:
        made.append(A2aProcess(*arguments))
        return made[-1]

    yield run
    for one in made:
        one.kill()


def adopted(plain: Plain, agent: A2aProcess, **terms: Any) -> str:
    """Adopts it; its instance id, once it takes work."""
    terms = {"card_url": agent.card_url, "agent_type": "worker", "max_concurrency": 4, **terms}
    request = registry_pb2.AdoptRequest(terms=agent_pb2.AdoptionTerms(**terms))
    answer = plain.call(plain.registry.Adopt, request)
    instance: str = answer.registration.instance_id
    eventually(lambda: instance in plain.free(), f"{instance} takes work")
    return instance


def say(text: str, task_id: str = "", **fields: Any) -> task_pb2.TaskSpec:
    return spec("", text, task_id, **fields)


def test_API_3_reach_adopt(server: Server, plain: Plain, start: Start) -> None:
    agent = start("--binding", "HTTP+JSON", "--name", "The Helper")

    def reach(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reach.cli", "--addr", server.address, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=os.environ, check=False)

    ran = reach("adopt", agent.card_url, "--type", "helpers", "--tag", "a2a", "--label", "team=blue")
    assert ran.returncode == 0, ran.stderr
    assert "HTTP+JSON of A2A 1.0, streams" in ran.stdout
    name = eventually(plain.free, "it takes work")[0]
    assert name.startswith("the-helper@127.0.0.1:")
    assert reach("dispatch", "--type", "helpers", "--tag", "a2a", "words 3").stdout.strip() == "w0 w1 w2"
    assert reach("dispatch", "--capability", "obey", "said hi").stdout.strip() == "hi"
    shown = reach("agents", "show", name).stdout
    assert "1.0, HTTP+JSON, streams" in shown
    assert f"{agent.card_url}, read" in shown
    assert reach("agents", "remove", name).stdout == f"{name} is removed\n"
    assert name not in plain.agents()
    missing = reach("adopt", "http://127.0.0.1:1/")
    assert missing.returncode == 2
    assert "connection attempts failed" in missing.stderr


def seen(plain: Plain, text: str) -> tuple[str, list[list[str]]]:
    """(who answers, what its context has heard)"""
    result = plain.dispatch(say(text, session=SESSION), DEADLINE).result
    assert result.state == SUCCEEDED, result
    return result.instance_id, json.loads(result.output.text)["context"]


@pytest.mark.parametrize("binding", BINDINGS)
def test_API_3_a_killed_agents_task_and_context_go_to_another(plain: Plain, start: Start, binding: str) -> None:
    first = start("--binding", binding)
    one = adopted(plain, first, agent_id="one")
    assert plain.dispatch(say("my name is Ada", session=SESSION), DEADLINE).result.instance_id == one
    other = adopted(plain, start("--binding", binding, "--go"), agent_id="other")
    assert seen(plain, "seen it") == (one, [["my name is Ada"], ["seen it"]])
    plain.dispatch(say("hold", "held", session=SESSION))
    request = result_pb2.StreamResultRequest(task_id="held")
    text, ended = Text(), 0.0
    for frame in plain.call(plain.results.StreamResult, request):
        for event in frame.events:
            text.add(event)
        if text.value == "begun " and not ended:
            first.kill()
            ended = time.monotonic()
    took = time.monotonic() - ended
    assert (text.value, text.attempts) == ("begun ended", {1, 2})
    assert plain.result("held").instance_id == other
    tell(f"{binding}: answered {took * 1_000:.0f} ms after kill -9 of the first")
    who, (heard, now) = seen(plain, "seen all")
    assert who == other
    assert heard[:3] == ["The user said before: my name is Ada", "Agent one said before: my name is Ada",
                         "The user said before: seen it"]  # fmt: skip
    assert heard[-1] == "hold"
    assert now == ["seen all"]


def test_API_3_an_adoption_and_its_work_outlive_the_server(server: Server, plain: Plain, start: Start) -> None:
    one = adopted(plain, start(), agent_id="one")
    plain.dispatch(say("nap 3", "napping", session=SESSION))
    plain.dispatch(say("ask colour", "asking"))
    eventually(lambda: plain.get("asking").state == task_pb2.TASK_STATE_WAITING, "it asks")
    eventually(lambda: plain.get("napping").state == task_pb2.TASK_STATE_RUNNING, "it runs")
    server.restart()
    with Plain(server.address) as again:
        eventually(lambda: one in again.free(), "it is dialled again")
        answer = dispatch_pb2.SendInputRequest(task_id="asking", input_id="1")
        answer.payload.text = "said blue"
        again.call(again.dispatching.SendInput, answer)
        assert again.result("asking").output.text == "blue"
        result = again.result("napping")
        assert (result.state, result.output.text, result.attempts) == (SUCCEEDED, "rested", 1)
        heard = json.loads(again.dispatch(say("told"), DEADLINE).result.output.text)
        assert heard == {"nap 3": 1, "ask colour": 1, "said blue": 1, "told": 1}  # nothing was begun twice


def test_API_3_an_agent_that_comes_back_gets_the_history_again(plain: Plain, start: Start) -> None:
    first = start()
    one = adopted(plain, first)
    assert plain.dispatch(say("my name is Ada", session=SESSION), DEADLINE).result.instance_id == one
    first.kill()
    eventually(lambda: one not in plain.free(), "it is gone")
    start("--port", first.card_url.rstrip("/").rpartition(":")[2])
    eventually(lambda: one in plain.free(), "it is back")
    who, (heard,) = seen(plain, "seen all")
    assert (who, heard[0]) == (one, "The user said before: my name is Ada")


@pytest.mark.skipif(not ALL, reason="A2A=all: takes 15 s")
def test_API_3_an_adoption_moves_with_its_shard(nodes: Nodes, start: Start) -> None:
    agent = start()
    stubs = {name: Plain(node.address) for name, node in nodes.all.items()}
    owner, other = "a", "b"
    agent_type = nodes.type_at(owner)
    one = adopted(stubs[other], agent, agent_type=agent_type)  # by a node that does not own it
    stubs[other].dispatch(say("nap 6", "napping", agent_type=agent_type))
    eventually(lambda: stubs[other].get("napping").state == task_pb2.TASK_STATE_RUNNING, "it runs")
    nodes.all[owner].kill()
    left = stubs[other]
    result = left.result("napping", 60)
    assert (result.state, result.output.text, result.attempts) == (SUCCEEDED, "rested", 1)
    assert one in left.free()
    heard = json.loads(left.dispatch(say("told", agent_type=agent_type), DEADLINE).result.output.text)
    assert heard == {"nap 6": 1, "told": 1}
    for stub in stubs.values():
        stub.channel.close()


@pytest.mark.skipif(not ALL, reason="A2A=all: has another server")
def test_API_3_another_fleet_is_adopted_as_one_agent(plain: Plain, tmp_path: Path) -> None:
    with Server(tmp_path / "far") as far, Plain(far.address) as there, ExitStack() as stack:
        command = [sys.executable, "-m", "reach.cli", "agents", "echo", "--addr", far.address, "--agent-id", "echo"]
        echo = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        stack.callback(echo.kill)
        eventually(there.free, "its agent takes work")
        card_url = f"http://127.0.0.1:{far.admin_port}/a2a/t.echo/.well-known/agent-card.json"
        terms = agent_pb2.AdoptionTerms(card_url=card_url, agent_type="far")
        name = plain.call(plain.registry.Adopt, registry_pb2.AdoptRequest(terms=terms)).registration.instance_id
        eventually(lambda: name in plain.free(), "it takes work")
        result = plain.dispatch(spec("", "hello", agent_type="far"), DEADLINE).result
        assert (result.state, result.output.text) == (SUCCEEDED, "hello")
        assert not far.tracebacks()
