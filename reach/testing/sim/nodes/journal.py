"""The journal that the nodes share, on a bad network: what a node asks of it may be refused, done unheard, or late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import TYPE_CHECKING

from reach.core.handed import StreamRow
from reach.core.rows import Writes, shards_of
from reach.store.base import Loaded, StoredTask, StoreError, StoreUnavailable
from reach.store.memory import MemoryJournal
from reach.store.memory_shared import MemoryNode, MemoryShared
from reach.testing.sim.loop import VirtualWriter
from reach.testing.sim.nodes.process import NodeProcess

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker
    from reach.testing.sim.nodes.ownership import OwnershipTruth

STORE = "pg"
"""The machine that it is on."""


class CheckedStore(MemoryJournal):
    """What is durable, the checker hears of."""

    def __init__(self, checker: Checker, truth: OwnershipTruth) -> None:
        super().__init__()
        self._checker = checker
        self._truth = truth
        self.writer = ("", "")
        """(node, process) whose batch is being committed."""

    def commit(self, writes: Writes) -> list[int]:
        """See Journal."""
        self._truth.writes(*self.writer, shards_of(writes))
        taken = super().commit(writes)
        self._truth.moved(writes, taken)
        self._checker.durable(writes, taken)
        return taken


class SharedStore(MemoryShared):
    """The database."""

    def __init__(self, checker: Checker, truth: OwnershipTruth, tell: Callable[..., None], random: Random) -> None:
        super().__init__()
        self.journal: CheckedStore = CheckedStore(checker, truth)
        self.truth = truth
        self.tell = tell
        self.random = random
        self.trouble: StoreError | None = None
        """What all that is asked ends with."""
        self.unknown = 0.0
        """Share of commits that are made, and said not to be, or not made and said not to be known."""
        self.others_first: Callable[[NodeJournal], None] = lambda node: None
        """Lets what other nodes have on its way to the database get there first."""


class NodeJournal(MemoryNode):
    """One process's way to the database."""

    def __init__(self, shared: SharedStore, node: str, boot: str, reaches: Callable[[bool], bool]) -> None:
        super().__init__(shared)
        self._base = shared
        self._node = node
        self._boot = boot
        self._reaches = reaches
        """Whether what is said gets to the database (True), and what it answers here (False)."""

    def _check(self) -> None:
        if self._base.trouble is not None:
            raise self._base.trouble
        if not self._reaches(True):
            raise StoreUnavailable("the database does not answer")

    def _heard(self) -> None:
        if not self._reaches(False):
            raise StoreUnavailable("the database was asked and does not answer")

    def commit(self, writes: Writes) -> list[int]:
        """See Journal."""
        self._check()
        base = self._base
        lost = bool(base.unknown) and base.random.random() < base.unknown
        if lost and base.random.random() < 0.3:
            raise StoreUnavailable("the connection broke before the commit")
        base.journal.writer = self._node, self._boot
        taken = super().commit(writes)
        if lost:
            base.tell(self._node, "makes a commit, and does not know")
            raise StoreUnavailable("the connection broke while the commit ran")
        self._heard()
        return taken

    def claim(self, shards: Collection[int], holder: str = "") -> dict[int, int]:
        """See SharedJournal."""
        self._check()
        self._base.others_first(self)
        claimed = super().claim(shards, holder)
        base = self._base
        base.truth.claimed(self._node, self._boot, claimed)
        if base.random.random() < base.unknown:
            raise StoreUnavailable("the connection broke while shards were claimed")
        self._heard()
        base.others_first(self)
        return claimed

    def holders(self, shards: Collection[int]) -> dict[int, str]:
        """See SharedJournal."""
        self._check()
        found = super().holders(shards)
        self._heard()
        return found

    def give_up(self, shards: Collection[int], streams: Sequence[StreamRow] | None = ()) -> None:
        """See SharedJournal."""
        try:
            self._check()
        except StoreError:
            self._leave(shards)
            raise
        super().give_up(shards, streams)
        self._heard()

    def came(self, shards: Collection[int]) -> None:
        """See SharedJournal."""
        self._check()
        super().came(shards)

    def confirm(self) -> frozenset[int]:
        """See SharedJournal."""
        self._check()
        held = super().confirm()
        self._heard()
        return held

    def load_shards(self, shards: Collection[int]) -> Loaded:
        """See SharedJournal."""
        self._check()
        loaded = super().load_shards(shards)
        self._heard()
        if shards:
            self._base.others_first(self)
        return loaded

    def backlog(self, shards: Collection[int]) -> dict[int, int]:
        """See SharedJournal."""
        self._check()
        return super().backlog(shards)

    def arrived(self, shards: Collection[int], known: Sequence[tuple[int, int]], limit: int) -> list[StoredTask]:
        """See SharedJournal."""
        self._check()
        found = super().arrived(shards, known, limit)
        self._heard()
        return found

    def find(self, tenant: str, task_id: str) -> StoredTask | None:
        """See Journal."""
        self._check()
        return super().find(tenant, task_id)


class NodeWriter(VirtualWriter):
    """The writer's thread of a node. What is on its way to the database gets there, whatever becomes of the process."""

    _process: NodeProcess

    def hurry(self) -> None:
        """What is on its way is there now."""
        if self._work and not self._process.dead:
            work = self._work[0]
            self._work[0] = lambda: None  # its time comes later, and then nothing is left of it
            work()

    def _do(self) -> None:
        process = self._process
        if not process.dead and self._loop.now < process.paused_until and self._sent:
            self._work[0]()
            self._work[0] = lambda: None
        if not process.dead and self._loop.now < process.paused_until:
            self._loop.call_at(min(process.paused_until, self._loop.now + 0.1), self._do)  # it may be woken
            return
        super()._do()

    @property
    def _sent(self) -> bool:
        """Of a process that stands still: whether it had sent the statement by then."""
        return self._process.random.random() < 0.6

    def outlives(self) -> Callable[[], None]:
        """The process dies in the middle of a commit: what makes the commit, later."""
        return self._work[0] if self._work else lambda: None
