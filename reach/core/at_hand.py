"""Members of enums that each task asks for, by names of their own.

Until Python 3.12 `TaskState.PENDING` runs a function of the enum module: 0.15 µs, as much as a call of a method, and a
task asks for twenty of them.
"""

from __future__ import annotations

from typing import Final

from reach.core.instance_states import Condition, Health
from reach.core.model import EffectKind, TaskState
from reach.core.pieces import Kind
from reach.core.policies import Way
from reach.core.states import TaskInput
from reach.core.stream import Interest

PENDING: Final = TaskState.PENDING
SUCCEEDED: Final = TaskState.SUCCEEDED

ASSIGN: Final = TaskInput.ASSIGN
SUCCEED: Final = TaskInput.SUCCEED
REJECT: Final = TaskInput.REJECT

ACCEPTED: Final = Kind.ACCEPTED
STARTED: Final = Kind.STARTED
COMPLETE: Final = Kind.COMPLETE

OUTCOME: Final = Interest.OUTCOME
EVENTS: Final = Interest.EVENTS

IRREVERSIBLE: Final = EffectKind.IRREVERSIBLE
HEALTHY: Final = Health.HEALTHY
STALLED: Final = Condition.STALLED

CONSISTENT_HASH: Final = Way.CONSISTENT_HASH
LEAST_CONNECTIONS: Final = Way.LEAST_CONNECTIONS
ROUND_ROBIN: Final = Way.ROUND_ROBIN
