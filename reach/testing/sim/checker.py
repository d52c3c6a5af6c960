"""What must be true, whatever happens. The checker has its own record of the truth, made of what left the server, what
the journal made durable and what agents and callers did; it never looks into the server.

Each method hears of one kind of thing that happened, in order; the first thing that is not right is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from reach.core.model import FIRST_TERMINAL, Fault, Outcome, TaskKey, TaskState
from reach.core.rows import OutcomeRow, TaskRow, Writes
from reach.errors import ErrorClass, Reason
from reach.testing.sim.questions import QuestionTruth
from reach.testing.sim.sessions import SessionTruth
from reach.testing.sim.webhooks import WebhookTruth

RETRYABLE = (ErrorClass.RESOURCE_EXHAUSTED, ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT)
Ending = tuple[int, Any, int, int, str]
"""What a caller learns of an end: (state, content, reason, attempts, instance)."""


class Violation(NamedTuple):
    """Something that must never happen has happened."""

    name: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class TaskTruth:
    """What is known of one task."""

    __slots__ = (
        "accepted", "acted", "attempts", "checkpoint", "effects", "failed", "given", "offered", "outcome",
        "reborn", "reserved", "row", "said", "spec", "told", "told_at", "volatile",
    )  # fmt: skip

    def __init__(self) -> None:
        self.volatile = False
        self.spec = b""
        """The request that counts: the one that is written down."""
        self.accepted = False
        """Somebody was told that it is accepted."""
        self.row = 0
        self.attempts: dict[int, str] = {}
        """Durable attempts: number -> instance."""
        self.failed: set[int] = set()
        self.outcome: OutcomeRow | None = None
        self.effects: set[int] = set()
        self.checkpoint: bytes | None = None
        self.reserved = 0
        self.offered: dict[int, str] = {}
        self.given: set[int] = set()
        """Attempts whose effect the server has granted."""
        self.acted: list[tuple[int, str]] = []
        self.said: dict[tuple[int, str], set[Any]] = {}
        """(attempt, instance) -> the answers that were given there."""
        self.told: Ending | None = None
        self.told_at: float | None = None
        """When somebody first heard of its end: a caller, or the agent whose answer was taken."""
        self.reborn = False
        """It is volatile, and was or may have been forgotten."""

    def forget(self) -> None:
        """It is volatile, and nobody has to know of it any more: under the same id it begins anew."""
        self.offered, self.given, self.told, self.told_at, self.reborn = {}, set(), None, None, True


VOLATILE_SECONDS = 8.0
"""How long what is volatile must be known after its end was told: 10 s, less what a slow commit took."""


class Checker:
    """See the module. `on_violation` is called once, with the first one."""

    def __init__(
        self, on_violation: Callable[[Violation], None] | None = None, now: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.tasks: dict[TaskKey, TaskTruth] = {}
        self.violations: list[Violation] = []
        self._rows: dict[int, TaskKey] = {}
        self._on_violation = on_violation
        self.now = now
        self._told: dict[TaskKey, dict[int, Any]] = {}
        self.sessions = SessionTruth(self)
        self.webhooks = WebhookTruth(self)
        self.questions = QuestionTruth(self)

    def violate(self, name: str, key: TaskKey | None, message: str) -> None:
        """Something must not be so."""
        self.violations.append(Violation(name, key[1] if key is not None else "", message))
        if len(self.violations) == 1 and self._on_violation is not None:
            self._on_violation(self.violations[0])

    def truth(self, key: TaskKey) -> TaskTruth:
        """What is known of a task."""
        known = self.tasks.get(key)
        if known is None:
            known = self.tasks[key] = TaskTruth()
        return known

    def _living(self, key: TaskKey) -> TaskTruth:
        """As `truth`, but for what is volatile and ended long ago."""
        known = self.truth(key)
        if known.volatile and known.told_at is not None and self.now() > known.told_at + VOLATILE_SECONDS:
            known.forget()
        return known

    def submitted(self, key: TaskKey, *, volatile: bool) -> None:
        """A caller is about to bring a task."""
        self.truth(key).volatile = volatile

    def keys_of(self, rows: list[OutcomeRow]) -> list[TaskKey]:
        """Whose rows these are."""
        return [self._rows[row.row] for row in rows if row.row in self._rows]

    # -- the journal --------------------------------------------------------------------------------------------------

    def durable(self, writes: Writes, taken: list[int]) -> None:
        """A batch is durable. A batch that is sent again comes again, and changes nothing."""
        for task in writes.tasks:
            if task.row not in taken:
                self._row(task)
        rows = self._rows
        for failure in writes.failures:
            if (key := rows.get(failure.row)) is not None:
                self.tasks[key].failed.add(failure.number)
        for attempt in writes.attempts:
            if (key := rows.get(attempt.row)) is not None:
                self._attempt(key, attempt.number, attempt.instance_id, attempt.reserved)
        self._others(writes)

    def _others(self, writes: Writes) -> None:
        rows = self._rows
        self.questions.durable(writes, rows)
        for effect in writes.effects:
            if (key := rows.get(effect.row)) is not None:
                self._effect(key, effect.number)
        for saved in writes.checkpoints:
            if (key := rows.get(saved.row)) is not None:
                self.tasks[key].checkpoint = saved.data
        for reserve in writes.reserves:
            if (key := rows.get(reserve.row)) is not None:
                self.tasks[key].reserved = max(self.tasks[key].reserved, reserve.reserved)
        for done in writes.outbox_done:
            self.webhooks.forgotten(done)
        for outcome in writes.outcomes:
            if (key := rows.get(outcome.row)) is not None:
                self._outcome(key, outcome)

    def _row(self, row: TaskRow) -> None:
        key = (row.tenant, row.task_id)
        known = self.truth(key)
        if known.row and known.row != row.row:
            self.violate("ONE_ROW", key, f"rows {known.row} and {row.row} both hold task {key}")
            return
        if known.volatile:
            self.violate("VOLATILE_IS_NOT_KEPT", key, "a volatile task was written down")
        if self._rows.setdefault(row.row, key) != key:
            self.violate("ONE_ROW", key, f"row {row.row} holds {self._rows[row.row]} and {key}")
            return
        known.row, known.spec = row.row, row.spec
        self.sessions.belongs(key, row.session)
        self.webhooks.accepted(key, row)
        known.reserved = max(known.reserved, row.reserved)
        if row.attempt:
            self._attempt(key, row.attempt, row.instance_id, row.reserved)

    def _attempt(self, key: TaskKey, number: int, instance: str, reserved: int) -> None:
        known = self.tasks[key]
        known.reserved = max(known.reserved, reserved)
        before = known.attempts.get(number)
        if before is not None:
            if before != instance:
                self.violate("ONE_ATTEMPT", key, f"attempt {number} is at {before} and at {instance}")
            return
        latest = max(known.attempts, default=0)
        if number != latest + 1:
            self.violate("ATTEMPTS_COUNT_UP", key, f"attempt {number} follows attempt {latest}")
        if latest and latest not in known.failed:
            self.violate("ONE_LIVE_ATTEMPT", key, f"attempt {number} began, and attempt {latest} was not given up")
        if known.outcome is not None:
            self.violate("NOT_RUN_AGAIN", key, f"attempt {number} began after the task had ended")
        known.attempts[number] = instance

    def _effect(self, key: TaskKey, number: int) -> None:
        known = self.tasks[key]
        if number < 0:
            known.effects.discard(-number)
            return
        known.effects.add(number)
        if len(known.effects) > 1:
            self.violate("ONE_EFFECT", key, f"the effect was granted to attempts {sorted(known.effects)}")

    def _outcome(self, key: TaskKey, row: OutcomeRow) -> None:
        known = self.tasks[key]
        if known.outcome is not None:
            if known.outcome != row:
                self.violate("ENDS_ONCE", key, f"ended as {_short(known.outcome)} and again as {_short(row)}")
            return
        known.outcome = row
        self.sessions.ended(key)
        self.webhooks.ended(key, row)
        latest = max(known.attempts, default=0)
        if row.state < FIRST_TERMINAL:
            self.violate("ENDS_ONCE", key, f"its outcome has the state {row.state}")
        if row.attempts != latest:
            self.violate("WINNER_IS_CURRENT", key, f"attempt {row.attempts} ended it, the latest is {latest}")
        if row.state == TaskState.SUCCEEDED:
            self._winner(key, row.attempts, row.instance_id, row.content)

    def _winner(self, key: TaskKey, attempt: int, instance: str, content: Any) -> None:
        said = self.truth(key).said.get((attempt, instance), ())
        if content not in said:
            message = f"attempt {attempt} at {instance} has not said {content!r}, but {sorted(said)[:3]}"
            self.violate("ANSWER_IS_THE_WINNERS", key, message)

    # -- what the server says to agents -------------------------------------------------------------------------------

    def offered(self, key: TaskKey, attempt: int, instance: str, checkpoint: bytes | None = None) -> None:
        """The server sends an attempt to an instance, with what earlier ones have saved."""
        known = self._living(key)
        if known.outcome is not None or (known.volatile and known.told is not None):
            self.violate("NOT_RUN_AGAIN", key, f"attempt {attempt} is offered to {instance} after the task has ended")
        if not known.volatile and known.attempts.get(attempt) != instance:
            self.violate("OFFER_IS_DURABLE", key, f"attempt {attempt} at {instance} is offered and not written down")
        if not known.volatile and checkpoint != known.checkpoint:
            self.violate("CHECKPOINT_IS_LATEST", key, f"{checkpoint!r} goes along, {known.checkpoint!r} is written")
        latest = max(known.attempts, default=0)
        if not known.volatile and attempt != latest:
            self.violate("OFFER_IS_CURRENT", key, f"attempt {attempt} is offered, {latest} is current")
        before = known.offered.get(attempt)
        if before is not None and before != instance:
            self.violate("ONE_ATTEMPT", key, f"attempt {attempt} is offered to {instance} and was to {before}")
        if attempt < max(known.offered, default=0):
            self.violate("OFFER_IS_CURRENT", key, f"attempt {attempt} is offered after {max(known.offered)}")
        known.offered[attempt] = instance

    def granted(self, key: TaskKey, attempt: int, instance: str) -> None:
        """The server allows an attempt its effect."""
        known = self.truth(key)
        if known.given and known.given != {attempt}:
            self.violate("ONE_EFFECT", key, f"the effect is granted to attempts {known.given} and {attempt}")
        if attempt < max(known.offered, default=0):
            self.violate("GRANT_IS_CURRENT", key, f"attempt {attempt} gets the effect, {max(known.offered)} is current")
        if not known.volatile:
            if attempt not in known.effects:
                self.violate("GRANT_IS_DURABLE", key, f"the grant to attempt {attempt} is not written down")
            if attempt != max(known.attempts, default=0):
                message = f"attempt {attempt} gets the effect, {max(known.attempts, default=0)} is current"
                self.violate("GRANT_IS_CURRENT", key, message)
            if known.outcome is not None:
                self.violate("GRANT_IS_CURRENT", key, f"attempt {attempt} gets the effect of a task that has ended")
        known.given.add(attempt)

    def handed_back(self, key: TaskKey, attempt: int) -> None:
        """An attempt has certainly not begun: nobody got it, or an agent refused it. Nor has its effect."""
        known = self.truth(key)
        known.given.discard(attempt)

    def acknowledged(self, key: TaskKey, attempt: int, answered: bool) -> None:
        """The server says that the outcome of an attempt is safe. `answered`: the agent had said success."""
        known = self.truth(key)
        if known.volatile or known.outcome is not None:
            if answered and known.told_at is None:
                known.told_at = self.now()
            return
        if answered:
            self.violate("ACKNOWLEDGED_IS_DURABLE", key, f"the answer of attempt {attempt} is not written down")
        elif attempt not in known.failed:
            self.violate("ACKNOWLEDGED_IS_DURABLE", key, f"the failure of attempt {attempt} is not written down")

    # -- what agents do -----------------------------------------------------------------------------------------------

    def says(self, key: TaskKey, attempt: int, instance: str, content: Any) -> None:
        """An agent gives an answer, in whole or as the last of its pieces."""
        self.truth(key).said.setdefault((attempt, instance), set()).add(content)

    def acts(self, key: TaskKey, attempt: int, instance: str) -> None:
        """An agent does what cannot be undone."""
        known = self.truth(key)
        known.acted.append((attempt, instance))
        if known.reborn:
            return
        if attempt not in known.given:
            self.violate("ACTS_WHEN_GRANTED", key, f"attempt {attempt} at {instance} acts without a grant")
        if len(known.acted) > 1:
            self.violate("ONE_EFFECT", key, f"the effect happened {len(known.acted)} times: {known.acted}")

    # -- what the server says to callers ------------------------------------------------------------------------------

    def accepted(self, key: TaskKey, spec: bytes | None = None) -> None:
        """The server says that a task is accepted. `spec`: what was brought, which must be what counts (DLV-3)."""
        known = self.truth(key)
        if spec is not None and known.row and spec != known.spec:
            self.violate("SAME_ID_SAME_CONTENT", key, f"{spec!r} is accepted, {known.spec!r} is written down")
        if not known.volatile and not known.row:
            self.violate("ACCEPTED_IS_DURABLE", key, "it is accepted and not written down")
        known.accepted = True

    def ended(self, key: TaskKey, outcome: Outcome) -> None:
        """The server says how a task ended, in whatever way."""
        known = self._living(key)
        ending = ending_of(outcome)
        if known.told is not None and known.told != ending:
            self.violate("TERMINAL_ABSORBS", key, f"it ended as {known.told}, now as {ending}")
        if known.told_at is None:
            known.told_at = self.now()
        known.told = ending
        if outcome.state < FIRST_TERMINAL:
            self.violate("TERMINAL_ABSORBS", key, f"it ended in state {outcome.state}")
        if known.volatile:
            if outcome.state == TaskState.SUCCEEDED:
                self._winner(key, outcome.attempts, outcome.instance_id, outcome.content)
            return
        if known.outcome is None:
            self.violate("TOLD_IS_DURABLE", key, f"it is said to have ended as {ending}; that is not written down")
        elif ending_of_row(known.outcome) != ending:
            self.violate("TOLD_IS_DURABLE", key, f"said: {ending}; written: {ending_of_row(known.outcome)}")

    def open(self, key: TaskKey, state: int) -> None:
        """The server says that a task goes on."""
        known = self._living(key)
        if known.told is not None:
            self.violate("TERMINAL_ABSORBS", key, f"it ended as {known.told}, now its state is {state}")

    def is_known(self, key: TaskKey) -> bool:
        """Whether somebody was told of a durable task: from now on the server has to know it."""
        known = self.truth(key)
        return not known.volatile and (known.accepted or known.told is not None)

    def refused(self, key: TaskKey, fault: Fault, spec: bytes | None, asked_known: bool) -> None:
        """The server refuses what a caller asks of a task.

        Args:
            key: The task.
            fault: Why.
            spec: What it was submitted with; None if the caller only asks of it.
            asked_known: The task was known when it was asked.
        """
        known = self.truth(key)
        if fault.error_class is ErrorClass.INTERNAL:
            self.violate("NO_INNER_FAULT", key, f"a caller hears {fault}")
        if not asked_known or fault.error_class in RETRYABLE:
            return
        if fault.reason is Reason.TASK_ID_REUSED and spec is not None and spec != known.spec:
            return
        self.violate("ACCEPTED_IS_KNOWN", key, f"it was accepted, and now {fault}")

    def numbered(self, key: TaskKey, sequence: int, kind: int, digest: Any) -> None:
        """The server tells an event of a durable task: its number means the same to everybody, for ever."""
        known = self.truth(key)
        if known.volatile:
            return
        if sequence > known.reserved + 1:
            message = f"event {sequence} is told, but only numbers up to {known.reserved} are reserved"
            self.violate("SEQUENCES_ARE_RESERVED", key, message)
        told = self._told.setdefault(key, {})
        if told.setdefault(sequence, (kind, digest)) != (kind, digest):
            message = f"event {sequence} was {told[sequence]} and is now {(kind, digest)}"
            self.violate("SEQUENCES_ARE_UNIQUE", key, message)

    # -- the world ----------------------------------------------------------------------------------------------------

    def server_died(self) -> None:
        """What is volatile is forgotten: under the same id it begins anew."""
        for known in self.tasks.values():
            if known.volatile:
                known.forget()

    def unended(self) -> list[TaskKey]:
        """Durable tasks that were accepted, or written down, and have no outcome."""
        return [key for key, known in self.tasks.items() if known.row and known.outcome is None]

    def finish(self) -> None:
        """Everything was healed long ago."""
        for key in self.unended():
            self.violate("EVERY_TASK_ENDS", key, f"{key} was accepted and has not ended, long after all was healed")
            return


def ending_of(outcome: Outcome) -> Ending:
    """What a caller learns of an end."""
    reason = int(outcome.fault.reason) if outcome.fault is not None else 0
    return int(outcome.state), outcome.content, reason, outcome.attempts, outcome.instance_id


def ending_of_row(row: OutcomeRow) -> Ending:
    """The same from the journal."""
    return int(row.state), row.content, int(row.reason), row.attempts, row.instance_id


def _short(row: OutcomeRow) -> str:
    return f"{TaskState(row.state).name} (attempt {row.attempts} at {row.instance_id}, {row.content!r})"
