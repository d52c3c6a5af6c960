"""A consistent-hash ring with bounded load (RTE-7): proposes an instance for a new session.

Karger et al., "Consistent hashing and random trees", STOC 1997; bounded load after Mirrokni, Thorup, Zadimoghaddam,
"Consistent hashing with bounded loads", SODA 2018. Each member has 50 points. The ring only proposes: from then on a
session's pin is the truth, so a member that joins moves nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

POINTS = 50
BOUND = 1.25
"""No member is proposed that has more than this many times the mean number of sessions."""
ALL_POINTS = 100_000
"""In large pools each member has fewer points: about so many in all, at least 4 each. A hundred thousand members with
50 points each would take 10 s to build; so many members are spread well by few."""
LEAST_POINTS = 4
MERGED = 64
"""Members that are inserted one by one; more are sorted in."""


def position(name: str) -> int:
    """Where a name lies on the ring, 0 … 2^64 - 1."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class Ring:
    """Members by name. Points are placed when somebody asks, so that a pool without sessions pays nothing."""

    __slots__ = ("_dead", "_joining", "_members", "_placed", "_points")

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._joining: dict[str, None] = {}
        """Members without points yet."""
        self._placed: set[str] = set()
        """Names with points, also those that have left and may come back."""
        self._dead = 0
        self._points: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._members)

    def add(self, name: str) -> None:
        """A member joins."""
        if name in self._members:
            return
        self._members.add(name)
        if name in self._placed:
            self._dead -= 1
        else:
            self._joining[name] = None

    def remove(self, name: str) -> None:
        """A member leaves."""
        if name not in self._members:
            return
        self._members.discard(name)
        if name in self._placed:
            self._dead += 1
        else:
            del self._joining[name]

    def _settle(self) -> None:
        """Places the points of who joined; forgets those of who left when they are many."""
        if self._dead > len(self._members) + MERGED:
            self._points = [entry for entry in self._points if entry[1] in self._members]
            self._placed &= self._members
            self._dead = 0
        if not self._joining:
            return
        count = min(POINTS, max(LEAST_POINTS, ALL_POINTS // len(self._members)))
        fresh = [(position(f"{name}\0{number}"), name) for name in self._joining for number in range(count)]
        if len(self._joining) <= MERGED:
            for entry in fresh:
                insort(self._points, entry)
        else:
            self._points += fresh
            self._points.sort()
        self._placed.update(self._joining)
        self._joining.clear()

    def walk(self, key: str) -> Iterator[str]:
        """All members, each once, in the order in which the ring proposes them for `key`."""
        if self._joining or self._dead:
            self._settle()
        seen: set[str] = set()
        points, members = self._points, self._members
        count = len(points)
        start = bisect_left(points, (position(key), ""))
        for step in range(count):
            name = points[(start + step) % count][1]
            if name not in seen:
                seen.add(name)
                if name in members:
                    yield name

    def propose(
        self, key: str, sessions: Mapping[str, int], allowed: Callable[[str], bool], mean: float | None = None
    ) -> str | None:
        """The first member on the walk that is allowed and not over its bound of sessions; else the first allowed.

        Args:
            key: The session.
            sessions: Sessions that each member has.
            allowed: Whether a member may be proposed.
            mean: Sessions per member, with the new one; None: over all members.
        """
        if mean is None:
            mean = (sum(sessions.values()) + 1) / max(1, len(self._members))
        bound = -(-mean * BOUND // 1)
        fallback = None
        for name in self.walk(key):
            if not allowed(name):
                continue
            if sessions.get(name, 0) + 1 <= bound:
                return name
            fallback = fallback or name
        return fallback
