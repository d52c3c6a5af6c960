"""What is written: safe for terminals, whole for programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from typing import Any

import pytest

from reach.cli.terminal import one_line, printable, span, write, write_facts, write_json, write_table

EVIL = "a\x1b[31mb\x1b]0;title\x07c\x9b31md\x7fe\rf\u202eg\ud800h"


def test_printable_has_no_control_characters_but_tab_and_newline() -> None:
    assert printable(EVIL) == "a[31mb]0;titlec31mdefgh"
    assert printable("a\tb\r\nc\n") == "a\tb\nc\n"
    assert printable("".join(map(chr, range(32)))) == "\t\n"


def test_one_line() -> None:
    assert one_line(" a\n\n b\tc ") == "a b c"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"
    assert one_line("\x1b" * 1000 + "a", 5) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.85, "850 ms"), (3.24, "3.2 s"), (119, "119.0 s"), (240, "4 min"), (7300, "2 h"), (500_000, "6 d")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_table_in_a_pipe_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("NAME", ">N", "<WHY"), [("a" * 150, "1", "because " * 20), ("b\x1b[2J", "22", "[bold]no[/bold]")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["NAME", "N", "WHY"]
    assert lines[1].startswith("a" * 150 + "   1  because because")
    assert lines[2].split() == ["b[2J", "22", "[bold]no[/bold]"]


def test_facts(capsys: pytest.CaptureFixture[str]) -> None:
    write_facts([("name", "x\ny"), ("nothing", ""), ("longer name", "z")])
    assert capsys.readouterr().out == "name         x y\nlonger name  z\n"


def test_json_is_exact_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": EVIL, "grüße": [1, 2.5, None]}
    write_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert "grüße" in text
    assert not set(text) & set("\x1b\x07\x9b\x7f\r\u202e\ud800")
    write_json({"a": 1, "b": 2}, pretty=False)
    assert capsys.readouterr().out == '{"a": 1, "b": 2}\n'


def test_programs_get_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\x1b[31mb\r\n")
    assert capsys.readouterr().out == "a\x1b[31mb\r\n"


def on_a_terminal(code: str) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:
                return
            if not part:
                return
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(20) == 0
    reader.join(5)
    os.close(ours)
    return b"".join(parts).decode()


def test_terminals_get_no_escape_sequences_of_agents() -> None:
    text = on_a_terminal(f"from reach.cli.terminal import write, say; write({EVIL!a}); say({EVIL!a})")
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert text.count("a[31mb]0;titlec31mdefgh") == 2


def test_a_table_on_a_terminal_has_no_escape_sequences_of_agents() -> None:
    code = f"from reach.cli.terminal import write_table; write_table(('A',), [({EVIL!a},)])"
    row = on_a_terminal(code).splitlines()[1]
    assert row.rstrip() == "a[31mb]0;titlec31mdefgh"


def test_other_encodings(capfd: pytest.CaptureFixture[str]) -> None:
    environment: Any = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    code = "from reach.cli.terminal import *; prepare_streams(); write('grün…\\n'); say('…')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"gr?n?\n"
