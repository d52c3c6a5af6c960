"""The policies that have no sum, bands of priority, several policies in one pool, match and region (RTE-3, RTE-11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core.documents import Document
from reach.core.model import Requirement
from reach.core.policies import POLICIES, Policy, own_policy
from reach.core.roster import MAX_INDEXES
from reach.core.routing import Router
from tests.core.harness import LONG, Shell, instance_of

ANY = Requirement()


def router_of(*instances, policy="balanced", overcommit=1.0):
    router = Router(POLICIES[policy], overcommit)
    for one in instances:
        router.add(one)
        router.place(one)
    return router


def burst(router, count, policy=None, requirement=ANY):
    """Where tasks go that come all at once."""
    went = []
    for seed in range(count):
        chosen = router.pick(requirement, (), 1, seed, policy).chosen
        assert chosen is not None
        chosen.inflight += 1
        router.place(chosen)
        went.append(chosen.instance_id)
    return went


def test_RTE_3_round_robin_goes_round_and_passes_over_the_full():
    router = router_of(instance_of("a", 9), instance_of("b", 1), instance_of("c", 9), policy="round_robin")
    assert burst(router, 7) == ["a", "b", "c", "a", "c", "a", "c"]


def test_RTE_3_least_connections_fills_by_weight():
    light, heavy = instance_of("light", 90), instance_of("heavy", 90)
    light.weight, heavy.weight = 10, 20
    went = burst(router_of(light, heavy, policy="least_connections"), 30)
    assert (went.count("light"), went.count("heavy")) == (10, 20)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 100)), min_size=1, max_size=8), st.integers(0, 99))
def test_RTE_3_least_connections_takes_the_least(loads, seed):
    instances = [instance_of(f"i{number}", 10, inflight) for number, (inflight, _) in enumerate(loads)]
    for one, (_, weight) in zip(instances, loads, strict=True):
        one.weight = weight
    chosen = router_of(*instances, policy="least_connections").pick(ANY, (), 1, seed).chosen
    assert chosen is not None
    assert chosen.inflight / chosen.weight == min(one.inflight / one.weight for one in instances)


def test_RTE_3_power_of_two_never_takes_the_most_loaded_of_many():
    instances = [instance_of(f"i{number}", 10, number % 10) for number in range(10)]
    router = router_of(*instances, policy="power_of_two")
    chosen = [router.pick(ANY, (), 1, seed).chosen for seed in range(400)]
    loads = [one.inflight for one in chosen if one is not None]
    assert max(loads) == 8
    assert sum(loads) / len(loads) < 3.5  # of two at random the lesser: 2.7 in the mean, against 4.5 for one


def test_RTE_3_consistent_hash_sends_a_key_to_one_instance_and_bounds_its_load():
    shell = Shell()
    for number in range(4):
        shell.join(f"i{number}", slots=500)
    tasks = [shell.submit(policy="consistent_hash", fairness_key="hot", **LONG) for _ in range(3)]
    assert len({task.instance_id for task in tasks}) == 1
    assert {task.decision.cause for task in tasks} == {"ring"}
    keys = {f"k{number}": shell.submit(policy="consistent_hash", fairness_key=f"k{number}", **LONG).instance_id
            for number in range(40)}  # fmt: skip
    assert len(set(keys.values())) == 4
    shell.lose(shell.pool.instances["i3"])
    for key, before in keys.items():
        after = shell.submit(policy="consistent_hash", fairness_key=key, **LONG).instance_id
        assert after == before or before == "i3"


@pytest.mark.parametrize("policy", [name for name, one in POLICIES.items() if name != "consistent_hash"])
def test_RTE_11_the_higher_band_goes_first_whatever_the_policy(policy):
    high, low = instance_of("high", 2), instance_of("low", 2)
    high.priority, low.priority = 7, 2
    high.latency_ms = 9_000
    assert burst(router_of(low, high, policy=policy), 4) == ["high", "high", "low", "low"]


def test_several_policies_in_one_pool_each_see_the_load_at_once():
    instances = [instance_of(f"i{number}", 10) for number in range(3)]
    router = router_of(*instances)
    for policy in POLICIES.values():
        before = sum(one.inflight for one in instances)
        burst(router, 3, policy)
        assert sum(one.inflight for one in instances) == before + 3
    assert len(router.indexes()) == min(MAX_INDEXES, 1 + 8)


def test_more_policies_than_indexes_are_scored_on_sight_and_still_choose_well():
    instances = [instance_of(f"i{number}", 10) for number in range(6)]
    router = router_of(*instances)
    router.figures.baseline_ms = 200
    for number, one in enumerate(instances):
        one.latency_ms, one.moved_ms = 100.0 + 400 * (number > 0), 1
        router.rescore(one)
    own = [own_policy(f"own{number}", {"latency": 1, "near_tie": 0}) for number in range(20)]
    for _ in range(5):
        for policy in own:
            chosen = router.pick(ANY, (), 1, 1, policy).chosen
            assert chosen is not None
            assert chosen.instance_id == "i0"
    assert len(router.indexes()) == MAX_INDEXES


def test_an_index_that_was_not_asked_for_long_makes_room():
    router = router_of(instance_of("one", 9), instance_of("two", 9))
    for number in range(MAX_INDEXES + 3):
        for _ in range(40):
            router.pick(ANY, (), 1, 1, own_policy(f"own{number}", {"latency": 1}))
    assert len(router.indexes()) == MAX_INDEXES
    assert f"own{MAX_INDEXES + 2}" in {index.policy.name for index in router.indexes()}


def test_RTE_3_reachability_is_random_among_those_within_five_hundredths():
    router = Router(POLICIES["reachability"])
    for number in range(12):
        one = instance_of(f"i{number:02}", 9)
        one.reach_score = 99.0 - number  # 0.99, 0.98 … 0.88
        router.add(one)
        router.place(one)
    chosen = {found.instance_id for seed in range(400) if (found := router.pick(ANY, (), 1, seed).chosen) is not None}
    assert chosen == {f"i{number:02}" for number in range(6)}


def document(name):
    return Document(name, name, digest=f"digest of {name}")


def test_RTE_3_content_weighs_the_match_and_asks_for_six_tenths():
    """0.5 match + 0.3 capacity + 0.2 success_rate; candidates need match ≥ 0.6."""
    good, fair, poor = (
        instance_of(name, 10, agent_id=name, documents=(document(name),)) for name in ("good", "fair", "poor")
    )
    router = router_of(good, fair, poor, policy="content")
    asked = Requirement(documents=(("digest of good", 90), ("digest of fair", 70), ("digest of poor", 59)))
    verdict = router.pick(asked, (), 1, 1)
    assert verdict.chosen is good
    assert dict(verdict.dropped) == {"match": 1}
    good.inflight = 5  # 0.45 + 0.15 against 0.35 + 0.3
    router.place(good)
    assert router.pick(asked, (), 1, 1).chosen is fair
    good.inflight = fair.inflight = 10
    router.place(good)
    router.place(fair)
    assert router.pick(asked, (), 1, 1).chosen is None, "poor is no candidate, free as it is"
    assert router.pick(Requirement(documents=(("digest of poor", 59),)), (), 1, 1).cause == "match"


def test_a_policy_that_weighs_the_region_is_not_told_where_to_go():
    near, far = instance_of("near", 10, 9, region="north"), instance_of("far", 10, region="south")
    router = router_of(near, far)
    north = Requirement(region="north")
    assert router.pick(north, (), 1, 1).chosen is near
    soft = own_policy("soft", {"region": 1, "capacity": 3})  # 0.25 + 0.075 against 0.75
    assert router.pick(north, (), 1, 1, soft).chosen is far
    firm = own_policy("firm", {"region": 3, "capacity": 1})  # 0.75 + 0.025 against 0.25
    assert router.pick(north, (), 1, 1, firm).chosen is near


def test_RTE_14_who_is_slow_at_one_method_is_avoided_only_there():
    shell = Shell()
    one, two = shell.join("one", slots=20, heartbeat_ms=60_000), shell.join("two", slots=20, heartbeat_ms=60_000)
    for _ in range(10):
        for instance, text_ms, image_ms in ((one, 900, 50), (two, 50, 900)):
            for method, took in (("text", text_ms), ("image", image_ms)):
                task = shell.submit(requirement=Requirement(method=method, instance_id=instance.instance_id), **LONG)
                shell.take_up(task)
                shell.now_ms += took
                shell.report(task)
    shell.now_ms += 200
    shell.step()
    assert shell.pool.router.judges_methods
    for method, best in (("text", "two"), ("image", "one")):
        went = [shell.submit(requirement=Requirement(method=method), **LONG).instance_id for _ in range(3)]
        assert set(went) == {best}


def test_10_000_tags_are_no_trouble():
    router = router_of(*(instance_of(f"i{number}", 9, tags=tuple(f"t{number}-{tag}" for tag in range(1_000)))
                         for number in range(10)))  # fmt: skip
    chosen = router.pick(Requirement(required_tags=tuple(f"t7-{tag}" for tag in range(64))), (), 1, 1).chosen
    assert chosen is not None
    assert chosen.instance_id == "i7"
    assert router.pick(Requirement(required_tags=("t7-1", "t8-1")), (), 1, 1).cause == "no_match"


def test_a_policy_of_zeros_cannot_be_made_and_an_unknown_one_is_the_pools():
    with pytest.raises(ValueError, match="sum to 0"):
        own_policy("zero", {"latency": 0})
    router = Router(Policy("mine", {"capacity": 1.0}))
    assert router.policy_of("gone with the configuration") is router.policy


def test_a_policy_beside_the_pools_own_sees_every_change_since_it_was_last_asked():
    one, two = instance_of("one", 10), instance_of("two", 10, 4)
    router = router_of(one, two)
    least = POLICIES["least_connections"]
    assert router.pick(ANY, (), 1, 1, least).chosen is one
    one.inflight = 8  # it is still where it was, unless the index hears of it
    router.place(one)
    assert router.pick(ANY, (), 1, 1, least).chosen is two
    two.blocked_by = "unhealthy"
    router.place(two)
    assert router.pick(ANY, (), 1, 1, least).chosen is one
    two.blocked_by = ""
    router.place(two)
    assert router.pick(ANY, (), 1, 1, least).chosen is two


def test_who_becomes_free_or_full_is_seen_and_counted_at_once():
    one, two = instance_of("one", 1), instance_of("two", 1, 1)
    router = router_of(one, two, overcommit=2.0)
    first = router.pick(ANY, (), 1, 1)
    assert (first.chosen, first.cause, dict(first.dropped)) == (one, "score", {"capacity": 1})
    one.inflight, two.inflight = 1, 0
    router.place(one)
    router.place(two)
    second = router.pick(ANY, (), 1, 1)
    assert (second.chosen, second.cause, dict(second.dropped)) == (two, "score", {"capacity": 1})
    two.blocked_by = "draining"
    router.place(two)
    third = router.pick(ANY, (), 1, 1)
    assert (third.chosen, third.cause, dict(third.dropped)) == (one, "overcommit", {"draining": 1, "capacity": 1})


def test_under_a_policy_of_ones_own_that_weighs_the_match_none_is_no_bar():
    other, fit = instance_of("other", 9, agent_id="other"), instance_of("fit", 9, documents=(document("fit"),))
    router = router_of(other, fit)
    by_match = own_policy("by_match", {"match": 1, "capacity": 1})
    asked = Requirement(documents=(("digest of fit", 80), ("digest of nobody", 70)))
    assert router.pick(asked, (), 1, 1, by_match).chosen is fit
    anybody = [mask for mask, _ in router._groups(by_match, router.filters.all, asked)]
    assert sum(anybody) == router.filters.all
