"""The report agent: what it answers, checked against the CSV read by other means, and what it refuses."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents.payload import BadRequestError
from reach.demo_agents.report import Report, answer, read_request, to_json, to_markdown, to_table, to_words
from reach.demo_agents.report_db import make_database, read_vocabulary, shipped_csv
from reach.demo_agents.report_grammar import EXAMPLES, MEASURES
from reach.demo_agents.report_parser import Vocabulary
from tests.examples.make_orders import ROWS, make

Order = dict[str, Any]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "orders.db"
    make_database(shipped_csv(), path)
    return path


@pytest.fixture(scope="module")
def vocabulary(database: Path) -> Vocabulary:
    return read_vocabulary(database)


@pytest.fixture(scope="module")
def ask(database: Path, vocabulary: Vocabulary) -> Callable[[str], Report]:
    return lambda question: answer(question, database, vocabulary)


@pytest.fixture(scope="module")
def orders() -> list[Order]:
    """The CSV, read by the csv module and Decimal, without a database."""
    return [
        {
            "date": dt.date.fromisoformat(row["date"]),
            "region": row["region"],
            "product": row["product"],
            "quantity": int(row["quantity"]),
            "price": Decimal(row["unit_price"]),
            "value": int(row["quantity"]) * Decimal(row["unit_price"]),
            "returned": row["returned"] == "yes",
        }
        for row in csv.DictReader(io.StringIO(shipped_csv()))
    ]


def revenue(some: Iterable[Order]) -> Decimal:
    return sum((order["value"] for order in some), Decimal())


def grouped(some: Iterable[Order], key: Callable[[Order], str]) -> dict[str, list[Order]]:
    groups: dict[str, list[Order]] = defaultdict(list)
    for order in some:
        groups[key(order)].append(order)
    return groups


def month(order: Order) -> str:
    return f"{order['date']:%Y-%m}"


def as_dict(report: Report) -> dict[Any, Any]:
    return {row[0] if len(row) == 2 else row[:-1]: row[-1] for row in report.rows}


def in_cents(amount: Decimal) -> int:
    return int(amount * 100)


def test_the_shipped_csv_is_what_its_maker_makes() -> None:
    assert shipped_csv() == make()
    assert len(shipped_csv().splitlines()) == ROWS + 1


def test_revenue_by_region_in_a_year(ask: Callable[[str], Report], orders: list[Order]) -> None:
    report = ask("total revenue by region in 2025")
    groups = grouped((o for o in orders if o["date"].year == 2025), lambda o: o["region"])
    expected = {region: in_cents(revenue(some)) for region, some in groups.items()}
    assert as_dict(report) == expected
    assert [row[1] for row in report.rows] == sorted(expected.values(), reverse=True)


def test_top_three_products_by_quantity(ask: Callable[[str], Report], orders: list[Order]) -> None:
    groups = grouped(orders, lambda o: o["product"])
    totals = sorted(((sum(o["quantity"] for o in some), name) for name, some in groups.items()), reverse=True)
    assert [(row[1], row[0]) for row in ask("top 3 products by quantity").rows] == totals[:3]
    assert [(row[1], row[0]) for row in ask("the two worst products by units?").rows] == totals[:-3:-1]


def test_returned_orders_per_month(ask: Callable[[str], Report], orders: list[Order]) -> None:
    report = ask("how many orders were returned per month")
    groups = grouped((o for o in orders if o["returned"]), month)
    assert as_dict(report) == {name: len(some) for name, some in groups.items()}
    assert [row[0] for row in report.rows] == sorted(groups)


def test_return_rate_without_a_region(ask: Callable[[str], Report], orders: list[Order]) -> None:
    groups = grouped((o for o in orders if o["region"] != "North"), lambda o: o["product"])
    expected = {name: 100 * sum(o["returned"] for o in some) / len(some) for name, some in groups.items()}
    assert as_dict(ask("return rate by product, without the North")) == pytest.approx(expected)


def test_highest_average_order_value(ask: Callable[[str], Report], orders: list[Order]) -> None:
    some = [o for o in orders if dt.date(2024, 10, 1) <= o["date"] <= dt.date(2024, 12, 31)]
    means = {name: revenue(group) / len(group) for name, group in grouped(some, lambda o: o["region"]).items()}
    best = max(means, key=lambda name: means[name])
    report = ask("which region had the highest average order value in Q4 2024")
    assert as_dict(report) == pytest.approx({best: float(means[best]) * 100})


def test_two_dimensions_two_measures_and_weekdays(ask: Callable[[str], Report], orders: list[Order]) -> None:
    report = ask("revenue and orders by region and year")
    groups = grouped(orders, lambda o: f"{o['region']}/{o['date'].year}")
    assert {f"{r[0]}/{r[1]}": r[2:] for r in report.rows} == {
        name: (in_cents(revenue(some)), len(some)) for name, some in groups.items()
    }
    days = grouped(orders, lambda o: WEEKDAYS[o["date"].weekday()])
    found = to_json(ask("orders per day of the week"))
    assert found["rows"] == [[day, len(days[day])] for day in WEEKDAYS]


def is_in(order: Order, first: str, last: str) -> bool:
    day: dt.date = order["date"]
    return dt.date.fromisoformat(first) <= day <= dt.date.fromisoformat(last)


@pytest.mark.parametrize(
    ("question", "measure", "keep"),
    [
        ("revenue", "value", lambda o: True),
        (
            "how many notebooks were sold in March and April 2025",
            "quantity",
            lambda o: o["product"] == "Notebook" and is_in(o, "2025-03-01", "2025-04-30"),
        ),
        (
            "Quantity of Desk Lamps and webcams in the East or West",
            "quantity",
            lambda o: o["product"] in ("Desk Lamp", "Webcam") and o["region"] in ("East", "West"),
        ),
        (
            "number of orders between 2024-11-15 and 2025-02-28",
            "orders",
            lambda o: is_in(o, "2024-11-15", "2025-02-28"),
        ),
        (
            "orders since June 2025 not returned",
            "orders",
            lambda o: o["date"] >= dt.date(2025, 6, 1) and not o["returned"],
        ),
        ("net revenue before 2025", "value", lambda o: o["date"].year < 2025 and not o["returned"]),
        ("revenue of returned orders", "value", lambda o: o["returned"]),
        ("revenue excluding returns in December", "value", lambda o: not o["returned"] and o["date"].month == 12),
        ("orders with more than 10 units", "orders", lambda o: o["quantity"] > 10),
        ("orders with a quantity of at most 2", "orders", lambda o: o["quantity"] <= 2),
        (
            "units with price over 99.99 except the South",
            "quantity",
            lambda o: o["price"] > Decimal("99.99") and o["region"] != "South",
        ),
        ("how many orders were worth at least 500 euros?", "orders", lambda o: o["value"] >= 500),
        (
            "sales for the North region in 2024 in the first half",
            "value",
            lambda o: o["region"] == "North" and is_in(o, "2024-01-01", "2024-06-30"),
        ),
    ],
)
def test_one_number(
    ask: Callable[[str], Report], orders: list[Order], question: str, measure: str, keep: Callable[[Order], bool]
) -> None:
    some = [order for order in orders if keep(order)]
    expected = {
        "orders": len(some),
        "quantity": sum(order["quantity"] for order in some),
        "value": in_cents(revenue(some)),
    }
    assert some
    assert ask(question).rows == [(expected[measure],)]


@pytest.mark.parametrize(
    ("adverb", "key"),
    [("monthly", month), ("quarterly", lambda o: f"{o['date'].year}-Q{(o['date'].month + 2) // 3}"),
     ("yearly", lambda o: str(o["date"].year)), ("daily", lambda o: str(o["date"]))],
)  # fmt: skip
def test_time_series(
    ask: Callable[[str], Report], orders: list[Order], adverb: str, key: Callable[[Order], str]
) -> None:
    expected = {name: in_cents(revenue(some)) for name, some in sorted(grouped(orders, key).items())}
    assert list(as_dict(ask(f"{adverb} revenue")).items()) == list(expected.items())


def test_every_measure_by_every_phrase(ask: Callable[[str], Report]) -> None:
    for measure in MEASURES:
        first = ask(measure.phrases[0]).rows
        assert all(ask(f"show me the {phrase}, please").rows == first for phrase in measure.phrases)


def test_examples_of_the_help_work(ask: Callable[[str], Report]) -> None:
    for example in EXAMPLES:
        assert ask(example).rows, example


def test_words_say_what_was_understood(ask: Callable[[str], Report]) -> None:
    assert to_words(ask("how much revenue on 2025-03-31")) == "Revenue, on 2025-03-31: EUR 84.60."
    assert (
        to_words(ask("top 2 products by quantity")) == "Top 2 products by quantity: Notebook (1,957), Desk Lamp (306)."
    )
    text = to_words(ask("total revenue by region in 2025"))
    assert text == (
        "Revenue by region, in 2025: highest for North (EUR 11,840.10, 30.7 % of EUR 38,527.10), "
        "lowest for South (EUR 8,061.90); 4 rows."
    )
    assert to_words(ask("revenue and orders")) == "Revenue and orders: revenue EUR 72,256.90, orders 400."
    assert to_words(ask("revenue in 2031")) == (
        "Revenue, in 2031: no order matches. The data goes from 2024-01-01 to 2025-12-30."
    )


def test_table_and_sql_are_in_the_answer(ask: Callable[[str], Report]) -> None:
    report = ask("revenue and return rate by region for 2024")
    lines = to_table(report).splitlines()
    assert lines[:2] == ["| region | revenue (EUR) | return rate |", "|---|---:|---:|"]
    assert len(lines) == 6
    text = to_markdown(report)
    assert f"```sql\n{report.sql}\n```" in text
    assert "with :p1 = '2024-01-01', :p2 = '2025-01-01'" in text


def test_long_tables_are_cut_and_say_so(ask: Callable[[str], Report]) -> None:
    assert to_table(ask("revenue by day and product")).endswith("rows.")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "there is no question"),
        ("profit by region", "I do not understand 'profit' here"),
        ("revenue by customer", "'by customer': I can group by region, product"),
        ("top 3 products", "it does not say what to compute"),
        ("average revenue", "I do not understand 'average' here"),
        ("revenue last month", "I do not understand 'last' here"),
        ("revenue not in 2024", "I do not understand what 'not' excludes"),
        ("orders over 500", "'over 500' of what"),
        ("which region has revenue", "needs a highest"),
        ("top 3 products by region by revenue", "exactly one of"),
        ("highest and lowest revenue by region", "a highest and a lowest at once"),
        ("worst region by return rate", "ask for highest or lowest"),
        ("revenue by region and product and year", "2 things at most"),
        ("top 0 products by revenue", "I list 1 to 100"),
        ("orders with quantity over 2.5", "whole number"),
        ("orders with price over 9999999999999", "too large a number"),
        ("revenue on 2025-02-30", "2025-02-30 is not a date"),
        ("'; DROP TABLE orders; --", "I do not understand"),
        ("revenue where 1 = 1", "I do not understand 'where' here"),
        ("revenue " * 100, "at most 500"),
    ],
)
def test_unclear_questions_are_refused_with_help(ask: Callable[[str], Report], question: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message) as refused:
        ask(question)
    assert "- measures: net revenue" in str(refused.value)
    assert "- regions: East, North, South, West" in str(refused.value)
    assert "Desk Lamp" in str(refused.value)


def test_no_word_of_the_question_gets_into_the_sql(ask: Callable[[str], Report]) -> None:
    sql = ask("revenue in the North for desk lamps over 10 units since June 2024, worth over 77").sql
    assert not any(word in sql for word in ("North", "Lamp", "10", "77", "2024"))


def test_values_of_another_table_are_bound_too(tmp_path: Path) -> None:
    evil = "it's; DROP | TABLE"
    path = tmp_path / "orders.db"
    make_database(
        f'order_id,date,region,product,quantity,unit_price,returned\n1,2024-01-01,"{evil}",A,1,2.50,no\n', path
    )
    report = answer(f"revenue by region in {evil}", path, read_vocabulary(path))
    assert report.rows == [(evil, 250)]
    assert evil not in report.sql
    assert "| it's; DROP / TABLE | 2.50 |" in to_table(report)


def test_requests() -> None:
    assert read_request(b"revenue", "text/plain") == ("revenue", False)
    assert read_request(b'{"question": "revenue", "format": "json"}', "application/json") == ("revenue", True)
    with pytest.raises(BadRequestError, match="markdown, json"):
        read_request(b'{"question": "revenue", "format": "xml"}', "application/json")


def test_json_answer(ask: Callable[[str], Report]) -> None:
    found = to_json(ask("revenue by year"))
    assert found["columns"] == ["year", "revenue in cents"]
    assert [row[0] for row in found["rows"]] == ["2024", "2025"]
    assert found["parameters"] == {}
    assert found["understood"] == "Revenue by year"


WORDS = (
    "revenue net sales quantity units orders returns return rate average order value price by per each top bottom 3 "
    "two highest lowest best which what how many region regions product products month year quarter day north south "
    "desk lamp notebook not without except returned in since before from to between and or , 2025 2024-03 2025-02-30 "
    "march q1 over under more than 10 1,000.5 > < = the of for worth monthly ' ; % é 文"
).split()


@settings(deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)))
def test_any_question_is_answered_or_refused(database: Path, vocabulary: Vocabulary, question: str) -> None:
    try:
        report = answer(question, database, vocabulary)
    except BadRequestError:
        return
    assert to_markdown(report)
    assert report.sql.startswith("SELECT ")
    assert report.sql.count(":p") == len(report.values)
