"""What a task that a handler gives inherits from the one that the handler works on (DLV-6, DLV-11).

It names its parent and the first of its tree, so that cancelling one cancels all below it; it gets the time that is
left, less a reserve for the answer's way back; and the budget that is left, with one hop less.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentreach.v1 import task_pb2
from reach.errors import InvalidRequest, Reason, Timeout
from reach.sdk.figures import duration
from reach.sdk.payloads import Fields

if TYPE_CHECKING:
    from reach.sdk.task import Task

RESERVE_SHARE: Final = 0.05
LEAST_RESERVE_S: Final = 0.05
MOST_RESERVE_S: Final = 1.0
"""What of the time that is left a task keeps for itself when it asks another agent."""

CURRENT: Final[ContextVar[Task | None]] = ContextVar("reach_task", default=None)
"""The task that the code which runs works on."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a task and everything below it may spend; None: not bounded.

    Attributes:
        tokens: Model tokens.
        money_micros: Money, in millionths of the currency of the deployment.
        max_hops: How many more agents may be asked in a row, below the one that takes the task.
    """

    tokens: int | None = None
    money_micros: int | None = None
    max_hops: int | None = None

    def less(self, tokens: int, money_micros: int) -> Budget:
        """What is left after so much was spent."""
        return Budget(_less(self.tokens, tokens), _less(self.money_micros, money_micros), self.max_hops)

    def fields(self) -> Fields:
        """The fields of the message."""
        named = (("tokens", self.tokens), ("money_micros", self.money_micros), ("max_hops", self.max_hops))
        return {name: value for name, value in named if value is not None}


def _less(have: int | None, spent: int) -> int | None:
    return None if have is None else max(0, have - spent)


def budget_of(message: task_pb2.Budget) -> Budget:
    """The message as a value."""
    return Budget(*(getattr(message, name) if message.HasField(name) else None
                    for name in ("tokens", "money_micros", "max_hops")))  # fmt: skip


def inherited(parent: Task, options: Mapping[str, Any]) -> bytes:
    """Fields of a TaskSpec that follow those of a head and count more.

    Raises:
        Timeout: SCHEDULE_TO_CLOSE, no time is left to ask anybody.
        InvalidRequest: BUDGET_SPENT, the budget allows no further agent.
    """
    fields: Fields = {"parent_task_id": parent.task_id, "root_task_id": parent.root_task_id}
    left = parent.deadline
    if left is not None:
        left -= min(MOST_RESERVE_S, max(LEAST_RESERVE_S, left * RESERVE_SHARE))
        if left <= 0:
            raise Timeout(f"task {parent.task_id!r} has no time left to ask another agent", Reason.SCHEDULE_TO_CLOSE)
        asked = options.get("schedule_to_close")
        if asked is None or asked > left:
            fields["timeouts"] = {"schedule_to_close": duration(left)}
    budget = _passed_on(parent, options.get("budget"))
    if budget is not None and (said := budget.fields()):
        fields["budget"] = said
    return task_pb2.TaskSpec(**fields).SerializeToString()


def _passed_on(parent: Task, asked: Budget | None) -> Budget | None:
    """The smaller of what is left and what is asked for."""
    left = parent.budget
    if left is None:
        return None
    if 0 in (left.tokens, left.money_micros, left.max_hops):
        text = f"the budget of task {parent.task_id!r} allows no further agent ({left})"
        raise InvalidRequest(text, Reason.BUDGET_SPENT)
    hops = None if left.max_hops is None else left.max_hops - 1
    asked = asked if asked is not None else Budget()
    return Budget(
        _least(left.tokens, asked.tokens), _least(left.money_micros, asked.money_micros), _least(hops, asked.max_hops)
    )


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
