"""What is no longer in memory: answers from the journal, for callers and agents that ask late."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from reach.core.decision_record import Record
from reach.core.dialogue import Dialogue, Input, known_input
from reach.core.effects import AskJournal, Noted
from reach.core.history import PastAttempt
from reach.core.model import Fault, Outcome, PoolKey, Task, TaskState
from reach.core.pieces import Gap, Kind
from reach.core.questions import over, wrong_state
from reach.core.stream import AT_END, Event, Interest, Reader
from reach.errors import ErrorClass, Reason
from reach.runtime.elsewhere import Elsewhere
from reach.store.base import Journal, SharedJournal, StoredFact, StoredTask, StoreError, TaskQuery

if TYPE_CHECKING:
    from reach.runtime.host import Host

log = logging.getLogger(__name__)


class Former(NamedTuple):
    """In place of the pool of a task that is not in memory: which one it was in, for those who ask."""

    key: PoolKey
    waker: None = None


class Past:
    """Reads of the journal, one thread, each answered on the loop."""

    def __init__(self, host: Host, journal: Journal, reads: Executor) -> None:
        self._host = host
        self._journal = journal
        self._reads = reads
        self._open: set[asyncio.Future[Any]] = set()

    def look_up(self, tenant: str, task_id: str, then: Any) -> None:
        """Calls `then` with the stored task, None, or the error."""
        self._look(partial(self._journal.find, tenant, task_id), then)

    def _look(self, at: Callable[[], Any], then: Callable[[Any], object]) -> None:
        """Calls `then` with what is found, or the error."""
        reading = asyncio.get_running_loop().run_in_executor(self._reads, at)
        self._open.add(reading)

        def answer(done: asyncio.Future[Any]) -> None:
            self._open.discard(done)
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                then(done.result())
            elif isinstance(error, StoreError):
                then(
                    Fault(ErrorClass.UNAVAILABLE, Reason.STORE_UNAVAILABLE, "the store cannot be read now", None, 1_000)
                )
            else:
                log.error("reading the journal failed", exc_info=error)
                then(Fault(ErrorClass.INTERNAL, Reason.INTERNAL_FAULT, "reading the store failed"))

        reading.add_done_callback(answer)

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """One stored task. Blocks: to be called through `Host.read`."""
        return self._journal.find(tenant, task_id)

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """Why the attempts of a stored task are where they are (RTE-13). Blocks: to be called through `Host.read`."""
        return self._journal.decisions(tenant, task_id)

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """Stored tasks by filter. Blocks: to be called through `Host.read`."""
        return self._journal.list_tasks(query)

    def remove(self, rows: list[int]) -> int:
        """Removes stored tasks that have ended. Blocks: to be called in the writer."""
        return self._journal.remove(rows)

    def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """Facts of the outbox, whoever delivers them. Blocks: to be called through `Host.read`."""
        return self._journal.every_fact(kind, after, limit, lane)

    def asked(self, question: AskJournal) -> None:
        """An agent speaks of an attempt, or a caller of a task, that is not in memory."""
        if isinstance(question.reply, Reader):
            self.answer(question.reply, question.tenant, question.task_id, None)
        elif question.attempt == 0:
            self.look_up(question.tenant, question.task_id, lambda found: self._tell_caller(question, found))
        else:
            self.look_up(question.tenant, question.task_id, lambda found: self._tell_agent(question, found))

    def _tell_caller(self, question: AskJournal, found: StoredTask | Fault | None) -> None:
        if question.reply is None:
            return  # a caller that left cancelled it
        if isinstance(found, Fault):
            question.reply.refused(found)
        elif question.input is not None and found is not None and found.outcome is not None:
            known = known_input(found.inputs, question.input)
            if known is True:
                question.reply.done((self.task_of(found), True))
            else:
                question.reply.refused(known or wrong_state(f"task {question.task_id!r} has ended"))
        elif found is None:
            question.reply.refused(not_found(question.task_id))
        elif found.outcome is None:
            where = self._elsewhere(found)
            if where is not None:
                question.reply.elsewhere(where)
            else:
                self._look_for(found, lambda _: question.reply.refused(moving(question.task_id)))
        else:
            question.reply.done(self.task_of(found))

    def _tell_agent(self, question: AskJournal, found: StoredTask | Fault | None) -> None:
        """What ended is acknowledged again; what nobody knows is to be stopped. A task that never was for the agents of
        this tenant is one that nobody knows."""
        link = question.reply if question.reply is not None else question.link
        if isinstance(found, Fault):
            if question.reply is not None:  # a call that waits; on a stream the agent asks again
                question.reply.refuse(question.tenant, question.task_id, question.attempt, found)
            return
        if link is None:
            return
        known = found is not None and link.tenant in (found.task.tenant, found.task.pool_tenant)
        if known and found is not None and found.outcome is not None:
            if question.works:
                stale = over(question.task_id, question.attempt)
                link.refuse(question.tenant, question.task_id, question.attempt, stale)
            else:
                link.acknowledge(question.tenant, question.task_id, question.attempt)
            return
        message = f"attempt {question.attempt} of task {question.task_id!r} is not known here: stop working on it"
        fault = Fault(ErrorClass.INVALID_REQUEST, Reason.UNKNOWN_ATTEMPT, message)
        link.refuse(question.tenant, question.task_id, question.attempt, fault)

    def answer(self, reader: Reader, tenant: str, task_id: str, spec: bytes | None,
               otherwise: Callable[[], None] | None = None) -> None:  # fmt: skip
        """Answers a reader from what is stored.

        Args:
            reader: Who wants to know.
            tenant: Of the task.
            task_id: The task.
            spec: The request, if the reader submitted it: it must ask for the same; None if it only wants to read.
            otherwise: Called instead if the task is not stored, or has not ended there.
        """

        def tell(found: StoredTask | Fault | None) -> None:
            ended = isinstance(found, Fault) or (found is not None and found.outcome is not None)
            if otherwise is None or ended:
                self._tell_reader(reader, task_id, spec, found)
            else:
                otherwise()

        self.look_up(tenant, task_id, tell)

    def _tell_reader(self, reader: Reader, task_id: str, spec: bytes | None, found: StoredTask | Fault | None) -> None:
        sink = reader.sink
        if isinstance(found, Fault):
            sink.refused(reader, found)
        elif found is None:
            sink.refused(reader, not_found(task_id))
        elif spec is not None and not self._host.codec.same_content(found.task.spec, spec):
            message = f"task id {task_id!r} is taken by a task with other content"
            fault = Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_ID_REUSED, message, {"task_id": task_id})
            sink.refused(reader, fault)
        elif found.outcome is None:
            where = self._elsewhere(found)
            if where is not None:  # its row has a home on another node, whatever this one thought
                sink.elsewhere(reader, task_id, spec or b"", where)
            else:
                self._look_for(found, lambda task: self._read_on(reader, task_id, task, submitted=spec is not None))
        else:
            self._tell_ended(reader, self.task_of(found), spec is not None)

    def _look_for(self, found: StoredTask, then: Callable[[Task | None], None]) -> None:
        """An open task of this node that was not in memory: it may have come just now."""
        if self._host.by_shard:
            self._host.departures.look_for(found, then)
        else:
            then(None)

    def _read_on(self, reader: Reader, task_id: str, task: Task | None, *, submitted: bool) -> None:
        if task is None:
            reader.sink.refused(reader, moving(task_id))
        else:
            self._host.departures.read(task, reader, submitted=submitted)

    def _elsewhere(self, found: StoredTask) -> Elsewhere | None:
        """The other node that has an open task."""
        row = found.task
        peer = self._host.owners.node_of(row.shard)
        return Elsewhere(peer, PoolKey(row.pool_tenant, row.agent_type)) if peer is not None else None

    def _tell_ended(self, reader: Reader, task: Task, submitted: bool) -> None:
        sink, outcome = reader.sink, task.outcome
        assert outcome is not None
        reader.task = task
        if submitted:
            sink.accepted(reader, task, task.state, True)
        if reader.interest in AT_END:
            sink.ended(reader, task)
        elif reader.interest == Interest.EVENTS and reader.after > outcome.sequence:
            message = f"task {task.task_id!r} has no event {reader.after}; its last is {outcome.sequence}"
            sink.refused(reader, Fault(ErrorClass.INVALID_REQUEST, Reason.SEQUENCE_OUT_OF_RANGE, message))
        elif reader.interest == Interest.EVENTS and reader.after < outcome.sequence - 1 and self._host.by_shard:
            live = self._host.tasks.get(task.key)
            if live is not None and live.row == task.row and live.log is not None:  # it came while this was read
                self._host.departures.read(live, reader, submitted=False)
                return
            journal = cast("SharedJournal", self._journal)
            self._look(partial(journal.told, task.row), lambda told: self._tell_events(reader, task, told))
        elif reader.interest == Interest.EVENTS:
            self._tell_events(reader, task, ())

    def _tell_events(self, reader: Reader, task: Task, told: Sequence[Event] | Fault) -> None:
        """What a reader lacks, as far as it was handed over, and the end."""
        if reader.left:
            return
        outcome = task.outcome
        assert outcome is not None
        events = _last_events(reader.after, outcome, [] if isinstance(told, Fault) else told)
        if events and events[0][3] == Kind.GAP:
            self._host.notes.noted(Noted("gap", "", task))
        reader.after = outcome.sequence
        reader.sink.events(reader, task, events)  # none: the reader had them all

    def shown(self, stored: StoredTask) -> Task:
        """The same for people, who are told which pool it was in."""
        task, row = self.task_of(stored), stored.task
        task.pool = Former(PoolKey(row.pool_tenant, row.agent_type))
        return task

    def task_of(self, stored: StoredTask) -> Task:
        """A stored task as an object of its own, for answers."""
        row = stored.task
        task = self._host.codec.task_of(row.tenant, row.spec)
        task.row, task.accepted_wall_ms = row.row, row.accepted_wall_ms
        task.attempt = max([row.attempt, *(attempt.number for attempt in stored.attempts)])
        begun = {row.attempt: (row.instance_id, row.agent_id, row.generation, row.accepted_wall_ms)}
        for attempt in stored.attempts:
            begun[attempt.number] = (attempt.instance_id, attempt.agent_id, attempt.generation, attempt.offered_wall_ms)
        faults = {failure.number: failure for failure in stored.failures}
        if stored.inputs:
            dialogue = task.dialogue = Dialogue()
            dialogue.inputs = [Input(one.input_id, one.question, one.media_type, one.content) for one in stored.inputs]
        task.history = []
        for number, (instance_id, agent_id, generation, offered) in sorted(begun.items()):
            failure = faults.get(number)
            fault, ended = None, 0
            if failure is not None:
                fault = Fault(ErrorClass(failure.error_class), Reason(failure.reason), failure.message)
                ended = failure.ended_wall_ms
            elif stored.outcome is not None:
                ended = stored.outcome.ended_wall_ms
            if number:
                task.history.append(PastAttempt(number, instance_id, agent_id, generation, offered, ended, fault))
        if stored.outcome is not None:
            task.outcome = outcome_of(stored)
            task.state = task.outcome.state
            task.instance_id = task.outcome.instance_id
            task.sequence = task.outcome.sequence
            task.transfers = task.outcome.transfers
        return task


def outcome_of(stored: StoredTask) -> Outcome:
    """The outcome as it was told first."""
    row = stored.outcome
    assert row is not None
    fault = None
    if row.reason:
        fault = Fault(ErrorClass(row.error_class), Reason(row.reason), row.message, row.metadata)
    outcome = Outcome(TaskState(row.state), row.content, row.media_type, fault, row.extra)
    outcome.agent_id, outcome.instance_id = row.agent_id, row.instance_id
    outcome.attempts, outcome.transfers = row.attempts, row.transfers
    outcome.queued_ms, outcome.ran_ms = row.queued_ms, row.ran_ms
    outcome.sequence, outcome.ended_wall_ms = row.sequence, row.ended_wall_ms
    return outcome


def _last_events(after: int, outcome: Outcome, told: Sequence[Event]) -> list[Event]:
    """The final event, and what came before it, or a gap if that is no longer held."""
    last = outcome.sequence - 1
    if after > last:
        return []
    events = [event for event in told if event[0] > after]
    if after < last and (not events or events[0][0] > after + 1):
        events = []
        gap = Gap(after + 1, last, [])
        events.append((last, outcome.attempts, outcome.ended_wall_ms, Kind.GAP, gap))
    events.append((outcome.sequence, outcome.attempts, outcome.ended_wall_ms, Kind.COMPLETE, outcome))
    return events


def moving(task_id: str) -> Fault:
    """The answer about a task that has left one pool and is not in the next one yet."""
    message = f"task {task_id!r} is just now changing hands"
    return Fault(ErrorClass.UNAVAILABLE, Reason.OWNER_UNAVAILABLE, message, None, 200)


def not_found(task_id: str) -> Fault:
    """The answer for a task that is not there, or is another tenant's: one and the same."""
    message = f"there is no task {task_id!r}"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.TASK_NOT_FOUND, message, {"task_id": task_id})
