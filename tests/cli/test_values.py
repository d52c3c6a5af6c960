"""Values of options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from reach.cli import values
from reach.cli.values import DURATION, OUTPUT, PAIR, RETRY, SESSION, is_text, read_content, read_json, session_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 1.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("5min", 300.0),
        ("2h", 7200.0),
        ("30d", 2_592_000.0),
        (" 3 S ", 3.0),
        (".5s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1s", "1 week", "1e3", "nan", "1s2"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time"):
        DURATION.convert(text, None, None)


def test_sessions_have_three_parts() -> None:
    assert SESSION.convert("app:user:s1", None, None) == ("app", "user", "s1")
    assert SESSION.convert("app:user:s:1", None, None) == ("app", "user", "s:1")
    for parts in (("a", "u", "s"), ("a:b", "10:20%", "s:1%3A"), ("%3A", "%25", "%")):
        assert SESSION.convert(session_text(*parts), None, None) == parts
    for text in ("", "a", "a:b", "a::c", ":b:c", "a:b:"):
        with pytest.raises(click.BadParameter):
            SESSION.convert(text, None, None)


def test_pairs() -> None:
    assert PAIR.convert("k=v=w", None, None) == ("k", "v=w")
    assert PAIR.convert("k=", None, None) == ("k", "")
    for text in ("k", "=v", ""):
        with pytest.raises(click.BadParameter):
            PAIR.convert(text, None, None)


def test_retries() -> None:
    assert RETRY.convert("quick", None, None) == "quick"
    assert RETRY.convert("never", None, None) == {"never": True}
    assert RETRY.convert("1s,500ms", None, None) == {"delays": [1.0, 0.5]}
    assert RETRY.convert("2s", None, None) == {"delays": [2.0]}
    with pytest.raises(click.BadParameter):
        RETRY.convert("1s,soon", None, None)


def test_output_is_checked_before_the_work(tmp_path: Path) -> None:
    assert OUTPUT.convert(str(tmp_path / "new"), None, None) == str(tmp_path / "new")
    for path in (tmp_path / "no" / "new", tmp_path):
        with pytest.raises(click.BadParameter):
            OUTPUT.convert(str(path), None, None)


def test_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    file.write_bytes("grüße".encode())
    assert read_content("plain") == "plain"
    assert read_content("@@at") == "@at"
    assert read_content(f"@{file}") == "grüße"
    file.write_bytes(b"\xff\x00")
    assert read_content(f"@{file}") == b"\xff\x00"
    stdin: Any = SimpleNamespace(buffer=io.BytesIO(b"from stdin"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_content("-") == "from stdin"


def test_content_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (f"@{tmp_path / 'none'}", f"@{tmp_path}", "@", "@a\0b"):
        with pytest.raises(click.UsageError, match="Cannot read"):
            read_content(source)
    monkeypatch.setattr(values, "MOST_READ", 3)
    file = tmp_path / "large"
    file.write_bytes(b"1234")
    with pytest.raises(click.UsageError, match="no server takes that"):
        read_content(f"@{file}")


def test_json_content() -> None:
    assert read_json('{"a": [1]}') == {"a": [1]}
    for text in ("{", "", "[" * 100_000):
        with pytest.raises(click.UsageError, match="not JSON"):
            read_json(text)


def test_text_media_types() -> None:
    assert all(map(is_text, ("text/plain", "text/markdown; charset=utf-8", "application/json", "application/a+json")))
    assert not any(map(is_text, ("application/octet-stream", "image/png", "")))
