"""What can go wrong with the journal, and the dice that say what goes wrong in a history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from reach.core.rows import Writes
from reach.store.base import StoreBroken, StoreError, StoreFull, StoreUnavailable
from reach.store.memory import EVERY_SHARD, MemoryJournal
from reach.testing.sim.checker import Checker
from reach.testing.sim.story import Story


class FaultyJournal(MemoryJournal):
    """The memory journal on a bad disk. It outlives the processes that use it, as a file does."""

    def __init__(self, random: Random, checker: Checker, story: Story) -> None:
        super().__init__()
        self._random = random
        self._checker = checker
        self._story = story
        self.trouble: StoreError | None = None
        """What each commit ends with; None while the disk is well."""
        self.unknown = 0.0
        """Share of commits that are made, and said not to be."""
        self.commits = 0
        self._before_ms: int | None = None

    def commit(self, writes: Writes) -> list[int]:
        """See Journal."""
        if self.trouble is not None:
            self._story.tell("journal", "refuses a commit: {}", type(self.trouble).__name__)
            raise self.trouble
        taken = super().commit(writes)
        self.commits += 1
        self._checker.durable(writes, taken)
        if self.unknown and self._random.random() < self.unknown:
            self._story.tell("journal", "makes a commit and says that it does not know")
            self._checker.sessions.unsure(writes)
            raise StoreUnavailable("the connection broke while the commit ran")
        return taken

    def purge(
        self, ended_before_ms: int, limit: int, *, dead_letters: bool = False, shards: Collection[int] = EVERY_SHARD
    ) -> int:
        """See Journal."""
        if self.trouble is not None:
            raise self.trouble
        if dead_letters:
            self._checker.keeping.purge_of_dead(limit, ended_before_ms)
        self._before_ms = ended_before_ms
        try:
            return super().purge(ended_before_ms, limit, dead_letters=dead_letters, shards=shards)
        finally:
            self._before_ms = None

    def remove(self, rows: Sequence[int]) -> int:
        """See Journal."""
        if self.trouble is not None:
            raise self.trouble
        return super().remove(rows)

    def _remove(self, rows: list[int]) -> int:
        removed = super()._remove(rows)
        for row in rows:
            self._checker.keeping.removed(row, before_ms=self._before_ms)
        if removed:
            self._story.tell("journal", "removes {} tasks", removed)
        return removed


TROUBLES: tuple[type[StoreError], ...] = (StoreFull, StoreUnavailable, StoreBroken)


class Dice:
    """How bad a history is: each kind of fault is in some histories often, in some seldom, in some never."""

    def __init__(self, random: Random) -> None:
        def rate(*choices: float) -> float:
            return random.choice(choices)

        self.seconds = random.choice((15.0, 30.0, 60.0))
        """How long faults rage."""
        self.every = rate(0.5, 1.5, 4.0)
        """Seconds between faults, on average."""
        self.slow_frames = rate(0, 0, 0.02, 0.2)
        self.slow_disk = rate(0, 0, 0.02, 0.1)
        self.unknown_commits = rate(0, 0, 0.05, 0.3)
        weights = {
            "crash": rate(0, 1, 2),
            "torn crash": rate(0, 1, 2),
            "stop": rate(0, 0, 1),
            "store trouble": rate(0, 0, 1, 2),
            "stall": rate(0, 0, 1, 2),
            "clock": rate(0, 0, 1),
            "agent dies": rate(0, 1, 3),
            "agent leaves": rate(0, 0, 1),
            "operator drains": rate(0, 0, 1),
            "agent hangs": rate(0, 0, 1, 2),
            "link breaks": rate(0, 1, 4),
            "link half-breaks": rate(0, 0, 1, 2),
            "caller's link breaks": rate(0, 1, 4),
            "caller's link half-breaks": rate(0, 0, 1),
            "caller dies": rate(0, 0, 1),
        }
        self.names = list(weights)
        self.weights = list(weights.values())
        if not any(self.weights):
            self.weights[0] = 1
        self.clock_leaps = bool(weights["clock"])
        self.queue_limit = random.choice((3, 20, 200_000))
        self.queue_bytes = random.choice((1 << 30, 1 << 30, 600))
        self.callers = random.randrange(1, 4)
        self.agents = random.randrange(2, 6)
        self.tasks = random.choice((10, 25, 45))
        self.bad_agents = rate(0.0, 0.15, 0.4)
        """Share of attempts that do not go well."""
        self.streams = rate(0.0, 0.2, 0.6)
        self.effects = rate(0.0, 0.1, 0.5)
        self.volatile = rate(0.0, 0.1, 0.5)
        self.webhooks = rate(0.0, 0.3, 0.8)
        self.dialled = rate(0.0, 0.0, 0.4, 1.0)
        """Share of agents that are dialled."""
        self.sessions = rate(0.0, 0.3, 0.8)
        self.versions = random.random() < 0.3
        """Agents may be another version each time they start."""
        self.trees = rate(0.0, 0.0, 0.3, 0.7)
        """Share of tasks that another one asks for."""
        self.unary = rate(0.0, 0.0, 0.3)
        """Share of outcomes that come by a call of their own, perhaps twice."""
        self.stubborn = rate(0.0, 0.0, 0.7)
        self.asks = rate(0.0, 0.0, 0.2, 0.6)
        """Share of attempts that ask their caller something."""
        self.input_wait_ms = random.choice((3_600_000, 5_000))
        """Share of stops that an agent does not hear."""
