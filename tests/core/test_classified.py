"""What a model may choose from, what its answer means, and what follows (RTE-5)."""

import pytest

from reach.core.classified import MAX_CHOICES, choices, chosen, documents_of
from reach.core.decision_record import record_of
from reach.core.directory import Directory
from reach.core.documents import BY_CLASSIFIER, Document
from reach.core.model import PoolKey, Requirement
from reach.core.resolving import Selector
from reach.core.routing import Router
from reach.core.vocabulary import Skill, Vocabulary
from reach.errors import Reason
from tests.core.harness import instance_of, profile


def document(name, description="", owner="a"):
    return Document(name, name, digest=f"{owner}:{name}", description=description)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("refunds", "refunds"),
        (' "Refunds". ', "refunds"),
        ("`refunds`\n", "refunds"),
        ("NONE", ""),
        ("", ""),
        ("refunds, because the text says so", ""),
        ("refund", ""),
        ("delete_everything", ""),
        ("x" * 10_000 + "refunds", ""),
    ],
)
def test_RTE_5_only_a_name_that_was_offered_is_an_answer(answer, expected):
    assert chosen(answer, ["images", "refunds"]) == expected


def test_RTE_5_what_is_offered_is_bounded_and_leaves_out_what_the_skill_excludes():
    vocabulary = Vocabulary([Skill("drafts", exclude=("final",)), Skill("refunds", description="Pays back.")])
    documents = [document("drafts"), document("refunds", "Sends  money\nback." + "x" * 999)]
    offered = choices(documents, "the final word", vocabulary)
    assert list(offered) == ["refunds"]
    assert offered["refunds"].startswith("Pays back. Sends money back.xxx")
    assert len(offered["refunds"]) <= 300
    assert list(choices(documents, "another word", vocabulary)) == ["drafts", "refunds"]
    many = [document(f"c{number}") for number in range(MAX_CHOICES + 9)]
    assert len(choices(many, "", vocabulary)) == MAX_CHOICES


def test_what_was_classified_is_as_good_as_is_just_needed():
    documents = [document("refunds"), document("images"), document("refunds", owner="b")]
    assert documents_of(documents, "refunds", 0.62) == (("a:refunds", 65), ("b:refunds", 65), BY_CLASSIFIER)
    assert documents_of(documents, "gone", 0.6) == ()


def directory_with(**tenants):
    made = Directory()
    for tenant, names in tenants.items():
        for name in names:
            one = document(name, f"knows {name}", tenant)
            made.add(PoolKey(tenant, "t"), name, profile(name, documents=(one,), capabilities=((name, ""),)))
    return made


def test_RTE_5_a_classified_text_goes_to_those_the_tenant_may_call():
    directory = directory_with(acme=["refunds", "images"], other=["refunds", "secrets"])
    directory.classified_of = lambda tenant, text: {"I want my money": "refunds", "psst": "secrets"}.get(text, "")
    money, psst, nothing = (Selector(text=text) for text in ("I want my money", "psst", "hm"))
    found = directory.resolve("acme", money)
    assert (found.pools, found.refusal) == ((PoolKey("acme", "t"),), None)
    assert found.match == {"refunds": 0.6}
    for selector in (psst, nothing):
        refusal = directory.resolve("acme", selector).refusal
        assert refusal is not None
        assert refusal.reason is Reason.NO_TEXT_MATCH


def test_RTE_5_what_was_unmatched_is_looked_at_again():
    known: dict[str, str] = {}
    directory = directory_with(acme=["refunds"])
    directory.classified_of = lambda tenant, text: known.get(text, "")
    selector = Selector(text="I want my money")
    assert directory.unmatched("acme", selector)
    known["I want my money"] = "refunds"
    assert not directory.unmatched("acme", selector)
    assert directory.resolve("acme", selector).pools


def test_RTE_5_words_go_first_and_other_refusals_are_none_of_its():
    directory = directory_with(acme=["refunds", "images"])
    directory.classified_of = lambda tenant, text: "images"
    found = directory.resolve("acme", Selector(text="refunds please"))
    assert found.match == {"refunds": 1.0}
    assert not directory.unmatched("acme", Selector(text="hm", intent="none.such"))
    assert not directory.unmatched("acme", Selector(capability="nobody"))


def test_RTE_13_a_decision_tells_that_a_model_matched_the_text():
    router = Router()
    one = instance_of("one", 4, documents=(document("refunds"),))
    router.add(one)
    router.place(one)
    asked = Requirement(documents=documents_of([document("refunds")], "refunds", 0.6))
    policy = router.policies["content"]
    verdict = router.pick(asked, policy=policy)
    assert (verdict.chosen, record_of(verdict).matched_by) == (one, "classifier")
    assert record_of(router.pick(Requirement())).matched_by == ""
