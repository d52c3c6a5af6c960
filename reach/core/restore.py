"""Bringing a pool back from the journal: instances without links, tasks where they stood, pins.

Attempts that ran keep running as far as we know: each waits the grace for its instance to say hello and name it.
"""

from __future__ import annotations

from collections.abc import Sequence

from reach.core import health
from reach.core.dialogue import Ask, Dialogue, Input, Question
from reach.core.effects import Turn
from reach.core.filters import version_of
from reach.core.handed import StreamRow, ask_anew, resume
from reach.core.history import PastAttempt
from reach.core.instance_states import Availability, Health
from reach.core.joining import Joining
from reach.core.model import UNHEARD, Fault, Instance, Task, TaskState
from reach.core.pool import Pool
from reach.core.rows import AgentRow, AttemptRow, FailureRow, InputRow, PinRow, QuestionRow
from reach.core.stream import resume_after_load
from reach.errors import ErrorClass, Reason

MAX_DRAIN_MS = 30 * 24 * 3_600_000
"""The longest deadline of a drain that a clock which leapt can make."""
GRACE_MS = 30_000
"""How long the attempts of a restarted server wait for their instances, from the moment it serves."""


def restore_instance(pool: Pool, row: AgentRow, joining: Joining, turn: Turn) -> Instance:
    """An instance as it was registered; it has no link and gets no work until it says hello."""
    instance = Instance(row.instance_id, joining.profile, pool.key)
    instance.boot_id = row.boot_id
    instance.generation = row.generation
    instance.stale_boots = row.stale_boots
    instance.registration = row.registration
    instance.registered_wall_ms = row.registered_wall_ms
    instance.revision = row.revision
    instance.warnings = joining.warnings
    for name in ("weight", "priority", "max_concurrency", "max_sessions", "heartbeat_ms"):
        value = getattr(joining, name)
        if value is not None:
            setattr(instance, name, value)
    instance.hello = UNHEARD
    instance.told.add("restored")  # it was warm, or will be: no slow start only because we restarted
    instance.endpoint, instance.dialled = joining.endpoint, joining.dialled
    instance.health = Health.OFFLINE
    instance.health_since_ms = instance.beat_ms = instance.moved_ms = turn.now_ms
    instance.beats_expected_from_ms = turn.now_ms
    instance.awaited_until_ms = turn.now_ms + pool.pin_wait_ms
    if row.drained_wall_ms:
        left_ms = max(0, min(row.drained_wall_ms - turn.wall_ms, MAX_DRAIN_MS))
        instance.availability, instance.drain_until_ms = Availability.DRAINING, turn.now_ms + left_ms
    instance.blocked_by = health.blocked_by(instance)
    instance.history.append((turn.wall_ms, Health.OFFLINE.name, "the server restarted"))
    pool.instances[instance.instance_id] = instance
    pool.router.add(instance)
    pool.pins.ring.add(instance.instance_id)
    pool.scores.changed(instance)
    pool.wheel.arm(instance, turn.now_ms + 600_000)
    return instance


def restore_trials(pool: Pool, rows: list[AgentRow]) -> None:
    """The trials of a pool's versions, once all its instances are there (RTE-9)."""
    standings: dict[tuple[str, str], int] = {}
    for row in rows:
        profile = pool.instances[row.instance_id].profile
        key = profile.agent_id, profile.version
        standings[key] = max(row.trial, standings.get(key, 0))
    pool.router.canary.restore(standings)


def served_late(pool: Pool, late_ms: int, turn: Turn) -> None:
    """A pool is served so long after its instances and their attempts were restored: they are waited for from now."""
    for instance in pool.instances.values():
        instance.awaited_until_ms += late_ms
        for task in instance.running.values():
            task.lease_until_ms += late_ms
            pool.deadlines.arm(task, turn)


def restore_pin(pool: Pool, row: PinRow, turn: Turn) -> None:
    """A session's pin, for what is left of its time."""
    pin = pool.pins.set((row.tenant, row.session), row.instance_id, turn.now_ms)
    pin.expires_ms = turn.now_ms + max(0, min(row.expires_wall_ms - turn.wall_ms, pool.pins.ttl_ms))
    pin.handoffs = row.handoffs
    instance = pool.instances.get(row.instance_id)
    if instance is not None:
        pin.version = version_of(instance)


def restore_task(
    pool: Pool,
    task: Task,
    attempts: list[AttemptRow],
    failures: list[FailureRow],
    turn: Turn,
    questions: Sequence[QuestionRow] = (),
    inputs: Sequence[InputRow] = (),
    stream: StreamRow | None = None,
) -> None:
    """A task without an outcome goes on: its last attempt waits for its instance, or its next one is due. `stream`: how
    far it was told, if its former owner gave it up in peace.

    Persisted times are cut to what is sensible, so that a clock that leapt expires nothing: ages are at least 0, and
    a next try is at most its own policy's delay away.
    """
    pool.tasks[task.key] = task
    task.pool = pool
    if pool.router.declared.any:
        pool.delivery.declared(task)
    age = max(0, turn.wall_ms - task.accepted_wall_ms)
    if task.schedule_to_close_ms is not None:
        age = min(age, max(0, task.schedule_to_close_ms - GRACE_MS))
    if task.schedule_to_start_ms is not None:
        age = min(age, max(0, task.start_delay_ms + task.schedule_to_start_ms - GRACE_MS))
    task.accepted_ms = turn.now_ms - age
    if questions:
        task.dialogue = dialogue_of(pool, questions, inputs, turn)
    if stream is not None:
        resume(task, stream, turn)
    else:
        resume_after_load(task, turn)
    begun = {row.number: row for row in attempts}
    failed: dict[int, FailureRow] = {row.number: row for row in failures}
    for number, failure in sorted(failed.items()):
        row = begun.get(number)
        fault = Fault(ErrorClass(failure.error_class), Reason(failure.reason), failure.message)
        past = PastAttempt(
            number,
            row.instance_id if row is not None else "",
            row.agent_id if row is not None else "",
            row.generation if row is not None else 0,
            row.offered_wall_ms if row is not None else 0,
            failure.ended_wall_ms,
            fault,
        )
        task.history = [*(task.history or []), past]
        if past.instance_id and past.instance_id not in task.avoided:
            task.avoided = (*task.avoided, past.instance_id)
        task.retries, task.transfers = failure.retries, failure.transfers
    last = begun[max(begun)] if begun else None
    if last is not None:
        task.attempt = last.number
        task.instance_id = last.instance_id
    if last is None or (last.number in failed and task.effect_granted != last.number):
        _wait_again(pool, task, failed.get(task.attempt), turn)
    else:  # one that was given up, came back and was granted its effect runs: it must not be another's
        _wait_for_instance(pool, task, last, turn)
    if stream is not None:
        ask_anew(task, turn)


def restore_waiting(pool: Pool, tasks: Sequence[Task], turn: Turn) -> None:
    """Tasks of which no attempt began, that have no session and are due: as `restore_task` one by one, in a third of
    the time. There may be very many of them after a crash."""
    began = 0
    while began < len(tasks) and not (pool.slot_freed and pool.queue):
        restore_task(pool, tasks[began], [], [], turn)  # while nobody waits, somebody might take it at once
        began += 1
    rest = tasks[began:]
    if pool.router.declared.any:
        for task in rest:
            pool.delivery.declared(task)
    now, wall = turn.now_ms, turn.wall_ms
    known, arm = pool.tasks, pool.wheel.arm
    for task in rest:
        known[task.key] = task
        task.pool = pool
        resume_after_load(task, turn)
        age = wall - task.accepted_wall_ms
        limit, to_start = task.schedule_to_close_ms, task.schedule_to_start_ms
        if to_start is not None and (limit is None or to_start < limit):
            limit = to_start
        if limit is not None and age > limit - GRACE_MS:
            age = limit - GRACE_MS
        task.accepted_ms = now - age if age > 0 else now
        if limit is not None:
            arm(task, max(task.accepted_ms + limit, now + 1))
        if not task.pending_reason.startswith("no_match"):
            task.pending_reason = "queued"
    if rest:
        pool.queue.push_all(rest)
        pool.backlog.look(turn)


def dialogue_of(pool: Pool, questions: Sequence[QuestionRow], inputs: Sequence[InputRow], turn: Turn) -> Dialogue:
    """What was asked and answered. An open question keeps what is left of its time, if our clock did not leap."""
    dialogue = Dialogue()
    given = {row.number: row for row in inputs}
    dialogue.inputs = [
        Input(row.input_id, row.question, row.media_type, row.content) for _, row in sorted(given.items())
    ]
    for row in questions:
        if row.number in given:
            dialogue.waited_ms += max(0, min(given[row.number].given_wall_ms, row.until_wall_ms) - row.asked_wall_ms)
    last = questions[-1]
    wait_ms = last.until_wall_ms - last.asked_wall_ms
    left = max(min(GRACE_MS, wait_ms), min(wait_ms, last.until_wall_ms - turn.wall_ms))
    asked_ms = turn.now_ms - (wait_ms - left)
    ask = Ask(last.kind, last.media_type, last.content, last.name)
    dialogue.question = Question(last.number, last.attempt, ask, asked_ms, asked_ms + wait_ms, last.until_wall_ms)
    dialogue.given_ms = max(1, turn.now_ms) if last.number in given else 0
    return dialogue


def _asks(task: Task) -> bool:
    """Whether the current attempt waits for an answer."""
    dialogue: Dialogue | None = task.dialogue
    question = dialogue.question if dialogue is not None else None
    return question is not None and not dialogue.given_ms and question.attempt == task.attempt  # type: ignore[union-attr]


def _wait_again(pool: Pool, task: Task, failure: FailureRow | None, turn: Turn) -> None:
    task.state = TaskState.PENDING
    if failure is not None:
        delay = failure.next_try_wall_ms - failure.ended_wall_ms
        task.not_before_ms = turn.now_ms + max(0, min(delay, failure.next_try_wall_ms - turn.wall_ms))
        task.paced = delay > 0
    elif task.start_delay_ms:
        task.not_before_ms = task.accepted_ms + task.start_delay_ms
    if task.not_before_ms > turn.now_ms:
        pool.queue.delay(task)
        pool.deadlines.arm(task, turn)
    else:
        pool.assignment.route(task, turn)


def _wait_for_instance(pool: Pool, task: Task, last: AttemptRow, turn: Turn) -> None:
    task.state = TaskState.DELIVERED
    task.offered_ms = turn.now_ms
    task.schedule_to_start_ms = None  # it was offered; whether it was taken up, nobody wrote down
    task.lease_until_ms = turn.now_ms + GRACE_MS
    instance = pool.instances.get(last.instance_id)
    if instance is not None and instance.endpoint is not None and task.start_to_close_ms is not None:
        # Nobody dials us to say how it stands, and what was sent may be running: it has the time it was given.
        task.lease_until_ms = turn.now_ms + max(GRACE_MS, task.start_to_close_ms)
    if instance is not None and instance.generation == last.generation and _asks(task):
        pool.questions.restored(task, instance, turn)
    elif instance is not None and instance.generation == last.generation:
        task.instance = instance
        instance.running[task.key] = task
        instance.inflight += task.cost
    else:
        message = f"instance {last.instance_id!r} was replaced while the server was away"
        fault = Fault(ErrorClass.UNAVAILABLE, Reason.INSTANCE_LOST, message)
        pool.delivery.give_up_attempt(task, fault, turn, lost=True)
        return
    pool.deadlines.arm(task, turn)
