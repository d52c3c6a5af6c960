"""Is it reachable now? The window of probes, and the ReachScore (HLT-3, HLT-11). Pure functions.

Without probes (an agent on a stream that does not answer pings) round trip and loss are unknown, and unknown is
neutral: full marks, so that such an agent is judged by its beats alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PROBES = 10
"""Probes that are remembered."""
POOR_SCORE = 60.0
"""Below this an instance is probed as often as after a failed probe."""


class ReachWeights(NamedTuple):
    """What the ReachScore is made of; the weights come to 100."""

    heartbeat: float = 50.0
    rtt: float = 30.0
    loss: float = 20.0
    fresh_ms: float = 10_000.0
    """A last beat this young has full marks, or as young as the agent's interval if that is longer; none at three
    times that."""
    rtt_good_ms: float = 20.0
    rtt_bad_ms: float = 500.0
    loss_bad: float = 0.3


WEIGHTS = ReachWeights()


class ProbePeriods(NamedTuple):
    """How often to probe (HLT-3)."""

    healthy_ms: int = 5_000
    retry_ms: int = 1_000
    """After a failed probe, or while the ReachScore is poor."""
    unreachable_ms: int = 30_000
    fail_threshold: int = 3
    """Failed probes in a row that make an instance UNREACHABLE."""


PERIODS = ProbePeriods()


def misses_in_a_row(probes: Sequence[float | None]) -> int:
    """How many of the latest probes were lost, without an answered one between."""
    count = 0
    for probe in reversed(probes):
        if probe is not None:
            break
        count += 1
    return count


def loss_rate(probes: Sequence[float | None]) -> float | None:
    """Share of lost probes, 0 … 1; None without probes.

    Newer ones weigh more (the n-th oldest n times), but a lost probe never counts less than its plain share: three of
    ten lost are 30 % wherever they stand.
    """
    if not probes:
        return None
    lost = [place for place, probe in enumerate(probes, 1) if probe is None]
    total = len(probes)
    return max(len(lost) / total, sum(lost) / (total * (total + 1) / 2))


def round_trip_ms(probes: Sequence[float | None]) -> float | None:
    """Mean round trip of the answered probes, the n-th oldest weighing n times; None if none was answered."""
    answered = [(place, probe) for place, probe in enumerate(probes, 1) if probe is not None]
    if not answered:
        return None
    return sum(place * probe for place, probe in answered) / sum(place for place, _ in answered)


def _falling(value: float, good: float, bad: float) -> float:
    """1 up to `good`, 0 from `bad` on, linear between."""
    if value <= good:
        return 1.0
    return max(0.0, (bad - value) / (bad - good))


def reach_score(
    age_ms: float, interval_ms: float, rtt_ms: float | None, loss: float | None, weights: ReachWeights = WEIGHTS
) -> float:
    """0 … 100. Beat 12 s old, round trip 150 ms, loss 5 %: 83.54.

    Args:
        age_ms: Since the last beat.
        interval_ms: How often the agent beats.
        rtt_ms: Round trip of the probes; None: full marks, unless all of them are lost.
        loss: Share of lost probes; None: full marks.
        weights: Weights and thresholds.
    """
    fresh = max(weights.fresh_ms, interval_ms)
    heard = _falling(age_ms, fresh, 3 * fresh)
    silent = rtt_ms is None and loss is not None and loss > 0
    quick = 0.0 if silent else 1.0 if rtt_ms is None else _falling(rtt_ms, weights.rtt_good_ms, weights.rtt_bad_ms)
    whole = 1.0 if loss is None else _falling(loss, 0.0, weights.loss_bad)
    return weights.heartbeat * heard + weights.rtt * quick + weights.loss * whole


def probe_period_ms(probes: Sequence[float | None], score: float | None, periods: ProbePeriods = PERIODS) -> int:
    """How long until the next probe."""
    misses = misses_in_a_row(probes)
    if misses >= periods.fail_threshold:
        return periods.unreachable_ms
    if misses or (score is not None and score < POOR_SCORE):
        return periods.retry_ms
    return periods.healthy_ms
