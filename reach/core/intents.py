"""Intents (RTE-6): dotted names such as `customer_service.refund`, and the rules that say where they go.

Data, made from `routes.yaml` by `reach.config.rules`. The rule with the longest prefix wins, by whole parts:
`customer_service` stands for `customer_service.refund`, `customer` does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reach.core.retry import RetryPolicy

INTENT = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")
MAX_PARTS = 32
"""Parts of an intent; more is no name but an attempt to make us work."""


class Route(NamedTuple):
    """One rule. What a rule leaves out is as the request, the pool or the server says."""

    intent_prefix: str
    require_capability: str = ""
    tags: tuple[str, ...] = ()
    policy: str = ""
    session_required: bool = False
    session_ttl_ms: int | None = None
    timeout_ms: int | None = None
    """Start to close of one attempt."""
    retry: RetryPolicy | None = None
    fallback_intent: str = ""
    fallback_capability: str = ""
    parallel: tuple[str, ...] = ()
    """Intents that are asked at the same time."""
    line: int = 0
    """Where it stands in its file."""

    @property
    def has_fallback(self) -> bool:
        """Whether it says what to do when nobody can take it."""
        return bool(self.fallback_intent or self.fallback_capability)


def prefixes(intent: str) -> Iterator[str]:
    """An intent and all that stands for it, the longest first."""
    while intent:
        yield intent
        intent = intent.rpartition(".")[0]


class Routes:
    """All rules."""

    __slots__ = ("_by_prefix",)

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._by_prefix = {route.intent_prefix: route for route in routes}

    def __len__(self) -> int:
        return len(self._by_prefix)

    def __iter__(self) -> Iterator[Route]:
        return iter(self._by_prefix.values())

    def find(self, intent: str) -> Route | None:
        """The rule with the longest prefix, or None."""
        for prefix in prefixes(intent):
            route = self._by_prefix.get(prefix)
            if route is not None:
                return route
        return None
