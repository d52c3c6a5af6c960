"""A journal that ends with the process: for tests, and for `storage.type = memory`."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Final

from reach.core.decision_record import Record
from reach.core.model import TaskKey, TaskState
from reach.core.rows import (
    AgentRow,
    AttemptRow,
    CheckpointRow,
    ContextRow,
    EffectRow,
    FailureRow,
    HandleRow,
    InputRow,
    MoveRow,
    OutcomeRow,
    PinRow,
    QuestionRow,
    TaskRow,
    Writes,
    granted_of,
    without,
)
from reach.store import base
from reach.store.base import Loaded, StoreBroken, StoredFact, StoredTask, StoreUnavailable, TaskQuery, size_of
from reach.store.batch import latest_contexts, latest_pins
from reach.store.decision_bytes import pack, unpack_all

EVERY_SHARD: Final = range(1 << 62)


class _Record:
    """All that names one row, whether or not its task is known."""

    __slots__ = (
        "attempts", "checkpoint", "decisions", "effects", "failures", "handle", "hop", "inputs", "outcome", "questions",
        "reserved", "task",
    )  # fmt: skip

    def __init__(self) -> None:
        self.task: TaskRow | None = None
        self.attempts: dict[int, AttemptRow] = {}
        self.decisions: dict[int, bytes] = {}
        self.failures: dict[int, FailureRow] = {}
        self.effects: dict[int, EffectRow] = {}
        self.questions: dict[tuple[int, int], QuestionRow] = {}
        self.inputs: dict[int, InputRow] = {}
        self.reserved = 0
        self.checkpoint: CheckpointRow | None = None
        self.handle: HandleRow | None = None
        self.outcome: OutcomeRow | None = None
        self.hop = 0

    def take(self, task: TaskRow) -> None:
        """The task is accepted, unless it was."""
        if self.task is None:
            self.task = task._replace(decision=None)
            if task.decision is not None:
                self.decisions[task.attempt] = pack(task.decision)

    def move(self, move: MoveRow) -> None:
        """The task goes to another pool, unless it did."""
        if self.task is not None and self.task.shard == move.shard and self.hop < move.hop:
            self.hop = move.hop
            self.task = self.task._replace(
                shard=move.to_shard, pool_tenant=move.pool_tenant, agent_type=move.agent_type, reserved=move.sequence
            )

    def begin(self, attempt: AttemptRow) -> None:
        """An attempt begins, unless it did."""
        if attempt.number not in self.attempts:
            self.attempts[attempt.number] = attempt._replace(decision=None)
            if attempt.decision is not None:
                self.decisions[attempt.number] = pack(attempt.decision)


class MemoryJournal:
    """Same promises as any journal, but for durability. See `base.Journal` for what the methods promise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._records: dict[int, _Record] = {}
        self._keys: dict[TaskKey, int] = {}
        self._agents: dict[tuple[str, str], AgentRow] = {}
        self._pins: dict[Any, PinRow] = {}
        self._contexts: dict[Any, ContextRow] = {}
        self._facts: dict[tuple[int, str, str], StoredFact] = {}
        self._last_fact = 0
        self._next_row = 1
        self._next_revision = 1

    def open(self) -> None:
        """Opens it, again too: what was committed before is still there."""
        self._closed = False

    def close(self) -> None:
        """See `Journal.close`."""
        self._closed = True

    def load(self) -> Loaded:
        """See `Journal.load`."""
        with self._lock:
            self._check_open()
            rows = [row for row in sorted(self._keys.values()) if self._records[row].outcome is None]
            agents = sorted(self._agents.values(), key=lambda agent: (agent.revision, agent.tenant, agent.instance_id))
            pins = [pin for _, pin in sorted(self._pins.items())]
            contexts = [context for _, context in sorted(self._contexts.items())]
            return Loaded(list(map(self._stored, rows)), agents, pins, self._next_row, self._next_revision, contexts)

    def stored(self, rows: Sequence[int]) -> list[StoredTask]:
        """The tasks of these rows, as far as they are there."""
        with self._lock:
            return [self._stored(row) for row in rows if self._task(row) is not None]

    def shard_of(self, row: int) -> int | None:
        """Where a task is."""
        with self._lock:
            task = self._task(row)
            return task.shard if task is not None else None

    def commit(self, writes: Writes) -> list[int]:
        """See `Journal.commit`."""
        with self._lock:
            self._check_open()
            keys: dict[TaskKey, int] = {}
            taken = []
            for task in writes.tasks:
                key = (task.tenant, task.task_id)
                owner = self._keys.get(key) or keys.setdefault(key, task.row)
                if owner != task.row:
                    taken.append(task.row)
            kept = without(writes, set(taken)) if taken else writes
            if len(set(keys.values())) != len(keys) or any(self._task(row) is not None for row in keys.values()):
                raise StoreBroken("a row number was given to two tasks; nothing of the batch was kept")
            self._keys.update(keys)
            self._next_row = max(self._next_row, 1 + max(taken, default=0))
            self._keep_tasks(kept)
            self._keep_others(kept)
            return taken

    def heavy(self) -> bool:
        """See `Journal.heavy`."""
        return False

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """See `Journal.find`."""
        with self._lock:
            self._check_open()
            row = self._keys.get((tenant, task_id))
            return None if row is None else self._stored(row)

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """See `Journal.decisions`."""
        with self._lock:
            self._check_open()
            row = self._keys.get((tenant, task_id))
            return {} if row is None else unpack_all(dict(sorted(self._records[row].decisions.items())))

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """See `Journal.list_tasks`; `accepted_after_ms` is included, `accepted_before_ms` is not."""
        with self._lock:
            self._check_open()
            rows = (row for row in sorted(self._keys.values(), reverse=True) if self._matches(row, query))
            found: list[StoredTask] = []
            taken = 0
            for row in islice(rows, max(query.limit, 0)):
                found.append(self._stored(row))
                taken += size_of(found[-1])
                if taken > base.LIST_BYTES:
                    break
            return found

    def fact_lanes(self, kind: str, after: str | None, limit: int, shards: Collection[int] = EVERY_SHARD) -> list[str]:
        """See `Journal.fact_lanes`; `shards`: only those of these."""
        with self._lock:
            self._check_open()
            facts = (stored.fact for stored in self._facts.values())
            lanes = {fact.lane for fact in facts if fact.kind == kind and fact.shard in shards}
            return sorted(lane for lane in lanes if after is None or lane > after)[: max(limit, 0)]

    def facts(
        self, kind: str, lane: str, after: int, limit: int, shards: Collection[int] = EVERY_SHARD
    ) -> list[StoredFact]:
        """See `Journal.facts`; `shards`: only those of these."""
        with self._lock:
            self._check_open()
            found = (
                stored
                for stored in self._facts.values()
                if stored.number > after
                and stored.fact.kind == kind
                and stored.fact.lane == lane
                and stored.fact.shard in shards
            )
            return list(islice(found, max(limit, 0)))

    def every_fact(self, kind: str, after: int, limit: int, lane: str | None = None) -> list[StoredFact]:
        """See `Journal.every_fact`."""
        with self._lock:
            self._check_open()
            found = (
                one
                for one in self._facts.values()
                if one.number > after and one.fact.kind == kind and lane in (None, one.fact.lane)
            )
            return list(islice(found, max(limit, 0)))

    def purge(
        self, ended_before_ms: int, limit: int, *, dead_letters: bool = False, shards: Collection[int] = EVERY_SHARD
    ) -> int:
        """See `Journal.purge`; `shards`: only tasks of these."""
        with self._lock:
            self._check_open()
            ended = sorted(
                (record.outcome.ended_wall_ms, row)
                for row, record in self._records.items()
                if record.outcome is not None
                and record.outcome.ended_wall_ms < ended_before_ms
                and (record.outcome.state == TaskState.DEAD_LETTERED) is dead_letters
                and record.outcome.shard in shards
            )
            return self._remove([row for _, row in ended[: max(limit, 0)]])

    def remove(self, rows: Sequence[int]) -> int:
        """See `Journal.remove`."""
        with self._lock:
            self._check_open()
            found = ((row, self._records.get(row)) for row in rows)
            return self._remove([row for row, record in found if record is not None and record.outcome is not None])

    def _remove(self, rows: list[int]) -> int:
        removed = [self._records.pop(row).task for row in rows]
        tasks = [task for task in removed if task is not None]
        for task in tasks:
            del self._keys[task.tenant, task.task_id]
        return len(tasks)

    def drop_facts(self, kind: str, before_ms: int, limit: int, shards: Collection[int] = EVERY_SHARD) -> int:
        """See `Journal.drop_facts`; `shards`: only those of these."""
        with self._lock:
            self._check_open()
            facts = ((name, stored.fact) for name, stored in self._facts.items())
            old = [
                name for name, fact in facts if fact.kind == kind and fact.wall_ms < before_ms and fact.shard in shards
            ][: max(limit, 0)]
            for name in old:
                del self._facts[name]
            return len(old)

    def dead_letters(self, shards: Collection[int] = EVERY_SHARD) -> int:
        """See `Journal.dead_letters`; `shards`: only those of these."""
        with self._lock:
            self._check_open()
            outcomes = (record.outcome for record in self._records.values())
            return sum(
                one is not None and one.state == TaskState.DEAD_LETTERED and one.shard in shards for one in outcomes
            )

    def size_bytes(self) -> int:
        """See `Journal.size_bytes`: payloads only, and roughly."""
        with self._lock:
            return sum(
                len(record.task.spec if record.task else b"")
                + len((record.outcome.content if record.outcome else None) or b"")
                + len(record.checkpoint.data if record.checkpoint else b"")
                for record in self._records.values()
            )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the journal is closed")

    def _task(self, row: int) -> TaskRow | None:
        record = self._records.get(row)
        return None if record is None else record.task

    def _record(self, row: int) -> _Record:
        self._next_row = max(self._next_row, row + 1)
        return self._records.setdefault(row, _Record())

    def _keep_tasks(self, writes: Writes) -> None:
        """Keeps what belongs to tasks. A row that is there stays as it is; what has a latest one goes forward only."""
        for task in writes.tasks:
            self._record(task.row).take(task)
        for attempt in writes.attempts:
            self._record(attempt.row).begin(attempt)
        for failure in writes.failures:
            self._record(failure.row).failures.setdefault(failure.number, failure)
        for effect in writes.effects:
            self._record(effect.row).effects.setdefault(effect.number, effect)
        for question in writes.questions:
            self._record(question.row).questions.setdefault((question.attempt, question.number), question)
        for given in writes.inputs:
            self._record(given.row).inputs.setdefault(given.number, given)
        for outcome in writes.outcomes:
            record = self._record(outcome.row)
            record.outcome = record.outcome or outcome
        self._keep_latest(writes)
        for move in writes.moves:
            self._record(move.row).move(move)

    def _keep_latest(self, writes: Writes) -> None:
        for reserve in writes.reserves:
            record = self._record(reserve.row)
            record.reserved = max(record.reserved, reserve.reserved)
        for checkpoint in writes.checkpoints:
            record = self._record(checkpoint.row)
            if record.checkpoint is None or checkpoint.number >= record.checkpoint.number:
                record.checkpoint = checkpoint
        for handle in writes.handles:
            record = self._record(handle.row)
            if record.handle is None or handle.number >= record.handle.number:
                record.handle = handle

    def _keep_others(self, writes: Writes) -> None:
        for gone in writes.agents_gone:
            known = self._agents.get((gone.tenant, gone.instance_id))
            if known is not None and known.agent_type == gone.agent_type:
                del self._agents[gone.tenant, gone.instance_id]
        for agent in writes.agents:
            known = self._agents.get((agent.tenant, agent.instance_id))
            if known is None or agent.revision >= known.revision:
                self._agents[agent.tenant, agent.instance_id] = agent
            self._next_revision = max(self._next_revision, agent.revision + 1)
        held, loose = latest_pins(writes.pins)
        self._pins.update((pin[1:5], pin) for pin in held)
        for pin in loose:
            self._pins.pop(pin[1:5], None)
        contexts, forgotten = latest_contexts(writes.contexts)
        self._contexts.update((context[1:3], context) for context in contexts)
        for context in forgotten:
            self._contexts.pop(context[1:3], None)
        for fact in writes.outbox:
            if (fact.shard, fact.kind, fact.key) not in self._facts:
                self._last_fact += 1
                self._facts[fact.shard, fact.kind, fact.key] = StoredFact(self._last_fact, fact)
        for done in writes.outbox_done:
            self._facts.pop((done.shard, done.kind, done.key), None)

    def _stored(self, row: int) -> StoredTask:
        record = self._records[row]
        assert record.task is not None
        attempts = [record.attempts[number] for number in sorted(record.attempts)]
        return StoredTask(
            record.task,
            [attempt for attempt in attempts if attempt.number > record.task.attempt],
            [record.failures[number] for number in sorted(record.failures)],
            max(record.task.reserved, record.reserved, *(attempt.reserved for attempt in attempts)),
            granted_of(record.effects),
            record.checkpoint.data if record.checkpoint else None,
            record.outcome,
            tuple(record.questions[key] for key in sorted(record.questions)),
            tuple(record.inputs[number] for number in sorted(record.inputs)),
            record.handle,
            record.hop,
        )

    def _matches(self, row: int, query: TaskQuery) -> bool:
        record = self._records[row]
        task = record.task
        assert task is not None
        state = record.outcome.state if record.outcome else TaskState.PENDING
        return (
            (not query.before_row or row < query.before_row)
            and (not query.tenant or task.tenant == query.tenant)
            and (not query.states or state in query.states)
            and (not query.reason or (record.outcome is not None and record.outcome.reason == query.reason))
            and (not query.session or task.session == query.session)
            and (not query.agent_type or task.agent_type == query.agent_type)
            and (not query.root_task_id or task.root_task_id == query.root_task_id)
            and (not query.accepted_after_ms or task.accepted_wall_ms >= query.accepted_after_ms)
            and (not query.accepted_before_ms or task.accepted_wall_ms < query.accepted_before_ms)
        )
