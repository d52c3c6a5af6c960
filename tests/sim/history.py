"""Short words for what a checker hears, and histories that must never be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentreach.v1 import task_pb2
from reach.core.model import Fault, Outcome, TaskState
from reach.core.pieces import Delta, Kind, Mode
from reach.core.rows import AttemptRow, EffectRow, FailureRow, OutcomeRow, TaskRow, Writes
from reach.errors import ErrorClass, Reason
from reach.testing.sim.checker import Checker
from reach.testing.sim.readers import ReaderCheck, Text

KEY = ("acme", "t")
SPEC = task_pb2.TaskSpec(task_id="t").SerializeToString()
OTHER_SPEC = task_pb2.TaskSpec(task_id="t", priority=3).SerializeToString()
UNAVAILABLE = Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "later")
NOT_FOUND = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_NOT_FOUND, "not found")
REUSED = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_ID_REUSED, "reused")


def task_row(row: int = 1, attempt: int = 1, instance: str = "one") -> TaskRow:
    return TaskRow(row, 0, *KEY, "acme", "echo", SPEC, 0, 1_000, "", "", attempt, instance, "echo", 1)


def outcome_row(attempts: int = 1, content: Any = "done", state: int = TaskState.SUCCEEDED) -> OutcomeRow:
    return OutcomeRow(1, 0, state, 5, 3, "echo", "one", attempts, 0, 0, 0, "", content, 0, 0, "", None, None)


def outcome(content: Any = "done", state: TaskState = TaskState.SUCCEEDED, attempts: int = 1) -> Outcome:
    made = Outcome(state, content)
    made.attempts, made.instance_id = attempts, "one"
    return made


class History:
    """A checker and short words for what it hears."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.checker.submitted(KEY, volatile=False)

    def write(self, **rows: list[Any]) -> None:
        writes = Writes()
        for kind, some in rows.items():
            setattr(writes, kind, some)
        self.checker.durable(writes, [])

    def accept(self) -> None:
        self.write(tasks=[task_row()])
        self.checker.callers.accepted(KEY)

    def fail(self, number: int = 1) -> None:
        self.write(failures=[FailureRow(1, 0, number, 0, 3, 17, "", 1, 0, 0)])

    def attempt(self, number: int, instance: str = "two") -> None:
        self.write(attempts=[AttemptRow(1, 0, number, instance, "echo", 1, 0, 1_000)])

    def effect(self, number: int) -> None:
        self.write(effects=[EffectRow(1, 0, number, "pay", 0)])

    def answer(self, attempt: int = 1, instance: str = "one", content: str = "done") -> None:
        self.checker.attempts.says(KEY, attempt, instance, content)

    def end(self) -> None:
        self.answer()
        self.write(outcomes=[outcome_row()])

    def read(self, *events: tuple[int, Kind, Any], after: int = 0) -> None:
        check = ReaderCheck(self.checker, KEY, "reader", after)
        for number, kind, data in events:
            check.told((number, 1, 0, kind, data))

    def text(self, said: str, *events: tuple[int, Kind, Any]) -> Text:
        text = Text(self.checker, KEY, "reader", lambda key, attempt: [said])
        for number, kind, data in events:
            text.hear((number, 1, 0, kind, data))
        return text


def delta(text: str) -> Delta:
    return Delta("", Mode.APPEND, "text/plain", text)


class Planted(dict[str, tuple[str, Callable[[History], None]]]):
    """Histories that violate an invariant, by name: (the invariant, the history). A decorator of such histories."""

    def __call__(self, invariant: str) -> Callable[[Callable[[History], None]], None]:
        def add(act: Callable[[History], None]) -> None:
            self[act.__name__] = (invariant, act)

        return add

    def found(self, name: str) -> list[str]:
        """What the checker finds in one of them."""
        history = History()
        self[name][1](history)
        return [violation.name for violation in history.checker.violations]
