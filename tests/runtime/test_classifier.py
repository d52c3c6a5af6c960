"""The model that sorts what nothing else matches (RTE-5): time-boxed, cached, bounded, guarded."""

import asyncio
import time

import pytest

from reach.core.model import PoolKey
from reach.core.resolving import Selector
from reach.runtime import classifier as module
from reach.runtime.chat import ChatEndpoint, ChatError
from reach.runtime.classifier import Classifier
from reach.runtime.clock import Clock
from tests.core.harness import profile
from tests.core.test_classified import directory_with, document
from tests.runtime.endpoint import Endpoint


class Answers:
    """Says what it is told to say."""

    def __init__(self, answer="refunds", seconds=0.0):
        self.answer, self.seconds = answer, seconds
        self.asked = []
        self.fails = False

    def ask(self, system, user, *, temperature, max_tokens):
        self.asked.append(user)
        time.sleep(self.seconds)
        if self.fails:
            raise ChatError("told so")
        return self.answer


@pytest.fixture
async def made():
    stops = []

    def make(model, wait_ms=2_000, **tenants):
        directory = directory_with(**(tenants or {"acme": ["refunds", "images"]}))
        one = Classifier(directory, model, Clock(), wait_ms)
        stops.append(one)
        return one, directory

    yield make
    for one in stops:
        one.stop()


async def ask(classifier, text, tenant="acme"):
    """(whether it had to wait, for how many seconds)"""
    begun, done = time.monotonic(), asyncio.Event()
    waits = classifier.ask(tenant, Selector(text=text), done.set)
    if waits:
        await asyncio.wait_for(done.wait(), 5)
    return waits, time.monotonic() - begun


async def test_RTE_5_a_text_that_nothing_matches_is_classified_once(made):
    model = Answers()
    classifier, directory = made(model)
    assert (await ask(classifier, "I want my money"))[0]
    assert classifier.classified_of("acme", "I want my money") == "refunds"
    assert not directory.unmatched("acme", Selector(text="I want my money"))
    assert not (await ask(classifier, "I want my money"))[0]
    assert len(model.asked) == 1
    assert "- refunds: knows refunds" in model.asked[0]
    assert model.asked[0].endswith('"I want my money"')


async def test_RTE_5_what_words_match_is_never_asked(made):
    model = Answers()
    classifier, _ = made(model)
    assert not (await ask(classifier, "refunds please"))[0]
    assert model.asked == []


async def test_GOV_1_a_tenant_is_offered_what_it_may_call_and_no_more(made):
    model = Answers("secrets")
    classifier, _ = made(model, acme=["refunds"], other=["secrets"])
    await ask(classifier, "I want my money")
    assert "secrets" not in model.asked[0]
    assert classifier.classified_of("acme", "I want my money") == ""
    assert not (await ask(classifier, "hm", "nobody"))[0], "nothing to offer, nothing to ask"


async def test_RTE_5_none_is_kept_until_there_is_another_capability(made):
    model = Answers("NONE")
    classifier, directory = made(model)
    await ask(classifier, "I want my gold")
    assert not (await ask(classifier, "I want my gold"))[0]
    new = document("money", "pays", "acme2")
    directory.add(PoolKey("acme", "u"), "n", profile("n", documents=(new,), capabilities=(("money", ""),)))
    model.answer = "money"
    await ask(classifier, "I want my gold")
    assert classifier.classified_of("acme", "I want my gold") == "money"


async def test_RTE_5_a_slow_model_holds_a_task_up_for_its_time_only_and_its_answer_is_there_for_the_next(made):
    model = Answers(seconds=0.4)
    classifier, _ = made(model, wait_ms=50)
    waited, seconds = await ask(classifier, "I want my money")
    assert waited
    assert seconds < 0.3
    assert classifier.classified_of("acme", "I want my money") == ""
    await asyncio.sleep(0.6)
    assert classifier.classified_of("acme", "I want my money") == "refunds"


async def test_RTE_5_tasks_with_one_text_ask_once(made):
    model = Answers(seconds=0.05)
    classifier, _ = made(model)
    await asyncio.gather(*(ask(classifier, "I want my money") for _ in range(20)))
    assert len(model.asked) == 1


async def test_RTE_5_a_model_that_fails_is_left_alone_for_a_while(made, caplog):
    model = Answers()
    model.fails = True
    classifier, _ = made(model)
    await ask(classifier, "one thing")
    await ask(classifier, "another thing")
    assert len(model.asked) == 1
    assert [record.getMessage() for record in caplog.records] == ["texts are not classified: told so"]


async def test_RTE_5_no_more_texts_wait_than_allowed_and_no_more_answers_are_kept(made, monkeypatch):
    monkeypatch.setattr(module, "AHEAD", 3)
    monkeypatch.setattr(module, "TEXTS", 2)
    model = Answers(seconds=0.05)
    classifier, _ = made(model)
    waited = await asyncio.gather(*(ask(classifier, f"thing {number}") for number in range(9)))
    assert sum(one for one, _ in waited) == 3
    assert len(classifier._known) == 2


@pytest.fixture
def endpoint():
    with Endpoint() as made:
        yield made


def chat_of(endpoint, timeout_s=2.0):
    return ChatEndpoint(f"{endpoint.url}/", "small", "key", timeout_s)


def test_the_endpoint_gets_what_openai_would_get(endpoint):
    assert chat_of(endpoint).ask("do", "this", temperature=0.0, max_tokens=9) == "refunds"
    ((path, authorization, body),) = endpoint.seen
    assert (path, authorization) == ("/v1/chat/completions", "Bearer key")
    messages = [{"role": "system", "content": "do"}, {"role": "user", "content": "this"}]
    assert body == {"model": "small", "messages": messages, "temperature": 0.0, "max_tokens": 9}


@pytest.mark.parametrize(
    "answer",
    [
        (500, b""),
        (302, b""),
        (200, b"nonsense"),
        (200, b"{}"),
        (200, b'{"choices": []}'),
        (200, b'{"choices": [{"message": {"content": null}}]}'),
        (200, b'{"choices": [{"message": {"content": "  "}}]}'),
        (200, b"[" * 100_000),
        (200, b" " * (2 << 20)),
    ],
)
def test_GOV_6_whatever_an_endpoint_answers_is_an_error_in_words(endpoint, answer):
    endpoint.answer = answer
    with pytest.raises(ChatError, match="chat/completions"):
        chat_of(endpoint).ask("do", "this")
