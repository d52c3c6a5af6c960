"""A2A agents that nobody here wrote: adopted, given tasks, streamed from, killed, and failed over with their history.

Not part of CI's run, which has none of them: `python -m tests.interop.frameworks` makes their environments.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentreach.v1 import agent_pb2, registry_pb2, result_pb2, task_pb2
from tests.e2e.plain import DEADLINE, Plain, spec
from tests.e2e.processes import Server, eventually, tell
from tests.e2e.reading import Text
from tests.interop.frameworks import FRAMEWORKS, Framework

pytestmark = pytest.mark.e2e

START_SECONDS = 60.0
"""Some of them take ten seconds to be imported."""
SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
SESSION = {"app_id": "shop", "user_id": "ada", "session_id": "1"}


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Plain]:
    """A server and stubs for it."""
    with Server(tmp_path / "data") as server, Plain(server.address) as made:
        yield made
        assert not server.tracebacks()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


@pytest.fixture(params=FRAMEWORKS, ids=lambda one: one.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    """Each of them that is installed."""
    one: Framework = request.param
    if not one.python.exists():
        pytest.skip(f"{one.name} is not installed: python -m tests.interop.frameworks {one.name}")
    return one


@pytest.fixture
def start(framework: Framework, tmp_path: Path) -> Iterator[Start]:
    """Starts an agent of it; (process, URL)."""
    made: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> tuple[subprocess.Popen[bytes], str]:
        port = free_port()
        with (tmp_path / f"agent-{port}.out").open("wb") as output:
            command = [str(framework.python), str(framework.agent), "--port", str(port), *arguments]
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            made.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))

        def listens() -> bool:
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, f"{framework.name} listens", START_SECONDS)
        return made[-1], f"http://127.0.0.1:{port}/"

    yield run
    for process in made:
        process.kill()
        process.wait()


def adopted(plain: Plain, card_url: str, agent_id: str) -> str:
    """Adopts it; its instance id, once it takes work."""
    terms = agent_pb2.AdoptionTerms(card_url=card_url, agent_id=agent_id, agent_type="worker", max_concurrency=4)
    registration = plain.call(plain.registry.Adopt, registry_pb2.AdoptRequest(terms=terms)).registration
    instance: str = registration.instance_id
    card = registration.endpoints[0].card
    tell(f"{agent_id}: {card.binding} of A2A {card.protocol_version}, streams: {card.streaming}")
    eventually(lambda: instance in plain.free(), f"{instance} takes work")
    return instance


def read(plain: Plain, task_id: str, at: str = "", then: Callable[[], object] = bool) -> Text:
    """Follows a task to its end; does something when its text, or its latest note, is `at`: ADK streams notes."""
    text, done, note = Text(), False, ""
    for frame in plain.call(plain.results.StreamResult, result_pb2.StreamResultRequest(task_id=task_id)):
        for event in frame.events:
            text.add(event)
            note = event.progress.note or note
        if at and at in (text.value, note) and not done:
            done = True
            then()
    return text


def test_API_3_a_framework_is_adopted_streamed_from_killed_and_failed_over(
    framework: Framework, plain: Plain, start: Start
) -> None:
    process, url = start()
    one = adopted(plain, url, "one")
    first = plain.dispatch(spec("", "my name is Ada", session=SESSION), DEADLINE).result
    assert (first.state, first.output.text) == (SUCCEEDED, "heard my name is Ada")
    second = plain.dispatch(spec("", "who am I", session=SESSION), DEADLINE).result
    # It remembers, in its own context: nothing is said twice.
    assert second.output.text == "heard my name is Ada | who am I"
    other = adopted(plain, start("--go")[1], "other")
    plain.dispatch(spec("", "hold", "held", session=SESSION))
    killed = []

    def kill() -> None:
        process.kill()
        process.wait()
        killed.append(time.monotonic())

    text = read(plain, "held", "heard ", kill)
    took_ms = (time.monotonic() - killed[0]) * 1_000
    result = plain.result("held")
    assert (result.state, result.instance_id, text.attempts) == (SUCCEEDED, other, {1, 2})
    assert text.value == result.output.text
    assert "my name is Ada" in text.value
    assert text.value.endswith("hold")
    tell(f"{framework.name}: streamed, killed, and answered by another {took_ms:.0f} ms later: {text.value!r}")
    assert one not in plain.free()
