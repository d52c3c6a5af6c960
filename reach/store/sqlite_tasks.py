"""Whole tasks, read back from SQLite: what was accepted and all that became of it."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from reach.core.rows import AttemptRow, FailureRow, HandleRow, InputRow, OutcomeRow, QuestionRow, TaskRow, granted_of
from reach.store.base import StoredTask
from reach.store.sqlite_rows import (
    ATTEMPT_COLUMNS,
    FAILURE_COLUMNS,
    INPUT_COLUMNS,
    LARGEST,
    OUTCOME_COLUMNS,
    QUESTION_COLUMNS,
    TASK_COLUMNS,
    Statement,
    among,
)

_TASKS: Final = among(f"select {TASK_COLUMNS}, null, version from task where row", " order by row")
_ATTEMPTS: Final = among(f"select {ATTEMPT_COLUMNS}, null from attempt where row", " order by row, number")
_FAILURES: Final = among(f"select {FAILURE_COLUMNS} from failure where row", " order by row, number")
_RESERVES: Final = among("select row, reserved from reserve where row")
_EFFECTS: Final = among("select row, max(number), min(number) from effect where row", " group by row")
_CHECKPOINTS: Final = among("select row, data from checkpoint where row")
_OUTCOMES: Final = among(f"select {OUTCOME_COLUMNS} from outcome where row")
_QUESTIONS: Final = among(f"select {QUESTION_COLUMNS} from question where row", " order by row, attempt, number")
_INPUTS: Final = among(f"select {INPUT_COLUMNS} from input where row", " order by row, number")
_HANDLES: Final = among("select row, shard, number, handle from handle where row")
_PARTS: Final = (_ATTEMPTS, _FAILURES, _RESERVES, _EFFECTS, _CHECKPOINTS, _OUTCOMES, _QUESTIONS, _INPUTS, _HANDLES)
"""What a task may have beside its row."""
_USED: Final = "select " + ", ".join(
    f"exists (select 1 from {table})"
    for table in ("attempt", "failure", "reserve", "effect", "checkpoint", "outcome", "question", "input", "handle")
)
"""Which of these tables have rows at all: many that wait are read in half the time if the others are not asked."""
_RUN: Final = f"select {TASK_COLUMNS}, null, version from task where row between ? and ? order by row"
"""Tasks in a row: a walk instead of as many look-ups."""


def read_tasks(db: sqlite3.Connection, rows: list[int]) -> list[StoredTask]:
    """Whole tasks, in order of their rows; rows that are not there are left out. Run it within one transaction."""
    found: list[StoredTask] = []
    rows = sorted(rows)
    used = db.execute(_USED).fetchone()
    parts = [query if exists else None for query, exists in zip(_PARTS, used, strict=True)]
    for start in range(0, len(rows), LARGEST):
        found += _read_some(db, rows[start : start + LARGEST], parts)
    return found


def _read_some(db: sqlite3.Connection, rows: list[int], queries: list[Statement | None]) -> list[StoredTask]:
    if rows[-1] - rows[0] + 1 == len(rows):
        values = db.execute(_RUN, (rows[0], rows[-1])).fetchall()
    else:
        values = _TASKS.ask(db, rows)
    found = [TaskRow._make(value[:-1]) for value in values]
    hops = {value[0]: value[-1] for value in values if value[-1]}
    rows = [task.row for task in found]
    parts = [query.ask(db, rows) if query is not None else [] for query in queries]
    if not any(parts):  # so it is with most that wait, of which there may be very many
        return [StoredTask(task, [], [], task.reserved, 0, None, None, hop=hops.get(task.row, 0)) for task in found]
    tasks = {task.row: task for task in found}
    attempts: dict[int, list[AttemptRow]] = {}
    failures: dict[int, list[FailureRow]] = {}
    reserved = {row: task.reserved for row, task in tasks.items()}
    for values in parts[0]:
        attempt = AttemptRow._make(values)
        reserved[attempt.row] = max(reserved[attempt.row], attempt.reserved)
        if attempt.number > tasks[attempt.row].attempt:
            attempts.setdefault(attempt.row, []).append(attempt)
    for values in parts[1]:
        failures.setdefault(values[0], []).append(FailureRow._make(values))
    for row, value in parts[2]:
        reserved[row] = max(reserved[row], value)
    effects = {row: granted_of((most, least)) for row, most, least in parts[3]}
    checkpoints = dict(parts[4])
    outcomes = {values[0]: _outcome(values) for values in parts[5]}
    questions: dict[int, list[QuestionRow]] = {}
    inputs: dict[int, list[InputRow]] = {}
    for values in parts[6]:
        questions.setdefault(values[0], []).append(QuestionRow._make(values))
    for values in parts[7]:
        inputs.setdefault(values[0], []).append(InputRow._make(values))
    handles = {values[0]: HandleRow._make(values) for values in parts[8]}
    return [
        StoredTask(
            task,
            attempts.get(row) or [],
            failures.get(row) or [],
            reserved[row],
            effects.get(row, 0),
            checkpoints.get(row),
            outcomes.get(row),
            tuple(questions.get(row) or ()),
            tuple(inputs.get(row) or ()),
            handles.get(row),
            hops.get(row, 0),
        )
        for row, task in tasks.items()
    ]


def _outcome(values: tuple[Any, ...]) -> OutcomeRow:
    metadata, extra = values[-2:]
    return OutcomeRow._make((*values[:-2], metadata and json.loads(metadata), extra and json.loads(extra)))
