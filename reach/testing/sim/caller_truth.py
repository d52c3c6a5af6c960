"""What must be true of what callers hear: it is written down, all hear the same of an end, and an event's number means
one thing for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentreach.v1 import task_pb2
from reach.core.model import FIRST_TERMINAL, Fault, Outcome, TaskKey, TaskState
from reach.errors import ErrorClass, Reason
from reach.testing.sim.truth import ending_of, ending_of_row

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker

RETRYABLE = (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT)


class CallerTruth:
    """What was said to callers. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._violate = checker.violate

    def accepted(self, key: TaskKey, spec: bytes | None = None) -> None:
        """The server says that a task is accepted. `spec`: what was brought, which must be what counts (DLV-3)."""
        known = self._checker.meant(key)
        if spec is not None and known.row and not _same(spec, known.spec):
            self._violate("SAME_ID_SAME_CONTENT", key, f"{spec!r} is accepted, {known.spec!r} is written down")
        if not known.volatile and not known.row:
            self._violate("ACCEPTED_IS_DURABLE", key, "it is accepted and not written down")
        known.accepted = True

    def ended(self, key: TaskKey, outcome: Outcome) -> None:
        """The server says how a task ended, in whatever way."""
        known = self._checker.living(key)
        ending = ending_of(outcome)
        if known.past is not None and known.past.outcome is not None and ending_of_row(known.past.outcome) == ending:
            return  # of the one before, by who still has it
        if known.told is not None and known.told != ending:
            self._violate("TERMINAL_ABSORBS", key, f"it ended as {known.told}, now as {ending}")
        if known.told_at is None:
            known.told_at = known.faded[1] if known.faded[0] == ending else self._checker.now()
        known.told = ending
        if outcome.state < FIRST_TERMINAL:
            self._violate("TERMINAL_ABSORBS", key, f"it ended in state {outcome.state}")
        if known.volatile:
            if outcome.state == TaskState.SUCCEEDED:
                self._checker.attempts.winner(key, outcome.attempts, outcome.instance_id, outcome.content)
            return
        if known.outcome is None:
            self._violate("TOLD_IS_DURABLE", key, f"it is said to have ended as {ending}; that is not written down")
        elif ending_of_row(known.outcome) != ending:
            self._violate("TOLD_IS_DURABLE", key, f"said: {ending}; written: {ending_of_row(known.outcome)}")

    def open(self, key: TaskKey, state: int) -> None:
        """The server says that a task goes on."""
        known = self._checker.living(key)
        if known.told is not None:
            self._violate("TERMINAL_ABSORBS", key, f"it ended as {known.told}, now its state is {state}")

    def is_known(self, key: TaskKey) -> bool:
        """Whether somebody was told of a durable task: from now on the server has to know it."""
        known = self._checker.truth(key)
        return not known.volatile and (known.accepted or known.told is not None)

    def refused(self, key: TaskKey, fault: Fault, spec: bytes | None, asked_known: bool) -> None:
        """The server refuses what a caller asks of a task.

        Args:
            key: The task.
            fault: Why.
            spec: What it was submitted with; None if the caller only asks of it.
            asked_known: The task was known when it was asked.
        """
        known = self._checker.meant(key)
        if fault.error_class is ErrorClass.INTERNAL:
            self._violate("NO_INNER_FAULT", key, f"a caller hears {fault}")
        if not asked_known or fault.error_class in RETRYABLE:
            return
        if fault.reason is Reason.TASK_ID_REUSED and spec is not None and not _same(spec, known.spec):
            return
        if self._checker.truth(key).reborn:
            return  # it was removed; that may have been after it was asked
        self._violate("ACCEPTED_IS_KNOWN", key, f"it was accepted, and now {fault}")

    def numbered(self, key: TaskKey, sequence: int, kind: int, digest: Any) -> None:
        """The server tells an event of a durable task: its number means the same to everybody, for ever."""
        known = self._checker.meant(key)
        if known.volatile:
            return
        told = (kind, digest)
        if known.past is not None and known.numbers.get(sequence, told) != told:
            known = known.past  # by a slow reader of the one before
        if sequence > known.reserved + 1:
            message = f"event {sequence} is told, but only numbers up to {known.reserved} are reserved"
            self._violate("SEQUENCES_ARE_RESERVED", key, message)
        if known.numbers.setdefault(sequence, told) != told:
            message = f"event {sequence} was {known.numbers[sequence]} and is now {told}"
            self._violate("SEQUENCES_ARE_UNIQUE", key, message)


def _same(one: bytes, other: bytes) -> bool:
    """Whether two requests are the same, but for the budget that who asks for it has left."""
    if one == other:
        return True
    specs = [task_pb2.TaskSpec.FromString(raw) for raw in (one, other)]
    for spec in specs:
        spec.ClearField("budget")
    return specs[0] == specs[1]
