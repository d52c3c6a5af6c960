"""A model behind an endpoint that is asked one thing and answers with a text."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import urlsplit

from reach.runtime.outgoing import opener

ANSWER_BYTES: Final = 1 << 20


class ChatError(Exception):
    """There is no answer; the message says why."""


class ChatEndpoint:
    """An endpoint that speaks OpenAI's `POST {url}/chat/completions`. Redirects are not followed.

    Args:
        url: Such as `http://127.0.0.1:11434/v1`.
        model: Its name for the model.
        key: Sent as a bearer token, if there is one.
        timeout_s: For one call.
    """

    def __init__(self, url: str, model: str, key: str, timeout_s: float) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("must be http:// or https://")
        self._url = url.rstrip("/") + "/chat/completions"
        self._model = model
        self._key = key
        self._timeout_s = timeout_s
        self._opener = opener()

    def ask(self, system: str, user: str, **more: Any) -> str:
        """What it answers, without white space around it. Blocks; to be called in a thread.

        Args:
            system: What it is to do.
            user: What it is to do it with.
            more: Fields of the request beside model and messages.

        Raises:
            ChatError: it failed, or answered with no text.
        """
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = json.dumps({"model": self._model, "messages": messages, **more}).encode()
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310 - the scheme was checked
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                raw = answer.read(ANSWER_BYTES + 1)
            if len(raw) > ANSWER_BYTES:
                raise ChatError(f"{self._url} answered with more than {ANSWER_BYTES} bytes")
            text = json.loads(raw)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            with error:
                raise ChatError(f"{self._url} answered {error.code}") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise ChatError(f"{self._url}: {type(error).__name__}: {error}") from error
        if not isinstance(text, str) or not text.strip():
            raise ChatError(f"{self._url} answered with no text")
        return text.strip().encode("utf-8", "replace").decode()
