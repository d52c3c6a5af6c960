"""The task machine as a table (DLV-1). `docs/states.md` is drawn from it.

A pair (state, input) is either in `TRANSITIONS` or in `IGNORED` with the reason; a test walks the whole product.
"""

from __future__ import annotations

from enum import IntEnum

from reach.core.model import FIRST_TERMINAL, TaskState


class TaskInput(IntEnum):
    """What can happen to a task."""

    ASSIGN = 0
    """An instance is chosen, an attempt begins."""
    START = 1
    """The instance said that it works on it."""
    ADOPT = 2
    """The instance is back and says that it still works on the current attempt."""
    SUCCEED = 3
    FAIL = 4
    RETRY = 5
    """The attempt is over without an outcome; there will be another."""
    PAUSE = 6
    """The agent asks for input or credentials."""
    RESUME = 7
    """The input came."""
    CANCEL = 8
    REJECT = 9
    BURY = 10
    """Given up: dead letter."""


_S, _I = TaskState, TaskInput

TRANSITIONS: dict[tuple[TaskState, TaskInput], TaskState] = {
    (_S.PENDING, _I.ASSIGN): _S.DELIVERED,
    (_S.PENDING, _I.ADOPT): _S.RUNNING,
    (_S.PENDING, _I.SUCCEED): _S.SUCCEEDED,
    (_S.PENDING, _I.FAIL): _S.FAILED,
    (_S.PENDING, _I.CANCEL): _S.CANCELLED,
    (_S.PENDING, _I.REJECT): _S.REJECTED,
    (_S.PENDING, _I.BURY): _S.DEAD_LETTERED,
    (_S.DELIVERED, _I.START): _S.RUNNING,
    (_S.DELIVERED, _I.ADOPT): _S.RUNNING,
    (_S.DELIVERED, _I.SUCCEED): _S.SUCCEEDED,
    (_S.DELIVERED, _I.FAIL): _S.FAILED,
    (_S.DELIVERED, _I.RETRY): _S.PENDING,
    (_S.DELIVERED, _I.PAUSE): _S.WAITING,
    (_S.DELIVERED, _I.CANCEL): _S.CANCELLED,
    (_S.DELIVERED, _I.REJECT): _S.REJECTED,
    (_S.DELIVERED, _I.BURY): _S.DEAD_LETTERED,
    (_S.RUNNING, _I.ADOPT): _S.RUNNING,
    (_S.RUNNING, _I.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _I.FAIL): _S.FAILED,
    (_S.RUNNING, _I.RETRY): _S.PENDING,
    (_S.RUNNING, _I.PAUSE): _S.WAITING,
    (_S.RUNNING, _I.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _I.REJECT): _S.REJECTED,
    (_S.RUNNING, _I.BURY): _S.DEAD_LETTERED,
    (_S.WAITING, _I.RESUME): _S.RUNNING,
    (_S.WAITING, _I.SUCCEED): _S.SUCCEEDED,
    (_S.WAITING, _I.FAIL): _S.FAILED,
    (_S.WAITING, _I.RETRY): _S.PENDING,
    (_S.WAITING, _I.CANCEL): _S.CANCELLED,
    (_S.WAITING, _I.BURY): _S.DEAD_LETTERED,
}

_TERMINAL = {
    (state, event): "terminal states absorb; what comes later is dropped and counted"
    for state in TaskState
    if state >= FIRST_TERMINAL
    for event in TaskInput
}

IGNORED: dict[tuple[TaskState, TaskInput], str] = {
    **_TERMINAL,
    (_S.PENDING, _I.START): "a late acceptance of an attempt that is over; the agent is told to stop",
    (_S.PENDING, _I.RETRY): "there is no attempt to give up",
    (_S.PENDING, _I.PAUSE): "a late question of an attempt that is over",
    (_S.PENDING, _I.RESUME): "nothing was asked",
    (_S.DELIVERED, _I.ASSIGN): "one live attempt at a time",
    (_S.DELIVERED, _I.RESUME): "nothing was asked",
    (_S.RUNNING, _I.ASSIGN): "one live attempt at a time",
    (_S.RUNNING, _I.START): "said already",
    (_S.RUNNING, _I.RESUME): "nothing was asked",
    (_S.WAITING, _I.ASSIGN): "one live attempt at a time",
    (_S.WAITING, _I.START): "said already",
    (_S.WAITING, _I.ADOPT): "it goes on waiting; nothing runs",
    (_S.WAITING, _I.PAUSE): "asked already",
    (_S.WAITING, _I.REJECT): "work began",
}

_NEXT: list[list[TaskState | None]] = [
    [TRANSITIONS.get((state, event)) for event in TaskInput] for state in [None, *TaskState]
]


def next_state(state: TaskState, event: TaskInput) -> TaskState | None:
    """The state after `event`, or None where the event is ignored on purpose."""
    return _NEXT[state][event]
