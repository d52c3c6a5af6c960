"""Signals, by worked examples (RTE-2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import signals
from reach.core.signals import availability, latency, load, running_mean

BEATS = [t * 1_000 for t in range(5, 65, 5)]
"""Every 5 s from 5 s to 60 s."""


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        # at 62 s the window is 32 … 62 s; the last 10 s (52 … 62 s) count twice: 30/5 + 10/5 = 8 beats are expected
        ((), 1.0),
        ((40,), 7 / 8),
        ((60,), 6 / 8),
        ((55, 60), 4 / 8),
        ((35, 40, 45), 5 / 8),
        (tuple(range(5, 65, 5)), 0.0),
        ((5, 10, 15, 20, 25, 30), 1.0),  # older than the window
    ],
)
def test_RTE_2_availability_counts_the_last_ten_seconds_twice(missing, expected):
    beats = [at for at in BEATS if at // 1_000 not in missing]
    assert availability(beats, 5_000, 0, 62_000) == pytest.approx(expected)


def test_RTE_2_a_new_instance_is_judged_by_its_own_time_only():
    assert availability([], 5_000, 60_000, 62_000) == 1.0
    assert availability([65_000], 5_000, 60_000, 66_000) == 2 / (12 / 5)
    assert availability([], 5_000, 60_000, 66_000) == 0.0


def test_RTE_2_more_beats_than_expected_are_no_merit():
    assert availability(list(range(0, 62_000, 100)), 5_000, 0, 62_000) == 1.0


@pytest.mark.parametrize(
    ("mean", "baseline", "expected"),
    [(200, 200, 0.5), (100, 200, 2 / 3), (600, 200, 0.25), (0, 200, 0.5), (200, 0, 0.5)],
)
def test_RTE_2_latency_is_relative_to_the_pool(mean, baseline, expected):
    assert latency(mean, baseline) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("inflight", "slots", "expected"), [(0, 4, 0.0), (1, 4, 0.25), (4, 4, 1.0), (6, 4, 1.0), (0, 0, 1.0)]
)
def test_RTE_2_load_is_the_share_of_slots_taken(inflight, slots, expected):
    assert load(inflight, slots) == expected


def test_RTE_2_the_mean_begins_with_the_first_and_follows_the_newest():
    assert running_mean(0, 300) == 300
    assert running_mean(300, 800) == pytest.approx(400)


@given(
    st.lists(st.integers(0, 100_000), max_size=40),
    st.integers(1_000, 60_000),
    st.integers(0, 100_000),
    st.integers(0, 100_000),
)
def test_RTE_2_every_signal_is_between_zero_and_one(beats, interval, since, later):
    now = since + later
    heard = sorted(beat for beat in beats if beat <= now)
    assert 0 <= availability(heard, interval, since, now) <= 1


@given(st.lists(st.integers(0, 100_000), max_size=40), st.integers(1_000, 60_000), st.integers(0, 100_000))
def test_RTE_2_availability_equals_a_plain_count(beats, interval, now):
    heard = sorted(beat for beat in beats if beat <= now)
    begin, recent = max(0, now - 30_000), max(0, now - 10_000)
    expected = ((now - begin) + (now - recent)) / interval
    received = sum((beat >= begin) + (beat >= recent) for beat in heard)
    plain = 1.0 if expected < 1 else min(1.0, received / expected)
    assert availability(heard, interval, 0, now) == pytest.approx(plain)


# -- windows -----------------------------------------------------------------------------------------------------------


class SlowWindow:
    """The obvious twin: keeps every attempt."""

    def __init__(self):
        self.all = []

    def add(self, now_ms, failed, took_ms):
        self.all.append((now_ms, failed, took_ms))

    def figures(self, now_ms):
        slot = now_ms // signals.SLOT_MS
        figures = [0, 0, 0]
        for at, failed, took in self.all:
            age = slot - at // signals.SLOT_MS
            times = (age < signals.WINDOW_SLOTS) + (age < signals.RECENT_SLOTS)
            for place, value in enumerate((1, failed, took)):
                figures[place] += times * value
        return tuple(figures)


@given(
    steps=st.lists(st.tuples(st.integers(0, 120_000), st.sampled_from([0, 0, 1]), st.integers(1, 5_000)), max_size=60),
    later=st.integers(0, 700_000),
)
def test_RTE_2_HLT_5_a_window_is_what_keeping_every_attempt_would_say(steps, later):
    fast, slow, now = signals.Window(), SlowWindow(), 0
    for wait, failed, took in steps:
        now += wait
        for window in (fast, slow):
            window.add(now, failed, 0 if failed else took)
        assert fast.figures(now) == slow.figures(now)
    assert fast.figures(now + later) == slow.figures(now + later)
    assert len(fast._marks) <= signals.WINDOW_SLOTS


def test_RTE_2_HLT_5_the_last_seconds_count_twice_and_old_bad_history_ages_out():
    stats = signals.MethodStats()
    for number in range(10):
        stats.window.add(number, 1, 0)
    assert stats.success_rate(100) == 0
    for number in range(10):
        stats.window.add(60_000 + number, 0, 100)
    assert stats.success_rate(60_100) == pytest.approx(20 / 30)
    assert stats.success_rate(75_000) == pytest.approx(10 / 20)
    assert stats.success_rate(301_000) == 1
    assert stats.mean_latency_ms(301_000) == 100
    assert (stats.success_rate(1_000_000), stats.mean_latency_ms(1_000_000)) == (signals.NEUTRAL_SUCCESS, 0)


def test_RTE_2_HLT_5_what_a_window_keeps_is_bounded():
    window = signals.Window()
    for slot in range(1_000):
        window.add(slot * signals.SLOT_MS, 0, 1)
    assert len(window._marks) == signals.WINDOW_SLOTS
    assert window.figures(999 * signals.SLOT_MS)[0] == signals.WINDOW_SLOTS + signals.RECENT_SLOTS


def test_RTE_14_methods_have_figures_of_their_own_and_their_number_is_bounded():
    methods: dict[str, signals.MethodStats] = {}
    signals.stats_of(methods, "image").window.add(1_000, 0, 10)
    signals.stats_of(methods, "text").window.add(1_000, 1, 0)
    assert signals.success_rate(methods, "image", 1_000) == 1
    assert signals.success_rate(methods, "text", 1_000) == 0
    assert signals.mean_latency(methods, "image", 1_000) == 10
    assert signals.success_rate(methods, "never called", 1_000) == signals.NEUTRAL_SUCCESS
    for number in range(1_000):
        signals.stats_of(methods, f"m{number}").window.add(1_000, 1, 0)
    assert len(methods) == signals.MAX_METHODS + 1
    assert signals.success_rate(methods, "m999", 1_000) == 0
