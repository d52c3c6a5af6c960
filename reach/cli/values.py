"""Values of options: durations, sessions, labels, and the content of a task."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|min|h|d)?")
MOST_READ: Final = 64 << 20
"""Bytes that are read of a file or of stdin; no server takes more."""


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """`1.5`, `500ms`, `30s`, `5m`, `2h`, `30d`; seconds if there is no unit."""

    name = "duration"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """See click."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is not a time such as 30s, 500ms, 5m, 2h or 30d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


class SessionType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """`app:user:session`."""

    name = "session"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """See click."""
        return "APP:USER:SESSION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, str]:
        """The three parts. The last one may hold colons; in the others they are written `%3A`, and `%` is `%25`."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(":", 2)
        if len(parts) != 3 or not all(parts):
            self.fail(f"{value!r} is not app:user:session, three parts that are not empty", param, ctx)
        app, user = (part.replace("%3A", ":").replace("%25", "%") for part in parts[:2])
        return app, user, parts[2]


def session_text(app_id: str, user_id: str, session_id: str) -> str:
    """A session as `SESSION` reads it."""
    app, user = (part.replace("%", "%25").replace(":", "%3A") for part in (app_id, user_id))
    return f"{app}:{user}:{session_id}"


class PairType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """`name=value`."""

    name = "pair"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """See click."""
        return "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Name and value."""
        if isinstance(value, tuple):
            return value
        name, separator, content = str(value).partition("=")
        if not name or not separator:
            self.fail(f"{value!r} is not name=value", param, ctx)
        return name, content


class RetryType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A policy by name, `never`, or waits such as `1s,5s`."""

    name = "retry"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """See click."""
        return "POLICY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | dict[str, Any]:
        """What the SDK takes as `retry`."""
        if isinstance(value, dict):
            return value
        text = str(value).strip()
        if text == "never":
            return {"never": True}
        if "," in text or _DURATION.fullmatch(text):
            return {"delays": [DURATION.convert(part, param, ctx) for part in text.split(",") if part.strip()]}
        return text


class OutputType(click.Path):
    """A file that can be written; said before the work and not after it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.parent
        if not path.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
            self.fail(f"{str(folder)!r} is no folder that can be written to", param, ctx)
        return str(path)


DURATION: Final = DurationType()
SESSION: Final = SessionType()
PAIR: Final = PairType()
RETRY: Final = RetryType()
OUTPUT: Final = OutputType()


def is_text(media_type: str) -> bool:
    """Whether content of this media type can be shown as text."""
    kind = media_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind == "application/json" or kind.endswith("+json")


def read_content(source: str) -> str | bytes:
    """What a task or attachment holds: `-` reads stdin, `@file` a file, anything else is the text itself. What is not
    UTF-8 is bytes."""
    if source == "-":
        raw = sys.stdin.buffer.read(MOST_READ + 1)
    elif source.startswith("@@"):
        return source[1:]
    elif source.startswith("@"):
        raw = _read_file(source[1:])
    else:
        return source
    if len(raw) > MOST_READ:
        raise click.UsageError(f"{source}: more than {MOST_READ >> 20} MiB; no server takes that.")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _read_file(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            return file.read(MOST_READ + 1)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"Cannot read {name!r}: {getattr(error, 'strerror', None) or error}.") from error


def read_json(source: str) -> Any:
    """JSON, given as `read_content` takes it."""
    content = read_content(source)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"The payload is not JSON: {error}.") from error
