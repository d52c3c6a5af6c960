"""What the checker must see of questions and answers: each violation planted once."""

from __future__ import annotations

from typing import Any

import pytest

from reach.core.dialogue import Input
from reach.core.model import Fault
from reach.core.rows import InputRow, QuestionRow, TaskRow, Writes
from reach.errors import ErrorClass, Reason
from reach.testing.sim.checker import Checker

KEY = ("acme", "t")
GIVEN = Input("i1", "q1", "", "yes")


def question(number: int = 1) -> QuestionRow:
    return QuestionRow(7, 1, 1, number, 1, "", "?", f"q{number}", 0, 0)


def answer(input_id: str = "i1", number: int = 1, content: str = "yes") -> InputRow:
    return InputRow(7, 1, number, input_id, f"q{number}", "", content, 0)


def checker(*, questions: Any = (), inputs: Any = ()) -> Checker:
    made = Checker()
    writes = Writes()
    writes.tasks = [TaskRow(7, 1, *KEY, "acme", "echo", b"", 0, 1_000, "", "", 1, "one", "echo", 1)]
    writes.questions, writes.inputs = list(questions), list(inputs)
    made.durable(writes, [])
    return made


def test_what_is_right_is_right():
    made = checker(questions=[question()], inputs=[answer()])
    made.questions.acknowledged(KEY, 1)
    made.questions.taken(KEY, GIVEN)
    made.questions.given(KEY, 1, "q1", "yes")
    made.questions.refused(KEY, GIVEN, Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "later"))
    assert not made.violations


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("QUESTION_IS_DURABLE", lambda: _told(checker(), "acknowledged", KEY, 1)),
        ("INPUT_IS_DURABLE", lambda: _told(checker(questions=[question()]), "taken", KEY, GIVEN)),
        ("INPUT_IS_DURABLE", lambda: _told(checker(inputs=[answer()]), "given", KEY, 1, "q1", "no")),
        ("INPUT_IS_CURRENT", lambda: _told(checker(inputs=[answer()]), "given", KEY, 2, "q1", "yes")),
        ("ONE_ANSWER", lambda: checker(inputs=[answer(), answer("i2")])),
        ("INPUT_COUNTS_ONCE", lambda: checker(inputs=[answer(), answer(number=2)])),
    ],
)  # fmt: skip
def test_each_violation_is_seen(name, act):
    assert [one.name for one in act().violations] == [name]


def test_an_answer_that_was_taken_is_known_for_ever():
    made = checker(inputs=[answer()])
    made.questions.taken(KEY, GIVEN)
    made.questions.refused(KEY, GIVEN, Fault(ErrorClass.INVALID_REQUEST, Reason.WRONG_STATE, "no"))
    assert [one.name for one in made.violations] == ["INPUT_IS_KNOWN"]


def _told(made: Checker, what: str, *arguments: Any) -> Checker:
    getattr(made.questions, what)(*arguments)
    return made
