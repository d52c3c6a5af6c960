"""What a run shows: latencies, errors, the spread of the load, and hot spots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

HOT = 1.5
"""A hot spot gets this many times its fair share, or held more than it has slots for."""


class InstanceFigures(NamedTuple):
    """One instance."""

    name: str
    attempts: int
    share: float
    """Of all attempts."""
    fair: float
    """Its share of all slots."""
    done: int
    failed: int
    peak: int
    """Most attempts that it had at one time."""
    slots: int
    busy: float
    """Share of its slots that were at work, over the time in which tasks came."""
    hot: str
    """Why it is a hot spot; empty if it is none."""


class Report(NamedTuple):
    """One run. Times in ms, of tasks that succeeded: from accepted to ended."""

    trace: str
    policy: str
    seed: int
    tasks: int
    succeeded: int
    failed: int
    unfinished: int
    retries: int
    transfers: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    instances: tuple[InstanceFigures, ...]

    @property
    def error_rate(self) -> float:
        """Share of the tasks that did not succeed."""
        return (self.failed + self.unfinished) / self.tasks if self.tasks else 0.0

    def share(self, prefix: str) -> float:
        """Share of all attempts that the instances got whose names begin so."""
        return sum(one.share for one in self.instances if one.name.startswith(prefix))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [one._asdict() for one in self.instances]
        return {**self._asdict(), "error_rate": self.error_rate, "instances": rows}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` of all are not above; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def hot_spot(share: float, fair: float, peak: int, slots: int, *, alone: bool) -> str:
    """Why an instance is a hot spot."""
    if peak > slots:
        return f"held {peak} with {slots} slots"
    if not alone and fair and share > HOT * fair:
        return f"{share / fair:.1f} times its fair share"
    return ""
