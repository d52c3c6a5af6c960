"""Candidates of a decision as a table, for `route preview` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reach.cli.terminal import write_table

if TYPE_CHECKING:
    from agentreach.v1 import task_pb2


def write_candidates(candidates: Iterable[task_pb2.Candidate]) -> None:
    """One line each, in the order given: score, every signal, and why it was dropped."""
    rows = list(candidates)
    signals = sorted({name for candidate in rows for name in candidate.signals})
    titles = ("INSTANCE", ">SCORE", *(f">{name.upper()}" for name in signals), "<DROPPED")
    write_table(titles, (_row(candidate, signals) for candidate in rows))


def _row(candidate: task_pb2.Candidate, signals: list[str]) -> tuple[str, ...]:
    score = "" if candidate.drop_reason else f"{candidate.score:.3f}"
    figures = (f"{candidate.signals[name]:.2f}" if name in candidate.signals else "" for name in signals)
    return candidate.instance_id, score, *figures, candidate.drop_reason
