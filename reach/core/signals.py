"""Signals: what is known of an instance, each brought to 0 … 1 by a pure function (RTE-2).

Unknown is neutral: a new instance is neither preferred nor avoided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reach.core.model import Instance

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
    begin = max(since_ms, now_ms - BEAT_WINDOW_MS)
    recent = max(begin, now_ms - RECENT_MS)
    expected = ((now_ms - begin) + (now_ms - recent)) / interval_ms
    if expected < 1:
        return 1.0
    received = (len(beats) - bisect_right(beats, begin - 1)) + (len(beats) - bisect_left(beats, recent))
    return min(1.0, received / expected)


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


def reach(instance: Instance) -> float:
    """ReachScore / 100; 1 while there is none (HLT-11)."""
    known: float | None = getattr(instance, "reach_score", None)
    return 1.0 if known is None else min(1.0, max(0.0, known / 100))


def success_rate(instance: Instance, method: str) -> float:
    """Share of the tasks of a method that went well; 0.95 while nothing is known."""
    ended = instance.done + instance.failed
    return instance.done / ended if ended else NEUTRAL_SUCCESS


def mean_latency(instance: Instance, method: str) -> float:
    """Usual time of a task of a method in ms; 0 while nothing is known."""
    return instance.latency_ms


def methods_of(instance: Instance) -> tuple[str, ...]:
    """Methods that there are figures of."""
    return ()


def region(asked: str, has: str) -> float:
    """1 for the region that was asked for, 0 for another one, 0.5 where either says nothing."""
    if not asked or not has:
        return NEUTRAL_TASK["region"]
    return 1.0 if asked == has else 0.0


def underload(now: float, mean: float, below_since_ms: int, now_ms: int) -> float:
    """How far an instance is below the mean load of its pool, 1 for idle; 0 unless it has been so for 30 s.

    Args:
        now: Its load.
        mean: The pool's.
        below_since_ms: Since when it is below; 0: it is not.
        now_ms: Now.
    """
    if not below_since_ms or now_ms - below_since_ms < UNDERLOAD_MS or mean <= 0:
        return 0.0
    return max(0.0, (mean - now) / mean)
