"""The database of the report agent: made from a CSV file, then only read.

    make_database(csv_text, Path("orders.db"))
    run_read_only(Path("orders.db"), "SELECT count(*) FROM orders")     # Rows(columns=["count(*)"], rows=[(400,)])

Reading is guarded three times over: the file is opened with SQLite's `mode=ro`; an authorizer denies everything but a
SELECT over the one table with the few functions the grammar knows; and a statement that runs too long is interrupted.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.resources
import io
import os
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from reach.demo_agents.report_grammar import FUNCTIONS, ORDERS_TABLE
from reach.demo_agents.report_parser import Vocabulary

COLUMNS = ("order_id", "date", "region", "product", "quantity", "unit_price", "returned")
TIME_LIMIT = 5.0  # seconds for one statement
_STEPS_BETWEEN_CHECKS = 10_000  # SQLite instructions
_SCHEMA = f"""
CREATE TABLE {ORDERS_TABLE} (
    order_id   INTEGER PRIMARY KEY,
    date       TEXT    NOT NULL,     -- ISO 8601, a calendar day
    region     TEXT    NOT NULL,
    product    TEXT    NOT NULL,
    quantity   INTEGER NOT NULL CHECK (quantity BETWEEN 1 AND 1000000),
    unit_price INTEGER NOT NULL CHECK (unit_price BETWEEN 0 AND 1000000000),     -- euro cents, so that sums are exact
    returned   INTEGER NOT NULL CHECK (returned IN (0, 1))
) STRICT
"""
_INSERT = f"INSERT INTO {ORDERS_TABLE} VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  (a constant)

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a statement."""

    columns: list[str]
    rows: list[tuple[Cell, ...]]


def shipped_csv() -> str:
    """The orders that ship with Agent-Reach: two years of an imaginary office shop, in euros."""
    return (importlib.resources.files("reach.demo_agents") / "data" / "orders.csv").read_text("utf-8")


def make_database(csv_text: str, path: Path) -> None:
    """Create the database, or replace it in one step. Raises `ValueError` with the line of the first bad row."""
    rows = read_orders(csv_text)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with closing(sqlite3.connect(name)) as connection, connection:
            connection.execute(_SCHEMA)
            connection.executemany(_INSERT, rows)
        Path(name).replace(path)
    except (sqlite3.IntegrityError, OverflowError) as error:
        raise ValueError(f"the orders do not fit the table: {error}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def read_orders(csv_text: str) -> list[tuple[Cell, ...]]:
    """The rows of the CSV as the table wants them: prices in cents, returned as 0 or 1."""
    reader = csv.reader(io.StringIO(csv_text))
    header = next(reader, [])
    if tuple(header) != COLUMNS:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)}, found {', '.join(header) or 'nothing'}")
    rows: list[tuple[Cell, ...]] = []
    for cells in reader:
        try:
            number, date, region, product, quantity, price, returned = cells
            rows.append(
                (
                    int(number),
                    dt.date.fromisoformat(date).isoformat(),
                    region,
                    product,
                    int(quantity),
                    cents(price),
                    {"yes": 1, "no": 0}[returned],
                )
            )
        except (ValueError, KeyError, InvalidOperation) as error:
            raise ValueError(f"line {reader.line_num} is not an order: {error}") from error
    return rows


def cents(price: str) -> int:
    """A price in euros, "12.50", as cents, exactly."""
    value = Decimal(price) * 100
    if not value.is_finite() or value != value.to_integral_value():
        raise ValueError(f"{price!r} is not a price with at most two decimals")
    return int(value)


def run_read_only(path: Path, sql: str, values: Mapping[str, str | int] | None = None) -> Rows:
    """Run one SELECT. Raises `sqlite3.Error` for anything else, and after `TIME_LIMIT` seconds."""
    end = time.monotonic() + TIME_LIMIT
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_CHECKS)
        cursor = connection.execute(sql, values or {})
        return Rows([column[0] for column in cursor.description or ()], cursor.fetchall())


def read_vocabulary(path: Path) -> Vocabulary:
    """What the data can be asked about."""

    def values(column: str) -> tuple[str, ...]:
        sql = f"SELECT {column} FROM {ORDERS_TABLE} GROUP BY {column} ORDER BY {column}"  # noqa: S608  (constants)
        return tuple(str(row[0]) for row in run_read_only(path, sql).rows)

    days = values("date")
    return Vocabulary(values("region"), values("product"), days[0] if days else "", days[-1] if days else "")


def _authorize(action: int, name: str | None, detail: str | None, _database: str | None, _trigger: str | None) -> int:
    """SQLite asks this while it compiles a statement: https://www.sqlite.org/c3ref/set_authorizer.html."""
    allowed = (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and name == ORDERS_TABLE)
        or (action == sqlite3.SQLITE_FUNCTION and (detail or "").lower() in FUNCTIONS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
