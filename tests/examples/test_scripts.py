"""The scripts in `examples/`: their handlers do what they show, and the README names every one of them."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from examples import call_agent, hello_agent, streaming_agent, sync_client
from reach import AgentError, Answer, InvalidRequest, Progress, Task

FOLDER = Path(hello_agent.__file__).parent


@dataclass
class FakeTask:
    """The parts of `Task` that the examples use."""

    text: str
    checkpoint: bytes = b""
    saved: list[bytes] = field(default_factory=list)

    def save_checkpoint(self, data: bytes) -> None:
        self.saved.append(data)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


def count(task: FakeTask) -> Iterator[Any]:
    return streaming_agent.count_words(cast(Task, task))


async def test_hello() -> None:
    assert await hello_agent.greet(cast(Task, FakeTask("Ada\n"))) == "Hello, Ada!"
    assert await hello_agent.greet(cast(Task, FakeTask(""))) == "Hello, world!"


def test_streaming_counts_and_saves() -> None:
    task = FakeTask("a b a\nb")
    assert list(count(task)) == [
        "line 1: 3 words\n",
        Progress(0.5, "line 1 of 2"),
        "line 2: 1 words\n",
        Progress(1.0, "line 2 of 2"),
        Answer({"words": 4, "most_common": [("a", 2), ("b", 2)]}),
    ]
    assert json.loads(task.saved[0]) == {"done": 1, "counts": {"a": 2, "b": 1}}


def test_the_next_attempt_goes_on_at_the_checkpoint() -> None:
    first = FakeTask("a b a\nb\nc")
    attempt = count(first)
    for _ in range(3):
        next(attempt)  # killed in line 2: line 1 is saved
    second = FakeTask(first.text, checkpoint=first.saved[-1])
    items = list(count(second))
    assert items[0] == "line 2: 1 words\n"
    assert items[-1] == Answer({"words": 5, "most_common": [("a", 2), ("b", 2), ("c", 1)]})


def test_streaming_errors() -> None:
    with pytest.raises(InvalidRequest):
        list(count(FakeTask("")))
    with pytest.raises(AgentError):
        list(count(FakeTask("\n \n")))


async def test_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(asyncio, "sleep", at_once)
    assert [piece async for piece in streaming_agent.spell(cast(Task, FakeTask("hi")))] == ["h-", "i-"]


def test_callers_are_there() -> None:
    assert inspect.iscoroutinefunction(call_agent.main)
    assert callable(sync_client.main)


def test_readme_names_all_files_and_all_agents() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    assert set(re.findall(r"\]\((\w+\.py)\)", text)) == {path.name for path in FOLDER.glob("*.py")}
    for name in ("summarizer", "report", "reviewer", "openai_adapter"):
        assert f"`reach.demo_agents.{name}`" in text
