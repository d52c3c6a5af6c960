"""Time in the questions of the report agent."""

from __future__ import annotations

import pytest

from reach.demo_agents.report_time import Condition, UnclearQuestionError, Words, read_time, tokenize

BETWEEN = "(date >= ? AND date < ?)"
MONTHS = "substr(date, 6, 2) BETWEEN ? AND ?"


def read(text: str) -> Condition | None:
    words = Words(tokenize(text))
    condition = read_time(words)
    assert condition is None or not words.peek(), f"left over: {words.tokens[words.at :]}"
    return condition


@pytest.mark.parametrize(
    ("text", "sql", "values", "said"),
    [
        ("2025", BETWEEN, ("2025-01-01", "2026-01-01"), "in 2025"),
        ("March 2025", BETWEEN, ("2025-03-01", "2025-04-01"), "in 2025-03"),
        ("december of 2024", BETWEEN, ("2024-12-01", "2025-01-01"), "in 2024-12"),
        ("sept. 2024", BETWEEN, ("2024-09-01", "2024-10-01"), "in 2024-09"),
        ("2024-02", BETWEEN, ("2024-02-01", "2024-03-01"), "in 2024-02"),
        ("2024-02-29", BETWEEN, ("2024-02-29", "2024-03-01"), "on 2024-02-29"),
        ("2024-12-31", BETWEEN, ("2024-12-31", "2025-01-01"), "on 2024-12-31"),
        ("Q1 2025", BETWEEN, ("2025-01-01", "2025-04-01"), "in Q1 2025"),
        ("the fourth quarter of 2024", BETWEEN, ("2024-10-01", "2025-01-01"), "in Q4 2024"),
        ("second half of 2024", BETWEEN, ("2024-07-01", "2025-01-01"), "in Jul-Dec 2024"),
        ("march", MONTHS, ("03", "03"), "in March"),
        ("q2", MONTHS, ("04", "06"), "in Q2"),
        ("since June 2024", "date >= ?", ("2024-06-01",), "since 2024-06"),
        ("after June 2024", "date >= ?", ("2024-07-01",), "after 2024-06"),
        ("before 2025", "date < ?", ("2025-01-01",), "before 2025"),
        ("until 2025-03-31", "date < ?", ("2025-04-01",), "until 2025-03-31"),
        ("up to Q2 2025", "date < ?", ("2025-07-01",), "up to Q2 2025"),
        ("from 2024-11 to 2025-02", BETWEEN, ("2024-11-01", "2025-03-01"), "from 2024-11 to 2025-02"),
        ("between March and June 2025", BETWEEN, ("2025-03-01", "2025-07-01"), "from 2025-03 to 2025-06"),
        ("from March 2025 until June", BETWEEN, ("2025-03-01", "2025-07-01"), "from 2025-03 to 2025-06"),
        ("from March to May", MONTHS, ("03", "05"), "from March to May"),
        (
            "March and April 2025",
            f"({BETWEEN} OR {BETWEEN})",
            ("2025-03-01", "2025-04-01", "2025-04-01", "2025-05-01"),
            "in 2025-03 or 2025-04",
        ),
        (
            "2024, 2025",
            f"({BETWEEN} OR {BETWEEN})",
            ("2024-01-01", "2025-01-01", "2025-01-01", "2026-01-01"),
            "in 2024 or 2025",
        ),
        ("jan or feb", f"({MONTHS} OR {MONTHS})", ("01", "01", "02", "02"), "in January or February"),
    ],
)
def test_expressions_of_time(text: str, sql: str, values: tuple[str, ...], said: str) -> None:
    assert read(text) == Condition(sql, values, said)


@pytest.mark.parametrize("text", ["region", "since yesterday", "from North", "quarter", "by quarter", "1234", "12"])
def test_what_is_no_time_is_left_alone(text: str) -> None:
    words = Words(tokenize(text))
    assert read_time(words) is None
    assert words.at == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2025-02-30", "2025-02-30 is not a date"),
        ("2025-13", "2025-13 is not a date"),
        ("0001-01-01", "years go from 1900 to 2099"),
        ("since March", "'since March' needs a year"),
        ("from 2025 to 2024", "ends before it begins"),
        ("from November to February", "needs years"),
        ("between 2024 and North", "lacks its other end"),
    ],
)
def test_times_that_make_no_sense_are_told(text: str, message: str) -> None:
    with pytest.raises(UnclearQuestionError, match=message):
        read(text)


def test_tokens() -> None:
    assert tokenize("Top-3 products, by Q1 of 2025-01 > 1,000.50?") == [
        "top", "3", "products", ",", "by", "quarter", "1", "of", "2025-01", ">", "1,000.50",
    ]  # fmt: skip
