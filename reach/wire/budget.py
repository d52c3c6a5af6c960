"""The budget of a task that another one asks for: never more than that one has, and one hop less (DLV-6)."""

from __future__ import annotations

from typing import Final

from agentreach.v1 import task_pb2
from reach.errors import InvalidRequest, Reason

PARTS: Final = ("tokens", "money_micros", "max_hops")


def check_budget(budget: task_pb2.Budget) -> None:
    """A task with nothing left to spend is refused: raises InvalidRequest. One without hops is not: it asks nobody."""
    for name in ("tokens", "money_micros"):
        if budget.HasField(name) and not getattr(budget, name):
            raise InvalidRequest(
                f"task.budget.{name}: nothing is left", Reason.BUDGET_SPENT, field=f"task.budget.{name}"
            )


def bounded(spec: bytes, parent: bytes) -> bytes:
    """The request of a task, with its budget bounded by that of the request which asks for it.

    Raises:
        InvalidRequest: BUDGET_SPENT, the asking task may ask no further agent.
    """
    asker = task_pb2.TaskSpec.FromString(parent)
    if not asker.HasField("budget"):
        return spec
    budget, limit = task_pb2.TaskSpec.FromString(spec).budget, asker.budget
    if limit.HasField("max_hops") and not limit.max_hops:
        message = f"task {asker.task_id!r} may ask no further agent: its max_hops is used up"
        raise InvalidRequest(message, Reason.BUDGET_SPENT, task_id=asker.task_id)
    changes = task_pb2.TaskSpec()
    for name in PARTS:
        if not limit.HasField(name):
            continue
        most = getattr(limit, name) - (name == "max_hops")
        if not budget.HasField(name) or getattr(budget, name) > most:
            setattr(changes.budget, name, most)
    return spec + changes.SerializeToString() if changes.HasField("budget") else spec


def budget_of(spec: bytes) -> bytes:
    """The budget of a request, with the id of its task: all that `bounded` reads of an asker; empty if it has none."""
    asker = task_pb2.TaskSpec.FromString(spec)
    if not asker.HasField("budget"):
        return b""
    return task_pb2.TaskSpec(task_id=asker.task_id, budget=asker.budget).SerializeToString()
