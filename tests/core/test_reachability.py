"""ReachScore, loss, round trip and the period of probes, by worked examples and slow twins (HLT-3, HLT-11)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.reachability import (
    ProbePeriods,
    ReachWeights,
    loss_rate,
    misses_in_a_row,
    probe_period_ms,
    reach_score,
    round_trip_ms,
)

PROBES = st.lists(st.one_of(st.none(), st.floats(0, 5_000)), max_size=10)


def test_HLT_11_worked_example():
    assert reach_score(12_000, 5_000, 150, 0.05) == pytest.approx(83.54, abs=0.005)


@pytest.mark.parametrize(
    ("age_ms", "interval_ms", "rtt_ms", "loss", "expected"),
    [
        (0, 5_000, 0, 0, 100),
        (10_000, 5_000, 20, 0, 100),  # the last that is full
        (20_000, 5_000, 20, 0, 75),  # half of the heartbeat's part
        (30_000, 5_000, 20, 0, 50),
        (1 << 40, 5_000, 20, 0, 50),
        (60_000, 60_000, 20, 0, 100),  # an agent that beats once a minute
        (120_000, 60_000, 20, 0, 75),
        (0, 5_000, 260, 0, 85),
        (0, 5_000, 500, 0, 70),
        (0, 5_000, 9_000, 0, 70),
        (0, 5_000, 20, 0.15, 90),
        (0, 5_000, 20, 0.3, 80),
        (0, 5_000, 20, 1, 80),
        (0, 5_000, None, None, 100),  # nobody probes it: neutral
        (0, 5_000, None, 1.0, 50),  # probed, and nothing ever came back
    ],
)
def test_HLT_11_each_part_and_its_edges(age_ms, interval_ms, rtt_ms, loss, expected):
    assert reach_score(age_ms, interval_ms, rtt_ms, loss) == pytest.approx(expected)


def slow_score(age_s, interval_s, rtt_ms, loss):
    """As the requirement has it, word for word."""
    a = max(10, interval_s)
    h = 1 if age_s <= a else 0 if age_s >= 3 * a else (3 * a - age_s) / (2 * a)
    r = 1 if rtt_ms <= 20 else 0 if rtt_ms >= 500 else (500 - rtt_ms) / 480
    lost = 1 if loss == 0 else 0 if loss >= 0.3 else 1 - loss / 0.3
    return 50 * h + 30 * r + 20 * lost


@given(st.floats(0, 400), st.floats(1, 60), st.floats(0, 1_000), st.floats(0, 1))
def test_HLT_11_it_is_what_the_words_say(age_s, interval_s, rtt_ms, loss):
    fast = reach_score(age_s * 1_000, interval_s * 1_000, rtt_ms, loss)
    assert fast == pytest.approx(slow_score(age_s, interval_s, rtt_ms, loss), abs=1e-6)
    assert 0 <= fast <= 100


def test_HLT_11_weights_and_thresholds_are_settings():
    weights = ReachWeights(heartbeat=20, rtt=40, loss=40, fresh_ms=1_000, rtt_good_ms=1, rtt_bad_ms=3, loss_bad=0.1)
    assert reach_score(2_000, 500, 2, 0.05, weights) == pytest.approx(10 + 20 + 20)


def test_HLT_3_three_of_ten_lost_is_thirty_percent_wherever_they_are():
    for lost in ((0, 1, 2), (1, 4, 8), (0, 3, 9)):
        probes = [None if place in lost else 1.0 for place in range(10)]
        assert loss_rate(probes) == pytest.approx(0.3, abs=0.01)
        assert reach_score(0, 5_000, 1, loss_rate(probes)) == 80
    newest: list[float | None] = [1.0] * 7 + [None] * 3
    assert loss_rate(newest) == pytest.approx((8 + 9 + 10) / 55)


def test_HLT_3_the_newest_weighs_most():
    assert round_trip_ms([100.0, 10.0]) == pytest.approx((100 + 2 * 10) / 3)
    assert round_trip_ms([100.0, None, 10.0]) == pytest.approx((100 + 3 * 10) / 4)
    assert round_trip_ms([]) is None
    assert round_trip_ms([None]) is None
    assert loss_rate([]) is None
    assert loss_rate([5.0]) == 0


@given(PROBES)
def test_HLT_3_loss_and_round_trip_stay_in_bounds(probes: Any) -> None:
    loss: Any = loss_rate(probes)
    rtt: Any = round_trip_ms(probes)
    if probes:
        plain = sum(probe is None for probe in probes) / len(probes)
        assert plain - 1e-9 <= loss <= 1
        assert (loss == 0) is (None not in probes)
    answered = [probe for probe in probes if probe is not None]
    assert (rtt is None) is not bool(answered)
    if answered:
        assert min(answered) - 1e-6 <= rtt <= max(answered) + 1e-6


@pytest.mark.parametrize(
    ("probes", "score", "period"),
    [
        ([], None, 5_000),
        ([1.0], 100, 5_000),
        ([1.0, None], 100, 1_000),
        ([None, None], 20, 1_000),
        ([None, None, None], 20, 30_000),
        ([None, None, None, 1.0], 61, 5_000),
        ([1.0], 59, 1_000),
        ([1.0], 60, 5_000),
    ],
)
def test_HLT_3_the_period_adapts(probes, score, period):
    assert probe_period_ms(probes, score) == period


def test_HLT_3_the_threshold_is_a_setting():
    assert probe_period_ms([None, None], 100, ProbePeriods(3_000, 500, 9_000, 2)) == 9_000
    assert misses_in_a_row([None, 1.0, None, None]) == 2
