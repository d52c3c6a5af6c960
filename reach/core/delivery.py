"""The life of a task in its pool: accepted, assigned, retried, ended (DLV).

Each function changes memory and asks, through the turn, for rows and sends. A troubled attempt always ends in
`give_up_attempt`, every task in `end`: there is one place for each rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import retry
from reach.core.at_hand import ACCEPTED, COMPLETE, EVENTS, OUTCOME, REJECT, STARTED, SUCCEED
from reach.core.chance import mix
from reach.core.effects import Accepted, Ended, Events, Full, Noted, Refused, StopAttempt, Turn
from reach.core.ending import announce, outcome_row
from reach.core.history import PastAttempt
from reach.core.model import EffectKind, Fault, Instance, Outcome, Task, TaskState
from reach.core.pieces import Kind
from reach.core.rows import FailureRow, TaskRow
from reach.core.signals import running_mean, stats_of
from reach.core.spread import Placing
from reach.core.states import TaskInput, next_state
from reach.core.stream import AT_END, RESERVE, Reader, emit, log_of
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool

HISTORY = 16
"""Attempts kept for the story of a task."""
LOST_MOVES = 5
"""A task whose instance was lost this often is taken for the cause, and buried."""
STOP_GRACE_MS = 5_000
ITS_FAULT = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT, ErrorClass.INTERNAL, ErrorClass.AGENT_ERROR})
"""Failures that count against an instance (HLT-5, RTE-10); a request that cannot be met does not."""


class Delivery:
    """The tasks of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    # -- beginning ----------------------------------------------------------------------------------------------------

    def accept(self, task: Task, reader: Reader, turn: Turn, placing: Placing | None = None) -> None:
        """Takes a task in, or answers again for one that is here already (DLV-3); `placing`: as `Full` has it."""
        pool = self.pool
        known = pool.tasks.get(task.key)
        if known is not None and known.row:
            self.accept_again(known, task, reader, turn)
            return
        task.pool = pool
        if not pool.queue.has_room(task.size):
            pool.tasks.pop(task.key, None)
            turn.sends.append(Full(reader, pool.backlog.full(), task, placing))
            return
        pool.tasks[task.key] = task  # where the door has put it already
        if pool.router.declared.any:
            self.declared(task)
        task.row = pool.rows.take()
        task.accepted_ms = turn.now_ms
        task.accepted_wall_ms = turn.wall_ms
        if task.start_delay_ms:
            task.not_before_ms = turn.now_ms + task.start_delay_ms
        if reader.interest != OUTCOME:
            turn.sends.append(Accepted(reader, task, False))
        self._follow(task, reader, turn)
        if task.volatile:
            task.reserved = RESERVE
        emit(task, ACCEPTED, None, turn)
        if task.not_before_ms > turn.now_ms:
            task.pending_reason = "start_delay"
            pool.queue.delay(task)
            self.pool.deadlines.arm(task, turn)
        else:
            self.pool.assignment.route(task, turn)
        if not task.volatile:
            task.reserved = RESERVE
            turn.writes.tasks.append(self._row_of(task))
            turn.accepted.append(task)

    def declared(self, task: Task) -> None:
        """What its capability declares holds where the task does not say (REG-4)."""
        defaults = self.pool.router.declared.of(task.requirement)
        if task.effects is None and defaults.effects:
            task.effects = EffectKind(defaults.effects)
        if task.cost == 1 and defaults.cost > 1 and not self.pool.names_cost(task.spec):
            task.cost = defaults.cost

    def _row_of(self, task: Task) -> TaskRow:
        pool, instance = self.pool, task.instance
        return TaskRow(
            task.row,
            pool.shard,
            task.tenant,
            task.task_id,
            pool.key.tenant,
            pool.key.agent_type,
            task.spec,
            task.accepted_wall_ms,
            task.reserved,
            task.session,
            task.root_task_id,
            task.attempt,
            task.instance_id,
            instance.agent_id if instance is not None else "",
            instance.generation if instance is not None else 0,
            task.decision if task.attempt else None,
        )

    def accept_again(self, known: Task, task: Task, reader: Reader, turn: Turn) -> None:
        """Answers for a task that is here, if it is the same."""
        if known.spec != task.spec and not self.pool.same_content(known.spec, task.spec):
            message = f"task id {task.task_id!r} is taken by a task with other content"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_ID_REUSED, message, {"task_id": task.task_id})
            turn.sends.append(Refused(reader, fault, known, task.spec))
            return
        if reader.interest != OUTCOME:
            turn.sends.append(Accepted(reader, known, True))
        self.subscribe(known, reader, turn)

    def _follow(self, task: Task, reader: Reader, turn: Turn) -> None:
        reader.task = task
        if reader.interest in AT_END:
            if task.waiters is None:
                task.waiters = [reader]
            else:
                task.waiters.append(reader)
        elif reader.interest == EVENTS:
            log_of(task, turn).readers.append(reader)
            self.pool.dirty[id(task)] = task

    def subscribe(self, task: Task, reader: Reader, turn: Turn) -> None:
        """Lets somebody read a task, from the position the reader has."""
        if reader.interest in AT_END and task.outcome is not None:
            reader.task = task
            turn.sends.append(Ended(task, task.outcome, [reader], first=False))
        elif reader.interest == EVENTS and reader.after > task.sequence:
            message = f"task {task.task_id!r} has no event {reader.after}; its last is {task.sequence}"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.SEQUENCE_OUT_OF_RANGE, message)
            turn.sends.append(Refused(reader, fault, task))
        elif reader.interest == EVENTS and task.outcome is not None and reader.after == task.sequence:
            reader.task = task
            turn.sends.append(Events(reader, task, []))  # it has had them all, the last one too
        else:
            self._follow(task, reader, turn)

    def refute(self, task: Task, fault: Fault, turn: Turn) -> None:
        """Ends a task that waits for what nobody may give it."""
        if task.state is TaskState.PENDING and task.row > 0:  # else it is undone: it never was
            self.end(task, TaskInput.FAIL, Outcome(TaskState.FAILED, fault=fault), turn)

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self, task: Task, turn: Turn) -> None:
        """The instance works on it."""
        state = next_state(task.state, TaskInput.START)
        if state is None:
            return
        task.state = state
        task.started_ms = task.progressed_ms = turn.now_ms
        emit(task, STARTED, None, turn)
        if task.session:
            self.pool.handoffs.taken_up(task, turn)
        self.touch(task)
        self.pool.deadlines.started(task, turn)

    def touch(self, task: Task) -> None:
        """Its readers have something to read when the step ends."""
        if task.log is not None and task.log.readers:
            self.pool.dirty[id(task)] = task

    # -- ending -------------------------------------------------------------------------------------------------------

    def unqueue(self, task: Task) -> None:
        """Takes the task out of the queue; who stood behind it may be able to go."""
        if self.pool.queue.remove(task):
            self.pool.slot_freed = True

    def release(self, task: Task) -> None:
        """Takes the task from its instance and frees its slots."""
        instance: Instance | None = task.instance
        if instance is not None:
            if instance.running.pop(task.key, None) is not None:
                instance.inflight -= task.cost
                self.pool.router.freed(instance)
                self.pool.slot_freed = True
            else:
                self.pool.questions.released(task)
        if self.pool.circuits.probes:
            self.pool.circuits.released(task)
        task.instance = None

    def stop_attempt(self, task: Task, reason: Reason, turn: Turn) -> None:
        """Tells the instance to stop; its slots stay taken until it says so, or for the grace."""
        instance: Instance | None = task.instance
        if instance is None or instance.link is None or self.pool.questions.stop(task, instance, reason, turn):
            return
        self.pool.held.hold(instance, task, turn.now_ms + STOP_GRACE_MS)
        turn.sends.append(StopAttempt(instance.link, task.tenant, task.task_id, task.attempt, reason))

    def give_up_attempt(self, task: Task, fault: Fault, turn: Turn, *, lost: bool = False) -> None:
        """An attempt is over without an answer: retry, move, fail or bury.

        Args:
            task: The task; its attempt is current.
            fault: Why.
            turn: The turn.
            lost: The instance is gone for certain: move at once, outside of the retry budget.
        """
        instance = task.instance
        if instance is not None:
            instance.failed += fault.error_class is not ErrorClass.INVALID_REQUEST
            if not lost and fault.error_class in ITS_FAULT:
                stats_of(instance.methods, task.requirement.method).window.add(turn.now_ms, 1, 0)
            if not lost:
                self.pool.assignment.failed(task, instance, fault, turn)
        self._remember(task, fault, turn)
        self.release(task)
        if task.effect_granted and fault.error_class is not ErrorClass.AGENT_ERROR:
            if lost or fault.error_class in (ErrorClass.UNAVAILABLE, ErrorClass.TIMEOUT):
                message = (
                    f"the effect of attempt {task.effect_granted} began and its outcome is unknown: {fault.message}"
                )
                fault = Fault(ErrorClass.INTERNAL, Reason.OUTCOME_UNKNOWN, message)
            self._bury(task, fault, turn)
            return
        if fault.reason is Reason.AGENT_REJECTED and task.state is not TaskState.WAITING:
            self.end(task, TaskInput.REJECT, Outcome(TaskState.REJECTED, fault=fault), turn)
        elif fault.error_class in (ErrorClass.AGENT_ERROR, ErrorClass.INVALID_REQUEST):
            self.end(task, TaskInput.FAIL, Outcome(TaskState.FAILED, fault=fault), turn)
        elif lost and task.retry is not retry.POLICIES["never"]:
            self._move(task, fault, turn)
        else:
            self._retry_later(task, fault, turn)

    def _move(self, task: Task, fault: Fault, turn: Turn) -> None:
        moves = sum(1 for past in task.history or () if past.fault is not None and past.fault.reason is fault.reason)
        if moves > LOST_MOVES:
            if fault.reason is Reason.INSTANCE_LOST:
                self._bury(task, fault, turn)
            else:
                self._retry_later(task, fault, turn)
            return
        self._pend(task, fault, 0, turn)
        self.pool.assignment.route(task, turn)

    def policy_of(self, task: Task) -> retry.RetryPolicy:
        """How the task is retried."""
        policy: retry.RetryPolicy = task.retry or retry.DEFAULT
        return policy

    def _retry_later(self, task: Task, fault: Fault, turn: Turn) -> None:
        policy = self.policy_of(task)
        delay = policy.delay_ms(task.retries, fault, mix(self.pool.seed, task.row))
        if delay is None:
            self._bury(task, fault, turn)
            return
        task.retries += 1
        task.paced = True
        self._pend(task, fault, delay, turn)
        self.pool.queue.delay(task)
        self.pool.deadlines.arm(task, turn)

    def _pend(self, task: Task, fault: Fault, delay_ms: int, turn: Turn) -> None:
        state = next_state(task.state, TaskInput.RETRY)
        if state is not None:
            task.state = state
        if task.instance_id and task.instance_id not in task.avoided:
            task.avoided = (*task.avoided, task.instance_id)[-HISTORY:]
        task.not_before_ms = turn.now_ms + delay_ms
        task.pending_reason = "retry"
        turn.sends.append(Noted("retry", fault.reason.name, task))
        emit(task, Kind.RETRYING, fault, turn)
        self.touch(task)
        if not task.volatile:
            turn.writes.failures.append(
                FailureRow(
                    task.row,
                    self.pool.shard,
                    task.attempt,
                    turn.wall_ms,
                    fault.error_class,
                    fault.reason,
                    fault.message,
                    task.retries,
                    task.transfers,
                    turn.wall_ms + delay_ms,
                )
            )

    def _remember(self, task: Task, fault: Fault | None, turn: Turn) -> None:
        instance = task.instance
        past = PastAttempt(
            task.attempt,
            task.instance_id,
            instance.agent_id if instance is not None else "",
            instance.generation if instance is not None else 0,
            turn.wall_ms - (turn.now_ms - task.offered_ms),
            turn.wall_ms,
            fault,
            task.decision,
        )
        if task.history is None:
            task.history = []
        task.history.append(past)
        del task.history[:-HISTORY]

    def _bury(self, task: Task, fault: Fault, turn: Turn) -> None:
        if not self.pool.dead_letters:
            self.end(task, TaskInput.FAIL, Outcome(TaskState.FAILED, fault=fault), turn)
            return
        turn.sends.append(Noted("dead_letter", fault.reason.name, task))
        self.end(task, TaskInput.BURY, Outcome(TaskState.DEAD_LETTERED, fault=fault), turn)

    def succeed(self, task: Task, outcome: Outcome, turn: Turn) -> None:
        """The agent answered."""
        instance: Instance | None = task.instance
        if not task.started_ms:
            task.started_ms = task.offered_ms
            emit(task, STARTED, None, turn)
            if task.session:
                self.pool.handoffs.taken_up(task, turn)
        if instance is not None:
            took = max(1, turn.now_ms - task.started_ms)
            instance.done += 1
            instance.latency_ms = running_mean(instance.latency_ms, took)
            method = task.requirement.method
            stats = instance.methods.get(method) or stats_of(instance.methods, method)
            stats.window.add(turn.now_ms, 0, took)
            self.pool.assignment.succeeded(task, instance, turn)
        self.end(task, SUCCEED, outcome, turn)

    def end(self, task: Task, event: TaskInput, outcome: Outcome, turn: Turn) -> None:
        """The one end of every task. The first terminal outcome wins."""
        pool = self.pool
        state = next_state(task.state, event)
        if state is None:
            pool.late_outcomes += 1
            return
        if task.instance is not None:
            outcome.agent_id = task.instance.agent_id
            if event is not SUCCEED and outcome.fault is not None and event is not REJECT:
                self.stop_attempt(task, outcome.fault.reason, turn)
        elif task.history:
            outcome.agent_id = task.history[-1].agent_id
        if task.instance is None:
            self.unqueue(task)
        else:
            self.release(task)
        pool.wheel.disarm(task)
        task.state = outcome.state = state
        task.outcome = outcome
        outcome.instance_id = task.instance_id
        outcome.attempts = task.attempt
        outcome.transfers = task.transfers
        began = task.started_ms or turn.now_ms
        outcome.queued_ms = max(0, began - task.accepted_ms)
        outcome.ran_ms = max(0, turn.now_ms - began)
        outcome.ended_wall_ms = turn.wall_ms
        emit(task, COMPLETE, outcome, turn)
        outcome.sequence = task.sequence
        self.touch(task)
        if not task.volatile:
            turn.writes.outcomes.append(outcome_row(task, pool.shard, outcome))
            if task.announce:
                announce(task, pool.shard, turn)
        if task.session:
            pool.pins.renew((task.tenant, task.session), turn.now_ms)
        readers, task.waiters = task.waiters, None
        turn.sends.append(Ended(task, outcome, readers or [], first=True))
        pool.finished.keep(task, turn.now_ms)

    def cancel(self, task: Task, reason: str, turn: Turn) -> None:
        """Ends a task by a caller's wish; the agent is told to stop, and what it still says is dropped."""
        message = f"cancelled: {reason}" if reason else "cancelled"
        if task.effect_granted and task.state is not TaskState.PENDING:
            message += "; its effect had begun"
        fault = Fault(ErrorClass.INVALID_REQUEST, Reason.CANCELLED, message)
        self.end(task, TaskInput.CANCEL, Outcome(TaskState.CANCELLED, fault=fault), turn)

    def undo(self, task: Task, turn: Turn) -> None:
        """The journal has another task of this id: forget that we took this one. Who waits for it is told of that."""
        pool = self.pool
        self.unqueue(task)
        self.release(task)
        pool.wheel.disarm(task)
        if pool.tasks.get(task.key) is task:
            del pool.tasks[task.key]
        pool.dirty.pop(id(task), None)
        for reader in task.waiters or ():
            turn.sends.append(Accepted(reader, task, False))
        for reader in task.log.readers if task.log is not None else ():
            turn.sends.append(Events(reader, task, []))
