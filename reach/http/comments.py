"""What the contract says of its parts, in words: the comments of the protos, as `make gen` wrote them down."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Final

import msgspec

_PACKAGE: Final = "agentreach.v1"
_FILE: Final = "comments.json"


@lru_cache(maxsize=1)
def _comments() -> dict[str, str]:
    return msgspec.json.decode(resources.files(_PACKAGE).joinpath(_FILE).read_bytes(), type=dict[str, str])


def comment_of(name: str) -> str:
    """The comment of a message, field, enum, value or method by its full name; empty if it has none. The first one
    reads the file (90 KB, a millisecond)."""
    return _comments().get(name.removeprefix(f"{_PACKAGE}."), "")
