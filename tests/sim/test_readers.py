"""What the checker must see of events and texts: each violation planted once."""

from __future__ import annotations

import pytest

from reach.core.pieces import Gap, Kind
from reach.testing.sim.readers import Text
from tests.sim.history import KEY, History, Planted, delta, outcome

PLANTED = Planted()


@PLANTED("NO_GAP_NO_DOUBLE")
def an_event_is_missing(h: History) -> None:
    h.accept()
    h.read((1, Kind.ACCEPTED, None), (3, Kind.DELTA, delta("a")))


@PLANTED("NO_GAP_NO_DOUBLE")
def an_event_comes_twice(h: History) -> None:
    h.accept()
    h.read((2, Kind.DELTA, delta("a")), (2, Kind.DELTA, delta("a")), after=1)


@PLANTED("NO_GAP_NO_DOUBLE")
def a_gap_says_too_little(h: History) -> None:
    h.accept()
    h.read((4, Kind.GAP, Gap(3, 4, [])), after=1)


@PLANTED("NO_GAP_NO_DOUBLE")
def something_comes_after_the_end(h: History) -> None:
    h.accept()
    h.read((1, Kind.COMPLETE, outcome()), (2, Kind.PROGRESS, (None, "")))


@PLANTED("TEXT_IS_THE_WINNERS")
def a_piece_is_told_twice(h: History) -> None:
    h.text("ab", (1, Kind.DELTA, delta("a")), (2, Kind.DELTA, delta("a")))


@PLANTED("TEXT_IS_THE_WINNERS")
def the_text_ends_too_early(h: History) -> None:
    h.text("abc", (1, Kind.DELTA, delta("ab")), (2, Kind.COMPLETE, (5, "abc", 0, 1, "one")))


@PLANTED("TEXT_IS_THE_WINNERS")
def a_snapshot_is_not_what_was_said(h: History) -> None:
    h.text("abc", (3, Kind.GAP, Gap(1, 3, [delta("ac")])))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    assert PLANTED[name][0] in PLANTED.found(name)


def test_the_text_of_a_dead_attempt_must_be_taken_back() -> None:
    history = History()
    text = Text(history.checker, KEY, "reader", lambda key, attempt: ["a", "b"])
    text.hear((1, 1, 0, Kind.DELTA, delta("a")))
    text.hear((2, 2, 0, Kind.DELTA, delta("b")))
    assert [violation.name for violation in history.checker.violations] == ["TEXT_IS_THE_WINNERS"]
