"""Limits that no short history would ever reach are made small in some, so that what lies behind them is seen too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

from reach.core import canary, context, delivery, finished, pieces, stream
from reach.runtime import retention, takeover

KNOBS: tuple[tuple[tuple[ModuleType, ...], str, tuple[float, ...]], ...] = (
    ((stream, delivery), "RESERVE", (3, 7)),
    ((stream,), "KEEP_BYTES", (200, 1_000)),
    ((stream,), "KEEP_MS", (300, 2_000)),
    ((pieces,), "FOLD_PIECES", (2,)),
    ((pieces,), "FOLD_LIMIT", (400, 900)),
    ((finished,), "KEEP_PLAIN", (1, 4)),
    ((finished,), "KEEP_BYTES", (300,)),
    ((finished,), "KEEP_MS", (200,)),
    ((retention,), "LEAST_MS", (2_000, 10_000)),
    ((retention,), "EVERY_SECONDS", (1.0, 3.0)),
    ((canary,), "TASKS", (2, 4)),
    ((canary,), "OLD_TASKS_AT_LEAST", (1, 2)),
    ((context,), "SUMMARISE_EVERY", (2, 3)),
    ((takeover,), "LOADED", (1, 3)),
    ((takeover,), "BROUGHT", (1, 2)),
    ((takeover,), "TURNS", (1, 2)),
    ((takeover,), "TOGETHER", (0, 2)),
)
"""(modules that have it, its name, what it may be)"""


@contextmanager
def turned(random: Random, *, volatile: bool) -> Iterator[list[str]]:
    """Turns some knobs for the time of a history; says which. `volatile`: there are tasks that only memory has, which
    must not be forgotten sooner than is promised."""
    before: list[tuple[ModuleType, str, float]] = []
    words = []
    for modules, name, choices in KNOBS:
        value = random.choice(choices)
        if random.random() < 0.7 or (volatile and finished in modules):
            continue
        words.append(f"{name} = {value}")
        for module in modules:
            before.append((module, name, getattr(module, name)))
            setattr(module, name, value)
    try:
        yield words
    finally:
        for module, name, value in before:
            setattr(module, name, value)
