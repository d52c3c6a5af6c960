"""Answers questions in plain words about a table of orders: "total revenue by region in 2025".

    python -m reach.demo_agents.report [--addr HOST:PORT] [--csv FILE] [--db FILE]

Request: the question, or JSON {"question": "…", "format": "json"}. Answer: plain words, a Markdown table and the SQL
that was run (as Markdown; or all of it as JSON). There is no model behind this: a small grammar (`report_parser.py`)
reads the question, and one that it does not fully understand is refused with a list of what can be asked.

At the start the agent makes a SQLite database from the CSV that ships with Agent-Reach (400 orders of an imaginary
office shop, 2024 and 2025, euros), or from --csv with the same columns. The database is only ever read after that.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reach.demo_agents.payload import DEFAULT_CONCURRENCY, BadRequestError, argument_parser, read_fields
from reach.demo_agents.report_db import Cell, Rows, make_database, read_vocabulary, run_read_only, shipped_csv
from reach.demo_agents.report_grammar import Measure, Query, describe, help_text, to_sql
from reach.demo_agents.report_parser import Vocabulary, parse
from reach.demo_agents.report_time import UnclearQuestionError

if TYPE_CHECKING:
    from reach import Agent, Task

AGENT_ID = "order-reports"
MOST_ROWS = 200  # shown in a table
FORMATS = ("markdown", "json")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Report:
    """An answered question. `rows` are as SQLite gave them: money in euro cents."""

    query: Query
    sql: str
    values: dict[str, str | int]
    rows: list[tuple[Cell, ...]]
    covers: tuple[str, str]  # first and last day of the data


def answer(question: str, path: Path, vocabulary: Vocabulary) -> Report:
    """Understand the question and run it. Raises `BadRequestError` with help if it is not understood."""
    try:
        query = parse(question, vocabulary)
    except UnclearQuestionError as error:
        raise BadRequestError(
            f"The question is not clear to me: {error}.\n\n{help_text(vocabulary.regions, vocabulary.products)}"
        ) from error
    sql, values = to_sql(query)
    found: Rows = run_read_only(path, sql, values)
    rows = [row for row in found.rows if any(cell is not None for cell in row)]
    return Report(query, sql, values, rows, (vocabulary.first_day, vocabulary.last_day))


def to_words(report: Report) -> str:
    """The finding in one or two plain sentences."""
    query = report.query
    said = describe(query)
    width = len(query.dimensions)
    if not report.rows:
        return f"{said}: no order matches. The data goes from {report.covers[0]} to {report.covers[1]}."
    if not width:
        values = [show(cell, m) for cell, m in zip(report.rows[0], query.measures, strict=True)]
        if len(values) == 1:
            return f"{said}: {values[0]}."
        pairs = (f"{m.name} {value}" for m, value in zip(query.measures, values, strict=True))
        return f"{said}: {', '.join(pairs)}."
    key = query.key
    column = width + query.measures.index(key)
    if query.limit is not None:
        listed = ", ".join(f"{_label(report, row)} ({show(row[column], key)})" for row in report.rows[:10])
        return f"{said}: {listed}{'' if len(report.rows) <= 10 else ', …'}."
    return f"{said}: {_extremes(report, column)}"


def _extremes(report: Report, column: int) -> str:
    """The highest and the lowest row, and the whole where parts add up to one."""
    key = report.query.key
    ranked = sorted(report.rows, key=lambda row: _number(row[column]), reverse=True)
    first, last = ranked[0], ranked[-1]
    total = sum(_number(row[column]) for row in ranked)
    share = f", {100 * _number(first[column]) / total:.1f} % of {show(total, key)}" if key.adds and total > 0 else ""
    text = f"highest for {_label(report, first)} ({show(first[column], key)}{share})"
    if len(ranked) > 1:
        text += f", lowest for {_label(report, last)} ({show(last[column], key)})"
    return text + f"; {len(ranked)} {'row' if len(ranked) == 1 else 'rows'}."


def to_table(report: Report) -> str:
    """The rows as a Markdown table, at most `MOST_ROWS` of them."""
    query = report.query
    titles = [dimension.name for dimension in query.dimensions]
    titles += [measure.name + (" (EUR)" if measure.unit == "money" else "") for measure in query.measures]
    lines = [
        f"| {' | '.join(titles)} |",
        "|" + "---|" * len(query.dimensions) + "---:|" * len(query.measures),
    ]
    for row in report.rows[:MOST_ROWS]:
        cells = _dimension_cells(report, row)
        cells += [
            show(cell, measure, bare=True) for cell, measure in zip(row[len(cells) :], query.measures, strict=True)
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    if len(report.rows) > MOST_ROWS:
        lines += ["", f"The first {MOST_ROWS} of {len(report.rows)} rows."]
    return "\n".join(lines)


def to_markdown(report: Report) -> str:
    """Words, table and SQL."""
    parts = [to_words(report)]
    if report.rows:
        parts.append(to_table(report))
    values = ", ".join(f":{name} = {value!r}" for name, value in report.values.items())
    parts.append("The SQL, run read-only (money in cents):" if _has_money(report) else "The SQL, run read-only:")
    parts.append(f"```sql\n{report.sql}\n```")
    if values:
        parts.append(f"with {values}")
    return "\n\n".join(parts) + "\n"


def to_json(report: Report) -> dict[str, Any]:
    """The same for programs. Money is in euro cents, as its column names say."""
    query = report.query
    columns = [dimension.name for dimension in query.dimensions]
    columns += [measure.name + (" in cents" if measure.unit == "money" else "") for measure in query.measures]
    return {
        "understood": describe(query),
        "text": to_words(report),
        "columns": columns,
        "rows": [[*_dimension_cells(report, row), *row[len(query.dimensions) :]] for row in report.rows],
        "sql": report.sql,
        "parameters": report.values,
    }


def show(cell: Cell, measure: Measure, *, bare: bool = False) -> str:
    """A measured value for people: money and means with two decimals (EUR unless `bare`), percents with one."""
    number = _number(cell)
    if measure.unit == "money":
        return f"{'' if bare else 'EUR '}{number / 100:,.2f}"
    if measure.unit == "percent":
        return f"{number:.1f} %"
    return f"{number:,.2f}" if measure.unit == "mean" else f"{number:,}"


def _number(cell: Cell) -> float | int:
    return cell if isinstance(cell, (int, float)) else 0


def _has_money(report: Report) -> bool:
    return "unit_price" in report.sql


def _label(report: Report, row: tuple[Cell, ...]) -> str:
    return ", ".join(_dimension_cells(report, row))


def _dimension_cells(report: Report, row: tuple[Cell, ...]) -> list[str]:
    """The cells to group by, weekdays by name."""
    cells: list[str] = []
    for dimension, cell in zip(report.query.dimensions, row, strict=False):
        is_weekday = dimension.name == "weekday" and isinstance(cell, int)
        cells.append(_WEEKDAYS[int(cell)] if is_weekday and cell is not None else str(cell))
    return cells


def read_request(payload: bytes, media_type: str) -> tuple[str, bool]:
    """The question, and whether the answer shall be JSON. Raises `BadRequestError`."""
    fields = read_fields(payload, media_type, "question", {"format": str})
    wanted = fields.get("format", "markdown")
    if wanted not in FORMATS:
        raise BadRequestError(f"'format' must be one of {', '.join(FORMATS)}")
    return fields["question"], wanted == "json"


def build_agent(
    addr: str | None = None,
    *,
    agent_id: str = AGENT_ID,
    instance_id: str | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    csv_text: str | None = None,
    database: Path | None = None,
) -> Agent:
    """The agent, not yet running; its database is made here (in a temporary folder if no path is given)."""
    from reach import Agent, Answer, InvalidRequest

    if database is None:
        folder = tempfile.mkdtemp(prefix="reach-report-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        database = Path(folder) / "orders.db"
    make_database(shipped_csv() if csv_text is None else csv_text, database)
    path, vocabulary = database, read_vocabulary(database)
    agent = Agent(
        agent_id,
        agent_type="report",
        capabilities=["reporting"],
        tags=["sql"],
        addr=addr,
        instance_id=instance_id,
        max_concurrency=max_concurrency,
    )

    @agent.route()
    @agent.route("task.process")
    def report(task: Task) -> Answer:
        try:
            question, as_json = read_request(task.payload, task.media_type)
            found = answer(question, path, vocabulary)
        except BadRequestError as error:
            raise InvalidRequest(str(error)) from error
        return Answer(to_json(found)) if as_json else Answer(to_markdown(found), media_type="text/markdown")

    return agent


def main(argv: Sequence[str] | None = None) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    parser = argument_parser(__doc__, AGENT_ID)
    parser.add_argument("--csv", type=Path, help="orders to report on (default: the ones that ship with Agent-Reach)")
    parser.add_argument("--db", type=Path, help="where to make the database (default: a temporary folder)")
    options = parser.parse_args(argv)
    try:
        agent = build_agent(
            options.addr,
            agent_id=options.agent_id,
            instance_id=options.instance_id,
            max_concurrency=options.max_concurrency,
            csv_text=options.csv.read_text("utf-8") if options.csv else None,
            database=options.db,
        )
    except (OSError, ValueError) as error:
        parser.error(f"cannot make the database: {error}")
    agent.run()


if __name__ == "__main__":
    main()
