"""Which server is asked next, where several work as one (CLU-1, CLU-3).

A *round* asks each server that was given once, and one of those that servers told of. Within a round the next is asked
at once; the waits between rounds are the caller's. Chance chooses, so that all who lost a server spread over the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from reach.errors import InvalidRequest

MOST: Final = 64
"""Servers that are given, and that servers tell of."""
_PREFIXES: Final = ("ipv4:", "ipv6:", "unix:")
"""How gRPC names several addresses itself, with commas of its own."""
_URLS: Final = ("http://", "https://", "grpc://", "grpcs://")


def read_addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses in `a:1,b:2`, or in a list; without repeats.

    Raises:
        InvalidRequest: There are more than `MOST`, or one is a URL.
    """
    texts = [given] if isinstance(given, str) else list(given)
    parts = [part for text in texts for part in ([text] if text.startswith(_PREFIXES) else text.split(","))]
    found = tuple(dict.fromkeys(stripped for part in parts if (stripped := part.strip())))
    url = next((one for one in found if one.startswith(_URLS)), "")
    if url:
        raise InvalidRequest(f"the address of a server is host:port, without http:// or a path, not {url!r}")
    if len(found) > MOST:
        raise InvalidRequest(f"{len(found)} addresses were given, at most {MOST} can be used")
    return found


class Told:
    """Servers that servers told of: shared by all that one client or agent asks."""

    __slots__ = ("addresses", "works")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.works = ""
        """The one that answered last; empty: none did."""

    def hear(self, addresses: Sequence[str]) -> None:
        """These are the others now."""
        self.addresses = tuple(addresses[:MOST])


class Rotation:
    """One line of tries. `current` is who is to be asked.

    Args:
        given: The servers that were given, one at least.
        told: Those that servers tell of.
    """

    __slots__ = ("_given", "_last_told", "_told", "_tried", "current")

    def __init__(self, given: Sequence[str], told: Told) -> None:
        self._given = given
        self._told = told
        self._tried: set[str] = set()
        self._last_told = -1
        self.current = told.works or random.choice(given)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody else to ask."""
        return len(self._given) == 1 and not set(self._told.addresses) - set(self._given)

    def worked(self) -> None:
        """The current one answers: the next round begins when it fails."""
        self._tried.clear()
        self._told.works = self.current

    def failed(self) -> bool:
        """The current one does not answer: another is current. False: the round is over, wait before it is asked."""
        self._tried.add(self.current)
        left = [address for address in self._given if address not in self._tried]
        if not left and not self._tried - set(self._given):
            left = self._next_told()
        if left:
            self.current = random.choice(left)
            return True
        last = self.current
        self._tried.clear()
        self.current = random.choice([one for one in self._given if one != last] or self._given)
        return False

    def _next_told(self) -> list[str]:
        """One of those that were told of: each has its turn, for they may not be for us to reach."""
        others = [one for one in self._told.addresses if one not in self._given and one not in self._tried]
        if not others:
            return []
        if self._last_told < 0:
            self._last_told = random.randrange(len(others))
        self._last_told = (self._last_told + 1) % len(others)
        return [others[self._last_told]]
