"""Policies as data: the worked examples of `balanced` (RTE-3)."""

import pytest

from reach.core.policies import BALANCED, POLICIES, Policy, base_score, score, signals_of
from tests.core.harness import instance_of

NOW = 62_000
ALL_BEATS = [t * 1_000 for t in range(35, 65, 5)]


def scored(beats=(), latency_ms=0.0, slots=4, inflight=0, baseline=200.0, policy=BALANCED):
    instance = instance_of("one", slots, inflight)
    instance.beats, instance.latency_ms = list(beats), latency_ms
    instance.base = base_score(policy, instance, baseline, NOW)
    return score(policy, instance)


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
    ],
)
def test_balanced(given, expected):
    assert scored(**given) == pytest.approx(expected)


def test_the_score_follows_the_load_without_a_new_base():
    instance = instance_of("one", 4)
    instance.base = base_score(BALANCED, instance, 200, NOW)
    free = score(BALANCED, instance)
    instance.inflight = 2
    assert score(BALANCED, instance) == pytest.approx(free - 0.1)


def test_base_and_load_make_the_whole_sum():
    for inflight in range(6):
        instance = instance_of("one", 4, inflight)
        instance.beats, instance.latency_ms = list(ALL_BEATS), 350.0
        instance.base = base_score(BALANCED, instance, 200, NOW)
        known = signals_of(instance, 200, NOW)
        assert score(BALANCED, instance) == pytest.approx(sum(w * known[n] for n, w in BALANCED.weights.items()))


def test_a_policy_is_its_weights():
    assert scored(slots=4, inflight=1, policy=Policy("idle", {"capacity": 1.0})) == pytest.approx(0.75)
    assert {name: policy.name for name, policy in POLICIES.items()} == {name: name for name in POLICIES}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_presets_are_weighted_sums_of_known_signals_that_add_up_to_one(policy):
    assert sum(policy.weights.values()) == pytest.approx(1)
    assert set(policy.weights) <= set(signals_of(instance_of("one"), 0, NOW))
