"""What a client shows to the server: an API key, or a token that is another one after a while."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

KEY_VARIABLE: Final = "AGENT_REACH_API_KEY"
FILE_VARIABLE: Final = "AGENT_REACH_API_KEY_FILE"
TOKEN_BYTES: Final = 16 << 10

KeyLike = str | Callable[[], str] | None
"""An API key or a token; a function that gives the one of now, which must not block; None: AGENT_REACH_API_KEY, else
what is in the file that AGENT_REACH_API_KEY_FILE names, read anew for each connection and call."""

Metadata = tuple[tuple[str, str], ...]


class Shown:
    """See the module. Raises OSError if the file that the environment names cannot be read."""

    __slots__ = ("_give", "_last", "renews")

    def __init__(self, key: KeyLike) -> None:
        self.renews = True
        """It may be another one next time."""
        self._last = ""
        if callable(key):
            self._give: Callable[[], str] = key
            return
        given = key if key is not None else os.environ.get(KEY_VARIABLE, "")
        file = os.environ.get(FILE_VARIABLE, "") if key is None and not given else ""
        self.renews = bool(file)
        self._give = _reader(file) if file else lambda: given
        if file:
            self._last = self._give()

    def metadata(self) -> Metadata:
        """For a call. A file that is away for a moment, because it is being replaced, changes nothing."""
        try:
            self._last = self._give()
        except OSError:
            if not self._last:
                raise
        return (("authorization", f"Bearer {self._last}"),) if self._last else ()


def _reader(file: str) -> Callable[[], str]:
    def read() -> str:
        return Path(file).read_bytes()[:TOKEN_BYTES].decode("ascii", "replace").strip()

    return read
