"""The summariser: ranks worked out by hand, and choices on documents whose best sentences are known."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents import ranking
from reach.demo_agents.payload import BadRequestError
from reach.demo_agents.ranking import (
    PART_SIZE,
    Ranker,
    default_count,
    length,
    parts_of,
    readability,
    singular,
    summarize,
    terms,
    text_rank,
)
from reach.demo_agents.summarizer import read_request, summary_steps
from reach.demo_agents.text import read_document

BEES = """\
# How bees find flowers

Bees find flowers by their colour, their scent and the dances of other bees.
My uncle once owned a red bicycle with a broken bell.
Bees see ultraviolet colour that tells them which flowers hold nectar.
The scent of flowers stays on bees, and other bees follow it back.
Tuesday was rather cloudy in the afternoon, as far as anybody remembers.
"""

# Four sentences about one storm in two wordings, one of another kind.
STORM = """\
The storm destroyed forty houses along the coast on Monday night.
Forty houses along the coast were destroyed by the storm on Monday night.
On Monday night the storm destroyed forty houses along the coast.
Rescue teams brought two hundred people to schools further inland.
Electricity will return to most villages before the weekend, engineers say.
"""


def chosen(text: str, count: int | None = None) -> list[str]:
    return list(summarize(read_document(text), count))


def test_text_rank_of_a_star_by_hand() -> None:
    # Centre c and leaves l, all links equal: c = 0.15 + 0.85 * 2 l and l = 0.15 + 0.85 * c / 2.
    centre = 0.405 / 0.2775
    leaf = 0.15 + 0.425 * centre
    ranks = text_rank([{"a", "b"}, {"a", "x"}, {"b", "y"}])
    assert ranks == pytest.approx([centre, leaf, leaf], abs=1e-3)


def test_text_rank_of_strangers_is_the_floor() -> None:
    assert text_rank([{"a"}, {"b"}, set()]) == pytest.approx([0.15, 0.15, 0.15])
    assert text_rank([]) == []


def test_text_rank_prefers_closer_sentences() -> None:
    ranks = text_rank([{"a", "b", "c"}, {"a", "b", "c"}, {"c", "d", "e"}])
    assert ranks[0] == pytest.approx(ranks[1])
    assert ranks[0] > ranks[2]


def test_the_best_sentence_is_the_one_that_says_it_all() -> None:
    assert chosen(BEES, 1) == ["Bees find flowers by their colour, their scent and the dances of other bees."]


def test_digressions_are_left_out() -> None:
    assert chosen(BEES, 3) == [
        "Bees find flowers by their colour, their scent and the dances of other bees.",
        "Bees see ultraviolet colour that tells them which flowers hold nectar.",
        "The scent of flowers stays on bees, and other bees follow it back.",
    ]


def test_nothing_is_said_twice() -> None:
    assert chosen(STORM, 5) == [
        "The storm destroyed forty houses along the coast on Monday night.",
        "Rescue teams brought two hundred people to schools further inland.",
        "Electricity will return to most villages before the weekend, engineers say.",
    ]


def test_order_is_that_of_the_document() -> None:
    filler = "\n".join(f"Paragraph {n} speaks of item{n} and of thing{n} at some length.\n" for n in range(30))
    text = f"{filler}\n{BEES}"
    places = [text.index(sentence) for sentence in chosen(text, 6)]
    assert places == sorted(places)


def test_code_and_tables_are_never_chosen() -> None:
    code = "```\nBees flowers colour scent dances nectar bees flowers.\n```"
    text = f"{BEES}\n{code}\n\n| Bees find flowers |\n|---|\n| x |\n"
    assert all("```" not in s and "|" not in s and "dances nectar" not in s for s in chosen(text, 10))


def test_an_announcement_is_not_chosen_without_what_it_announces() -> None:
    text = f"{BEES}\nBees find flowers by the following colours, scents and dances of other bees:\n\n- red\n- blue\n"
    assert not any(sentence.endswith(":") for sentence in chosen(text, 10))


def test_sentences_that_lean_on_others_and_fragments_count_less() -> None:
    first, second, third, fourth = read_document(
        "However, the first one cannot lean. However, this one does. All is well here. A fragment without stop"
    ).sentences
    assert readability(first) == 1.0
    assert readability(second) == ranking.LEANING
    assert readability(third) == 1.0
    assert readability(fourth) == ranking.FRAGMENT


def test_first_sentences_win_among_equals() -> None:
    text = "Alpha beta gamma delta red. Alpha beta gamma delta blue. Alpha beta gamma delta green."
    ranker = Ranker(read_document(text))
    scores = [scored.score for scored in ranker.score(ranker.parts[0])]
    assert scores == sorted(scores, reverse=True)


def test_words_of_the_heading_count() -> None:
    with_title = "# Volcano\n\nA volcano can be seen there. A mountain can be seen there."
    ranker = Ranker(read_document(with_title))
    scored = ranker.score(ranker.parts[0])
    assert scored[0].score - scored[1].score > ranking.WEIGHTS["title"] / 2


def test_short_texts_come_back_whole() -> None:
    assert chosen("Only this one sentence is here.") == ["Only this one sentence is here."]
    assert chosen("Yes. No.") == ["Yes.", "No."]


def test_chinese_is_compared_by_pairs_of_characters() -> None:
    assert terms("蜜蜂找花") == ["蜜蜂", "蜂找", "找花"]
    text = "蜜蜂通过颜色和气味找到花朵并且互相告知。天气预报说明天可能会下一点小雨。蜜蜂喜欢花朵的颜色和气味胜过其他。"
    assert chosen(text, 1) == ["蜜蜂通过颜色和气味找到花朵并且互相告知。"]
    assert length("蜜蜂找花。") == 2


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("queries", "query"),
        ("servers", "server"),
        ("caches", "cache"),
        ("class", "class"),
        ("status", "status"),
        ("bus", "bus"),
        ("shoes", "shoe"),
        ("dies", "die"),
        ("gas", "gas"),
    ],
)
def test_plurals_fold_as_harman_says(plural: str, one: str) -> None:
    assert singular(plural) == one


def test_default_count_is_the_root_within_bounds() -> None:
    assert [default_count(n) for n in (0, 1, 2, 5, 25, 100, 10_000)] == [0, 1, 2, 3, 5, 10, 12]


def test_parts_hold_every_sentence_once_and_are_small() -> None:
    sections = [
        f"# Part {n}\n\n" + "Some words stand here. " * size for n, size in enumerate((3, 200, 1, 59, 2, 60, 61))
    ]
    document = read_document("\n\n".join(sections))
    parts = parts_of(document)
    assert [s.index for part in parts for s in part.sentences] == list(range(386))
    assert max(len(part.sentences) for part in parts) <= PART_SIZE
    assert parts[0].title == "Part 0"


def test_long_documents_show_their_steps() -> None:
    text = "\n\n".join(
        f"## Chapter {n}\n\n" + " ".join(f"Sentence {i} of chapter {n} is about topic{i} here." for i in range(50))
        for n in range(6)
    )
    steps = list(summary_steps(text, 4))
    notes = [step.note for step in steps if step.sentence is None]
    assert notes[:2] == ["scored part 1 of 6: Chapter 0", "scored part 2 of 6: Chapter 1"]
    assert len(notes) == 6
    assert [step.note for step in steps if step.sentence] == [f"sentence {n} of 4" for n in (1, 2, 3, 4)]
    fractions = [step.fraction for step in steps]
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert math.isclose(fractions[-1], 1.0)


def test_time_grows_with_the_length_not_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    original = ranking.text_rank

    def counting(sentences: list[set[str]]) -> list[float]:
        nonlocal compared
        compared += len(sentences) ** 2
        return original(sentences)

    monkeypatch.setattr(ranking, "text_rank", counting)
    chosen(" ".join(f"Word{n} and word{n + 1} stand next to word{n + 2}." for n in range(2000)))
    assert compared <= 2000 * PART_SIZE


@pytest.mark.parametrize(
    "text", ["", "   \n", "# Only a heading\n", "```\ncode()\n```\n", "| a |\n|---|\n| b |\n", "..."]
)
def test_text_without_sentences_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="no sentence to choose"):
        list(summary_steps(text))


def test_requests() -> None:
    assert read_request(b"Plain.", "text/plain") == ("Plain.", None)
    assert read_request(b'{"text": "A.", "sentences": 7}', "application/json") == ("A.", 7)
    for wrong in (0, 51, -1):
        with pytest.raises(BadRequestError, match="from 1 to 50"):
            read_request(json.dumps({"text": "A.", "sentences": wrong}).encode(), "application/json")


@settings(deadline=None)
@given(st.text(max_size=400), st.integers(1, 50) | st.none())
def test_any_text_gives_its_own_sentences_in_order(text: str, count: int | None) -> None:
    try:
        steps = list(summary_steps(text, count))
    except BadRequestError:
        assert not read_document(text).sections
        return
    found = [step.sentence for step in steps if step.sentence is not None]
    there = [sentence.text for sentence in read_document(text).sentences]
    position = 0
    for sentence in found:
        position = there.index(sentence, position) + 1
    assert 1 <= len(found) <= (count or 12)
    assert all(0 < step.fraction <= 1.0000001 for step in steps)


@settings(deadline=None)
@given(st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=12))
def test_text_rank_never_leaves_its_bounds(sentences: list[set[str]]) -> None:
    ranks = text_rank(sentences)
    assert all(0.15 - 1e-9 <= rank <= 1 + 0.85 * len(sentences) for rank in ranks)
