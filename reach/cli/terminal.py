"""What is written: text made safe, tables for people, JSON for programs.

What agents and callers wrote is never trusted with a terminal: control characters (and with them escape sequences) are
taken out of everything but JSON, which escapes them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

# All of C0 but tab and newline, DEL, C1, what turns the direction of text around, and lone surrogates.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_JSON_CONTROL: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACES: Final = re.compile(r"\s+")
_PIPE_WIDTH: Final = 10_000
"""Columns of a table that no terminal shows: nothing is cut or wrapped."""
CELL: Final = 200
"""Characters of a text in a table."""


def printable(text: str) -> str:
    """The text without control characters but tab and newline."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def one_line(text: str, most: int = CELL) -> str:
    """The text for a cell: printable, in one line, cut with a mark."""
    short = _SPACES.sub(" ", printable(text[: most * 4])).strip()
    return short if len(short) <= most else short[: most - 1] + "…"


def prepare_streams() -> None:
    """A character that the encoding of the terminal does not have must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and getattr(stream, "errors", "strict") in ("strict", "surrogateescape"):
            reconfigure(errors="replace")


def say(text: str = "") -> None:
    """A line for people about what happens, on stderr: stdout is for answers."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def write(text: str) -> None:
    """A piece of an answer, at once. Terminals get it without control characters, programs as it is."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(value: Any, *, pretty: bool = True) -> None:
    """One JSON document; in one line if it is not `pretty`."""
    text = json.dumps(value, ensure_ascii=False, indent=2 if pretty else None, default=str)
    sys.stdout.write(_JSON_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    sys.stdout.flush()


def write_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, as wide as the terminal; in a pipe as wide as it needs to be. Columns named `<…` are the first to be
    folded, those named `>…` stand to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        name, folds = title.lstrip("<>"), title.startswith("<")
        table.add_column(
            Text(name), justify="right" if title.startswith(">") else "left", no_wrap=not folds, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    if width is None:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))


def write_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one to a line; what is empty is left out."""
    kept = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        write(f"{name.ljust(width)}  {one_line(value, 1000)}\n")


def span(seconds: float) -> str:
    """A duration for people: `850 ms`, `3.2 s`, `4 min`, `2 h`, `5 d`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size * 2:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def moment(seconds: float) -> str:
    """A point in time for people, in local time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
