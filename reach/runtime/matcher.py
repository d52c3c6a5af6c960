"""Content match by meaning (RTE-5): beside the words, never instead of them, and never for longer than its time.

Vectors of capability documents are made when they change, those of texts when they come, both in one thread, where
they are compared too. A text whose comparison is not known yet waits for it for at most 20 ms; then its words decide,
and the comparison is there for the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from heapq import nlargest
from math import hypot

from reach.core.directory import Directory
from reach.runtime.clock import Clock
from reach.runtime.embedders import Embedder, EmbedderError

log = logging.getLogger(__name__)

WAIT_MS = 20
"""How long a task waits for the meaning of its text."""
TEXTS = 10_000
"""Texts whose comparison is kept."""
NEAREST = 512
"""Documents that are kept for a text: of all tenants, so more than one of them needs."""
AHEAD = 64
"""Texts that wait for the thread; more go by words at once."""
PAUSE_MS = 10_000
"""How long an embedder that failed is left alone."""
LOOK_SECONDS = 0.5
"""How often we look whether there are other documents."""

Similar = Mapping[str, float]
"""Documents that are near a text: digest -> match, 0 … 1."""


class Matcher:
    """See the module.

    Args:
        directory: Whose documents are compared; asks back through `similar_of`.
        embedder: Makes vectors.
        clock: For pauses.
        threshold: The least cosine of a document that may take a text, brought to the threshold of the directory: a
            cosine means another thing in each model.
        wait_ms: How long a task may wait.
    """

    def __init__(
        self, directory: Directory, embedder: Embedder, clock: Clock, threshold: float, wait_ms: int = WAIT_MS
    ) -> None:
        self._directory = directory
        self._embedder = embedder
        self._clock = clock
        self._threshold = threshold
        self._wait_s = wait_ms / 1_000
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="matcher")
        self._known: OrderedDict[str, Similar] = OrderedDict()
        self._asking: dict[str, asyncio.Future[Similar]] = {}
        self._vectors: dict[str, list[float]] = {}
        """Of the documents, by digest. Belongs to the thread."""
        self._documents: dict[str, str] = {}
        self._revision = -1
        self._paused_until_ms = 0
        directory.similar_of = self.similar_of

    def similar_of(self, text: str) -> Similar | None:
        """What is near a text, if that is known."""
        self._look()
        return self._known.get(text)

    def ask(self, text: str, then: Callable[[], None]) -> bool:
        """Calls `then` when it is known what is near a text, or when the time for that is over. False if there is
        nothing to wait for: it is known already, or will not be soon."""
        self._look()
        if text in self._known or self._clock.now_ms() < self._paused_until_ms:
            return False
        found = self._asking.get(text)
        if found is None:
            if len(self._asking) >= AHEAD:
                return False
            found = self._begin(text)
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._wait_s, lambda: settle(None))
        done = False

        def settle(_: object) -> None:
            nonlocal done
            late.cancel()
            if not done:
                done = True
                then()

        found.add_done_callback(settle)
        return True

    def _begin(self, text: str) -> asyncio.Future[Similar]:
        loop, revision = asyncio.get_running_loop(), self._revision
        found = self._asking[text] = loop.run_in_executor(self._thread, self._compare, text, self._documents)

        def keep(done: asyncio.Future[Similar]) -> None:
            self._asking.pop(text, None)
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._pause(error)
            elif revision == self._revision:
                self._known[text] = done.result()
                while len(self._known) > TEXTS:
                    self._known.popitem(last=False)

        found.add_done_callback(keep)
        return found

    def _pause(self, error: BaseException) -> None:
        now = self._clock.now_ms()
        if now >= self._paused_until_ms:
            self._paused_until_ms = now + PAUSE_MS
            known = isinstance(error, EmbedderError)
            text = "texts are matched by their words only: %s"
            log.warning(text, error, exc_info=None if known else error)

    def _look(self) -> None:
        """Takes note of other documents: what was near before need not be the nearest now."""
        if self._revision != self._directory.documents_revision:
            self._revision = self._directory.documents_revision
            self._documents = self._directory.documents()
            self._known.clear()

    async def run(self) -> None:
        """Keeps the vectors of the documents ready, so that the first text need not wait for them."""
        loop, prepared = asyncio.get_running_loop(), -1
        while True:
            self._look()
            if prepared != self._revision and self._clock.now_ms() >= self._paused_until_ms:
                revision = self._revision
                try:
                    await loop.run_in_executor(self._thread, self._prepare, self._documents)
                    prepared = revision
                except Exception as error:  # noqa: BLE001 - whatever an embedder raises, words are there
                    self._pause(error)
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Ends the thread; what it is at is left to end by itself."""
        self._directory.similar_of = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _prepare(self, documents: Mapping[str, str]) -> None:
        missing = [digest for digest in documents if digest not in self._vectors]
        if missing:
            vectors = self._embedder.embed([documents[digest] for digest in missing])
            self._vectors.update((digest, unit(vector)) for digest, vector in zip(missing, vectors, strict=True))
        for digest in self._vectors.keys() - documents.keys():
            del self._vectors[digest]

    def _compare(self, text: str, documents: Mapping[str, str]) -> Similar:
        self._prepare(documents)
        asked = unit(self._embedder.embed([text])[0])
        scores = {digest: cosine(asked, vector) for digest, vector in self._vectors.items()}
        near = (digest for digest, score in scores.items() if score >= self._threshold)
        best = nlargest(NEAREST, near, key=scores.__getitem__)
        needed = self._directory.threshold
        return {digest: rescaled(scores[digest], self._threshold, needed) for digest in best}


def unit(vector: list[float]) -> list[float]:
    """A vector of length 1 in the same direction; one without a direction stays as it is."""
    length = hypot(*vector)  # scaled: the squares of small numbers are lost
    return [one / length for one in vector] if length else vector


def cosine(one: list[float], other: list[float]) -> float:
    """Of two vectors of length 1; 0 if they are of different models."""
    return sum(map(float.__mul__, one, other)) if len(one) == len(other) else 0.0


def rescaled(value: float, least: float, needed: float) -> float:
    """A cosine as a match: 0 at 0, `needed` at `least`, 1 at 1, straight in between."""
    if value <= 0:
        return 0.0
    if value < least:
        return value / least * needed
    return 1.0 if least >= 1 else min(1.0, needed + (value - least) / (1 - least) * (1 - needed))
