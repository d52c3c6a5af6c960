"""Signals: what is known of an instance, each brought to 0 … 1 by a pure function (RTE-2).

Unknown is neutral: a new instance is neither preferred nor avoided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import exp

BEAT_WINDOW_MS = 30_000
RECENT_MS = 10_000
"""Beats of the last 10 s count twice."""
NEUTRAL_SUCCESS = 0.95
NEUTRAL_LATENCY_MS = 10_000.0
LATENCY_GAIN = 0.2
"""Weight of the newest observation in the running mean."""


def availability(beats: Sequence[int], interval_ms: int, since_ms: int, now_ms: int) -> float:
    """Beats received / beats expected in the last 30 s, those of the last 10 s counted twice.

    Args:
        beats: Times of beats, ascending.
        interval_ms: How often they should come.
        since_ms: When the first could have come; the window is no longer than this.
        now_ms: Now.
    """
    begin, recent = now_ms - BEAT_WINDOW_MS, now_ms - RECENT_MS
    if since_ms > begin:
        begin = since_ms
        if since_ms > recent:
            recent = since_ms
    expected = (now_ms - begin + now_ms - recent) / interval_ms
    if expected < 1:
        return 1.0
    received = 2 * len(beats) - bisect_left(beats, begin) - bisect_left(beats, recent)
    return received / expected if received < expected else 1.0


def latency(mean_ms: float, baseline_ms: float) -> float:
    """baseline / (baseline + mean): 0.5 for an instance as fast as its pool, towards 1 for a faster one."""
    if mean_ms <= 0 or baseline_ms <= 0:
        return 0.5
    return baseline_ms / (baseline_ms + mean_ms)


def load(inflight: int, max_concurrency: int) -> float:
    """Share of the slots that are taken, at most 1."""
    return min(1.0, inflight / max_concurrency) if max_concurrency > 0 else 1.0


def running_mean(mean_ms: float, observed_ms: float) -> float:
    """Exponentially weighted mean; the first observation is the mean."""
    return observed_ms if mean_ms <= 0 else mean_ms + LATENCY_GAIN * (observed_ms - mean_ms)


NEUTRAL_TASK = {"match": 1.0, "region": 0.5}
"""Signals of a task that says nothing: all instances are alike."""
UNDERLOAD_MS = 30_000
"""An instance has to be below the mean load of its pool for this long before that counts for it."""


def region(asked: str, has: str) -> float:
    """1 for the region that was asked for, 0 for another one, 0.5 where either says nothing."""
    if not asked or not has:
        return NEUTRAL_TASK["region"]
    return 1.0 if asked == has else 0.0


def usual_load(before: float, load: float, elapsed_ms: int) -> float:
    """The load as a mean over about the last 30 s (exponentially weighted); `load` is what it was since `before`."""
    return load + (before - load) * exp(-max(0, elapsed_ms) / UNDERLOAD_MS)


def underload(usual: float, mean: float) -> float:
    """How far an instance has been below the mean load of its pool, both over the last 30 s: 1 for idle."""
    return max(0.0, (mean - usual) / mean) if mean > 0 else 0.0


SLOT_MS = 5_000
"""Grain of a window: what is older than it leaves in pieces of this."""
WINDOW_SLOTS = 60
"""5 minutes."""
RECENT_SLOTS = 2
"""The current slot and the one before it: 5 … 10 s, which count twice."""
MAX_METHODS = 64
"""Methods of an instance that have figures of their own; the rest shares one entry."""
OTHER_METHODS = "~"


class Window:
    """Attempts of the last 5 minutes: how many, how many failed, how long those that succeeded took (HLT-5).

    Counters only grow; at the begin of each slot in which something happens their values are marked, so what happened
    since then is a difference. Adding costs three additions, whatever is kept.
    """

    __slots__ = ("_count", "_failed", "_marks", "_ms", "_slot")

    def __init__(self) -> None:
        self._count = self._failed = self._ms = 0
        self._slot = -1
        self._marks: deque[tuple[int, int, int, int]] = deque()
        """(slot, count, failed, ms) before the slot's first addition."""

    def add(self, now_ms: int, failed: int, took_ms: int) -> None:
        """One attempt is over.

        Args:
            now_ms: Now; never less than before.
            failed: 1 if it failed by the instance's fault, else 0.
            took_ms: How long it took; 0 if it failed.
        """
        if now_ms // SLOT_MS != self._slot:
            self._slot = now_ms // SLOT_MS
            self._marks.append((self._slot, self._count, self._failed, self._ms))
            while self._marks[0][0] <= self._slot - WINDOW_SLOTS:
                self._marks.popleft()
        self._count += 1
        self._failed += failed
        self._ms += took_ms

    def _since(self, slot: int) -> tuple[int, int, int]:
        for marked, count, failed, ms in self._marks:
            if marked >= slot:
                return self._count - count, self._failed - failed, self._ms - ms
        return 0, 0, 0

    def figures(self, now_ms: int) -> tuple[int, int, int]:
        """(attempts, failed, ms of those that succeeded) of the last 5 minutes, the last seconds counted twice."""
        slot = now_ms // SLOT_MS
        whole, recent = self._since(slot - WINDOW_SLOTS + 1), self._since(slot - RECENT_SLOTS + 1)
        return whole[0] + recent[0], whole[1] + recent[1], whole[2] + recent[2]


class MethodStats:
    """What the attempts of one method on one instance show."""

    __slots__ = ("window",)

    def __init__(self) -> None:
        self.window = Window()

    def success_rate(self, now_ms: int) -> float:
        """Share of the attempts that did not fail by the instance's fault; 0.95 if there were none."""
        count, failed, _ = self.window.figures(now_ms)
        return 1.0 - failed / count if count else NEUTRAL_SUCCESS

    def mean_latency_ms(self, now_ms: int) -> float:
        """How long those that succeeded took, in the mean; 0 if unknown."""
        count, failed, ms = self.window.figures(now_ms)
        return ms / (count - failed) if count > failed else 0.0


def stats_of(methods: dict[str, MethodStats], method: str) -> MethodStats:
    """The entry of a method, made when it is first needed. Methods past the 64th share one."""
    stats = methods.get(method)
    if stats is None:
        if len(methods) >= MAX_METHODS:
            method = OTHER_METHODS
        stats = methods.get(method)
        if stats is None:
            stats = methods[method] = MethodStats()
    return stats


def success_rate(methods: dict[str, MethodStats], method: str, now_ms: int) -> float:
    """Success rate of a method on an instance, 0 … 1; neutral if unknown. `methods` is the instance's."""
    stats = methods.get(method) or methods.get(OTHER_METHODS)
    return stats.success_rate(now_ms) if stats is not None else NEUTRAL_SUCCESS


def mean_latency(methods: dict[str, MethodStats], method: str, now_ms: int) -> float:
    """Mean latency of a method on an instance in ms; 0 if unknown. `methods` is the instance's."""
    stats = methods.get(method) or methods.get(OTHER_METHODS)
    return stats.mean_latency_ms(now_ms) if stats is not None else 0.0


def overall_success(methods: dict[str, MethodStats], now_ms: int) -> float:
    """Success rate of an instance over all its methods; neutral if unknown."""
    tried = failed = 0
    for stats in methods.values():
        count, bad, _ = stats.window.figures(now_ms)
        tried += count
        failed += bad
    return 1.0 - failed / tried if tried else NEUTRAL_SUCCESS
