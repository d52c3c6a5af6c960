"""Content match by words (RTE-5): the documented formula, worked examples, and a slow twin."""

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.core.documents import Document
from reach.core.matching import KEPT, MAX_WORDS, Lexicon, accepted, entry_of, match_of, stem, words
from reach.core.vocabulary import Skill

SUM = Document(
    "text_sum", "summarization", digest="sum", description="Makes long documents short.",
    examples=("Summarize this article", "Give me the key points of a report"),
)  # fmt: skip
TRANSLATE = Document("translation", "translation", digest="tr", description="Translates texts between languages.")
REFUND = Document("refund", "refund", digest="re", description="Pays money back to customers.", tags=("billing",))
SKILL = Skill("summarization", ("summarize", "text_sum"), ("summary statistics",))


def lexicon_of(*documents: Document) -> Lexicon:
    lexicon = Lexicon()
    for document in documents:
        lexicon.add(document.digest, entry_of(document, SKILL if document.name == SKILL.name else None))
    return lexicon


ALL = lexicon_of(SUM, TRANSLATE, REFUND)


def best(text: str, lexicon: Lexicon = ALL) -> str:
    scores = lexicon.matches(text)
    return max(scores, key=scores.__getitem__, default="")


def test_words_of_one_kind_have_one_stem():
    assert {stem(word) for word in ("summarize", "summarizing", "summarization", "summarizes")} == {"summar"}
    assert {stem(word) for word in ("translate", "translates", "translation")} == {"transl"}
    assert stem("sum") == "sum"


def test_words_drop_what_says_nothing_and_are_bounded():
    assert words("Please, could you SUMMARIZE this?") == ("summar",)
    assert words("") == words("  ?!") == ()
    assert len(words(" ".join(f"word{number}x" for number in range(1_000)))) == MAX_WORDS
    assert words("翻译文章") == ("翻译", "译文", "文章")


def test_RTE_5_worked_example():
    # Three documents. "summar" and "report" are in one each: idf ln 4. "tomorrow" is in none: ln 2.
    known, unknown = log(4), log(2)
    coverage = 2 * known / (2 * known + unknown)
    scores = ALL.matches("summarize the report tomorrow")
    # The alias `summarize` is in the text: 0.6 + 0.4 x coverage.
    assert scores == {"sum": pytest.approx(0.6 + 0.4 * coverage)}
    assert ALL.matches("customers tomorrow") == {"re": pytest.approx(0.7 * known / (known + unknown))}


def test_RTE_5_texts_find_what_they_mean():
    assert best("Can you summarize the attached report?") == "sum"
    assert best("I want my money back, refund me") == "re"
    assert best("Translate this into German") == "tr"
    assert best("What's the weather in Paris?") == ""


def test_RTE_5_a_text_with_the_words_of_an_example_matches_fully():
    assert ALL.matches("summarize this article")["sum"] == pytest.approx(1.0)


def test_REG_5_a_text_that_uses_an_excluded_name_is_not_matched():
    assert "sum" in ALL.matches("summarize my statistics of sales")
    assert "sum" not in ALL.matches("the summary statistics of this report")


def test_documents_are_counted():
    lexicon = lexicon_of(REFUND, REFUND)
    lexicon.remove("re")
    assert lexicon.matches("refund")
    lexicon.remove("re")
    assert not lexicon.matches("refund")
    assert len(lexicon) == 0
    lexicon.remove("re")


def test_accepted_are_the_best_over_the_threshold_in_steps():
    scores = {f"d{number}": number / 10 for number in range(11)}
    assert accepted(scores, 0.75) == (("d10", 100), ("d8", 80), ("d9", 90))
    assert accepted({"a": 0.62, "b": 0.63}, 0.6) == (("a", 60), ("b", 65))
    assert len(accepted({f"d{number}": 0.9 for number in range(50)}, 0.6)) == KEPT


def test_the_signal_match_of_an_instance_is_that_of_its_best_document():
    asked = (("a", 65), ("b", 90))
    assert match_of(asked, ("a", "b", "c")) == 0.9
    assert match_of(asked, ("c",)) == 0.0
    assert match_of((), ("a",)) == 1.0


VOCABULARY = ["alpha", "beta", "gamma", "delta", "omega"]
texts = st.lists(st.sampled_from([*VOCABULARY, "zeta"]), max_size=5).map(" ".join)
documents = st.builds(
    lambda name, described, examples: Document(name, name, description=described, examples=tuple(examples)),
    st.sampled_from(VOCABULARY), texts, st.lists(texts, max_size=2),
)  # fmt: skip


def slow(text: str, given: list[Document]) -> dict[int, float]:
    """The formula as it is written, over all documents."""
    query = set(words(text))

    def having(document: Document) -> set[str]:
        return set(words(" ".join((document.name, document.description, *document.examples))))

    def idf(word: str) -> float:
        count = sum(word in having(document) for document in given)
        return log(1 + len(given) / count) if count else log(2)

    total = sum(map(idf, query))
    found = {}
    for number, document in enumerate(given):
        if not query & having(document):
            continue
        strong = set(words(" ".join((document.name, *document.examples))))
        covered = sum(idf(word) * (1 if word in strong else 0.7) for word in query & having(document)) / total
        scores = [covered]
        if set(words(document.name)) <= query:
            scores.append(0.6 + 0.4 * covered)
        for example in map(set, map(words, document.examples)):
            both = query & example
            if both:
                scores.append(2 * sum(map(idf, both)) / (total + sum(map(idf, example))))
        found[number] = min(1.0, max(scores))
    return found


@settings(max_examples=300)
@given(texts, st.lists(documents, max_size=5))
def test_RTE_5_agrees_with_the_formula_over_all_documents(text, given):
    lexicon = Lexicon()
    for number, document in enumerate(given):
        lexicon.add(str(number), entry_of(document, None))
    expected = {str(number): pytest.approx(score) for number, score in slow(text, given).items()}
    assert lexicon.matches(text) == expected
    assert all(0 <= score <= 1 for score in lexicon.matches(text).values())
