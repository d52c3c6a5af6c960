"""Content match by meaning (RTE-5): cached, never for longer than its time, and never instead of words."""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.directory import Directory
from reach.core.documents import Document
from reach.core.model import PoolKey
from reach.runtime import matcher as matching
from reach.runtime.clock import Clock
from reach.runtime.embedders import EmbedderError, EndpointEmbedder, LocalEmbedder
from reach.runtime.matcher import Matcher, cosine, rescaled, unit
from tests.core.harness import profile

POOL = PoolKey("acme", "t")


class Axes:
    """Texts about cats lie on one axis, texts about dogs on the other."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[str] = []
        self.fails = False

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        time.sleep(self.seconds)
        if self.fails:
            raise EmbedderError("told so")
        self.asked.extend(texts)
        return [[float("feline" in text or "cat" in text), float("dog" in text)] for text in texts]


def directory_with(*names: str) -> Directory:
    directory = Directory()
    for name in names:
        document = Document(name, name, digest=name, description=f"knows {name}")
        directory.add(POOL, name, profile(name, documents=(document,), capabilities=((name, ""),)))
    return directory


@pytest.fixture
async def made():
    matchers: list[Matcher] = []

    def make(directory: Directory, embedder: Any, **more: Any) -> Matcher:
        matchers.append(Matcher(directory, embedder, Clock(), 0.6, **more))
        return matchers[-1]

    yield make
    for one in matchers:
        one.stop()


async def ask(matcher: Matcher, text: str) -> float:
    """Seconds until the task may go on."""
    begun, done = time.monotonic(), asyncio.Event()
    if matcher.ask(text, done.set):
        await asyncio.wait_for(done.wait(), 5)
    return time.monotonic() - begun


async def test_RTE_5_meaning_finds_what_words_do_not(made):
    directory = directory_with("cat", "dog")
    embedder = Axes()
    matcher = made(directory, embedder, wait_ms=2_000)
    assert matcher.similar_of("my feline friend") is None
    await ask(matcher, "my feline friend")
    found = matcher.similar_of("my feline friend")
    assert found == {"cat": pytest.approx(1.0)}
    count = len(embedder.asked)
    assert not matcher.ask("my feline friend", pytest.fail)  # known: nobody waits, nobody is asked
    assert len(embedder.asked) == count
    assert directory.similar_of == matcher.similar_of


async def test_RTE_5_after_20_ms_words_decide_and_the_meaning_is_there_for_the_next(made):
    matcher = made(directory_with("cat"), Axes(0.3))
    waited = await ask(matcher, "feline")
    assert 0.015 < waited < 0.2
    assert matcher.similar_of("feline") is None
    async with asyncio.timeout(5):
        while matcher.similar_of("feline") is None:  # noqa: ASYNC110 - another thread is at work
            await asyncio.sleep(0.02)


async def test_other_documents_make_another_comparison(made):
    directory = directory_with("dog")
    matcher = made(directory, Axes(), wait_ms=2_000)
    await ask(matcher, "feline")
    assert matcher.similar_of("feline") == {}
    document = Document("cat", "cat", digest="cat")
    directory.add(POOL, "other", profile("cat", documents=(document,), capabilities=(("cat", ""),)))
    assert matcher.similar_of("feline") is None
    await ask(matcher, "feline")
    assert set(matcher.similar_of("feline") or ()) == {"cat"}


async def test_an_embedder_that_fails_is_left_alone_for_a_while(made, caplog):
    embedder = Axes()
    embedder.fails = True
    matcher = made(directory_with("cat"), embedder, wait_ms=2_000)
    await ask(matcher, "one")
    assert matcher.similar_of("one") is None
    assert not matcher.ask("two", pytest.fail)
    assert [record.getMessage() for record in caplog.records] == ["texts are matched by their words only: told so"]


async def test_GOV_5_only_so_many_texts_wait_at_the_same_time(made, monkeypatch):
    monkeypatch.setattr(matching, "AHEAD", 2)
    matcher = made(directory_with("cat"), Axes(0.05))
    waiting = [matcher.ask(f"text {number}", lambda: None) for number in range(5)]
    assert waiting == [True, True, False, False, False]
    assert matcher.ask("text 0", lambda: None)  # the same text is asked once
    await asyncio.sleep(0.2)


async def test_vectors_of_documents_are_made_before_anybody_asks(made, monkeypatch):
    monkeypatch.setattr(matching, "LOOK_SECONDS", 0.01)
    embedder = Axes()
    matcher = made(directory_with("cat"), embedder)
    running = asyncio.create_task(matcher.run())
    async with asyncio.timeout(5):
        while not embedder.asked:  # noqa: ASYNC110 - another thread is at work
            await asyncio.sleep(0.01)
    assert embedder.asked == ["cat. knows cat"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


vectors = st.lists(st.floats(-10, 10), min_size=3, max_size=3)


@given(vectors, vectors)
def test_a_cosine_is_at_most_1(one, other):
    assert -1.000001 <= cosine(unit(one), unit(other)) <= 1.000001
    assert cosine(unit(one), [1.0]) == 0.0


@given(st.floats(-1, 1), st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_cosine_at_its_threshold_is_a_match_at_the_threshold(value, least, needed):
    match = rescaled(value, least, needed)
    assert 0 <= match <= 1
    assert value < least - 1e-9 or match >= needed - 1e-9
    assert value > least - 1e-9 or match <= needed + 1e-9


# -- an endpoint ------------------------------------------------------------------------------------------------------


class Endpoint(BaseHTTPRequestHandler):
    answer: Any = None
    code = 200
    seen: ClassVar[list[tuple[str, str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, self.headers.get("Authorization", ""), body))
        answer = self.answer
        if answer is None:  # as OpenAI answers, in another order
            rows = [{"index": at, "embedding": [float(len(text)), 1]} for at, text in enumerate(body["input"])]
            answer = {"data": rows[::-1]}
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(self.code)
        if self.code == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(Endpoint, "answer", None)
    monkeypatch.setattr(Endpoint, "code", 200)
    monkeypatch.setattr(Endpoint, "seen", [])
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_RTE_5_an_endpoint_that_speaks_openai(endpoint):
    embedder = EndpointEmbedder(endpoint, "small", "secret")
    texts = ["x" * number for number in range(200)]
    assert embedder.embed(texts) == [[float(number), 1.0] for number in range(200)]
    assert [(path, key, len(body["input"]), body["model"]) for path, key, body in Endpoint.seen] == [
        ("/v1/embeddings", "Bearer secret", 128, "small"),
        ("/v1/embeddings", "Bearer secret", 72, "small"),
    ]


@pytest.mark.parametrize(("code", "answer"), [
    (500, {}), (302, {}), (200, b"{"), (200, {"data": []}), (200, {"data": [{"index": 0}]}), (200, []),
    (200, {"data": [{"index": 0, "embedding": ["x"]}]}), (200, b"[" * 100_000),
])  # fmt: skip
def test_an_endpoint_that_answers_nonsense_is_an_error_with_words(endpoint, monkeypatch, code, answer):
    monkeypatch.setattr(Endpoint, "code", code)
    monkeypatch.setattr(Endpoint, "answer", answer)
    with pytest.raises(EmbedderError) as failed:
        EndpointEmbedder(endpoint, "small", "secret").embed(["x"])
    assert "secret" not in str(failed.value)


def test_an_endpoint_must_be_http():
    with pytest.raises(ValueError, match="http"):
        EndpointEmbedder("file:///etc/passwd", "small")
    with pytest.raises(EmbedderError):
        EndpointEmbedder("http://127.0.0.1:1", "small").embed(["x"])


def test_the_local_model_says_how_to_get_it():
    try:
        import wordllama  # noqa: F401
    except ImportError:
        with pytest.raises(EmbedderError, match=r"pip install 'agentreach\[match\]'"):
            LocalEmbedder().embed(["x"])
    else:
        near, far, other = LocalEmbedder().embed(["summarize a report", "make a summary of a report", "book a flight"])
        assert cosine(unit(near), unit(far)) > cosine(unit(near), unit(other))
