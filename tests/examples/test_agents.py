"""The demo agents as agents: what their handlers yield, return and raise, by the public names of the SDK only."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import pytest

import reach
from reach import AgentError, Answer, InvalidRequest, Progress, ResourceExhausted, Unavailable
from reach.demo_agents import openai_adapter, report, reviewer, summarizer
from tests.examples.fake_endpoint import DONE, Endpoint, delta, endpoint, reply, stream_head

MODULES = [summarizer, report, reviewer, openai_adapter]
TEXT = "Bees find flowers by colour and scent. The queen stays in the hive all day. Workers fly out for nectar."


class Recorder:
    """Stands in for `Agent`: keeps what it was made with, and its handlers."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self, agent_id: str, **options: Any) -> None:
        self.agent_id = agent_id
        self.options = options
        self.handlers: dict[str, Callable[[Any], Any]] = {}
        self.ran = False
        self.made.append(self)

    def route(self, method: str = "default") -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.handlers[method] = function
            return function

        return add

    def run(self) -> None:
        self.ran = True


@dataclass
class FakeTask:
    """The parts of `Task` that the agents use."""

    payload: bytes
    media_type: str = "text/plain"
    cancelled: bool = False


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr(reach, "Agent", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    monkeypatch.setenv("OPENAI_MODEL", "small")
    return Recorder


def handler(module: ModuleType, **options: Any) -> Callable[[FakeTask], Any]:
    agent: Any = module.build_agent(**options)
    handlers: dict[str, Callable[[FakeTask], Any]] = agent.handlers
    assert handlers["default"] is handlers["task.process"]
    return handlers["default"]


def as_json(value: object) -> FakeTask:
    return FakeTask(json.dumps(value).encode(), "application/json")


@pytest.mark.parametrize("module", MODULES)
def test_all_agents_are_built_alike(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_MODEL", "small")
    agent = module.build_agent("127.0.0.1:1", agent_id="mine", instance_id="mine-1", max_concurrency=2)
    assert isinstance(agent, reach.Agent)
    assert (agent.agent_id, agent.instance_id) == ("mine", "mine-1")
    assert module.build_agent().agent_id == module.AGENT_ID


@pytest.mark.parametrize("module", MODULES)
def test_main_runs_the_agent_of_its_arguments(module: ModuleType, recorder: type[Recorder]) -> None:
    module.main(["--addr", "h:1", "--agent-id", "a", "--instance-id", "a-1", "--max-concurrency", "9"])
    (agent,) = recorder.made
    assert agent.ran
    assert agent.agent_id == "a"
    options = agent.options
    assert (options["addr"], options["instance_id"], options["max_concurrency"]) == ("h:1", "a-1", 9)
    assert options["agent_type"]
    assert options["capabilities"]


@pytest.mark.parametrize("module", MODULES)
def test_help_names_the_agent(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    assert "--instance-id" in capsys.readouterr().out


@pytest.mark.usefixtures("recorder")
class TestSummarizer:
    def test_progress_then_sentences(self) -> None:
        function = handler(summarizer)
        assert inspect.isgeneratorfunction(function)
        items = list(function(FakeTask(TEXT.encode())))
        assert items[0] == Progress(0.8, "scored part 1 of 1")
        assert "".join(items[1:]) == TEXT.replace(". ", ".\n") + "\n"

    def test_number_of_sentences(self) -> None:
        items = list(handler(summarizer)(as_json({"text": TEXT, "sentences": 1})))
        assert len(items) == 2

    @pytest.mark.parametrize(
        "task", [FakeTask(b""), FakeTask(b"\xff"), as_json({"text": TEXT, "sentences": 0}), as_json([])]
    )
    def test_wrong_requests(self, task: FakeTask) -> None:
        with pytest.raises(InvalidRequest):
            list(handler(summarizer)(task))

    def test_pace_waits_before_each_sentence_and_ends_at_once_when_cancelled(self) -> None:
        began = time.perf_counter()
        list(handler(summarizer, pace=0.05)(FakeTask(TEXT.encode())))
        assert 0.15 <= time.perf_counter() - began < 5
        began = time.perf_counter()
        list(handler(summarizer, pace=30)(FakeTask(TEXT.encode(), cancelled=True)))
        assert time.perf_counter() - began < 5

    def test_pace_is_an_argument(self) -> None:
        summarizer.main(["--pace", "0.2"])


@pytest.mark.usefixtures("recorder")
class TestReport:
    def test_markdown_and_json(self) -> None:
        function = handler(report)
        found = function(FakeTask(b"revenue by year"))
        assert isinstance(found, Answer)
        assert found.media_type == "text/markdown"
        assert "| year | revenue (EUR) |" in found.data
        found = function(as_json({"question": "revenue by year", "format": "json"}))
        assert found.data["columns"] == ["year", "revenue in cents"]

    def test_unclear_question(self) -> None:
        with pytest.raises(InvalidRequest, match="What I understand:"):
            handler(report)(FakeTask(b"what is the meaning of it"))

    def test_own_csv(self, tmp_path: Any, recorder: type[Recorder], capsys: pytest.CaptureFixture[str]) -> None:
        orders = tmp_path / "o.csv"
        orders.write_text("order_id,date,region,product,quantity,unit_price,returned\n1,2024-01-01,N,P,2,1.50,no\n")
        report.main(["--csv", str(orders), "--db", str(tmp_path / "o.db")])
        assert "EUR 3.00" in recorder.made[-1].handlers["default"](FakeTask(b"revenue")).data
        orders.write_text("nonsense\n")
        with pytest.raises(SystemExit):
            report.main(["--csv", str(orders)])
        assert "cannot make the database: expected the columns" in capsys.readouterr().err


@pytest.mark.usefixtures("recorder")
class TestReviewer:
    def test_findings_and_summary_are_streamed(self) -> None:
        items = list(handler(reviewer)(FakeTask(b"import os\n\nx = f'a'\n\n")))
        advice = "Drop the f, or put in the value that is missing."
        assert items == [
            "line 1, column 8: unused-import: os is imported but never used. Remove it.\n",
            Progress(0.25, "line 1 of 4"),
            f"line 3, column 5: f-string-without-placeholder: Nothing is put into this f-string. {advice}\n",
            Progress(0.75, "line 3 of 4"),
            "2 findings in 4 lines: 1 unused-import, 1 f-string-without-placeholder.\n",
        ]

    def test_json_ends_in_one_document(self) -> None:
        *deltas, last = handler(reviewer)(as_json({"source": "import os\n", "format": "json"}))
        assert json.loads(deltas[0])["rule"] == "unused-import"
        assert isinstance(last, Answer)
        assert last.data["summary"]["by_rule"] == {"unused-import": 1}

    def test_syntax_error_is_a_business_failure_with_its_place(self) -> None:
        with pytest.raises(AgentError, match="line 2, column 5"):
            list(handler(reviewer)(FakeTask(b"x = 1\ny = (\n")))

    def test_wrong_request(self) -> None:
        with pytest.raises(InvalidRequest):
            list(handler(reviewer)(as_json({"sauce": "x"})))


def chat(server: Endpoint, **options: Any) -> Iterator[Any]:
    settings = openai_adapter.Settings.from_environment({"OPENAI_MODEL": "m", "OPENAI_BASE_URL": server.url}, 5.0)
    items: Iterator[Any] = handler(openai_adapter, settings=settings)(FakeTask(b"Hi", **options))
    return items


@pytest.mark.usefixtures("recorder")
class TestOpenAiAdapter:
    def test_deltas(self) -> None:
        with endpoint(stream_head(), delta("Hel"), delta("lo", "stop"), DONE) as server:
            assert list(chat(server)) == ["Hel", "lo"]

    def test_length_is_told_as_progress(self) -> None:
        with endpoint(stream_head(), delta("Hel", "length"), DONE) as server:
            assert list(chat(server))[1] == Progress(1.0, "the answer reached the limit of tokens and ends early")

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ([reply("429 Slow Down", b"{}", "Retry-After: 2")], ResourceExhausted),
            ([reply("503 Gone Fishing")], Unavailable),
            ([stream_head(), delta("half")], Unavailable),
            ([b""], Unavailable),
            ([reply("400 Bad Request")], InvalidRequest),
            ([stream_head(), delta("x", "content_filter"), DONE], AgentError),
        ],
    )
    def test_errors_are_those_of_the_sdk(self, answer: list[bytes], error: type[reach.ReachError]) -> None:
        with endpoint(*answer) as server, pytest.raises(error) as caught:
            list(chat(server))
        assert caught.value.retry_after_ms == (2000 if error is ResourceExhausted else None)

    def test_wrong_request(self) -> None:
        with endpoint() as server, pytest.raises(InvalidRequest):
            list(handler(openai_adapter)(as_json({"prompt": 5})))
        assert server.requests == []

    def test_a_cancelled_task_closes_the_connection(self) -> None:
        with endpoint(stream_head(), delta("a"), delta("b"), hang=True) as server:
            assert list(chat(server, cancelled=True)) == []
            assert server.closed_by_client.wait(5)

    def test_without_a_model_it_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("OPENAI_MODEL")
        with pytest.raises(SystemExit) as ended:
            openai_adapter.main([])
        assert ended.value.code == 2
        assert "OPENAI_MODEL is not set" in capsys.readouterr().err
