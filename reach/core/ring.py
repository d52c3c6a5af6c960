"""A consistent-hash ring with bounded load (RTE-7): proposes an instance for a new session.

Karger et al., "Consistent hashing and random trees", STOC 1997; bounded load after Mirrokni, Thorup, Zadimoghaddam,
"Consistent hashing with bounded loads", SODA 2018. Each member has 50 points. The ring only proposes: from then on a
session's pin is the truth, so a member that joins moves nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

POINTS = 50
BOUND = 1.25
"""No member is proposed that has more than this many times the mean number of sessions."""


def position(name: str) -> int:
    """Where a name lies on the ring, 0 … 2^64 - 1."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class Ring:
    """Members by name."""

    __slots__ = ("_members", "_points", "_stale")

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._points: list[tuple[int, str]] = []
        self._stale = False
        """Members came or went since the points were put in order: that is done when somebody asks."""

    def __len__(self) -> int:
        return len(self._members)

    def add(self, name: str) -> None:
        """A member joins."""
        if name not in self._members:
            self._members.add(name)
            self._points.extend((position(f"{name}\0{number}"), name) for number in range(POINTS))
            self._stale = True

    def remove(self, name: str) -> None:
        """A member leaves."""
        if name in self._members:
            self._members.discard(name)
            self._stale = True

    def _order(self) -> None:
        """Once for all that came and went: a fleet that starts must not pay for each of its members."""
        members = self._members
        self._points = [point for point in self._points if point[1] in members]
        self._points.sort()  # nearly in order already
        self._stale = False

    def walk(self, key: str) -> Iterator[str]:
        """All members, each once, in the order in which the ring proposes them for `key`."""
        if self._stale:
            self._order()
        points = self._points
        seen: set[str] = set()
        count = len(points)
        start = bisect_left(points, (position(key), ""))
        for step in range(count):
            name = points[(start + step) % count][1]
            if name not in seen:
                seen.add(name)
                yield name

    def propose(self, key: str, sessions: Mapping[str, int], allowed: Callable[[str], bool]) -> str | None:
        """The first member on the walk that is allowed and not over its bound of sessions; else the first allowed.

        Args:
            key: The session.
            sessions: Sessions that each member has.
            allowed: Whether a member may be proposed.
        """
        bound = -(-(sum(sessions.values()) + 1) * BOUND // max(1, len(self._members)))
        fallback = None
        for name in self.walk(key):
            if not allowed(name):
                continue
            if sessions.get(name, 0) + 1 <= bound:
                return name
            fallback = fallback or name
        return fallback
