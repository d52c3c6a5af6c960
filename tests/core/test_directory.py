"""Level 1 on the registry: who could take a task, and what is missing if nobody could (RTE-1, RTE-6, RTE-15)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.core import sifting
from reach.core.directory import Directory
from reach.core.documents import Document, schema_key
from reach.core.intents import Route, Routes
from reach.core.model import PoolKey, Requirement
from reach.core.resolving import Selector
from reach.core.routing import Router
from reach.core.sifting import passes
from reach.core.vocabulary import Skill, Vocabulary
from reach.errors import Reason
from tests.core.harness import instance_of, profile

TENANT = "acme"
GPU, CPU = PoolKey(TENANT, "gpu-box"), PoolKey(TENANT, "cpu-box")


def document(name: str, **parts: Any) -> Document:
    return Document(name, name, digest=f"{name}-{sorted(parts.items())}", **parts)


def declares(agent_id: str = "echo", *documents: Document, **parts: Any):
    named = tuple((one.name, one.version) for one in documents)
    return profile(agent_id, capabilities=named, documents=documents, **parts)


def directory_of(*rows: tuple[PoolKey, str, Any], **settings: Any) -> Directory:
    directory = Directory()
    for pool, instance_id, one in rows:
        directory.add(pool, instance_id, one)
    directory.configure(strict=settings.pop("strict", True), **settings)
    return directory


def asked(
    intent: str = "", text: str = "", instance_id: str = "", agent_type: str = "", **requirement: Any
) -> Selector:
    needs = Requirement(instance_id=instance_id, **requirement)
    return Selector(agent_type, needs.agent_id, instance_id, needs.capability, intent=intent, text=text,
                    requirement=needs)  # fmt: skip


BOXES = directory_of(
    (GPU, "g1", declares("draw", document("images"), tags=("gpu", "eu"), methods=("draw",))),
    (GPU, "g2", declares("draw", document("images", version="2"), tags=("gpu",), languages=("de",))),
    (CPU, "c1", declares("write", document("texts"), document("images"), tags=("cpu",))),
)


def reform(directory: Directory, vocabulary: Vocabulary, routes: Routes) -> list[tuple[PoolKey, str, Any]]:
    """New rules at once; the instances whose profiles read differently now."""
    other, before = directory.successor(vocabulary, routes), directory.instances()
    for row in before:
        other.add(*row)
    directory.succeed(other)
    return [row for row in directory.instances() if row not in before]


COMBINATIONS = [
    (asked(capability="images"), (CPU, GPU)),
    (asked(capability="texts"), (CPU,)),
    (asked(required_tags=("gpu",)), (GPU,)),
    (asked(required_tags=("gpu", "eu")), (GPU,)),
    (asked(method="draw"), (GPU,)),
    (asked(agent_id="write"), (CPU,)),
    (asked(agent_type="gpu-box"), (GPU,)),
    (asked(instance_id="g2"), (GPU,)),
    (asked(capability="images", required_tags=("cpu",)), (CPU,)),
    (asked(capability="images", agent_type="gpu-box", required_tags=("eu",), method="draw"), (GPU,)),
    (asked(capability="images", capability_version="2"), (GPU,)),
    (asked(capability="images", accepted_languages=("de",)), (CPU, GPU)),
]


@pytest.mark.parametrize(("selector", "pools"), COMBINATIONS)
def test_RTE_15_any_combination_of_parts_selects(selector, pools):
    assert BOXES.pools_of(TENANT, selector) == pools


MISSING = [
    (asked(capability="dance"), Reason.NO_CAPABLE_AGENT, "no agent has capability 'dance'"),
    (asked(capability="images", capability_version="7"), Reason.NO_CAPABLE_AGENT,
     "no agent with capability 'images' has version '7' of it: there is '', '2'"),
    (asked(capability="images", required_tags=("tpu",)), Reason.NO_TAGGED_AGENT,
     "no agent with capability 'images' carries tag 'tpu'"),
    (asked(required_tags=("gpu", "tpu", "npu")), Reason.NO_TAGGED_AGENT, "no agent carries tag 'tpu', 'npu'"),
    (asked(required_tags=("gpu", "cpu")), Reason.NO_TAGGED_AGENT, "no agent carries all of the tags 'gpu', 'cpu'"),
    (asked(agent_type="dancer"), Reason.NO_MATCHING_AGENT, "no agent of type 'dancer' is registered"),
    (asked(agent_id="dancer"), Reason.NO_MATCHING_AGENT, "no agent 'dancer' is registered"),
    (asked(instance_id="g9"), Reason.NO_MATCHING_AGENT, "no instance 'g9' is registered"),
    (asked(instance_id="g1", required_tags=("cpu",)), Reason.NO_TAGGED_AGENT, "no agent carries tag 'cpu'"),
    (asked(capability="texts", agent_type="gpu-box"), Reason.NO_CAPABLE_AGENT, "no agent has capability 'texts'"),
    (asked(agent_id="draw", accepted_languages=("fr",), required_tags=("gpu",), method="sing"),
     Reason.NO_MATCHING_AGENT, "no agent speaks 'fr'"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "reason", "words"), MISSING)
def test_REG_5_what_is_missing_is_named_by_a_reason_of_its_own(selector, reason, words):
    refusal = BOXES.resolve(TENANT, selector).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (reason, words)


@pytest.mark.parametrize(("selector", "reason", "words"), MISSING)
def test_REG_5_without_strict_it_waits_and_says_for_what(selector, reason, words):
    lenient = directory_of(strict=False)
    lenient.add(GPU, "g1", declares("draw", document("images"), tags=("gpu",)))
    resolved = lenient.resolve(TENANT, selector)
    if not resolved.pools:
        assert resolved.refusal is None
        assert resolved.lack is not None
        assert resolved.lack.message.startswith("no ")


def test_an_empty_registry_names_what_was_asked_for_first():
    empty = directory_of()
    for selector, reason in ((asked(capability="x", required_tags=("t",)), Reason.NO_CAPABLE_AGENT),
                             (asked(required_tags=("t",)), Reason.NO_TAGGED_AGENT),
                             (asked(agent_id="x"), Reason.NO_MATCHING_AGENT)):  # fmt: skip
        refusal = empty.resolve(TENANT, selector).refusal
        assert refusal is not None
        assert refusal.reason is reason


def test_GOV_1_other_tenants_are_not_seen_unless_they_say_so():
    shared = directory_of(
        (PoolKey("other", "t"), "o1", declares("one", document("images"))),
        (PoolKey("other", "u"), "o2", declares("two", document("images"), allowed_tenants=(TENANT,))),
        (PoolKey("other", "v"), "o3", declares("three", document("images"), allowed_tenants=("*",))),
    )
    assert [pool.agent_type for pool in shared.pools_of(TENANT, asked(capability="images"))] == ["u", "v"]
    assert [pool.agent_type for pool in shared.pools_of("other", asked(capability="images"))] == ["t", "u", "v"]
    assert [pool.agent_type for pool in shared.pools_of("third", asked(capability="images"))] == ["v"]


# -- intents and skills -----------------------------------------------------------------------------------------------


def test_RTE_6_an_intent_asks_for_the_capability_and_the_tags_of_its_route():
    directory = directory_of((GPU, "g1", declares("a", document("refunds"), tags=("vip",))))
    reform(directory, Vocabulary(), Routes([Route("shop", "refunds", ("vip",)), Route("shop.x", "dance")]))
    resolved = directory.resolve(TENANT, asked(intent="shop.refund", required_tags=("vip",)))
    assert resolved.pools == (GPU,)
    assert (resolved.requirement.capability, resolved.requirement.required_tags) == ("refunds", ("vip",))
    refusal = directory.resolve(TENANT, asked(intent="shop.x")).refusal
    assert refusal is not None
    assert refusal.message == "no agent has capability 'dance' for intent 'shop.x'"


REFUSED_INTENTS = [
    ("other.x", {}, Reason.NO_ROUTE, "no route has intent 'other.x' or a prefix of it: and none begins alike"),
    ("shop", {}, Reason.NO_ROUTE, "no route has intent 'shop' or a prefix of it: there is shop.a, shop.b"),
    ("shop.a", {"capability": "y"}, Reason.INVALID_FIELD, "intent 'shop.a' means capability 'x'"),
    ("shop.b", {}, Reason.NOT_IMPLEMENTED, "several agents at once (shop.a)"),
    ("fall", {}, Reason.NOT_IMPLEMENTED, "no agent has capability 'z' for intent 'fall', and falling back to 'shop.a'"),
    (".".join("x" * 40), {}, Reason.NO_ROUTE, "no route has intent"),
]


@pytest.mark.parametrize(("intent", "more", "reason", "words"), REFUSED_INTENTS)
def test_RTE_6_an_intent_that_leads_nowhere_is_refused_even_without_strict(intent, more, reason, words):
    directory = directory_of((GPU, "g1", declares("a", document("x"))), strict=False)
    routes = [Route("shop.a", "x"), Route("shop.b", parallel=("shop.a",)), Route("fall", "z", fallback_intent="shop.a")]
    reform(directory, Vocabulary(), Routes(routes))
    refusal = directory.resolve(TENANT, asked(intent=intent, **more)).refusal
    assert refusal is not None
    assert refusal.reason is reason
    assert words in refusal.message


def test_RTE_6_a_fallback_that_is_not_needed_changes_nothing():
    directory = directory_of((GPU, "g1", declares("a", document("x"))))
    reform(directory, Vocabulary(), Routes([Route("fall", "x", fallback_capability="y")]))
    assert directory.resolve(TENANT, asked(intent="fall")).pools == (GPU,)


def test_REG_5_aliases_meet_and_a_new_vocabulary_reads_everything_anew():
    directory = directory_of(
        (GPU, "g1", declares("a", document("text_sum"))),
        (CPU, "c1", declares("b", document("summarize"))),
        strict=False,
    )
    assert directory.pools_of(TENANT, asked(capability="summarization")) == ()
    words = Vocabulary([Skill("summarization", ("text_sum", "summarize"))])
    moved = reform(directory, words, Routes())
    assert {(pool, one) for pool, one, _ in moved} == {(GPU, "g1"), (CPU, "c1")}
    for name in ("summarization", "text_sum", "summarize"):
        assert directory.pools_of(TENANT, asked(capability=name)) == (CPU, GPU)
    moved = reform(directory, Vocabulary([Skill("shortening", ("summarize",))]), Routes())
    assert directory.pools_of(TENANT, asked(capability="text_sum")) == (GPU,)
    assert directory.pools_of(TENANT, asked(capability="shortening")) == (CPU,)
    assert reform(directory, directory.vocabulary, Routes()) == []


def test_REG_5_an_unknown_skill_is_refused_if_strict_and_noted_otherwise():
    for strict in (True, False):
        directory = directory_of((GPU, "g1", declares("a", document("dance"))), strict=strict)
        reform(directory, Vocabulary([Skill("dancing")]), Routes())
        resolved = directory.resolve(TENANT, asked(capability="dance"))
        assert resolved.unknown_skill == "dance"
        assert (resolved.refusal is not None) == strict
        if resolved.refusal is not None:
            assert resolved.refusal.reason is Reason.UNKNOWN_SKILL
            assert "did you mean dancing?" in resolved.refusal.message


def test_RTE_11_a_type_excluded_from_a_skill_does_not_serve_it():
    directory = directory_of((GPU, "g1", declares("a", document("x"))), (CPU, "c1", declares("b", document("x"))))
    reform(directory, Vocabulary([Skill("x", exclude_types=("gpu-box",))]), Routes())
    assert directory.pools_of(TENANT, asked(capability="x")) == (CPU,)
    assert directory.pools_of(TENANT, asked(agent_type="gpu-box")) == (GPU,)


# -- texts and schemas ------------------------------------------------------------------------------------------------


def test_RTE_5_a_text_selects_the_documents_that_fit_it():
    directory = directory_of(
        (GPU, "g1", declares("short", document("summarization", description="makes long reports short"))),
        (CPU, "c1", declares("pay", document("refund", description="pays money back"))),
    )
    resolved = directory.resolve(TENANT, asked(text="refund my money please"))
    assert resolved.pools == (CPU,)
    assert resolved.match == {"pay": 0.95}
    refusal = directory.resolve(TENANT, asked(text="what is the weather")).refusal
    assert refusal is not None
    assert refusal.reason is Reason.NO_TEXT_MATCH


def test_RTE_5_a_text_that_fits_nobody_goes_to_the_generic_agent_if_there_is_one():
    directory = directory_of((GPU, "g1", declares("any", document("chat"))), generic_type="gpu-box")
    assert directory.resolve(TENANT, asked(text="what is the weather")).pools == (GPU,)
    assert directory.resolve("third", asked(text="what is the weather")).refusal is not None


def test_RTE_5_what_another_matcher_finds_counts_like_words_and_is_kept_only_once_it_is_known():
    directory = directory_of((GPU, "g1", declares("any", document("chat"))))
    digest = document("chat").digest
    answers: list[dict[str, float] | None] = [None, {digest: 0.8}]
    directory.similar_of = lambda _: answers[0]
    selector = asked(text="what is the weather")
    assert directory.resolve(TENANT, selector).refusal is not None
    del answers[0]
    resolved = directory.resolve(TENANT, selector)
    assert (resolved.pools, resolved.match) == ((GPU,), {"any": 0.8})


def test_REG_4_the_schemas_of_a_capability_are_told_by_version():
    directory = directory_of(
        (GPU, "g1", declares("a", document("x", version="1", schema="{}", schema_id="s1"))),
        (GPU, "g2", declares("a", document("x", version="2", schema="{2}", schema_id="s2"))),
        (CPU, "c1", declares("b", document("x", version="2"), document("y"))),
    )
    assert directory.resolve(TENANT, asked(capability="x")).schemas == (("", ""), ("s1", "{}"), ("s2", "{2}"))
    assert directory.resolve(TENANT, asked(capability="x", capability_version="1")).schemas == (("s1", "{}"),)
    assert directory.resolve(TENANT, asked(capability="y")).schemas == ()
    selector = asked(capability="x")
    only = selector.requirement._replace(documents=((schema_key("x", "s2"), 100),))
    resolved = directory.resolve(TENANT, selector)
    assert directory.with_schemas(TENANT, resolved, selector, only) == (GPU,)
    directory.remove(GPU, "g1")
    directory.remove(GPU, "g2")
    assert directory.resolve(TENANT, asked(capability="x")).schemas == ()


def test_GOV_5_ten_thousand_tags_are_no_matter():
    many = tuple(f"tag{number}" for number in range(10_000))
    directory = directory_of((GPU, "g1", profile(tags=many)))
    assert directory.pools_of(TENANT, asked(required_tags=many)) == (GPU,)
    refusal = directory.resolve(TENANT, asked(required_tags=(*many, "more"))).refusal
    assert refusal is not None
    assert len(refusal.message) < 200


# -- the slow twin ----------------------------------------------------------------------------------------------------

profiles = st.builds(
    lambda agent, names, tags, methods, languages, allowed: declares(
        agent, *(document(name) for name in sorted(names)), tags=tuple(sorted(tags)), methods=tuple(sorted(methods)),
        languages=tuple(sorted(languages)), allowed_tenants=tuple(sorted(allowed)),
    ),
    st.sampled_from(["a", "b"]), st.sets(st.sampled_from(["x", "y"])), st.sets(st.sampled_from(["t", "u"])),
    st.sets(st.sampled_from(["m", "n"])), st.sets(st.sampled_from(["de", "en"])),
    st.sets(st.sampled_from(["guest", "*"]), max_size=1),
)  # fmt: skip
selectors = st.builds(
    lambda **parts: asked(**{name: value for name, value in parts.items() if value}),
    agent_id=st.sampled_from(["", "a"]), capability=st.sampled_from(["", "x", "y"]),
    required_tags=st.sets(st.sampled_from(["t", "u"])).map(lambda tags: tuple(sorted(tags))),
    method=st.sampled_from(["", "m"]), accepted_languages=st.sampled_from([(), ("de",)]),
    agent_type=st.sampled_from(["", "gpu-box"]), instance_id=st.sampled_from(["", "i0"]),
)  # fmt: skip


def is_open_to(tenant: str, pool: PoolKey, one: Any) -> bool:
    return tenant == pool.tenant or tenant in one.allowed_tenants or "*" in one.allowed_tenants


def could(pool: PoolKey, instance_id: str, one: Any, tenant: str, selector: Selector) -> bool:
    """Whether an instance could take it: every filter written out."""
    r = selector.requirement
    named = {name for name, _ in one.capabilities}
    return (
        is_open_to(tenant, pool, one)
        and selector.agent_type in ("", pool.agent_type)
        and r.instance_id in ("", instance_id)
        and r.agent_id in ("", one.agent_id)
        and (not r.capability or r.capability in named)
        and (not r.method or r.method in one.methods or not one.methods)
        and set(r.required_tags) <= set(one.tags)
        and (not r.accepted_languages or not one.languages or bool(set(r.accepted_languages) & set(one.languages)))
    )


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([GPU, CPU]), profiles), max_size=5), selectors,
       st.sampled_from([TENANT, "guest"]), st.sets(st.integers(0, 4)))  # fmt: skip
def test_RTE_15_agrees_with_a_look_at_every_instance(rows, selector, tenant, leaving):
    instances = [(pool, f"i{number}", one) for number, (pool, one) in enumerate(rows)]
    directory = directory_of(*instances)
    for number in sorted(leaving & set(range(len(instances)))):
        directory.remove(*instances[number][:2])
    stayed = [row for number, row in enumerate(instances) if number not in leaving]
    if not any((selector.agent_type, *selector.requirement)):
        return
    found = set(directory.pools_of(tenant, selector))
    expected = {pool for pool, one, it in stayed if could(pool, one, it, tenant, selector)}
    only_method = not (selector.agent_type or any(selector.requirement._replace(method="", accepted_languages=())))
    if only_method:  # the method chooses the pool; within it whoever takes any method may do it
        expected = {pool for pool in expected if any(selector.requirement.method in it.methods
                    for at, _, it in stayed if at == pool and is_open_to(tenant, at, it))}  # fmt: skip
    assert found == expected
    assert (directory.resolve(tenant, selector).refusal is None) == bool(expected)


def test_what_comes_and_goes_leaves_nothing_behind():
    directory = Directory()
    one = declares("a", document("x", schema="{}", schema_id="s"), tags=("t",), methods=("m",))
    for _ in range(3):
        directory.add(GPU, "g1", one)
        directory.add(GPU, "g2", one)
        assert directory.add(GPU, "g1", one._replace(version="2")).version == "2"
        directory.remove(GPU, "g1")
        directory.remove(GPU, "g2")
        directory.remove(GPU, "g2")
    held = (directory._pools, directory._names, directory._lexicons, directory._profiles)
    assert held == ({}, {}, {}, {})


def test_equal_profiles_are_one_object():
    directory = Directory()
    made = [directory.add(GPU, f"g{number}", declares("a", document("x"))) for number in range(3)]
    assert made[0] is made[1] is made[2]


def test_REG_5_what_comes_and_goes_while_new_rules_are_made_is_not_lost():
    directory = directory_of((GPU, "g1", declares("a", document("x"))), (GPU, "g2", declares("b", document("x"))))
    other, before = directory.successor(Vocabulary([Skill("y", ("x",))]), Routes()), directory.instances()
    directory.remove(GPU, "g1")
    directory.add(CPU, "c1", declares("c", document("x")))
    directory.add(GPU, "g2", declares("b", document("x"), tags=("new",)))
    for row in before:
        other.add(*row)
    directory.add(GPU, "g1", declares("a", document("x"), tags=("back",)))
    directory.remove(GPU, "g1")
    directory.succeed(other)
    assert [(pool, one, profile.tags) for pool, one, profile in sorted(directory.instances())] == [
        (CPU, "c1", ()), (GPU, "g2", ("new",)),
    ]  # fmt: skip
    assert directory.pools_of(TENANT, asked(capability="y")) == (CPU, GPU)


@given(profiles, selectors, st.sampled_from([TENANT, "guest"]), st.sampled_from([(), ("x-[]",), ("none",)]))
def test_RTE_1_the_fast_filter_is_all_filters(one, selector, tenant, keys):
    requirement = selector.requirement._replace(documents=tuple((key, 100) for key in keys))
    stages = dict(sifting._stages(tenant, GPU, one, requirement, Vocabulary()))
    assert passes(tenant, GPU, one, requirement, Vocabulary()) == all(stages.values())


def test_GOV_1_what_another_matcher_finds_of_other_tenants_is_left_out():
    directory = directory_of(
        (PoolKey("other", "t"), "o1", declares("one", document("chat"))), (GPU, "g1", declares("two", document("talk")))
    )
    directory.similar_of = lambda _: {document("chat").digest: 0.9, document("talk").digest: 0.7}
    assert directory.resolve(TENANT, asked(text="what is the weather")).match == {"two": 0.7}


rich_documents = st.builds(
    lambda name, version, schema_id, languages: Document(
        name, name, version, digest=f"{name}{version}{schema_id}{languages}", schema_id=schema_id, languages=languages
    ),
    st.sampled_from(["x", "y"]), st.sampled_from(["", "2"]), st.sampled_from(["", "s"]),
    st.sampled_from([(), ("de",), ("en", "fr")]),
)  # fmt: skip
parts: dict[str, st.SearchStrategy[Any]] = {
    "agent_id": st.sampled_from(["", "a"]),
    "capability": st.sampled_from(["", "x", "y"]),
    "capability_version": st.sampled_from(["", "2"]),
    "method": st.sampled_from(["", "m"]),
    "required_tags": st.sampled_from([(), ("t",), ("t", "u")]),
    "accepted_languages": st.sampled_from([(), ("de",), ("fr",)]),
    "tenant": st.sampled_from(["", "guest"]),
    "documents": st.sampled_from([(), ((schema_key("x", "s"), 100),), ((schema_key("x", ""), 100), ("y2()", 90))]),
}
needs = st.fixed_dictionaries(parts).map(lambda given: Requirement(**given))


@settings(max_examples=400)
@given(st.lists(rich_documents, max_size=3), profiles, needs)
def test_RTE_1_both_levels_have_the_same_filters(declared, one, requirement):
    """Level 1 looks at profiles, level 2 at bits: an instance that one of them takes, the other must take."""
    capabilities = tuple((each.name, each.version) for each in declared)
    one = one._replace(documents=tuple(declared), capabilities=capabilities)
    if requirement.capability_version and not requirement.capability:
        return  # a version of nothing
    instance = instance_of("i1")
    instance.profile = one
    router = Router()
    router.add(instance)
    expected = passes(requirement.tenant or TENANT, GPU, one, requirement, Vocabulary())
    assert router.matches(instance, requirement) == expected
