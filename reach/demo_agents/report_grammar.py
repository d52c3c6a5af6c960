"""What the report agent can be asked: measures, dimensions, filters; and how a query becomes SQL and words.

SQL is put together from the fixed pieces in this file only. Whatever comes from a question (a region, a date, a number)
is bound as a value, and text values are those found in the database, not those the user typed.
"""

from __future__ import annotations

from dataclasses import dataclass

from reach.demo_agents.report_time import Condition

ORDERS_TABLE = "orders"
# Every SQL function that `to_sql` can use; the database refuses all others.
FUNCTIONS = frozenset({"avg", "count", "strftime", "substr", "sum"})


@dataclass(frozen=True, slots=True)
class Measure:
    """Something to compute. `unit`: "money" (euro cents), "number", "mean", "percent". `adds`: parts sum to a whole."""

    name: str
    sql: str
    unit: str
    adds: bool
    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dimension:
    """Something to group by. `timely`: sorted by itself rather than by the measure."""

    name: str
    sql: str
    timely: bool
    phrases: tuple[str, ...]  # after "by", "per", …
    adverbs: tuple[str, ...] = ()  # alone: "monthly"


@dataclass(frozen=True, slots=True)
class Query:
    """A question, understood."""

    measures: tuple[Measure, ...]
    dimensions: tuple[Dimension, ...] = ()
    conditions: tuple[Condition, ...] = ()
    limit: int | None = None
    descending: bool = True
    order_by: Measure | None = None

    @property
    def key(self) -> Measure:
        """The measure that rows are ordered by."""
        return self.order_by or self.measures[0]


# `value` is quantity * unit_price in cents; returned is 0 or 1.
_VALUE = "quantity * unit_price"
MEASURES = (
    Measure(
        "net revenue",
        f"sum({_VALUE} * (1 - returned))",
        "money",
        True,
        ("net revenue", "net sales", "net income", "net turnover"),
    ),
    Measure(
        "average order value",
        f"avg({_VALUE})",
        "money",
        False,
        (
            "average order value",
            "mean order value",
            "average value per order",
            "average value of an order",
            "average revenue per order",
            "revenue per order",
            "average order",
        ),
    ),
    Measure(
        "average quantity",
        "avg(quantity)",
        "mean",
        False,
        (
            "average quantity per order",
            "average units per order",
            "average quantity",
            "mean quantity",
            "units per order",
            "items per order",
            "quantity per order",
        ),
    ),
    Measure(
        "average unit price",
        "avg(unit_price)",
        "money",
        False,
        ("average unit price", "mean unit price", "average price", "mean price"),
    ),
    Measure(
        "return rate",
        "100.0 * sum(returned) / count(*)",
        "percent",
        False,
        (
            "return rate",
            "return rates",
            "rate of returns",
            "share of returns",
            "share of returned orders",
            "share of orders returned",
            "percentage of returns",
            "percentage of returned orders",
            "percentage of orders returned",
            "percentage of orders was returned",
            "percentage of orders were returned",
        ),
    ),
    Measure(
        "revenue",
        f"sum({_VALUE})",
        "money",
        True,
        ("gross revenue", "gross sales", "sales revenue", "revenue", "revenues", "sales", "turnover", "income"),
    ),
    Measure(
        "quantity",
        "sum(quantity)",
        "number",
        True,
        ("quantity", "quantities", "units", "items", "pieces", "units sold", "items sold"),
    ),
    Measure("returns", "sum(returned)", "number", True, ("returns",)),
    Measure("orders", "count(*)", "number", True, ("orders", "order count")),
)
MEASURE = {measure.name: measure for measure in MEASURES}

DIMENSIONS = (
    Dimension("region", "region", False, ("region", "regions")),
    Dimension("product", "product", False, ("product", "products", "article", "articles")),
    Dimension("year", "substr(date, 1, 4)", True, ("year", "years"), ("yearly", "annual", "annually")),
    Dimension(
        "quarter",
        "substr(date, 1, 4) || '-Q' || ((substr(date, 6, 2) + 2) / 3)",
        True,
        ("quarter", "quarters"),
        ("quarterly",),
    ),
    Dimension("month", "substr(date, 1, 7)", True, ("month", "months"), ("monthly",)),
    # %w counts from Sunday = 0; here Monday = 0.
    Dimension("weekday", "(strftime('%w', date) + 6) % 7", True, ("weekday", "weekdays", "day of the week")),
    Dimension("day", "date", True, ("day", "days", "date", "dates"), ("daily",)),
)

# Columns that can be compared with a number; True: the number is in euros and the column in cents.
COMPARABLE = {
    "unit price": ("unit_price", True),
    "price": ("unit_price", True),
    "priced": ("unit_price", True),
    "order value": (_VALUE, True),
    "value": (_VALUE, True),
    "worth": (_VALUE, True),
    "quantity": ("quantity", False),
    "units": ("quantity", False),
}
COMPARISONS = {
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "more than": ">",
    "greater than": ">",
    "higher than": ">",
    "larger than": ">",
    "less than": "<",
    "lower than": "<",
    "smaller than": "<",
    "fewer than": "<",
    "at least": ">=",
    "at most": "<=",
    "over": ">",
    "above": ">",
    "under": "<",
    "below": "<",
    "> =": ">=",
    "< =": "<=",
    ">": ">",
    "<": "<",
}

EXAMPLES = (
    "total revenue by region in 2025",
    "top 3 products by quantity",
    "how many orders were returned per month",
    "return rate by product, without the North",
    "which region had the highest average order value in Q4 2024",
)


def to_sql(query: Query) -> tuple[str, dict[str, str | int]]:
    """The SELECT for a query, and the values for its `:p1`, `:p2`, …"""
    columns = [f"{dimension.sql} AS {_column(dimension.name)}" for dimension in query.dimensions]
    columns += [f"{measure.sql} AS {_column(measure.name)}" for measure in query.measures]
    lines = ["SELECT " + ",\n       ".join(columns), f"FROM {ORDERS_TABLE}"]
    values: dict[str, str | int] = {}

    def bind(value: str | int) -> str:
        name = f"p{len(values) + 1}"
        values[name] = value
        return f":{name}"

    filters: list[str] = []
    for condition in query.conditions:
        sql = condition.sql
        for value in condition.values:
            sql = sql.replace("?", bind(value), 1)
        filters.append(sql)
    if filters:
        lines.append("WHERE " + "\n  AND ".join(filters))
    if query.dimensions:
        names = [_column(dimension.name) for dimension in query.dimensions]
        lines.append("GROUP BY " + ", ".join(names))
        by_measure = f"{_column(query.key.name)} {'DESC' if query.descending else 'ASC'}"
        by_itself = query.limit is None and any(dimension.timely for dimension in query.dimensions)
        lines.append("ORDER BY " + ", ".join(names if by_itself else [by_measure, *names]))
    if query.limit is not None:
        lines.append(f"LIMIT {bind(query.limit)}")
    return "\n".join(lines), values


def describe(query: Query) -> str:
    """The query in words, as understood: what the reader should check first."""
    text = join_words([measure.name for measure in query.measures])
    if query.limit is not None:
        noun = query.dimensions[0].name
        count = f"{query.limit} {noun}s" if query.limit > 1 else noun
        text = f"{'top' if query.descending else 'bottom'} {count} by {query.key.name}"
        others = [measure.name for measure in query.measures if measure is not query.key]
        text += f", with {join_words(others)}" if others else ""
    elif query.dimensions:
        text += " by " + join_words([dimension.name for dimension in query.dimensions])
    words = [condition.words for condition in query.conditions]
    return ", ".join([text[:1].upper() + text[1:], *words])


def join_words(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def help_text(regions: tuple[str, ...], products: tuple[str, ...]) -> str:
    """What can be asked, for the answer to an unclear question."""
    return "\n".join(
        [
            "What I understand:",
            "- measures: " + ", ".join(measure.name for measure in MEASURES),
            "- by or per: " + ", ".join(dimension.name for dimension in DIMENSIONS) + " (at most two)",
            "- regions: " + ", ".join(regions),
            "- products: " + ", ".join(products),
            "- orders: returned, not returned, quantity over 10, price under 50, value at least 200",
            "- time: in 2025, in March 2025, Q1 2025, on 2025-03-31, since June 2024, from 2024-11 to 2025-02",
            "- order: top 3 products by …, bottom 2 regions by …, which month had the highest …",
            "For example: " + "; ".join(EXAMPLES) + ".",
        ]
    )


def _column(name: str) -> str:
    return name.replace(" ", "_")
