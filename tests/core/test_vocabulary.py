"""The skill vocabulary (REG-5): canonical names, aliases, exclusions."""

from reach.core.documents import Document
from reach.core.vocabulary import Skill, Vocabulary, plain
from tests.core.harness import profile

WORDS = Vocabulary(
    [
        Skill("summarization", ("summarize", "text_sum"), ("summary_statistics",), ("legacy-sum",)),
        Skill("translation", ("translate",)),
    ]
)


def test_REG_5_summarize_and_text_sum_both_mean_summarization():
    for name in ("summarize", "text_sum", "Text-Sum", " text  sum ", "SUMMARIZATION", "summarization"):
        assert WORDS.canonical(name) == "summarization"
        assert WORDS.knows(name)


def test_REG_5_a_name_that_nobody_knows_means_itself_and_is_unknown():
    assert WORDS.canonical("Summary_Statistics") == "Summary_Statistics"
    assert not WORDS.knows("summary_statistics")
    assert not WORDS.knows("dance")
    assert WORDS.near("summarise") == ("summarization",)
    assert WORDS.near("zzz") == ()


def test_without_a_vocabulary_nothing_is_unknown():
    assert Vocabulary().knows("anything")
    assert Vocabulary().canonical("Any-Thing") == "Any-Thing"


def test_RTE_11_a_type_can_be_excluded_from_a_skill():
    assert WORDS.excludes("summarization", "legacy-sum")
    assert not WORDS.excludes("summarization", "sum")
    assert not WORDS.excludes("unknown", "legacy-sum")


def test_a_profile_gets_canonical_names_and_keeps_what_was_declared():
    declared = profile(
        capabilities=(("text_sum", "1"), ("dance", "")),
        documents=(Document("text_sum", "text_sum", "1"), Document("dance", "dance")),
    )
    applied = WORDS.applied(declared)
    assert applied.capabilities == (("summarization", "1"), ("dance", ""))
    assert applied.documents[0].declared == "text_sum"
    assert Vocabulary().applied(applied) == declared
    assert WORDS.applied(applied) is applied


def test_plain_form():
    assert plain("  Text -_ Sum ") == "text_sum"
