"""Policies as data: the worked examples of RTE-3, and policies of the configuration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.decision import candidates, score_of
from reach.core.model import Requirement
from reach.core.policies import BALANCED, OF_THE_TASK, POLICIES, SIGNALS, Figures, Policy, Way, own_policy
from reach.core.routing import Router
from reach.core.score_index import ScoreIndex
from reach.core.signals import stats_of, usual_load
from tests.core.harness import instance_of

NOW = 62_000
NINE_OF_TEN = [("", 9, 1, 100)]
"""(method, good, bad, duration)"""
ALL_BEATS = [t * 1_000 for t in range(35, 65, 5)]


def scored(policy, beats=(), slots=4, inflight=0, foreign=0, figures=None, method="", tried=(), **fields):
    """The score of one instance, from the index, which must agree with the sum from scratch."""
    instance = instance_of("one", slots, inflight)
    instance.bit = 0
    instance.beats, instance.foreign = list(beats), foreign
    for name, value in fields.items():
        setattr(instance, name, value)
    for of_method, good, bad, took_ms in tried:
        for number in range(good + bad):
            stats_of(instance.methods, of_method).window.add(NOW - 1_000, int(number >= good), took_ms)
    index = ScoreIndex(policy, method)
    index.grow(1)
    index.rescore(instance, figures or Figures(200.0), NOW)
    return index.score(instance)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # 0.5 availability + 0.3 latency + 0.2 capacity
        ({"beats": ALL_BEATS, "latency_ms": 200}, 0.5 * 1 + 0.3 * 0.5 + 0.2 * 1),
        ({"beats": ALL_BEATS, "latency_ms": 200, "inflight": 3}, 0.5 * 1 + 0.3 * 0.5 + 0.2 * 0.25),
        ({"beats": ALL_BEATS, "latency_ms": 100, "inflight": 4}, 0.5 * 1 + 0.3 * 2 / 3 + 0),
        ({"beats": ALL_BEATS[:-1], "latency_ms": 600}, 0.5 * 6 / 8 + 0.3 * 0.25 + 0.2 * 1),
        ({"beats": ALL_BEATS, "latency_ms": 0}, 0.5 * 1 + 0.3 * 0.5 + 0.2 * 1),
        ({"beats": (), "latency_ms": 200, "inflight": 6}, 0.3 * 0.5),
        # of 4 slots, 1 is ours and 2 are in use by others
        ({"beats": ALL_BEATS, "latency_ms": 200, "inflight": 1, "foreign": 2}, 0.5 * 1 + 0.3 * 0.5 + 0.2 * 0.25),
    ],
)
def test_RTE_3_balanced(given, expected):
    assert scored(BALANCED, **given) == pytest.approx(expected)


def test_RTE_3_reachability_is_reach_times_capacity():
    reachability = POLICIES["reachability"]
    assert scored(reachability, reach_score=83.54) == pytest.approx(0.8354)
    assert scored(reachability, reach_score=83.54, inflight=1) == pytest.approx(0.8354 * 0.75)
    assert scored(reachability, reach_score=83.54, inflight=4) == 0
    assert scored(reachability) == 1, "unknown"
    assert POLICIES["reachability"].near_tie == 0.05


def test_RTE_3_capability():
    """0.5 capacity + 0.3 weight + 0.2 success_rate."""
    figures = Figures()
    figures.heaviest = 20
    assert scored(POLICIES["capability"], inflight=1, weight=5, figures=figures, tried=NINE_OF_TEN) == pytest.approx(
        0.5 * 0.75 + 0.3 * 0.25 + 0.2 * 0.9
    )


def test_RTE_3_adaptive_with_and_without_its_bonus():
    """0.5 success_rate + 0.3 capacity + 0.2 latency, + up to 0.05 for those below the mean load for 30 s."""
    figures = Figures(200.0)
    figures.usual_load = 0.5
    plain = 0.5 * 0.9 + 0.3 * 0.75 + 0.2 * 2 / 3
    given = {"inflight": 1, "latency_ms": 100, "figures": figures, "tried": NINE_OF_TEN}
    adaptive = POLICIES["adaptive"]
    assert scored(adaptive, **given, usual_load=0.5) == pytest.approx(plain)
    assert scored(adaptive, **given, usual_load=0.9) == pytest.approx(plain), "no malus"
    assert scored(adaptive, **given, usual_load=0.25) == pytest.approx(plain + 0.05 * 0.5)
    assert scored(adaptive, **given, usual_load=0.0) == pytest.approx(plain + 0.05)


def test_RTE_3_the_usual_load_is_a_mean_over_30_seconds():
    assert usual_load(0.2, 0.8, 0) == pytest.approx(0.2)
    assert usual_load(0.2, 0.8, 30_000) == pytest.approx(0.8 - 0.6 / math.e)
    assert usual_load(0.2, 0.8, 600_000) == pytest.approx(0.8)
    by_steps = 0.2
    for _ in range(300):
        by_steps = usual_load(by_steps, 0.8, 100)
    assert by_steps == pytest.approx(usual_load(0.2, 0.8, 30_000)), "however often it is looked at"


def test_RTE_3_RTE_14_adaptive_compares_with_what_is_normal_for_the_method():
    """Good at text and slow at pictures: judged by the task."""
    figures = Figures(100.0)
    figures.baselines_ms = {"render": 4_000.0, "text": 100.0}
    given = {"figures": figures, "tried": [("render", 6, 2, 4_000), ("text", 9, 0, 50)], "latency_ms": 900}
    adaptive = POLICIES["adaptive"]
    # a failure brings no duration, so the helper's 8 x 4,000 ms are over 6 good ones
    assert scored(adaptive, method="render", **given) == pytest.approx(
        0.5 * 0.75 + 0.3 + 0.2 * 4_000 / (4_000 + 4_000 * 8 / 6)
    )
    assert scored(adaptive, method="text", **given) == pytest.approx(0.5 + 0.3 + 0.2 * 100 / 150)
    assert scored(adaptive, method="other", **given) == pytest.approx(0.5 * 0.95 + 0.3 + 0.2 * 0.5)
    assert scored(adaptive, **given) == pytest.approx(0.5 * 15 / 17 + 0.3 + 0.2 * 100 / 1_000)


def test_HLT_5_what_is_older_than_five_minutes_says_nothing_any_more():
    slow = {"latency_ms": 9_000, "figures": Figures(100.0)}
    assert scored(BALANCED, **slow, moved_ms=NOW - 300_000) == pytest.approx(0.3 * 100 / 9_100 + 0.2)
    assert scored(BALANCED, **slow, moved_ms=NOW - 300_001) == pytest.approx(0.3 * 0.5 + 0.2)


def test_RTE_3_least_connections_counts_slots_by_weight():
    least = POLICIES["least_connections"]
    assert scored(least, inflight=0) == 1
    assert scored(least, inflight=2, weight=10, slots=9) == pytest.approx(1 / 1.2)
    assert scored(least, inflight=2, weight=20, slots=9) > scored(least, inflight=2, weight=10, slots=9)


def test_the_score_follows_the_load_without_new_signals():
    instance = instance_of("one", 4)
    instance.bit = 0
    index = ScoreIndex(BALANCED, "")
    index.grow(1)
    index.rescore(instance, Figures(200.0), NOW)
    free = index.score(instance)
    instance.inflight = 2
    assert index.score(instance) == pytest.approx(free - 0.1)


WEIGHED = [policy for policy in POLICIES.values() if policy.weights]


@pytest.mark.parametrize("policy", WEIGHED, ids=[policy.name for policy in WEIGHED])
@given(st.integers(0, 9), st.integers(1, 6), st.integers(0, 3), st.floats(1, 9_000), st.integers(1, 100))
def test_what_an_index_keeps_in_parts_is_the_sum_from_scratch(policy, inflight, slots, foreign, latency, weight):
    router = Router(policy)
    one = instance_of("one", slots, inflight)
    one.foreign, one.latency_ms, one.weight = foreign, latency, weight
    router.figures.baseline_ms, router.figures.heaviest, router.now_ms = 500.0, 100, NOW
    router.add(one)
    static = router.filters.static(Requirement())
    (row,) = candidates(router.verdict(one, "score", 1, policy, static, [one]))
    added = sum(policy.weights.get(name, 0) * row.signals.get(name, 0) for name in OF_THE_TASK)
    assert row.score == pytest.approx(router.main.score(one) + added)
    assert row.score == pytest.approx(score_of(policy, row.signals, inflight + foreign, slots, weight))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_presets_are_made_of_known_signals_and_sum_to_one(policy):
    assert set(policy.weights) <= set(SIGNALS)
    if policy.way is Way.SUM:
        assert policy.top == pytest.approx(1.05 if policy.name == "adaptive" else 1)


def test_a_hash_tells_definitions_apart():
    assert len({policy.digest for policy in POLICIES.values()}) == len(POLICIES)
    assert Policy("x", {"load": 1.0}).digest == Policy("y", {"load": 1.0}).digest
    assert Policy("x", {"load": 1.0}).digest != Policy("x", {"load": 1.0}, near_tie=0.1).digest


# -- policies of the configuration -------------------------------------------------------------------------------------


def test_own_weights_are_brought_to_one_and_zeros_are_left_out():
    policy = own_policy("fast", {"latency": 3, "capacity": 1, "match": 0, "near_tie": 0.1})
    assert policy.weights == {"latency": 0.75, "capacity": 0.25}
    assert (policy.near_tie, policy.top) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("name", "declared", "told"),
    [
        ("balanced", {"load": 1}, "built-in"),
        ("x", {}, "sum to 0"),
        ("x", {"latency": 0, "load": 0.0}, "sum to 0"),
        ("x", {"latency": -1, "load": 2}, "latency must be 0 or more, it is -1"),
        ("x", {"latency": math.nan}, "latency must be 0 or more, it is nan"),
        ("x", {"latency": math.inf}, "latency must be 0 or more, it is inf"),
        ("x", {"latency": 1e308, "load": 1e308}, "infinity"),
        ("x", {"speed": 1}, "there is no signal 'speed'; there is availability, latency"),
        ("x", {"latency": True}, "must be a number"),
        ("x", {"latency": "much"}, "must be a number"),
        ("x", {"latency": 1, "near_tie": 2}, "near_tie must be 0 to 1"),
        ("x", {"latency": 1, "near_tie": -0.1}, "near_tie must be 0 or more"),
    ],
)
def test_own_policies_that_mean_nothing_are_refused_in_words(name, declared, told):
    with pytest.raises(ValueError, match="^.*" + told.replace("(", r"\(")):
        own_policy(name, declared)
