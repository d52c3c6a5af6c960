"""The time limits of a task, by phase (DLV-6), and its one timer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core.dialogue import attempt_waited_ms, waited_ms
from reach.core.effects import Turn
from reach.core.model import FIRST_TERMINAL, Fault, Outcome, Task, TaskState
from reach.core.signals import NEUTRAL_LATENCY_MS
from reach.core.states import TaskInput
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.core.pool import Pool

START_TO_CLOSE_FLOOR_MS = 5_000
DYNAMIC_FACTOR = 1.5
LOOK_MS = 1_000
"""When a new attempt gets its exact timer, if it is not over by then. Shorter than any lease."""
NEVER = 1 << 62


class Deadlines:
    """The time limits of the tasks of one pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def start_to_close_ms(self, task: Task) -> int:
        """Limit of the current attempt: the one set, else from what its instance usually takes (DLV-6), or from what is
        declared, if that is longer: quick tasks before must not make a long one of another kind look stuck."""
        if task.start_to_close_ms is not None:
            return task.start_to_close_ms
        instance = task.instance
        usual, inflight = NEUTRAL_LATENCY_MS, 1
        if instance is not None:
            usual, inflight = instance.latency_ms or NEUTRAL_LATENCY_MS, instance.inflight
            if self.pool.router.declared.any:
                usual = max(usual, self.pool.router.declared.latency_ms(task.requirement))
        return max(START_TO_CLOSE_FLOOR_MS, int(usual * (inflight + 1) * DYNAMIC_FACTOR))

    def _attempt_limit(self, task: Task) -> tuple[int, Reason | None]:
        """When the current attempt is over at the latest, and why; no reason where it is the lease."""
        lease = self.pool.leases.until_ms(task)
        if task.lease_until_ms and (task.instance is None or task.instance.link is None):
            return lease, None  # its instance has yet to come back and say how it stands
        begin = (task.started_ms or task.offered_ms) + (attempt_waited_ms(task) if task.dialogue is not None else 0)
        progressed = max(begin, task.progressed_ms)
        why = Reason.START_TO_CLOSE
        at = (begin if task.start_to_close_ms is not None else progressed) + self.start_to_close_ms(task)
        if task.silence_ms is not None and progressed + task.silence_ms < at:
            at, why = progressed + task.silence_ms, Reason.SILENCE
        return (lease, None) if lease < at else (at, why)

    def _start_limit(self, task: Task) -> int:
        if task.schedule_to_start_ms is None or task.started_ms or task.history is not None:
            return NEVER
        return task.accepted_ms + task.start_delay_ms + task.schedule_to_start_ms

    def to_start_ms(self, task: Task, now_ms: int) -> int:
        """How long a task that waits may wait on; `NEVER`, more or less, if nothing limits it."""
        return max(0, min(self._start_limit(task), self._close_limit(task)) - now_ms)

    def _close_limit(self, task: Task) -> int:
        if task.schedule_to_close_ms is None:
            return NEVER
        return task.accepted_ms + task.schedule_to_close_ms + waited_ms(task)

    def arm(self, task: Task, turn: Turn) -> None:
        """Sets the task's timer to its nearest deadline. It may fire early, never late."""
        if task.state is TaskState.WAITING:
            self.pool.wheel.arm(task, max(self.pool.questions.limit_of(task), turn.now_ms + 1))
            return
        at = NEVER
        if task.schedule_to_close_ms is not None or task.schedule_to_start_ms is not None:
            at = min(self._close_limit(task), self._start_limit(task))
        if task.state is TaskState.DELIVERED or task.state is TaskState.RUNNING:
            at = min(at, self._attempt_limit(task)[0])
        elif task.state is TaskState.PENDING:
            if task.not_before_ms > turn.now_ms:
                at = min(at, task.not_before_ms)
            if task.pin_until_ms:
                at = min(at, task.pin_until_ms)
        if at < NEVER:
            self.pool.wheel.arm(task, max(at, turn.now_ms + 1))

    def watch(self, task: Task, turn: Turn) -> None:
        """Sets the timer of an attempt that just began. Most are over in a second: until then a rough one will do."""
        if (
            task.accepted_ms == turn.now_ms
            and (task.start_to_close_ms is None or task.start_to_close_ms > LOOK_MS)
            and (task.schedule_to_start_ms is None or task.schedule_to_start_ms > LOOK_MS)
            and (task.schedule_to_close_ms is None or task.schedule_to_close_ms > LOOK_MS)
            and (task.silence_ms is None or task.silence_ms > LOOK_MS)
        ):
            self.pool.wheel.arm(task, turn.now_ms + LOOK_MS)
        else:
            self.arm(task, turn)

    def started(self, task: Task, turn: Turn) -> None:
        """The attempt runs, and each of its limits is later than before: a timer that comes soon will look at them."""
        if not self.pool.wheel.comes(task, turn.now_ms + LOOK_MS):
            self.arm(task, turn)

    def due(self, task: Task, turn: Turn) -> None:
        """A deadline of the task may have come."""
        now = turn.now_ms
        if task.state >= FIRST_TERMINAL:
            return
        if task.state is TaskState.WAITING:
            self.pool.questions.due(task, turn)
        elif now >= self._close_limit(task):
            self.fail(task, Reason.SCHEDULE_TO_CLOSE, f"not finished within {task.schedule_to_close_ms} ms", turn)
        elif now >= self._start_limit(task):
            waited = f"not taken up within {task.schedule_to_start_ms} ms ({task.pending_reason or 'offered'})"
            self.fail(task, Reason.SCHEDULE_TO_START, waited, turn)
        elif task.state is TaskState.PENDING:
            self._due_pending(task, turn)
        else:
            self._due_attempt(task, turn)

    def fail(self, task: Task, reason: Reason, message: str, turn: Turn) -> None:
        """Ends a task whose time is over."""
        fault = timeout(reason, message)
        if task.effect_granted:
            self._give_up(task, fault, turn)  # nobody knows what became of its effect: more than a timeout
        else:
            self.pool.delivery.end(task, TaskInput.FAIL, Outcome(TaskState.FAILED, fault=fault), turn)

    def _due_pending(self, task: Task, turn: Turn) -> None:
        pool, now = self.pool, turn.now_ms
        if task not in pool.queue and now >= task.not_before_ms:
            if task.paced and not pool.budget.take(now):
                task.pending_reason = "retry_budget"
                task.not_before_ms = pool.budget.ask_again_ms(now)
            else:
                task.paced = False
                pool.queue.undelay(task)
                pool.assignment.route(task, turn)
                return
        elif task.pin_until_ms and now >= task.pin_until_ms:
            task.pin_until_ms = 0
            pool.queue.remove(task)
            pool.queue.push(task)
            pool.slot_freed = True  # it may go anywhere now, and is looked at where it stands in the queue
        self.arm(task, turn)

    def _due_attempt(self, task: Task, turn: Turn) -> None:
        at, why = self._attempt_limit(task)
        if turn.now_ms < at:
            self.arm(task, turn)
        elif why is None:
            self.pool.leases.expired(task, turn)
        else:
            limit = task.silence_ms if why is Reason.SILENCE else self.start_to_close_ms(task)
            said = "no progress for" if why is Reason.SILENCE else "the attempt did not finish within"
            self._give_up(task, timeout(why, f"{said} {limit} ms"), turn)

    def _give_up(self, task: Task, fault: Fault, turn: Turn) -> None:
        self.pool.delivery.stop_attempt(task, fault.reason, turn)
        self.pool.delivery.give_up_attempt(task, fault, turn)


def timeout(reason: Reason, message: str) -> Fault:
    """A time limit passed."""
    return Fault(ErrorClass.TIMEOUT, reason, message)
