"""Time in questions: "in 2025", "March and April 2025", "Q1", "since June 2024", "from 2024-11 to 2025-02".

    words = Words(tokenize("since June 2024"))
    read_time(words)                 # Condition("date >= ?", ("2024-06-01",), "since 2024-06")

A time without a year ("in March") means that month of every year. Days are calendar days as they stand in the data;
there is no time zone and no "today", so "last month" is not understood rather than guessed.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from dataclasses import dataclass, replace

_TOKEN = re.compile(r"\d{4}-\d{2}(?:-\d{2})?(?![\d-])|\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+(?:['’][^\W\d_]+)*|[^\s]")  # noqa: RUF001
_YEAR = re.compile(r"(?:19|20)\d{2}")
_DATE = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")
_ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4}
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_CONNECTORS = ("and", "or", ",")
_SILENT = ("?", "!", ".", ";", ":", '"', "'", "“", "”", "-", "–", "(", ")")  # noqa: RUF001


class UnclearQuestionError(ValueError):
    """The question is not understood; the message says which part of it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter: SQL with a `?` for each value, the values, and the same in words. The SQL never holds user text."""

    sql: str
    values: tuple[str | int, ...]
    words: str


def tokenize(question: str) -> list[str]:
    """The question as lower-case words, numbers, ISO dates, commas and signs (`>`); other punctuation is dropped."""
    text = re.sub(r"\b(q)([1-4])\b", r" quarter \2 ", question.lower())
    return [token for token in _TOKEN.findall(text) if token not in _SILENT]


class Words:
    """The tokens of a question and how far they are read."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """The token at this distance, "" past the end."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, *phrases: str) -> str:
        """Read the first of these phrases that comes next, and return it; "" if none does."""
        for phrase in phrases:
            parts = phrase.split()
            if self.tokens[self.at : self.at + len(parts)] == parts:
                self.at += len(parts)
                return phrase
        return ""


@dataclass(frozen=True, slots=True)
class Span:
    """Whole months `first` to `last` (1 to 12) of a year, or of every year if `year` is None; or one day of a month."""

    year: int | None
    first: int = 1
    last: int = 12
    day: int | None = None

    def start(self) -> str:
        """The first day, ISO."""
        return f"{self.year:04d}-{self.first:02d}-{self.day or 1:02d}"

    def end(self) -> str:
        """The day after the last one, ISO."""
        if self.day is not None:
            return (dt.date(self.year or 1, self.first, self.day) + dt.timedelta(days=1)).isoformat()
        year = self.year or 0
        return f"{year + self.last // 12:04d}-{self.last % 12 + 1:02d}-01"

    def __str__(self) -> str:
        if self.day is not None:
            return self.start()
        if self.first == self.last:
            name = calendar.month_name[self.first]
            return name if self.year is None else f"{self.year}-{self.first:02d}"
        if (self.first, self.last) == (1, 12):
            return str(self.year)
        name = (
            f"Q{self.last // 3}"
            if self.last - self.first == 2
            else f"{calendar.month_abbr[self.first]}-{calendar.month_abbr[self.last]}"
        )
        return name if self.year is None else f"{name} {self.year}"


def read_time(words: Words) -> Condition | None:
    """Read an expression of time if one comes next, else leave `words` as they are and return None."""
    at = words.at
    condition = _read_range(words) or _read_bound(words) or _read_list(words)
    if condition is None:
        words.at = at
    return condition


def _read_range(words: Words) -> Condition | None:
    """`between X and Y`, `from X to Y`: both included."""
    at = words.at
    opening = words.take("between", "from")
    low = _read_span(words) if opening else None
    if low is None or not words.take(*(("and",) if opening == "between" else ("to", "until", "till", "through"))):
        words.at = at
        return None
    high = _read_span(words)
    if high is None:
        raise UnclearQuestionError(f"'{opening} {low} …' lacks its other end")
    low, high = replace(low, year=low.year or high.year), replace(high, year=high.year or low.year)
    label = f"from {low} to {high}"
    if low.year is None and high.last < low.first:
        raise UnclearQuestionError(f"'{label}' needs years, since it runs over the end of one")
    if low.year is None:
        return _months(low.first, high.last, label)
    if high.end() <= low.start():
        raise UnclearQuestionError(f"'{label}' ends before it begins")
    return Condition("(date >= ? AND date < ?)", (low.start(), high.end()), label)


def _read_bound(words: Words) -> Condition | None:
    """`since X`, `after X`, `before X`, `until X`: `since` and `until` include X."""
    opening = words.take("since", "after", "before", "until", "till", "up to")
    if not opening:
        return None
    span = _read_span(words)
    if span is None:
        return None
    if span.year is None:
        raise UnclearQuestionError(f"'{opening} {span}' needs a year")
    sql = "date >= ?" if opening in ("since", "after") else "date < ?"
    edge = span.start() if opening in ("since", "before") else span.end()
    return Condition(sql, (edge,), f"{opening} {span}")


def _read_list(words: Words) -> Condition | None:
    """`2024`, `March and April 2025`, `Q1 or Q3 2024`: any of them."""
    spans = _read_spans(words)
    if not spans:
        return None
    parts = [_during(span) for span in spans]
    sql = " OR ".join(part.sql for part in parts)
    values = tuple(value for part in parts for value in part.values)
    said = " or ".join(part.words for part in parts)
    preposition = "on" if all(span.day for span in spans) else "in"
    return Condition(f"({sql})" if len(parts) > 1 else sql, values, f"{preposition} {said}")


def _read_spans(words: Words) -> list[Span]:
    spans: list[Span] = []
    end = words.at
    while (span := _read_span(words)) is not None:
        spans.append(span)
        end = words.at
        while words.take(*_CONNECTORS):
            pass
    words.at = end  # an `and` that no time follows is left for others
    # "March and April 2025": the year belongs to both.
    for i in range(len(spans) - 2, -1, -1):
        if spans[i].year is None:
            spans[i] = replace(spans[i], year=spans[i + 1].year)
    return spans


def _during(span: Span) -> Condition:
    if span.year is None:
        return _months(span.first, span.last, str(span))
    return Condition("(date >= ? AND date < ?)", (span.start(), span.end()), str(span))


def _months(first: int, last: int, label: str) -> Condition:
    return Condition("substr(date, 6, 2) BETWEEN ? AND ?", (f"{first:02d}", f"{last:02d}"), label)


def _read_span(words: Words) -> Span | None:
    """One year, quarter, half, month or day."""
    at = words.at
    words.take("the")
    span = _read_iso(words) or _read_part_of_year(words) or _read_year(words)
    if span is None:
        words.at = at
    return span


def _read_year(words: Words) -> Span | None:
    if not _YEAR.fullmatch(words.peek()):
        return None
    words.at += 1
    return Span(int(words.peek(-1)))


def _read_iso(words: Words) -> Span | None:
    match = _DATE.fullmatch(words.peek())
    if match is None:
        return None
    year, month, day = int(match[1]), int(match[2]), int(match[3] or 1)
    try:
        dt.date(year, month, day)
    except ValueError:
        raise UnclearQuestionError(f"{match.group()} is not a date") from None
    if not _YEAR.fullmatch(match[1]):
        raise UnclearQuestionError(f"{match.group()}: years go from 1900 to 2099")
    words.at += 1
    return Span(year, month, month, day if match[3] else None)


def _read_part_of_year(words: Words) -> Span | None:
    """A month, quarter or half, with its year if one follows."""
    first, last = _read_months(words)
    if not first:
        return None
    at = words.at
    words.take("of", "in", ",")
    year = _read_year(words)
    if year is None:
        words.at = at
    return Span(year.year if year else None, first, last)


def _read_months(words: Words) -> tuple[int, int]:
    """The first and last month named next, (0, 0) if none is."""
    word, following = words.peek(), words.peek(1)
    if word in _MONTHS:
        words.at += 1
        return _MONTHS[word], _MONTHS[word]
    number = _ORDINALS.get(word, 0)
    if following == "quarter" and number:
        words.at += 2
        return number * 3 - 2, number * 3
    if following == "half" and word in ("first", "second"):
        words.at += 2
        return (1, 6) if number == 1 else (7, 12)
    if word == "quarter" and following in ("1", "2", "3", "4"):
        words.at += 2
        return int(following) * 3 - 2, int(following) * 3
    return 0, 0
