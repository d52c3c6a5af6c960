"""Where the meaning of texts comes from, beside their words (RTE-5): a model on this machine, or an endpoint.

Both block, and are called in a thread of the matcher's own. Neither is needed to start, and neither is loaded before
the first text.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from reach.runtime.outgoing import opener

ANSWER_BYTES = 64 << 20
TEXTS_AT_ONCE = 128


class EmbedderError(Exception):
    """Texts could not be embedded; the message says why."""


class Embedder(Protocol):
    """Turns texts into vectors whose cosine says how near their meanings are."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text. Blocks.

        Raises:
            EmbedderError: it cannot be done now.
        """


class LocalEmbedder:
    """The static embeddings of WordLlama: 16 MB, no network, well under a millisecond for a text; weak where a text
    has few words. Needs the extra `match` (`pip install 'agentreach[match]'`)."""

    def __init__(self) -> None:
        self._model: Any = None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See `Embedder`."""
        if self._model is None:
            try:
                import wordllama
            except ImportError as error:
                raise EmbedderError("matcher.embedder is local: pip install 'agentreach[match]'") from error
            # Its own folder holds the weights: without this it would ask the network for them.
            folder = Path(wordllama.__file__).parent
            self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        found: list[list[float]] = self._model.embed(list(texts)).tolist()
        return found


class EndpointEmbedder:
    """An endpoint that speaks OpenAI's `POST {url}/embeddings`.

    Args:
        url: Such as `http://127.0.0.1:11434/v1`.
        model: Its name for the model.
        key: Sent as a bearer token, if there is one.
        timeout_s: For one call. Tasks do not wait that long: they go by words meanwhile.
    """

    def __init__(self, url: str, model: str, key: str = "", timeout_s: float = 10.0) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("must be http:// or https://")
        self._url = url.rstrip("/") + "/embeddings"
        self._model = model
        self._key = key
        self._timeout_s = timeout_s
        self._opener = opener()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See `Embedder`."""
        found: list[list[float]] = []
        for begin in range(0, len(texts), TEXTS_AT_ONCE):
            found.extend(self._ask(texts[begin : begin + TEXTS_AT_ONCE]))
        return found

    def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        body = json.dumps({"model": self._model, "input": list(texts)}).encode()
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                raw = answer.read(ANSWER_BYTES + 1)
            if len(raw) > ANSWER_BYTES:
                raise EmbedderError(f"{self._url} answered with more than {ANSWER_BYTES} bytes")
            rows = sorted(json.loads(raw)["data"], key=lambda row: row["index"])
            vectors = [[float(one) for one in row["embedding"]] for row in rows]
        except urllib.error.HTTPError as error:
            with error:
                raise EmbedderError(f"{self._url} answered {error.code}") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise EmbedderError(f"{self._url}: {type(error).__name__}: {error}") from error
        if len(vectors) != len(texts):
            raise EmbedderError(f"{self._url} answered with {len(vectors)} vectors for {len(texts)} texts")
        return vectors
