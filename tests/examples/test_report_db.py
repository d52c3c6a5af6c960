"""The database of the report agent: made from good CSV only, and then read and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from reach.demo_agents.report_db import cents, make_database, read_orders, run_read_only, shipped_csv
from tests.examples.make_orders import ROWS


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "orders.db"
    make_database(shipped_csv(), path)
    return path


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "INSERT INTO orders SELECT * FROM orders",
        "DROP TABLE orders",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x AS SELECT 1",
        "ATTACH ':memory:' AS other",
        "PRAGMA table_info(orders)",
        "SELECT * FROM sqlite_master",
        "SELECT load_extension('x')",
        "SELECT randomblob(1000000000) FROM orders",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "BEGIN",
        "VACUUM",
    ],
)
def test_sqlite_refuses_all_but_select(database: Path, sql: str) -> None:
    with pytest.raises(sqlite3.Error):
        run_read_only(database, sql)
    assert run_read_only(database, "SELECT count(*) FROM orders").rows == [(ROWS,)]


def test_file_itself_is_opened_read_only(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        run_read_only(tmp_path / "absent.db", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_long_statements_are_interrupted(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reach.demo_agents.report_db.TIME_LIMIT", 0.05)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        run_read_only(database, "SELECT count(*) FROM orders a, orders b, orders c, orders d")


def test_database_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    make_database(shipped_csv(), path)
    with pytest.raises(ValueError, match="line 2"):
        make_database("order_id,date,region,product,quantity,unit_price,returned\nx\n", path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (ROWS,)
    assert [entry.name for entry in tmp_path.iterdir()] == ["orders.db"]


@pytest.mark.parametrize(
    "row",
    [
        "1,2024-02-30,N,P,1,1.00,no",
        "1,2024-01-01,N,P,x,1.00,no",
        "1,2024-01-01,N,P,0,1.00,no",
        "1,2024-01-01,N,P,1,1.005,no",
        "1,2024-01-01,N,P,1,,no",
        "1,2024-01-01,N,P,1,NaN,no",
        "1,2024-01-01,N,P,1,1.00,maybe",
        "1,2024-01-01,N,P,1,1.00",
        "99999999999999999999,2024-01-01,N,P,1,1.00,no",
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(ValueError, match=r"line 2 is not an order|do not fit the table"):
        make_database(f"order_id,date,region,product,quantity,unit_price,returned\n{row}\n", tmp_path / "o.db")
    assert list(tmp_path.iterdir()) == []


def test_csv_with_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="found a, b"):
        read_orders("a,b\n1,2\n")
    with pytest.raises(ValueError, match="found nothing"):
        read_orders("")


def test_prices_are_exact() -> None:
    assert [cents(p) for p in ("0.29", "1.1", "3", "1e1")] == [29, 110, 300, 1000]
