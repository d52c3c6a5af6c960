"""What is known of a session: turns, summary, names, bounds, and how it is kept (SES-3)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.core import context as c
from reach.core.context import CONTEXT_BYTES, RAW_TURNS, Context, Exchange, Facts, Said
from reach.core.model import TaskState
from reach.core.summary import LINE_BYTES, extract, lines_of


def turn(number, request="", response="", agent="helper", state=TaskState.SUCCEEDED, error=""):
    said = Said("", response or f"answer {number}") if state is TaskState.SUCCEEDED else Said("", "")
    return Exchange(f"t{number}", agent, int(state), Said("", request or f"question {number}"), said, error)


def context(turns=0):
    made = Context("acme", "app:user:1")
    for number in range(turns):
        made.add(turn(number), Facts({}, {}))
    return made


def test_SES_3_the_last_five_turns_are_raw_and_older_ones_wait_for_a_summary_of_ten():
    one = context(RAW_TURNS + 9)
    assert [turn.task_id for turn in one.turns] == [f"t{number}" for number in range(9, 14)]
    assert one.due() == []
    one.add(turn(14), Facts({}, {}))
    due = one.due()
    assert [turn.task_id for turn in due] == [f"t{number}" for number in range(10)]
    assert one.due() == []  # they are being summarised
    one.add(turn(15), Facts({}, {}))
    one.summarised(len(due), "in short")
    assert one.summary == "in short"
    assert [turn.task_id for turn in one.older] == ["t10"]
    assert one.count == 16


def test_SES_3_a_turn_counts_once_per_task():
    one = context(3)
    revision = one.revision
    assert not one.add(turn(1, "again"), Facts({"a": "b"}, {}))
    assert (one.revision, one.count, one.said) == (revision, 3, {})


def test_a_turn_that_is_told_again_much_later_is_still_known():
    one = context(c.APPLIED)
    assert one.has("t0")
    one.add(turn(c.APPLIED), Facts({}, {}))
    assert not one.has("t0")


def test_SES_3_what_was_said_is_apart_from_what_was_inferred():
    one = context()
    one.add(turn(1), Facts({"name": "Ada"}, {"mood": "curious"}))
    one.add(turn(2), Facts({"city": "Paris"}, {"name": "Ada L."}))
    assert one.said == {"name": "Ada", "city": "Paris"}
    assert one.inferred == {"mood": "curious", "name": "Ada L."}


def test_names_are_bounded_and_the_one_untouched_for_longest_goes():
    one = context()
    one.add(turn(0), Facts({"first": "1", "second": "2"}, {}))
    one.add(turn(1), Facts({"first": "again"}, {}))
    one.add(turn(2), Facts({f"n{number}": "x" for number in range(c.NAMES - 1)}, {}))
    assert len(one.said) == c.NAMES
    assert one.said["first"] == "again"
    assert "second" not in one.said


def test_the_last_answer_of_an_agent_stays_when_its_turns_have_left():
    one = context()
    one.add(turn(0, response="the plan", agent="planner"), Facts({}, {}))
    for number in range(1, 16):
        one.add(turn(number), Facts({}, {}))
    one.summarised(len(one.due()), "")
    assert one.outputs == {"planner": ("t0", Said("", "the plan"))}
    one.add(turn(17, response="a new plan", agent="planner"), Facts({}, {}))
    assert one.outputs == {}


@pytest.mark.parametrize(
    ("said", "most", "expected"),
    [
        (Said("text/html", "short"), 5, Said("text/html", "short")),
        (Said("text/html", "longer"), 5, Said("text/plain", "longe", True)),
        (Said("", "ää"), 3, Said("text/plain", "ä", True)),
        (Said("image/png", b"12345"), 5, Said("image/png", b"12345")),
        (Said("image/png", b"123456"), 5, Said("image/png", b"", True)),
    ],
)
def test_a_text_is_cut_and_bytes_are_whole_or_not_there(said, most, expected):
    assert c.cut_to(said, most) == expected


def test_what_is_too_much_is_shortened_the_oldest_first():
    one = context()
    for number in range(9):
        one.add(turn(number, request="q" * c.SIDE_BYTES, response="r"), Facts({}, {}))
    held = [*one.older, *one.turns]
    assert sum(turn.size for turn in held) <= CONTEXT_BYTES
    cut = [turn.request.cut for turn in held]
    assert cut == sorted(cut, reverse=True)
    assert True in cut
    assert False in cut
    assert one.is_cut


sizes = st.sampled_from((0, 1, 100, 1_000, 20_000, 70_000))


@given(st.lists(st.tuples(sizes, sizes, st.booleans()), max_size=40))
def test_no_conversation_is_larger_than_its_bound(turns):
    one = context()
    for number, (asked, answered, summarise) in enumerate(turns):
        one.add(turn(number, "q" * asked, "a" * answered), Facts({}, {}))
        if summarise and (due := one.due()):
            one.summarised(len(due), extract(one.summary, due))
        held = [*one.older, *one.turns]
        brief = len(held) * (c.TURN_OVERHEAD + 2 * c.BRIEF_BYTES)
        assert sum(turn.size for turn in held) <= max(CONTEXT_BYTES, brief)
        assert len(one.turns) == min(number + 1, RAW_TURNS)
        again = Context("acme", "app:user:1")
        again.packed = msgspec.msgpack.decode(msgspec.msgpack.encode(one.state()))
        again.wake()
        assert again.state() == one.state()
        assert again.size == one.size


# -- extracts ----------------------------------------------------------------------------------------------------------


def test_an_extract_keeps_sentences_as_they_were():
    turns = [
        turn(1, "Hello there. My order 4711 has not come.", "Order 4711 left on Monday.", "shop"),
        turn(2, "I want the money for order 4711 back!", "", "refund", TaskState.FAILED, "TIMEOUT: too slow"),
    ]
    lines = extract("user: I am a customer.", turns).splitlines()
    assert "user: My order 4711 has not come." in lines
    assert "shop: Order 4711 left on Monday." in lines
    assert "refund: failed, TIMEOUT: too slow" in lines
    assert lines[0] == "user: I am a customer."


def test_an_extract_is_bounded_and_keeps_what_says_most():
    told = [turn(number, f"{chr(97 + number) * 9} nothing.", f"The invoice is {number}.") for number in range(20)]
    text = extract("", told, most=600)
    assert len(text.encode()) <= 600
    assert text.count("invoice") == 20
    assert all(len(line.encode()) <= LINE_BYTES for line in lines_of([turn(1, "x" * 9_999)]))


def test_what_is_said_again_and_again_tells_little():
    told = [turn(number, f"Good morning, my friend. Part {number} broke.", "ok") for number in range(10)]
    assert [line for line in extract("", told).splitlines() if "user" in line] == [
        f"user: Part {number} broke." for number in range(10)
    ]


@given(st.text(max_size=300), st.lists(st.tuples(st.text(max_size=300), st.text(max_size=300)), max_size=12))
def test_an_extract_takes_any_text(summary, texts):
    turns = [turn(number, asked, answered) for number, (asked, answered) in enumerate(texts)]
    assert len(extract(summary, turns, 500).encode()) <= 500
