"""States of tasks: ours as A2A's, and A2A's as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from a2a.types import a2a_pb2

from agentreach.v1 import task_pb2

_A: Final = a2a_pb2.TaskState
_R: Final = task_pb2.TaskState

SUBMITTED: Final = _A.TASK_STATE_SUBMITTED
WORKING: Final = _A.TASK_STATE_WORKING

OURS: Final[Mapping[int, int]] = {
    _R.TASK_STATE_PENDING: SUBMITTED,
    _R.TASK_STATE_DELIVERED: SUBMITTED,
    _R.TASK_STATE_RUNNING: WORKING,
    _R.TASK_STATE_WAITING: _A.TASK_STATE_INPUT_REQUIRED,
    _R.TASK_STATE_SUCCEEDED: _A.TASK_STATE_COMPLETED,
    _R.TASK_STATE_FAILED: _A.TASK_STATE_FAILED,
    _R.TASK_STATE_CANCELLED: _A.TASK_STATE_CANCELED,
    _R.TASK_STATE_REJECTED: _A.TASK_STATE_REJECTED,
    _R.TASK_STATE_DEAD_LETTERED: _A.TASK_STATE_FAILED,
}
"""A2A's state of each of ours, before what `a2a_state` knows besides."""

THEIRS: Final[Mapping[int, int]] = {
    SUBMITTED: _R.TASK_STATE_DELIVERED,
    WORKING: _R.TASK_STATE_RUNNING,
    _A.TASK_STATE_COMPLETED: _R.TASK_STATE_SUCCEEDED,
    _A.TASK_STATE_FAILED: _R.TASK_STATE_FAILED,
    _A.TASK_STATE_CANCELED: _R.TASK_STATE_CANCELLED,
    _A.TASK_STATE_INPUT_REQUIRED: _R.TASK_STATE_WAITING,
    _A.TASK_STATE_REJECTED: _R.TASK_STATE_REJECTED,
    _A.TASK_STATE_AUTH_REQUIRED: _R.TASK_STATE_WAITING,
}
"""Our state of each of an A2A agent's; one that is not here is no state, or of a later version."""

TERMINAL: Final = frozenset(
    {_A.TASK_STATE_COMPLETED, _A.TASK_STATE_FAILED, _A.TASK_STATE_CANCELED, _A.TASK_STATE_REJECTED}
)
"""They never change."""
INTERRUPTED: Final = frozenset({_A.TASK_STATE_INPUT_REQUIRED, _A.TASK_STATE_AUTH_REQUIRED})
"""The agent waits for somebody."""

WAITING_FOR: Final[Mapping[int, int]] = {
    _A.TASK_STATE_INPUT_REQUIRED: task_pb2.WAITING_FOR_INPUT,
    _A.TASK_STATE_AUTH_REQUIRED: task_pb2.WAITING_FOR_AUTH,
}
"""What an interrupted state waits for, in the contract's terms."""


def a2a_state(state: int, waiting_for: int = 0, *, begun: bool = False) -> int:
    """How A2A calls a state of ours.

    Args:
        state: `TaskState` of the contract.
        waiting_for: `WaitingFor` of the contract, of a task that waits.
        begun: An instance has worked on it: it does not go back to SUBMITTED when it is tried elsewhere.
    """
    if state == _R.TASK_STATE_WAITING and waiting_for == task_pb2.WAITING_FOR_AUTH:
        return _A.TASK_STATE_AUTH_REQUIRED
    found = OURS.get(state, WORKING)
    return WORKING if begun and found == SUBMITTED else found
