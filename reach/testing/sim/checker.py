"""What must be true, whatever happens. The checker has its own record of the truth, made of what left the server, what
the journal made durable and what agents and callers did; it never looks into the server.

Each method hears of one kind of thing that happened, in order; the first thing that is not right is kept. This module
has the rows and the ends of tasks; each other kind of truth has a module of its own, and is a part of the checker.
"""

from __future__ import annotations

from collections.abc import Callable

from reach.core.model import FIRST_TERMINAL, TaskKey, TaskState
from reach.core.rows import OutcomeRow, TaskRow, Writes
from reach.testing.sim.attempt_truth import AttemptTruth
from reach.testing.sim.caller_truth import CallerTruth
from reach.testing.sim.fleet import FleetTruth
from reach.testing.sim.keeping import KeepingTruth
from reach.testing.sim.operators import OperatorTruth
from reach.testing.sim.questions import QuestionTruth
from reach.testing.sim.sessions import SessionTruth
from reach.testing.sim.trees import TreeTruth
from reach.testing.sim.truth import TaskTruth, Violation
from reach.testing.sim.webhooks import WebhookTruth

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
        self.attempts = AttemptTruth(self)
        self.callers = CallerTruth(self)
        self.operators = OperatorTruth(self)
        self.keeping = KeepingTruth(self)
        self.fleet = FleetTruth(self)
        self.trees = TreeTruth(self)
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

    def living(self, key: TaskKey) -> TaskTruth:
        """As `truth`, but for what is volatile and ended long ago."""
        known = self.truth(key)
        if known.volatile and known.told_at is not None and self.now() > known.told_at + VOLATILE_SECONDS:
            known.forget()
        return known

    def meant(self, key: TaskKey) -> TaskTruth:
        """As `truth`; the task that had the id before, as long as there is no other one: memory may still have it."""
        known = self.truth(key)
        return known if known.row or known.past is None else known.past

    def forget_row(self, row: int) -> TaskKey | None:
        """The journal has removed a row: its id is free."""
        key = self._rows.pop(row, None)
        if key is not None:
            past, self.tasks[key] = self.tasks[key], TaskTruth()
            if past.past is not None:  # an agent may have been away for long
                for place, said in past.past.said.items():
                    past.said.setdefault(place, set()).update(said)
            past.past, self.tasks[key].past, self.tasks[key].reborn = None, past, True
            self.webhooks.removed(key)
            self.questions.removed(key)
            self.sessions.removed(key)
        return key

    def submitted(self, key: TaskKey, *, volatile: bool) -> None:
        """A caller is about to bring a task."""
        self.truth(key).volatile = volatile

    def keys_of(self, rows: list[OutcomeRow]) -> list[TaskKey]:
        """Whose rows these are."""
        return [self._rows[row.row] for row in rows if row.row in self._rows]

    # -- the journal --------------------------------------------------------------------------------------------------

    def durable(self, writes: Writes, taken: list[int]) -> None:
        """A batch is durable. A batch that is sent again comes again, and changes nothing."""
        self.fleet.durable(writes)
        for task in writes.tasks:
            if task.row not in taken:
                self._row(task)
        rows = self._rows
        for failure in writes.failures:
            if (key := rows.get(failure.row)) is not None:
                self.tasks[key].failed.add(failure.number)
        for attempt in writes.attempts:
            if (key := rows.get(attempt.row)) is not None:
                self.attempts.begun(key, attempt.number, attempt.instance_id, attempt.reserved, attempt.offered_wall_ms)
        for move in writes.moves:
            if (key := rows.get(move.row)) is not None:
                self.tasks[key].pool = move.agent_type
        self._others(writes)
        begun = [task.row for task in writes.tasks] + [attempt.row for attempt in writes.attempts]
        for key in {rows[row]: None for row in begun if row in rows}:
            self._at_home(key)

    def _at_home(self, key: TaskKey) -> None:
        """A live attempt is at an instance of the pool that the row of its task tells: there it is looked for after a
        restart, and by those who ask for the tasks of a pool."""
        known = self.tasks[key]
        latest = max(known.attempts, default=0)
        if not latest or latest in known.failed or known.outcome is not None:
            return
        kind = self.fleet.type_of(known.attempts[latest])
        if kind and kind != known.pool:
            message = f"attempt {latest} is at {known.attempts[latest]}, of {kind!r}; its row says {known.pool!r}"
            self.violate("ROW_TELLS_POOL", key, message)

    def _others(self, writes: Writes) -> None:
        rows = self._rows
        self.questions.durable(writes, rows)
        for effect in writes.effects:
            if (key := rows.get(effect.row)) is not None:
                self.attempts.effect(key, effect.number)
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
        self.trees.batch(writes.outcomes)

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
        if not known.row:
            known.pool = row.agent_type
        known.row, known.spec = row.row, row.spec
        self.sessions.belongs(key, row.session)
        self.webhooks.accepted(key, row)
        self.trees.written(key, row)
        known.reserved = max(known.reserved, row.reserved)
        if row.attempt:
            self.attempts.begun(key, row.attempt, row.instance_id, row.reserved, row.accepted_wall_ms)

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
            self.attempts.winner(key, row.attempts, row.instance_id, row.content)

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


def _short(row: OutcomeRow) -> str:
    return f"{TaskState(row.state).name} (attempt {row.attempts} at {row.instance_id}, {row.content!r})"
