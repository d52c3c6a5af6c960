"""What a pool asks to have written: rows by kind, for one group commit.

Rows are snapshots: they hold values, never a live object, because another thread writes them. A decision counts as a
value: what is read of it, nobody changes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reach.core.model import Content, PoolKey
from reach.core.placement import shard_of

if TYPE_CHECKING:
    from reach.core.decision import Verdict


class TaskRow(NamedTuple):
    """A task is accepted, perhaps with its first attempt."""

    row: int
    shard: int
    tenant: str
    task_id: str
    pool_tenant: str
    agent_type: str
    spec: bytes
    accepted_wall_ms: int
    reserved: int
    session: str
    root_task_id: str
    attempt: int
    instance_id: str
    agent_id: str
    generation: int
    decision: Verdict | None = None
    """Why the attempt is where it is; kept as bytes, and told by `Journal.decisions` alone."""


class AttemptRow(NamedTuple):
    """A later attempt begins (or the first, if it did not begin with the acceptance)."""

    row: int
    shard: int
    number: int
    instance_id: str
    agent_id: str
    generation: int
    offered_wall_ms: int
    reserved: int
    decision: Verdict | None = None
    """As in `TaskRow`."""


class FailureRow(NamedTuple):
    """An attempt failed and the task goes on."""

    row: int
    shard: int
    number: int
    ended_wall_ms: int
    error_class: int
    reason: int
    message: str
    retries: int
    transfers: int
    next_try_wall_ms: int


class OutcomeRow(NamedTuple):
    """A task ended. The first one of a row wins."""

    row: int
    shard: int
    state: int
    ended_wall_ms: int
    sequence: int
    agent_id: str
    instance_id: str
    attempts: int
    transfers: int
    queued_ms: int
    ran_ms: int
    media_type: str
    content: Content | None
    error_class: int
    reason: int
    message: str
    metadata: dict[str, str] | None
    extra: dict[str, Any] | None


class ReserveRow(NamedTuple):
    """More event sequences of a task are reserved."""

    row: int
    shard: int
    reserved: int


class EffectRow(NamedTuple):
    """An attempt is granted its irreversible effect; or the grant comes back, for it has certainly not begun."""

    row: int
    shard: int
    number: int
    """Number of the attempt; where the grant comes back, less than 0 by as much."""
    effect: str
    granted_wall_ms: int


class CheckpointRow(NamedTuple):
    """What the next attempt of a task should get. The latest one counts."""

    row: int
    shard: int
    number: int
    data: bytes


class HandleRow(NamedTuple):
    """Where an attempt at an agent that is dialled can be asked about. The latest one of a task counts."""

    row: int
    shard: int
    number: int
    handle: str


class QuestionRow(NamedTuple):
    """An attempt waits for input. One line for each (attempt, number)."""

    row: int
    shard: int
    attempt: int
    number: int
    kind: int
    media_type: str
    content: Content
    name: str
    asked_wall_ms: int
    until_wall_ms: int


class InputRow(NamedTuple):
    """The answer to a question of a task, by its number. The first one counts."""

    row: int
    shard: int
    number: int
    input_id: str
    question: str
    media_type: str
    content: Content
    given_wall_ms: int


class AgentRow(NamedTuple):
    """An instance is registered or has changed its registration. The latest one counts."""

    tenant: str
    instance_id: str
    agent_type: str
    boot_id: str
    generation: int
    stale_boots: tuple[str, ...]
    registration: bytes
    registered_wall_ms: int
    revision: int
    drained_wall_ms: int = 0
    """Until when its sessions may stay, if an operator drained it; 0: nobody did."""
    trial: int = 0
    """1 + the `Stage` of the trial of its version; 0: there is none."""

    @property
    def shard(self) -> int:
        """That of its pool, whose owner alone writes this."""
        return shard_of(PoolKey(self.tenant, self.agent_type))


class AgentGone(NamedTuple):
    """An instance is removed from the registry, as far as it is of this pool: it may have joined another meanwhile."""

    tenant: str
    instance_id: str
    agent_type: str

    @property
    def shard(self) -> int:
        """That of its pool, whose owner alone writes this."""
        return shard_of(PoolKey(self.tenant, self.agent_type))


class PinRow(NamedTuple):
    """A session belongs to an instance of a pool; with an empty instance_id: no longer. The latest one counts."""

    shard: int
    pool_tenant: str
    agent_type: str
    tenant: str
    session: str
    instance_id: str
    expires_wall_ms: int
    handoffs: int


class ContextRow(NamedTuple):
    """What is known of a session; with no `state`: it is gone. The latest one counts."""

    shard: int
    tenant: str
    session: str
    revision: int
    expires_wall_ms: int
    state: Any
    """`Context.state()`: plain values that nobody changes any more; from a store also something that has `unpack()`."""
    size: int = 0
    """Of the state, in bytes, more or less."""


class OutboxRow(NamedTuple):
    """A fact for others, kept until it is delivered. Named by (shard, kind, key): the first one of a name counts."""

    shard: int
    kind: str
    """Who it is for: a webhook, the session of a task, ..."""
    lane: str
    """Facts of one lane are delivered in order; a slow lane delays no other. For webhooks: where they go."""
    key: str
    row: int
    """The task that it is about; if the journal has another task of that id, the fact is dropped with it."""
    tenant: str
    task_id: str
    wall_ms: int
    """Since when it is a fact."""
    body: bytes


class OutboxDone(NamedTuple):
    """A fact is delivered, and forgotten. Written with what the delivery changed, it changes that exactly once."""

    shard: int
    """Of the fact."""
    kind: str
    lane: str
    key: str
    under: int = -1
    """The shard of what the delivery changed, by whose owner this is written; -1: that of the fact."""

    @property
    def fence(self) -> int:
        """The shard whose owner writes this."""
        return self.shard if self.under < 0 else self.under


class MoveRow(NamedTuple):
    """A task goes to another pool, with all that belongs to it but facts in the outbox. Only the owner of the shard
    that it leaves writes this (HAZARDS 1). A move with no greater `hop` than the last is none; those of a task in one
    batch follow one another. Where it comes to another shard that may be another node's, it is the last thing that its
    old owner writes."""

    row: int
    shard: int
    """That it leaves."""
    to_shard: int
    pool_tenant: str
    agent_type: str
    hop: int
    """1 for the first move, and grows with each one."""
    sequence: int
    """Numbering goes on behind it if nothing more is reserved: what is reserved, where the task stays in the memory of
    its owner; else that of its last event (see `stream.told_of`)."""


ROW_BYTES: Final = 200
"""What a row takes beside its payload, more or less."""


class Writes:
    """Rows of one group commit, by kind. Merging keeps the order within each kind."""

    __slots__ = (
        "agents", "agents_gone", "attempts", "checkpoints", "contexts", "effects", "failures", "handles",
        "inputs", "moves", "outbox", "outbox_done", "outcomes", "pins", "questions", "reserves", "tasks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tasks: list[TaskRow] = []
        self.attempts: list[AttemptRow] = []
        self.failures: list[FailureRow] = []
        self.outcomes: list[OutcomeRow] = []
        self.reserves: list[ReserveRow] = []
        self.effects: list[EffectRow] = []
        self.checkpoints: list[CheckpointRow] = []
        self.handles: list[HandleRow] = []
        self.agents: list[AgentRow] = []
        self.agents_gone: list[AgentGone] = []
        self.pins: list[PinRow] = []
        self.contexts: list[ContextRow] = []
        self.outbox: list[OutboxRow] = []
        self.outbox_done: list[OutboxDone] = []
        self.questions: list[QuestionRow] = []
        self.inputs: list[InputRow] = []
        self.moves: list[MoveRow] = []

    def __bool__(self) -> bool:
        return bool(
            self.tasks
            or self.outcomes
            or self.attempts
            or self.failures
            or self.reserves
            or self.agents
            or self.pins
            or self.effects
            or self.checkpoints
            or self.handles
            or self.agents_gone
            or self.contexts
            or self.outbox
            or self.outbox_done
            or self.questions
            or self.inputs
            or self.moves
        )

    def count(self) -> int:
        """Rows of all kinds."""
        return sum(len(getattr(self, kind)) for kind in self.__slots__)

    def size_bytes(self) -> int:
        """What its rows take in a store, more or less."""
        return (
            ROW_BYTES * self.count()
            + sum([len(task.spec) for task in self.tasks])
            + sum([len(outcome.content) for outcome in self.outcomes if outcome.content])
            + sum([len(checkpoint.data) for checkpoint in self.checkpoints])
            + sum([len(fact.body) for fact in self.outbox])
            + sum([context.size for context in self.contexts])
        )

    def agent_goes(self, gone: AgentGone) -> None:
        """An instance is removed. What the batch says of it until now is dropped: in a store those who are gone come
        first, for one that joins again stays."""
        self.agents = [row for row in self.agents if AgentGone(*row[:3]) != gone]
        self.agents_gone.append(gone)

    def merge(self, other: Writes) -> None:
        """Adds the rows of a later step."""
        if other.agents_gone and self.agents:
            gone = set(other.agents_gone)
            self.agents = [row for row in self.agents if AgentGone(*row[:3]) not in gone]
        for kind in self.__slots__:
            rows = getattr(other, kind)
            if rows:
                getattr(self, kind).extend(rows)


def granted_of(numbers: Collection[int]) -> int:
    """The attempt that has the grant, from the numbers of all rows of a task; 0 if none has."""
    latest = max(numbers, default=0)
    return latest if -latest not in numbers else 0


_NAME_A_ROW: Final = (
    "tasks", "attempts", "failures", "outcomes", "reserves", "effects", "checkpoints", "questions", "inputs", "moves",
    "outbox", "handles",
)  # fmt: skip


def without(writes: Writes, rows: set[int]) -> Writes:
    """The same batch less all that names one of the rows."""
    kept = Writes()
    for kind in Writes.__slots__:
        found = getattr(writes, kind)
        if kind in _NAME_A_ROW:
            found = [item for item in found if item.row not in rows]
        setattr(kept, kind, found)
    return kept


def _is_of(kind: str, item: Any, shards: Collection[int]) -> bool:
    return (item.fence if kind == "outbox_done" else item.shard) in shards


def without_shards(writes: Writes, shards: Collection[int]) -> Writes:
    """The same batch less all rows that the owners of these shards write."""
    kept = Writes()
    for kind in Writes.__slots__:
        found = getattr(writes, kind)
        setattr(kept, kind, [item for item in found if not _is_of(kind, item, shards)])
    return kept


def shards_of(writes: Writes) -> set[int]:
    """The shards whose owners write what is in the batch."""
    found = {one.fence for one in writes.outbox_done}
    others = [kind for kind in Writes.__slots__ if kind != "outbox_done"]
    return found.union(*([item.shard for item in getattr(writes, kind)] for kind in others))
