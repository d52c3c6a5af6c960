"""Shards that were claimed are loaded: some at a time, beside all that this node serves (CLU-3).

A shard may hold hundreds of thousands of tasks. What it holds is read in a thread of its own, made into pools a little
in each turn of the loop, and known to nobody before all of it is there: until then callers and agents are told that it
is not here yet. So nothing is to be undone if the shard goes to another node meanwhile, or is wished elsewhere.

    Takeover   the shards of one claim; the small ones are served first
    Coming     the shards of it that are served together
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reach.collector import made_to_stay
from reach.core.model import PoolKey, Task, TaskKey
from reach.core.pool import Pool
from reach.core.rows import PinRow
from reach.runtime.loading import Returning, ShardTurns, some_turns
from reach.runtime.moving import abandon
from reach.runtime.sessions import Ended
from reach.store.base import Loaded, Place, SharedJournal, StoreError

if TYPE_CHECKING:
    from reach.runtime.host import Host

log = logging.getLogger(__name__)

T = TypeVar("T")

LOADED: Final = 1_000
"""Agents, pins, contexts or tasks that are read together, at most (requests: `LOAD_BYTES`). Larger: fewer questions,
and more in memory twice."""
TURNS: Final = 64
"""Turns of sessions that are read together; each has a request and a result."""
BROUGHT: Final = 100
"""What of it is brought in in one turn of the loop: some milliseconds. Larger: all else waits longer."""
TOGETHER: Final = 2_000
"""Open tasks of small shards that are served together: each time costs a look at all agents. Larger: small shards wait
longer for each other."""
LARGE: Final = 20_000
"""Open tasks of a shard that are worth a line of the log when their loading begins."""
AGAIN_SECONDS: Final = 0.5
"""How long to wait before the journal is asked again that did not answer."""


class Coming:
    """Shards on their way in.

    Args:
        host: Where they are to be served.
        shards: Which, by epoch.
    """

    def __init__(self, host: Host, shards: Mapping[int, int]) -> None:
        self._host = host
        self.shards: Final = frozenset(shards)
        self.epochs: Final = dict(shards)
        self.tasks: dict[TaskKey, Task] = {}
        self.pools: dict[PoolKey, Pool] = {}
        self.count = 0
        """Tasks that go on."""
        self.is_void = False
        """They do not come."""
        self.next_revision = 0
        """Greater than that of any change to their agents."""
        self._began_ms = host.clock.now_ms()
        self._wall_ahead_ms = host.clock.wall_ms() - self._began_ms
        """One for all, so that who was accepted earlier comes first, also if the wall clock leaps meanwhile."""
        self._rules = self._rules_now()
        self.turns = ShardTurns(0, 0)
        """What all this asks for. It has to wait until they are served."""
        self._returning = Returning(host, self, self.turns)

    def _rules_now(self) -> tuple[Any, ...]:
        directory, settings = self._host.directory, self._host.settings
        return directory.vocabulary, directory.routes, settings.policies, settings.policy, settings.pool_policies

    @property
    def is_outdated(self) -> bool:
        """There are other rules by now than those by which they were read."""
        return any(one is not other for one, other in zip(self._rules, self._rules_now(), strict=True))

    @property
    def late_ms(self) -> int:
        """How long ago their loading began."""
        return self._host.clock.now_ms() - self._began_ms

    @property
    def asked_for(self) -> list[Task]:
        """Tasks that other tasks asked for."""
        return self._returning.asked_for

    def pool(self, key: PoolKey) -> Pool:
        """See Ground."""
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = self._host.made(key, self.tasks)
        return pool

    def tick(self) -> ShardTurns:
        """What all this asks for, as of now."""
        self.turns.now_ms = self._host.clock.now_ms()
        self.turns.wall_ms = self.turns.now_ms + self._wall_ahead_ms
        return self.turns

    def bring(self, loaded: Loaded) -> Iterator[None]:
        """Brings in what was loaded, a little with each step."""
        self.next_revision = max(self.next_revision, loaded.next_revision)
        self.count += len(loaded.tasks)
        acts: tuple[tuple[list[Any], Callable[[Any], object]], ...] = (
            (loaded.agents, self._returning.agents),
            (loaded.pins, self._pins),
            (loaded.contexts, lambda contexts: self._host.sessions.restore(contexts, ())),
            (loaded.tasks, self._returning.tasks),
        )
        for found, act in acts:
            yield from self._in_pieces(found, act)

    def bring_turns(self, ended: list[Ended]) -> Iterator[None]:
        """The same for turns that the contexts lack."""
        yield from self._in_pieces(ended, lambda turns: self._host.sessions.restore((), turns))

    def bring_trees(self) -> Iterator[None]:
        """All tasks are there: which belong together."""
        yield from self._in_pieces(self.asked_for, self._trees)

    def all_agents(self) -> None:
        """All instances are there."""
        self._returning.trials()

    def _trees(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._host.trees.joined(task, self.tasks)

    def _pins(self, pins: list[PinRow]) -> None:
        for pin in pins:
            self._returning.pin(pin)

    def _in_pieces(self, found: list[T], act: Callable[[list[T]], object]) -> Iterator[None]:
        for start in range(0, len(found), BROUGHT):
            self.tick()
            with made_to_stay():
                act(found[start : start + BROUGHT])
            yield


class Takeover:
    """See the module.

    Args:
        host: Where the shards are to be served.
        journal: What holds them.
        loads: The thread in which it is read.
        epochs: The shards that were claimed.
        serve: Serves what has come, if it is still this node's; says whether that is so.
    """

    def __init__(
        self,
        host: Host,
        journal: SharedJournal,
        loads: Executor,
        epochs: Mapping[int, int],
        serve: Callable[[Takeover, Coming], Awaitable[bool]],
    ) -> None:
        self._host = host
        self._journal = journal
        self._loads = loads
        self._loop = asyncio.get_running_loop()
        self._serve = serve
        self._epochs = dict(epochs)
        """Of what is claimed and not served."""
        self._coming: Coming | None = None
        """What is on its way now."""

    @property
    def shards(self) -> frozenset[int]:
        """What is claimed and not served."""
        return frozenset(self._epochs)

    def drop(self, shards: Collection[int]) -> frozenset[int]:
        """These are another node's by now, or are not wished any more: they are as if they had never been claimed.
        Returns those that were."""
        dropped = self.shards.intersection(shards)
        for shard in dropped:
            del self._epochs[shard]
        if self._coming is not None and self._coming.shards & dropped:
            self._forget(self._coming)
        return dropped

    def served(self, coming: Coming) -> None:
        """These have come."""
        self._coming = None
        for shard in coming.shards:
            del self._epochs[shard]

    def _forget(self, coming: Coming) -> None:
        """At once: another takeover may begin to load the same shards."""
        self._coming, coming.is_void = None, True
        abandon(self._host, coming)

    async def run(self) -> None:
        """Loads all, the small ones first, and has them served."""
        backlog = await self._ask(partial(self._journal.backlog, self.shards))
        while self._epochs:
            coming = self._coming = Coming(self._host, self._next(backlog))
            many = sum(backlog.get(shard, 0) for shard in coming.shards)
            if many >= LARGE:
                log.info("a large backlog is loaded, and served when all of it is here",
                         extra={"shards": sorted(coming.shards), "tasks": many})  # fmt: skip
            if not (await self._load(coming) and await self._serve(self, coming)) and not coming.is_void:
                self._forget(coming)  # by other rules, all over again

    def _next(self, backlog: Mapping[int, int]) -> dict[int, int]:
        """The smallest ones that are left, with their epochs."""
        chosen: dict[int, int] = {}
        many = 0
        for shard in sorted(self._epochs, key=lambda shard: (backlog.get(shard, 0), shard)):
            many += backlog.get(shard, 0)
            if chosen and many > TOGETHER:
                break
            chosen[shard] = self._epochs[shard]
        return chosen

    async def _load(self, coming: Coming) -> bool:
        """Whether all is here. False: something of it is not to come any more."""
        async with asyncio.TaskGroup() as tasks:
            place = Place()
            reading = tasks.create_task(self._some(coming, place))
            while True:
                loaded, following = await reading
                if following is not None:  # while what has been read is brought in, the next is read
                    reading = tasks.create_task(self._some(coming, following))
                if not await self._in_steps(coming, coming.bring(loaded)):
                    reading.cancel()
                    return False
                if place.part == 0 and (following is None or following.part):
                    coming.all_agents()
                if following is None:
                    break
                place = following
        after: int | None = 0
        while after is not None:
            turns = await self._ask(partial(some_turns, self._journal, coming.shards, after, TURNS))
            if not await self._in_steps(coming, coming.bring_turns(turns.ended)):
                return False
            after = turns.after
        return await self._in_steps(coming, coming.bring_trees())

    async def _some(self, coming: Coming, place: Place) -> tuple[Loaded, Place | None]:
        return await self._ask(partial(self._journal.load_some, coming.shards, place, LOADED))

    @staticmethod
    async def _in_steps(coming: Coming, steps: Iterator[None]) -> bool:
        while not coming.is_void:
            if next(steps, True):
                return True
            await asyncio.sleep(0)
        return False

    async def _ask(self, work: Callable[[], T]) -> T:
        """Reads the journal, until it answers."""
        while True:
            try:
                return await self._loop.run_in_executor(self._loads, work)
            except StoreError as error:
                log.info("shards cannot be loaded now: %s", error)
            await asyncio.sleep(AGAIN_SECONDS)
