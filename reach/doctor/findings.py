"""What a check has found: one line each, with why it matters and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    WARNING = 1
    """It works, but not as well or as surely as it should."""
    ERROR = 2
    """Something does not work, or will not."""


class Finding(NamedTuple):
    """See the module."""

    check: str
    """What was looked at, one word: `postgres`."""
    level: Level
    what: str
    why: str = ""
    """Why it matters; empty where all is well."""
    todo: str = ""
    """What to do; empty where all is well."""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, why: str, todo: str) -> Finding:
    """It could be better."""
    return Finding(check, Level.WARNING, what, why, todo)


def error(check: str, what: str, why: str, todo: str) -> Finding:
    """It does not work."""
    return Finding(check, Level.ERROR, what, why, todo)


def worst_of(findings: Iterable[Finding]) -> Level:
    """The worst level there is."""
    return max((one.level for one in findings), default=Level.OK)
