"""Pages of lists: how large, and from where on."""

from __future__ import annotations

from typing import Final

from reach.wire.requests import invalid

MAX_PAGE: Final = 1_000
PAGE_BYTES: Final = 512 << 10
"""A page ends when it is over this, however many more were asked for: a client must be able to receive it."""
_LONGEST_TOKEN: Final = 18
"""Decimals of a page token: rows are numbered by 64 bits."""


def page_size(asked: int, usual: int) -> int:
    """How many entries a page has at most.

    Raises:
        InvalidRequest: INVALID_FIELD: more than 1,000.
    """
    if asked > MAX_PAGE:
        raise invalid("page_size", f"must be 1 … {MAX_PAGE}")
    return asked or usual


def page_number(token: str) -> int:
    """The number that a page begins behind; 0: from the beginning.

    Raises:
        InvalidRequest: INVALID_FIELD: it is no token of ours.
    """
    if not token:
        return 0
    if len(token) > _LONGEST_TOKEN or not (token.isascii() and token.isdecimal()) or int(token) == 0:
        raise invalid("page_token", "must be one that an answer gave")
    return int(token)
