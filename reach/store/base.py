"""What a journal must do, whatever engine keeps it.

The rule of every journal: `commit` makes a batch durable as a whole or raises; sending the same batch again changes
nothing (each row names itself), so a batch of unknown outcome is simply sent again. A task id that is taken is a *row
outcome*, told by the answer, never a failed commit.

All methods block and are called off the event loop: `commit` from the one writer thread, the reads from a reader
thread. Times are `*_wall_ms`: milliseconds since the epoch on the store's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from reach.core.decision_record import Record
from reach.core.handed import StreamRow
from reach.core.rows import (
    AgentRow,
    AttemptRow,
    ContextRow,
    FailureRow,
    HandleRow,
    InputRow,
    OutboxRow,
    OutcomeRow,
    PinRow,
    QuestionRow,
    TaskRow,
    Writes,
)
from reach.core.stream import Event


class StoreError(Exception):
    """Base of what a journal raises."""


class StoreFull(StoreError):
    """No space: nothing of the batch was kept. Hold it, stop intake, try again."""


class StoreUnavailable(StoreError):
    """The engine cannot be reached, or the outcome of the batch is unknown. Send it again."""


class StoreBroken(StoreError):
    """A sync failed or the file is damaged: nothing that was promised can be trusted. End the process."""


class StoreLocked(StoreError):
    """Another process holds the data folder."""


class StoredTask(NamedTuple):
    """One task as the journal has it."""

    task: TaskRow
    attempts: list[AttemptRow]
    """Attempts that began after the acceptance, oldest first (the one of the TaskRow is not repeated)."""
    failures: list[FailureRow]
    """Failures of attempts, oldest first."""
    reserved: int
    effect_granted: int
    """Number of the attempt that was granted its effect; 0 if none."""
    checkpoint: bytes | None
    outcome: OutcomeRow | None
    questions: tuple[QuestionRow, ...] = ()
    """What its attempts asked, oldest first."""
    inputs: tuple[InputRow, ...] = ()
    """What was answered, in the order of the questions."""
    handle: HandleRow | None = None
    """Where an attempt can be asked about."""
    hop: int = 0
    """How often it went to another pool."""
    stream: StreamRow | None = None
    """How far it was told by the owner before the one that loads it, if that one gave it up."""


class Loaded(NamedTuple):
    """What a node needs to go on."""

    tasks: list[StoredTask]
    """All tasks without an outcome, in order of acceptance."""
    agents: list[AgentRow]
    pins: list[PinRow]
    next_row: int
    """Greater than any row ever used."""
    next_revision: int
    """Greater than any registry revision ever used."""
    contexts: list[ContextRow]
    """What is known of sessions."""


class TaskQuery(NamedTuple):
    """Which tasks are wanted, latest first. Empty parts match all."""

    tenant: str
    states: tuple[int, ...] = ()
    """Terminal states, or PENDING for every open one: the journal knows no more."""
    session: str = ""
    agent_type: str = ""
    root_task_id: str = ""
    accepted_after_ms: int = 0
    accepted_before_ms: int = 0
    before_row: int = 0
    """Only rows below this one (the page token); 0: from the latest."""
    limit: int = 50
    reason: int = 0
    """Only tasks that ended for this reason."""


def size_of(stored: StoredTask) -> int:
    """About how many bytes a task takes in memory."""
    content = stored.outcome.content if stored.outcome is not None else None
    return 1_024 + len(stored.task.spec) + (len(content) if content is not None else 0)


def may_go_on(query: TaskQuery, found: list[StoredTask]) -> bool:
    """Whether there may be more than a list has brought."""
    return bool(found) and (len(found) >= query.limit or sum(map(size_of, found)) > LIST_BYTES)


class StoredFact(NamedTuple):
    """A fact that waits to be delivered."""

    number: int
    """Grows with each fact that is kept, and is never used again."""
    fact: OutboxRow


class Place(NamedTuple):
    """How far the loading of shards has come (`SharedJournal.load_some`)."""

    part: int = 0
    """Of `PARTS`."""
    after: tuple[Any, ...] = ()
    """The key of the last one that was loaded of it; empty: none was."""


PARTS: Final = ("agents", "pins", "contexts", "tasks")
"""What is loaded of shards, in this order: each needs those before it. As `Loaded` calls them."""
LOAD_BYTES: Final = 8 << 20
"""Requests that are loaded together, and one more."""


def some(**loaded: Any) -> Loaded:
    """A part of what a node needs."""
    return Loaded([], [], [], 0, 0, [])._replace(**loaded)


def next_place(place: Place, last: tuple[Any, ...], is_all: bool) -> Place | None:
    """Where to go on.

    Args:
        place: Where it was.
        last: The key of the last one that was loaded there.
        is_all: There are no more of this part.
    """
    if not is_all:
        return Place(place.part, last)
    return Place(place.part + 1) if place.part + 1 < len(PARTS) else None


LIST_BYTES: Final = 32 << 20
"""What a list brings into memory: payloads and results may have 4 MiB each, and readers may ask for 1,000."""


class Journal(Protocol):
    """Keeps tasks, agents, pins, and facts to be delivered."""

    def open(self) -> None:
        """Opens or creates the store, takes its lock, migrates the schema.

        Raises:
            StoreLocked: another process has it; the message names the folder.
            StoreBroken: the file is not ours, is damaged, or is of a later version.
        """

    def load(self) -> Loaded:
        """Everything that is open. Called once, before the first commit."""

    def commit(self, writes: Writes) -> list[int]:
        """Makes a batch durable.

        Returns:
            Rows of `writes.tasks` whose (tenant, task_id) is taken by another row: nothing of these rows is kept,
            nor any other write of the batch that names them.

        Raises:
            StoreFull, StoreUnavailable, StoreBroken.
        """

    def heavy(self) -> bool:
        """Whether the next commit may take many times as long as the last ones: it is not to be made where others wait
        for more than its outcome. Asked before each commit, so it costs next to nothing."""

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """One task, open or ended."""

    def decisions(self, tenant: str, task_id: str) -> dict[int, Record]:
        """Why the attempts of a task are where they are, by number, as far as that is known (RTE-13)."""

    def list_tasks(self, query: TaskQuery) -> list[StoredTask]:
        """Tasks by filter, latest first. Ends early when they take more than LIST_BYTES: see `may_go_on`."""

    def fact_lanes(self, kind: str, after: str | None, limit: int) -> list[str]:
        """Lanes of a kind of facts that hold any, in order of their names; `after`: from behind that one."""

    def facts(self, kind: str, lane: str, after: int, limit: int) -> list[StoredFact]:
        """Facts of a lane that this node is to deliver, in order, from behind the number `after`."""

    def every_fact(self, kind: str, after: int, limit: int, lane: str | None = None) -> list[StoredFact]:
        """Facts of a kind, or of one lane of it, whosever they are, in order, from behind the number `after`. Who has
        claimed what they are to be delivered to finds here what its former owner did not keep."""

    def purge(self, ended_before_ms: int, limit: int, *, dead_letters: bool = False) -> int:
        """Removes up to `limit` tasks that ended before, the first to end first: dead letters, or all others. Returns
        how many. Called from the writer thread."""

    def remove(self, rows: Sequence[int]) -> int:
        """Removes these tasks, as far as they have ended; returns how many. Called from the writer thread."""

    def drop_facts(self, kind: str, before_ms: int, limit: int) -> int:
        """Drops up to `limit` facts of a kind that are older; returns how many. Called from the writer thread."""

    def dead_letters(self) -> int:
        """How many dead letters there are."""

    def size_bytes(self) -> int:
        """Space in use."""

    def close(self) -> None:
        """Closes the store and gives the lock back."""


class SharedJournal(Journal, Protocol):
    """A journal that several nodes share: the epochs of its shards are the only truth of who owns what (HAZARDS 3, 9).

    An object of it is one node's view. It holds the epochs that the node has claimed, and each write is made under
    them: rows of a shard that is another's by now (or that was never claimed) are not kept, whatever else of the batch
    is, and `lost` tells the shard. Rows of agents are of their pool's shard.

    `claim`, `confirm` and `give_up` are called from the writer thread, as `commit` is, so that no batch is ever
    written under an epoch that is younger than it: before a node claims a shard anew, what it once decided for it must
    be out of the committer (`Committer.forget`). `facts`, `fact_lanes`, `dead_letters`, `purge` and `drop_facts` are
    about shards that the node holds; all other reads are about all. Facts of a shard that is claimed may have lower
    numbers than a lane was read up to: after a claim lanes are read from their beginning.
    """

    def claim(self, shards: Collection[int], holder: str = "") -> dict[int, int]:
        """Takes these shards from whoever has them; returns their new epochs. When it returns, nothing that an earlier
        owner still sends will be kept, and all that was kept of it can be loaded. `holder`: whom `holders` is to tell.

        Raises:
            StoreUnavailable: perhaps some were claimed. To claim again is harmless.
        """

    def holders(self, shards: Collection[int]) -> dict[int, str]:
        """Who has these shards, as they said when they claimed them. Those that nobody has are left out, and those
        whose owners said nothing. Called from the writer thread.

        Raises:
            StoreUnavailable: nobody knows.
        """

    def confirm(self) -> frozenset[int]:
        """The shards that are still this node's, by one look at the store; the others are told by `lost` too.

        Raises:
            StoreUnavailable: nobody knows.
        """

    def give_up(self, shards: Collection[int], streams: Sequence[StreamRow] | None = ()) -> None:
        """The node writes nothing more for these shards, whatever becomes of this; `lost` does not tell them. They are
        nobody's then, and who claims them next loads how far their streams were told: nobody else ever does. None: as
        far as the owner before told them, for this one told nothing.

        Raises:
            StoreUnavailable: perhaps nobody hears of it. They can be claimed all the same.
        """

    def came(self, shards: Collection[int]) -> None:
        """All that was kept of these shards is loaded: how far their streams had been told is of no use any more, but
        of tasks that have just ended (`told`).

        Raises:
            StoreUnavailable: it is kept until they are given up.
        """

    def told(self, row: int) -> tuple[Event, ...]:
        """The latest events before the end of a task, if that was given up behind it, until it was twice more.

        Raises:
            StoreUnavailable: it cannot be read.
        """

    def epochs(self) -> dict[int, int]:
        """What the node holds, as far as it knows: epoch by shard. Asks nobody, from any thread."""

    def lost(self) -> frozenset[int]:
        """Shards that were found to be another's since this was last called. Asks nobody, from any thread."""

    def arrived(self, shards: Collection[int], known: Sequence[tuple[int, int]], limit: int) -> list[StoredTask]:
        """Up to `limit` tasks that moved to these shards, as far as the node holds them, from shards of whoever; each
        is told again until its row and hop are among `known`, what the node has heard of. Those that had come before
        a shard was loaded are loaded with it, and may be told besides. Called from the writer thread.

        Raises:
            StoreUnavailable: nobody knows.
        """

    def load_shards(self, shards: Collection[int]) -> Loaded:
        """What is open in these shards, at once; called once their claim has returned. All agents are told, whatever
        shards. `next_row` is the same as `load` told: a node takes its row numbers once, when it starts, and from a
        block that no other node has. What a shard holds may be very much: see `load_some`."""

    def load_some(self, shards: Collection[int], place: Place, limit: int) -> tuple[Loaded, Place | None]:
        """The same, some at a time, from `Place()` on: up to `limit` of one part, in order of their keys, fewer where
        requests are large (`LOAD_BYTES`); agents only of pools of these shards. Then where to go on; None: that was
        all. Each is a look of its own: what comes to a shard meanwhile may be missing, and `arrived` tells it."""

    def backlog(self, shards: Collection[int]) -> dict[int, int]:
        """How many open tasks each of these shards has; those that have none are left out."""

    def stored(self, rows: Sequence[int]) -> list[StoredTask]:
        """The tasks of these rows in that order, open or ended, as far as they are there."""


@dataclass(slots=True, frozen=True)
class ApiKey:
    """A key without its secret. Times are milliseconds of the wall clock of the machine that holds the file."""

    key_id: str
    tenant: str
    app_id: str
    scopes: frozenset[str]
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None

    def valid_at(self, now_ms: int) -> bool:
        """Whether it opens anything at this time."""
        return (self.revoked_ms is None or now_ms < self.revoked_ms) and (
            self.expires_ms is None or now_ms < self.expires_ms
        )


class KeyStore(Protocol):
    """Where keys are kept. Methods may be called from any thread; `verify` and `is_valid` answer from memory."""

    def create(self, tenant: str, app_id: str, scopes: Iterable[str], ttl_ms: int | None = None) -> tuple[ApiKey, str]:
        """Makes a key; the second part is the whole token, which is kept nowhere."""

    def list_keys(self, tenant: str | None = None, *, after: str = "", limit: int = 100) -> list[ApiKey]:
        """Keys of a tenant, or of all (None), oldest first, from behind the key_id `after`."""

    def revoke(self, key_id: str, tenant: str | None = None) -> ApiKey:
        """Ends a key at once; one that ended stays as it is. A key of another tenant is not there."""

    def rotate(self, key_id: str, tenant: str | None = None, *, overlap_ms: int = 0) -> tuple[ApiKey, str]:
        """Makes a key with the same rights and lifetime, and ends the old one after `overlap_ms`."""

    def verify(self, token: str) -> ApiKey | None:
        """The key that a token opens now, or None."""

    def is_valid(self, key_id: str) -> bool:
        """Whether a key still opens anything, for streams that were opened with it."""

    def close(self) -> None:
        """Gives everything back; the store is not used afterwards."""
