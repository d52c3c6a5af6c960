"""What the leader does not take at its word at once, because it is likely to pass: owners that are not there yet when a
whole cluster starts again, and nodes that lose the journal, or find it again, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reach.cluster.base import NodeInfo


class Settling:
    """See the module. Each wait ends a moment after the last thing of its kind happened, and after three at most.

    Args:
        settle_ms: The moment.
    """

    def __init__(self, settle_ms: int) -> None:
        self._settle_ms = settle_ms
        self._seen: set[str] = set()
        """Nodes that were members while this process lives, and owners that were waited for in vain."""
        self._came_ms = 0
        """When a node was seen first."""
        self._awaited_ms: int | None = None
        """Since when owners are waited for that were never seen."""
        self._unreachable: frozenset[str] = frozenset()
        """Nodes that are taken not to reach the journal."""
        self._reports: tuple[frozenset[str], int, int] = (frozenset(), 0, 0)
        """What differs from that by what nodes say; since when it is so; since when anything differs."""

    def saw(self, nodes: Mapping[str, NodeInfo], now_ms: int) -> None:
        """These are there; to be told whether this node leads or not."""
        if not self._seen.issuperset(nodes):
            self._seen |= nodes.keys()
            self._came_ms = now_ms

    def awaits(self, owners: Sequence[str], now_ms: int) -> int:
        """How many milliseconds to wait for owners that may be about to come; 0: for none. They keep meanwhile what
        they had, and find it as it was."""
        missing = {name for name in owners if name} - self._seen
        if not missing:
            self._awaited_ms = None
            return 0
        if self._awaited_ms is None:
            self._awaited_ms = now_ms
        settled = max(self._awaited_ms, self._came_ms) + self._settle_ms
        due = min(settled, self._awaited_ms + 3 * self._settle_ms)
        if now_ms >= due:
            self._seen |= missing
            return 0
        return due - now_ms

    def judged(
        self, nodes: Mapping[str, NodeInfo], now_ms: int, *, at_once: bool = False
    ) -> tuple[dict[str, NodeInfo], int | None]:
        """The nodes with what is to be taken of whether they reach the journal, and in how many milliseconds to look
        again."""
        says = frozenset(name for name, info in nodes.items() if not info.store_reachable)
        differs, since, began = self._reports
        wait_ms = None
        now_differs = says ^ (self._unreachable & nodes.keys())
        if now_differs:
            began = now_ms if not differs else began
            since = now_ms if now_differs != differs else since
            self._reports = now_differs, since, began
            wait_ms = min(since + self._settle_ms, began + 3 * self._settle_ms) - now_ms
        if not now_differs or wait_ms is None or wait_ms <= 0 or at_once:
            self._unreachable, self._reports, wait_ms = says, (frozenset(), now_ms, now_ms), None
        taken = {name: info._replace(store_reachable=name not in self._unreachable) for name, info in nodes.items()}
        return taken, wait_ms
