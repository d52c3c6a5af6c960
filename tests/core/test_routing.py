"""Level 2: filters with reasons, choice, exclusion, overcommit, replay (RTE-1, RTE-4, RTE-8, RTE-13)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.core.decision import dropped
from reach.core.model import Requirement
from reach.core.picking import LOOKED_AT, bits, sample
from reach.core.policies import NEAR_TIE, Policy
from reach.core.preview import reasons_of
from reach.core.routing import Router
from tests.core.harness import instance_of, profile

ANY = Requirement()


def router_of(*instances, overcommit=1.0):
    router = Router(overcommit=overcommit)
    for instance in instances:
        router.add(instance)
        router.place(instance)
    return router


def pick(router, requirement=ANY, avoided=(), cost=1, seed=1):
    chosen = router.pick(requirement, avoided, cost, seed).chosen
    return chosen.instance_id if chosen is not None else None


def explained(router, requirement, avoided=()):
    """Why each instance would be dropped; empty for candidates."""
    verdict = router.undisturbed(lambda: router.pick(requirement, avoided, 1))
    reasons = reasons_of(router, verdict, avoided, 1)
    return {one.instance_id: reasons.get(one.bit, "") for one in router.instances if one is not None}


MATCHES = [
    # what is asked, what fits, what does not, the drop reason
    ({"tenant": "guest"}, {"allowed_tenants": ("guest",)}, {"allowed_tenants": ("other",)}, "tenant"),
    ({"tenant": "guest"}, {"allowed_tenants": ("*",)}, {"allowed_tenants": ()}, "tenant"),
    ({"agent_id": "echo"}, {"agent_id": "echo"}, {"agent_id": "other"}, "agent"),
    ({"capability": "sum"}, {"capabilities": (("sum", "2"),)}, {}, "capability"),
    (
        {"capability": "sum", "capability_version": "2"},
        {"capabilities": (("sum", "1"), ("sum", "2"))},
        {"capabilities": (("sum", "1"),)},
        "capability_version",
    ),
    ({"method": "run"}, {"methods": ("run", "stop")}, {"methods": ("stop",)}, "method"),
    ({"method": "run"}, {"methods": ()}, {"methods": ("stop",)}, "method"),
    ({"required_tags": ("gpu", "eu")}, {"tags": ("eu", "gpu", "x")}, {"tags": ("gpu",)}, "tag"),
    ({"input_media_type": "a/b"}, {"input_media_types": ("a/b",)}, {"input_media_types": ("c/d",)}, "input"),
    ({"input_media_type": "a/b"}, {"input_media_types": ()}, {"input_media_types": ("c/d",)}, "input"),
    ({"accepted_media_types": ("x", "y")}, {"output_media_types": ("y",)}, {"output_media_types": ("z",)}, "output"),
    ({"accepted_languages": ("de",)}, {"languages": ("en", "de")}, {"languages": ("en",)}, "language"),
]


@pytest.mark.parametrize(("asked", "good", "bad", "reason"), MATCHES)
def test_each_static_filter_admits_and_drops_with_its_reason(asked, good, bad, reason):
    router = router_of(instance_of("good", 9, **good), instance_of("bad", 9, **bad))
    requirement = Requirement(**asked)
    assert {pick(router, requirement, seed=seed) for seed in range(20)} == {"good"}
    assert explained(router, requirement) == {"good": "", "bad": reason}
    assert dropped(router.pick(requirement)) == {reason: 1}
    assert router.matches(router.instances[0], requirement)
    assert not router.matches(router.instances[1], requirement)


def test_an_instance_can_be_named():
    router = router_of(instance_of("one", 9), instance_of("two", 9))
    assert pick(router, Requirement(instance_id="two")) == "two"
    assert router.pick(Requirement(instance_id="three"), (), 1, 1).cause == "no_match"


def test_dynamic_drop_reasons():
    ill, full, failed, free = (instance_of(name) for name in ("ill", "full", "failed", "free"))
    ill.blocked_by, full.inflight = "unhealthy", 1
    router = router_of(ill, full, failed, free)
    assert explained(router, ANY, ("failed",)) == {
        "ill": "unhealthy",
        "full": "capacity",
        "failed": "failed_before",
        "free": "",
    }
    assert dropped(router.pick(ANY, ("failed",))) == {"unhealthy": 1, "capacity": 1, "failed_before": 1}


def test_reasons_are_those_of_the_first_stage_that_drops():
    router = router_of(instance_of("one", agent_id="x", tags=()))
    assert dropped(router.pick(Requirement(agent_id="y", required_tags=("gpu",)))) == {"agent": 1}


def test_failed_instances_are_avoided_only_while_another_is_admitted():
    one, two = instance_of("one", 2), instance_of("two", 2)
    router = router_of(one, two)
    assert {pick(router, avoided=("one",), seed=seed) for seed in range(20)} == {"two"}
    two.inflight = 2
    router.place(two)
    assert pick(router, avoided=("one",)) is None  # it exists, though it is full
    two.blocked_by = "unhealthy"
    router.place(two)
    assert pick(router, avoided=("one",)) == "one"
    assert pick(router, avoided=("one", "two")) == "one"
    assert pick(router, Requirement(instance_id="one"), avoided=("one",)) == "one"


def test_overcommit_only_when_nobody_has_a_free_slot_and_never_beyond_the_limit():
    """RTE-8: 1.5 × max_concurrency, rounded down."""
    busy, free = instance_of("busy", 3, inflight=3), instance_of("free", 1)
    router = router_of(busy, free, overcommit=1.5)
    assert pick(router) == "free"
    free.inflight = 1
    router.place(free)
    verdict = router.pick(ANY, (), 1, 1)
    assert (verdict.chosen, verdict.cause) == (busy, "overcommit")
    busy.inflight = 4
    router.place(busy)
    assert pick(router) is None  # 4 = int(3 × 1.5)
    assert router.pick(ANY, (), 1, 1).cause == "capacity"


def test_RTE_13_who_is_kept_from_work_is_not_said_to_be_full():
    """What a waiting task says must lead to what is wrong: room is missing only where somebody works."""
    one, two = instance_of("one", 1), instance_of("two", 1, inflight=1)
    router = router_of(one, two)
    one.blocked_by = "draining"
    router.place(one)
    assert router.pick(ANY, (), 1, 1).cause == "capacity", "two works, and is full"
    two.blocked_by = "no_link"
    router.place(two)
    assert router.pick(ANY, (), 1, 1).cause in ("draining", "no_link")
    one.blocked_by = "no_link"
    router.place(one)
    assert router.pick(ANY, (), 1, 1).cause == "no_link"


def test_the_least_loaded_is_overfilled_first():
    router = router_of(instance_of("a", 10, inflight=12), instance_of("b", 10, inflight=10), overcommit=1.5)
    assert pick(router) == "b"


@pytest.mark.parametrize("slots", range(1, 9))
def test_a_hard_limit_is_hard(slots):
    one = instance_of("one", slots)
    router = router_of(one)
    for _ in range(slots):
        assert pick(router) == "one"
        one.inflight += 1
        router.place(one)
    assert pick(router) is None
    assert not router.has_room()


def test_cost_counts_and_one_larger_than_the_instance_needs_it_empty():
    one = instance_of("one", 4)
    router = router_of(one, overcommit=1.5)
    assert pick(router, cost=4) == "one"
    assert pick(router, cost=9) == "one"
    one.inflight = 1
    router.place(one)
    assert pick(router, cost=3) == "one"
    assert router.pick(ANY, (), 5, 1).cause == "overcommit"
    assert pick(router, cost=6) is None
    assert pick(router, cost=9) is None
    assert router.has_slots(one, 5)
    assert not router.has_slots(one, 6)


def test_a_burst_does_not_land_on_one_instance():
    """RTE-4: counts count at once."""
    instances = [instance_of(f"i{number}", 10) for number in range(4)]
    router = router_of(*instances)
    for seed in range(40):
        chosen = router.pick(ANY, (), 1, seed).chosen
        assert chosen is not None
        chosen.inflight += 1
        router.place(chosen)
    assert [instance.inflight for instance in instances] == [10, 10, 10, 10]


def test_the_same_seed_chooses_the_same_and_seeds_spread():
    router = router_of(*(instance_of(f"i{number:02}", 9) for number in range(40)))
    chosen = [pick(router, seed=seed) for seed in range(400)]
    assert chosen == [pick(router, seed=seed) for seed in range(400)]
    assert len(set(chosen)) == 40
    assert max(chosen.count(name) for name in set(chosen)) < 40


def test_a_policy_without_near_ties_takes_the_very_best():
    router = Router(Policy("exact", {"capacity": 0.2}, near_tie=0.0))
    for number in range(5):
        one = instance_of(f"i{number}", 9)
        router.add(one)
        router.main.base[one.bit] = 0.5001 + number * 0.0001
        router.place(one)
    assert {pick(router, seed=seed) for seed in range(50)} == {"i4"}


def test_who_has_left_is_not_found_and_its_place_is_used_again():
    one, two = instance_of("one", tags=("gpu",)), instance_of("two", 1, inflight=1)
    router = router_of(one, overcommit=2.0)
    router.remove(one)
    assert pick(router) is None
    assert one.bit == -1
    router.add(two)
    router.place(two)
    assert two.bit == 0
    one.blocked_by = "no_link"
    router.place(one)  # a late change of one that left touches nobody
    assert pick(router) == "two"
    assert pick(router, Requirement(required_tags=("gpu",))) is None


def test_a_changed_profile_is_seen_at_once():
    one = instance_of("one")
    router = router_of(one)
    assert pick(router, Requirement(required_tags=("gpu",))) is None
    router.reprofile(one, profile(tags=("gpu",)))
    assert pick(router, Requirement(required_tags=("gpu",))) == "one"
    router.reprofile(one, profile(agent_id="other"))
    assert pick(router, Requirement(required_tags=("gpu",))) is None
    assert pick(router, Requirement(agent_id="other")) == "one"


@given(st.integers(1, 2**90), st.integers(0, 2**64 - 1))
def test_a_sample_is_of_the_set_bits_without_repeats(mask, seed):
    found = sample(mask, seed)
    assert len(found) == len(set(found)) == min(LOOKED_AT, mask.bit_count())
    assert all(mask >> position & 1 for position in found)
    assert list(bits(mask)) == [position for position in range(mask.bit_length()) if mask >> position & 1]


# -- against a slow obvious twin ---------------------------------------------------------------------------------------

TAGS = ("eu", "gpu", "new")
REQUIREMENTS = (
    ANY,
    Requirement(required_tags=("gpu",)),
    Requirement(required_tags=("eu", "new")),
    Requirement(capability="sum"),
    Requirement(method="run", capability="echo"),
)


def admits(instance, r):
    p = instance.profile
    return (
        set(r.required_tags) <= set(p.tags)
        and (not r.capability or r.capability in {name for name, _ in p.capabilities})
        and (not r.method or not p.methods or r.method in p.methods)
    )


def twin(score, instances, requirement, avoided, cost, overcommit):
    """(those of whom any may be chosen, whether one must be) by looking at every instance."""
    matching = [one for one in instances if admits(one, requirement)]
    admitted = [one for one in matching if not one.blocked_by]
    others = [one for one in admitted if one.instance_id not in avoided]
    usable = others or admitted
    free = [one for one in usable if one.inflight < one.max_concurrency]
    free = [one for one in free if one.inflight + cost <= one.max_concurrency or not one.inflight]
    if free:
        free = [one for one in free if one.priority == max(other.priority for other in free)]
        best = max(score(one) for one in free)
        return [one for one in free if score(one) >= best - NEAR_TIE - 1e-9]
    over = [one for one in usable if one.inflight + cost <= int(one.max_concurrency * overcommit)]
    least = min((one.inflight / one.max_concurrency for one in over), default=None)
    return [one for one in over if one.inflight / one.max_concurrency == least]


INSTANCE = st.tuples(st.integers(1, 5), st.sets(st.sampled_from(TAGS)), st.booleans(), st.booleans())
ACT = st.one_of(
    st.tuples(st.just("add"), INSTANCE),
    st.tuples(st.just("remove"), st.integers(0, 7)),
    st.tuples(st.just("load"), st.tuples(st.integers(0, 7), st.integers(0, 8))),
    st.tuples(st.just("block"), st.tuples(st.integers(0, 7), st.booleans())),
    st.tuples(st.just("base"), st.tuples(st.integers(0, 7), st.floats(0, 0.8))),
    st.tuples(st.just("priority"), st.tuples(st.integers(0, 7), st.integers(0, 9))),
    st.tuples(st.just("slots"), st.tuples(st.integers(0, 7), st.integers(1, 5))),
    st.tuples(
        st.just("pick"),
        st.tuples(
            st.sampled_from(REQUIREMENTS), st.sets(st.integers(0, 9), max_size=3), st.integers(1, 3), st.integers(0, 99)
        ),
    ),
)


@settings(max_examples=200)
@given(st.lists(ACT, max_size=60), st.sampled_from([1.0, 1.5, 2.0]))
def test_the_router_equals_a_look_at_every_instance(acts, overcommit):
    router, made = Router(overcommit=overcommit), 0
    instances: list[Any] = []
    for act, about in acts:
        if act == "add" and len(instances) < LOOKED_AT:
            slots, tags, summing, running = about
            capabilities = (("echo", "1"), ("sum", "1")) if summing else (("echo", "1"),)
            one = instance_of(f"i{made}", slots, tags=tuple(sorted(tags)), capabilities=capabilities,
                              methods=("run",) if running else ("stop",))  # fmt: skip
            made += 1
            instances.append(one)
            router.add(one)
            router.place(one)
        elif act == "pick":
            requirement, numbers, cost, seed = about
            avoided = tuple(f"i{number}" for number in sorted(numbers))
            wanted = twin(router.main.score, instances, requirement, avoided, cost, overcommit)
            chosen = router.pick(requirement, avoided, cost, seed).chosen
            assert chosen in wanted if wanted else chosen is None
            assert router.static_mask(requirement) == sum(1 << o.bit for o in instances if admits(o, requirement))
            if chosen is not None:
                chosen.inflight += cost
                router.place(chosen)
        elif act not in ("add", "pick") and instances:
            number, value = about if isinstance(about, tuple) else (about, None)
            one = instances[number % len(instances)]
            if act == "remove":
                instances.remove(one)
                router.remove(one)
                continue
            if act == "base":
                router.main.base[one.bit] = value
            elif act == "priority":
                one.priority = value
                base = router.main.base[one.bit]
                router.rescore(one)
                router.main.base[one.bit] = base
            else:
                field = {"load": "inflight", "block": "blocked_by", "slots": "max_concurrency"}[act]
                setattr(one, field, ("ill" if value else "") if act == "block" else value)
            router.place(one)
        usable = [one for one in instances if not one.blocked_by]
        assert bool(router.room(ANY)[0]) == any(one.inflight < one.max_concurrency for one in usable)
        assert router.has_room() == any(
            one.inflight < max(one.max_concurrency, int(one.max_concurrency * overcommit)) for one in usable
        )


def test_RTE_3_a_pool_takes_other_policies_while_it_routes():
    heavy = Policy("mine", {"weight": 1.0}, 0.0)
    free = Policy("mine", {"capacity": 1.0}, 0.0)

    def made():
        loaded = instance_of("loaded", 9, inflight=8)
        loaded.weight = 100
        return loaded, instance_of("empty", 9)

    router = Router(free, 1.0, {"mine": free})
    router.figures.heaviest = 100
    for instance in made():
        router.add(instance)
        router.place(instance)
    assert {pick(router, seed=seed) for seed in range(20)} == {"empty"}
    router.redefine({"mine": heavy}, heavy)
    fresh = Router(heavy, 1.0, {"mine": heavy})
    fresh.figures.heaviest = 100
    for instance in made():
        fresh.add(instance)
        fresh.place(instance)
    for one in (router, fresh):
        assert {pick(one, seed=seed) for seed in range(20)} == {"loaded"}
    router.redefine({"mine": heavy}, heavy)
    assert pick(router) == "loaded"
    router.redefine({"other": free}, free)
    assert {pick(router, seed=seed) for seed in range(20)} == {"empty"}
    assert router.policy_of("mine") is free  # it is no longer declared
