"""What agents say of their attempts: that they began, pieces of answers, how far they are, and what came of it.

What is said of an attempt that is over is refused, so that the agent stops; what is said of a task that is not here is
for the journal to answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import events as ev
from reach.core.at_hand import PENDING, SUCCEEDED
from reach.core.dialled import acknowledge, keep_handle
from reach.core.effects import AskJournal, CreditAttempt, Done, GrantEffect, RefuseItem, Turn
from reach.core.model import FIRST_TERMINAL, Fault, Outcome, Task
from reach.core.pieces import Fold, Kind, size_in_bytes
from reach.core.questions import over
from reach.core.rows import CheckpointRow, EffectRow
from reach.core.stream import emit
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool


class Reports:
    """Of the agents of one pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def _current(self, event: ev.AttemptEvent, turn: Turn) -> Task | None:
        """The task an agent speaks of, if it speaks of the current attempt; else the agent is told."""
        pool = self.pool
        instance = event.instance
        pool.vitals.prove(instance, turn)
        task = pool.find(event.tenant, event.task_id)
        if task is not None and task.attempt == event.attempt and task.instance_id == instance.instance_id:
            return task
        if task is None:
            asked = AskJournal(instance.link, event.tenant, event.task_id, event.attempt, event.reply)
            asked.works = isinstance(event, ev.Reported) and event.waiting is not None
            turn.sends.append(asked)
        else:
            message = f"attempt {event.attempt} of task {event.task_id!r} is over; attempt {task.attempt} is current"
            self._refuse(event, Fault(ErrorClass.INVALID_REQUEST, Reason.STALE_ATTEMPT, message), turn)
        return None

    def _refuse(self, event: ev.AttemptEvent, fault: Fault, turn: Turn) -> None:
        turn.sends.append(RefuseItem(event.asker, event.tenant, event.task_id, event.attempt, fault))

    def taken_up(self, event: ev.TakenUp, turn: Turn) -> None:
        """It has begun an attempt."""
        pool = self.pool
        task = self._live(event, turn)
        if task is not None:
            keep_handle(task, event.handle, pool.shard, turn)
        if task is not None and event.reply is not None:
            turn.sends.append(Done(event.reply))

    def _live(self, event: ev.AttemptEvent, turn: Turn) -> Task | None:
        """As `_current`, and the attempt is running (also if the agent did not say before that it took it up)."""
        pool = self.pool
        task = self._current(event, turn)
        if task is None:
            return None
        if task.state >= FIRST_TERMINAL or task.state is PENDING:
            self._refuse(event, over(event.task_id, event.attempt), turn)
            return None
        pool.delivery.start(task, turn)
        task.progressed_ms = turn.now_ms
        return task

    def delta_came(self, event: ev.DeltaCame, turn: Turn) -> None:
        """A piece of an answer."""
        pool = self.pool
        task = self._live(event, turn)
        if task is None:
            return
        if event.attempt_sequence <= task.attempt_sequence:
            if task.log is not None and task.log.said_again:
                self._credit(event, turn)
            return
        pool.vitals.moved(event.instance, turn)
        emitted = task.log
        if event.attempt_sequence == 1 and emitted is not None and not emitted.fold_whole:
            emit(task, Kind.ATTEMPT_RESET, 0, turn)
            emitted.fold, emitted.fold_whole = Fold(), True
        gap = event.attempt_sequence > task.attempt_sequence + 1
        task.attempt_sequence = event.attempt_sequence
        emit(task, Kind.DELTA, event.delta, turn)
        task.log.said_again = False
        if gap:
            task.log.fold_whole = False
        if not task.log.fold.add(event.delta):
            message = "the deltas of the attempt come to more than 4 MiB"
            pool.delivery.stop_attempt(task, Reason.RESULT_TOO_LARGE, turn)
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, message)
            pool.delivery.give_up_attempt(task, fault, turn)
            return
        pool.delivery.touch(task)
        self._credit(event, turn)

    def _credit(self, event: ev.DeltaCame, turn: Turn) -> None:
        """Room for as much as this piece took."""
        size, link = size_in_bytes(event.delta.content), event.instance.link
        if link is not None:
            turn.sends.append(CreditAttempt(link, event.tenant, event.task_id, event.attempt, size))

    def progressed(self, event: ev.Progressed, turn: Turn) -> None:
        """How far it is, and perhaps what the next attempt should get."""
        pool = self.pool
        task = self._live(event, turn)
        if task is None:
            return
        pool.vitals.moved(event.instance, turn)
        if event.checkpoint is not None:
            task.checkpoint = event.checkpoint
            if not task.volatile:
                turn.writes.checkpoints.append(CheckpointRow(task.row, pool.shard, task.attempt, event.checkpoint))
        emit(task, Kind.PROGRESS, (event.fraction, event.note), turn)
        pool.delivery.touch(task)

    def lease_extended(self, event: ev.LeaseExtended, turn: Turn) -> None:
        """It wants more time."""
        pool = self.pool
        task = self._live(event, turn)
        if task is not None:
            turn.sends.append(Done(event.reply, pool.leases.until_ms(task) - turn.now_ms))

    def effect_asked(self, event: ev.EffectAsked, turn: Turn) -> None:
        """It asks whether it may do what cannot be undone."""
        pool = self.pool
        task = self._live(event, turn)
        if task is None:
            return
        fault = None
        if task.effect_granted and task.effect_granted != task.attempt:
            message = f"the effect was granted to attempt {task.effect_granted}"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.WRONG_STATE, message)
        elif not task.effect_granted:
            task.effect_granted = task.attempt
            if not task.volatile:
                row = EffectRow(task.row, pool.shard, task.attempt, event.effect, turn.wall_ms)
                turn.writes.effects.append(row)
        turn.sends.append(GrantEffect(event.asker, task.tenant, task.task_id, task.attempt, event.effect, fault))

    def reported(self, event: ev.Reported, turn: Turn) -> None:
        """What became of an attempt."""
        pool = self.pool
        if pool.held:
            pool.held.stopped(event.instance, event.tenant, event.task_id, event.attempt)
        task = self._current(event, turn)
        if task is None:
            return
        event.instance.moved_ms = turn.now_ms
        if event.instance.conditions:
            pool.conditions.moves(event.instance, turn)
        answered = event.fault is None and event.released is None and event.waiting is None
        if task.state >= FIRST_TERMINAL or (task.state is PENDING and not answered):
            pool.late_outcomes += 1  # an attempt that we gave up can still succeed, but not fail once more
            if event.waiting is not None:  # nobody will answer it
                self._refuse(event, over(event.task_id, event.attempt), turn)
                return
            acknowledge(event, turn)
            return
        if not event.begun and task.effect_granted == task.attempt:
            pool.assignment.take_grant_back(task, turn)
        if event.folded is not None and not self._unfold(task, event, turn):
            return
        pool.scores.changed(event.instance)
        if event.fault is not None:
            pool.delivery.give_up_attempt(task, event.fault, turn)
        elif event.released is not None:
            message = f"the agent gave it back: {event.released}"
            fault = Fault(ErrorClass.UNAVAILABLE, Reason.AGENT_UNAVAILABLE, message)
            pool.delivery.give_up_attempt(task, fault, turn, lost=True)
        elif event.waiting is not None:
            pool.questions.asked(task, event, turn)
            return
        else:
            if task.log is not None and task.log.lacks_pieces_of(event.content):
                emit(task, Kind.ATTEMPT_RESET, 0, turn)  # readers lack pieces that never came: the outcome has them all
                task.log.fold_whole = False
            outcome = Outcome(SUCCEEDED, event.content, event.media_type, extra=event.extra)
            pool.delivery.succeed(task, outcome, turn)
        acknowledge(event, turn)

    def _unfold(self, task: Task, event: ev.Reported, turn: Turn) -> bool:
        """Makes the answer of the deltas; asks for the whole if some of them never came."""
        if task.log is None and event.folded == 0:
            event.media_type, event.content = "", ""
            return True
        if task.log is None or not task.log.fold_whole or task.attempt_sequence != event.folded:
            message = f"{event.folded} deltas were sent, {task.attempt_sequence} came: send the whole output"
            self._refuse(event, Fault(ErrorClass.INVALID_REQUEST, Reason.UNEXPECTED_FRAME, message), turn)
            if task.log is not None:
                task.log.fold_whole = False
            return False
        event.media_type, event.content = task.log.fold.content()
        return True
