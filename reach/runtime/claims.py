"""Which shards this node owns: as the leader wishes, and as the journal says (CLU-2, CLU-3).

The wish says what to claim and what to give up; the epochs in the journal are the only truth. Every half second they
are confirmed, also while what was claimed is loaded (`takeover.py`). A node that was paused, or does not reach the
journal, has not confirmed them for `SURE_MS` by its own clock: it is in doubt, and sends nothing until it knows. What
turns out to be another node's is forgotten, that and only that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final

from reach.runtime.departures import ARRIVALS
from reach.runtime.host import Host
from reach.runtime.moving import add, leave, pause, streams_of, take
from reach.runtime.retention import Tending
from reach.runtime.shard import Shard
from reach.runtime.takeover import Coming, Takeover
from reach.store.base import SharedJournal, StoreError

log = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 0.5
"""How often epochs are confirmed. Larger: a node that lost a shard it has nothing to write for notices later."""
SURE_MS: Final = 2_000
"""How long a confirmation is worth something. Others may claim at any time, and serve at once."""
SETTLE_SECONDS: Final = 1.0
"""How long what is decided for shards that leave may take to be kept and told. Larger: one that hangs is waited for."""
HAND_OVER_MS: Final = 2_000
"""How long a shard is waited for that a living node is to give up. Larger: one that hangs holds it up for longer."""
LOOK_SECONDS: Final = 0.025
"""How often it is asked meanwhile whether it was."""
END_SECONDS: Final = 1.0
"""How long a node that ends may take to give up what nobody took. Larger: it ends later when the journal is away."""
LOG_EVERY_MS: Final = 10_000
LEARN_MS: Final = 500
"""How long after a loss the wish may come that explains it: the heir may hear of it first, and claim at once. Until
then nothing is claimed back."""
DOUBTED: Final = 10_000
"""Acts that wait for the next confirmation; what comes beyond is done on what is known."""


class Claims:
    """See the module. To be made before anything is restored, and started with `run`.

    Args:
        host: The shards that this node has.
        journal: Who owns what.
        loads: Where shards that were claimed are read, and nothing else; None: in a thread of its own.
    """

    def __init__(self, host: Host, journal: SharedJournal, loads: Executor | None = None) -> None:
        self._host = host
        self._loads = loads if loads is not None else ThreadPoolExecutor(1, thread_name_prefix="journal-loads")
        self._takeovers: dict[Takeover, None] = {}
        """Bound: the shards there are, for each has one at least."""
        self._loaded: list[tuple[Takeover, Coming, asyncio.Future[bool]]] = []
        """What is served if the next confirmation says that it is still this node's."""
        self._journal = journal
        self._tending = Tending(host.committer)
        self._clock = host.clock
        self._wished: frozenset[int] | None = None
        """None: nobody has wished anything yet."""
        self._stirred = asyncio.Event()
        self._confirmed_ms = self._clock.now_ms()
        self._logged_ms = -LOG_EVERY_MS
        self._settled: asyncio.Event = asyncio.Event()
        self.has_settled = False
        """This node has owned what was wished, at least once."""
        self._ends = False
        self.owned: frozenset[int] = frozenset()
        """What is served."""
        self.on_change: Callable[[], None] = lambda: None
        """Hears when that has changed."""
        self.may_claim: Callable[[], bool] = lambda: True
        """Whether the wish can be trusted. Who does not surely belong to the cluster keeps what it has, and would only
        take away, time and again, what others were given meanwhile."""
        self.process = ""
        """What the journal says of who has the shards of this node. Empty: nobody waits until it gives them up."""
        self.gives_up: Callable[[str], bool] = lambda process: False
        """Whether another process lives and will give up what is wished here."""
        self._awaited: dict[int, int] = {}
        """Shards that are to be given up by others first, and since when."""
        self._waits = False
        """Some of them are waited for."""
        self._leaving: frozenset[int] = frozenset()
        """Shards that are served no more, or never were, and not given up yet."""
        self._paused: list[Shard] = []
        """Of these, what they had: it is forgotten when they are given up, or turn out to be another node's."""
        self._unexplained: dict[int, int] = {}
        """Shards that another node has claimed though, as far as is known, they are to be here; and since when."""
        self._brought: list[tuple[int, int]] = []
        """Rows and hops of tasks that had come when it was looked last."""
        host.by_shard = True
        host.departures.look = self._stirred.set
        self._doubted: list[Callable[[], object]] = []
        """What is to be done once what is owned is confirmed."""
        host.certainly = self.certainly
        host.is_whole = lambda: not self._takeovers
        host.committer.doubt = self.is_in_doubt
        host.committer.on_lost = self._lost

    def wish(self, shards: Collection[int]) -> None:
        """What this node should own from now on."""
        if self._wished == frozenset(shards) or self._ends:
            return
        self._wished = frozenset(shards)
        self._explain()
        self._settled.clear()
        self._stirred.set()

    async def end(self, seconds: float = END_SECONDS) -> None:
        """Gives up all that is owned, for this node ends, and nobody has taken it: whoever has it next goes on with its
        streams where they were. What is not given up within this time is claimed all the same."""
        self.wish(())
        self._ends = True
        try:
            async with asyncio.timeout(seconds):
                while not self.has_left:  # noqa: ASYNC110 - once in the life of a node
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            log.warning("this node ends with shards that it could not give up: its readers will see a gap")

    async def fulfilled(self) -> None:
        """Returns when this node owns what is wished, and nothing else."""
        await self._settled.wait()

    def epochs(self) -> dict[int, int]:
        """The epochs of what is served."""
        known = self._journal.epochs()
        return {shard: known[shard] for shard in sorted(self.owned) if shard in known}

    @property
    def has_left(self) -> bool:
        """Nothing is owned or about to come, and all that was is given up."""
        return not (self.owned or self._leaving or self._coming())

    def certainly(self, act: Callable[[], object]) -> None:
        """See `Pools.certainly`."""
        if len(self._doubted) >= DOUBTED:
            act()
            return
        self._doubted.append(act)
        self._stirred.set()

    def is_in_doubt(self) -> bool:
        """Whether what this node owns may be another's by now (CLU-2)."""
        return self.unconfirmed_ms > SURE_MS

    @property
    def unconfirmed_ms(self) -> int:
        """How long ago it was asked for what was confirmed last."""
        return self._clock.now_ms() - self._confirmed_ms

    async def run(self) -> None:
        """Follows the wish, and confirms, for as long as the node lives."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._stirred.clear()
                    try:
                        await self._confirm()
                        await self._follow(tasks)
                        await self._bring()
                    except StoreError as error:
                        self._waits = False
                        now_ms = self._clock.now_ms()
                        if now_ms - self._logged_ms > LOG_EVERY_MS:
                            self._logged_ms = now_ms
                            log.error("what this node owns cannot be confirmed: %s", error)
                    try:
                        async with asyncio.timeout(LOOK_SECONDS if self._waits else CONFIRM_SECONDS):
                            await self._stirred.wait()
                    except TimeoutError:
                        pass
        finally:
            self._loads.shutdown(wait=False, cancel_futures=True)

    async def _confirm(self) -> None:
        asked_ms, doubted, loaded = self._clock.now_ms(), len(self._doubted), len(self._loaded)
        held = await self._tending.do(self._journal.confirm)
        self._lost(self.owned - held)
        if taken := self._coming() - held:
            self._drop(taken, "shards were claimed by another node before they had come")
            self._unexplained.update(dict.fromkeys(taken, self._clock.now_ms()))
        self._confirmed_ms = asked_ms  # what held when it was asked may hold no more when it is answered
        if not self.is_in_doubt():
            self._host.committer.sure()
        acts, self._doubted = self._doubted[:doubted], self._doubted[doubted:]
        for act in acts:
            act()
        ready, self._loaded = self._loaded[:loaded], self._loaded[loaded:]
        for one in ready:
            self._serve(*one)

    async def _bring(self) -> None:
        """Goes on with tasks that others have sent to shards of this node."""
        departures = self._host.departures
        asked = departures.looks()
        found = await self._tending.do(partial(self._journal.arrived, self.owned, self._brought, ARRIVALS))
        new, self._brought = departures.came(found)
        add(self._host, new)
        departures.looked(asked)
        if len(found) == ARRIVALS:
            self._stirred.set()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        wished = self._wished
        if wished is None:
            return
        if too_many := self.owned - wished:
            await self._leave(too_many)
        if unwished := self._coming() - wished:
            self._leaving = unwished
            try:
                self._drop(unwished, "shards are wished elsewhere before they have come")
                await self._tending.do(partial(self._journal.give_up, unwished, None))
            finally:
                self._leaving = frozenset()
        self._explain()
        missing = wished - self.owned - self._coming() - self._unexplained.keys()
        self._waits = False
        self._awaited = {shard: since_ms for shard, since_ms in self._awaited.items() if shard in missing}
        if missing and self.may_claim():
            held = await self._held(missing)
            self._waits = bool(held)
            if missing != held:
                await self._claim(missing - held, tasks)
        if self.owned == self._wished:
            self._settled.set()
            self.has_settled = True

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _coming(self) -> frozenset[int]:
        """What is claimed and not served yet."""
        return frozenset().union(*(takeover.shards for takeover in self._takeovers))

    def _drop(self, shards: frozenset[int], why: str) -> None:
        """These do not come."""
        dropped = [shard for takeover in self._takeovers for shard in takeover.drop(shards)]
        if dropped:
            log.info(why, extra={"shards": sorted(dropped)})

    async def _held(self, missing: frozenset[int]) -> frozenset[int]:
        """Those that others are about to give up: who takes them sooner cannot know how far their streams were told."""
        holders = await self._tending.do(partial(self._journal.holders, missing))
        now_ms = self._clock.now_ms()
        self._awaited = {
            shard: self._awaited.get(shard, now_ms) for shard, holder in holders.items() if self.gives_up(holder)
        }
        return frozenset(shard for shard, since_ms in self._awaited.items() if now_ms - since_ms < HAND_OVER_MS)

    async def _claim(self, shards: frozenset[int], tasks: asyncio.TaskGroup) -> None:
        """Claims in the writer: after all that was written before, and before anything that is decided under the claim.
        All else takes longer, and nothing waits for it."""
        self._host.committer.forget(shards)
        epochs = await self._tending.do(partial(self._journal.claim, shards, self.process))
        takeover = Takeover(self._host, self._journal, self._loads, epochs, self._when_confirmed)
        self._takeovers[takeover] = None
        tasks.create_task(self._take_over(takeover), name="take over")

    async def _take_over(self, takeover: Takeover) -> None:
        try:
            await takeover.run()
        finally:
            del self._takeovers[takeover]

    async def _when_confirmed(self, takeover: Takeover, coming: Coming) -> bool:
        """Serves what is loaded once it is confirmed: what is held after all was loaded was held all the time."""
        served: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._loaded.append((takeover, coming, served))
        self._stirred.set()
        return await served

    def _serve(self, takeover: Takeover, coming: Coming, served: asyncio.Future[bool]) -> None:
        """It was this node's when that was asked last, and is wished to be."""
        if served.cancelled():
            return
        if coming.is_void or coming.is_outdated:
            served.set_result(False)
            return
        take(self._host, coming)
        takeover.served(coming)
        served.set_result(True)
        self.owned |= coming.shards
        self._host.committer.tend(partial(self._journal.came, coming.shards))
        self.on_change()
        log.info("shards came", extra={"epochs": coming.epochs, "tasks": coming.count})
        self._stirred.set()

    async def _leave(self, shards: frozenset[int]) -> None:
        if await self._settle(CONFIRM_SECONDS) is None:
            return  # it may wait for what is owned to be confirmed: that first, and then again
        shards &= self.owned - (self._wished or frozenset())  # it may be wished to be here again
        if not shards:
            return
        self._leaving = shards
        try:
            self.owned -= shards
            self.on_change()
            self._paused = pause(self._host, shards)
            streams = streams_of(self._host, self._paused) if await self._settle(SETTLE_SECONDS) else []
            self._forget(shards)
            await self._tending.do(partial(self._journal.give_up, shards, streams))
            shards = self._leaving
        finally:
            self._leaving = frozenset()
        log.info("shards were given up", extra={"shards": sorted(shards), "streams": len(streams)})

    async def _settle(self, seconds: float) -> bool | None:
        """Whether what is decided is kept, and told, or the store takes nothing; None: neither within this time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._host.settled()
        except TimeoutError:
            return None

    def _lost(self, shards: frozenset[int]) -> None:
        if lost := shards & (self.owned | {shard.number for shard in self._paused}):
            self._leaving -= lost
            overtaken = self.is_in_doubt() or not self.may_claim()
            self._forget(lost)
            if overtaken:
                _warn(lost)
            else:
                self._unexplained.update(dict.fromkeys(lost, self._clock.now_ms()))
                self._explain()
            self._stirred.set()

    def _explain(self) -> None:
        """Says why shards were lost, once that is known: they were to move, and their heir was sooner than this node
        could give them up; or somebody claimed what is wished to be here."""
        if not self._unexplained:
            return
        wished, now_ms = self._wished, self._clock.now_ms()
        moved = [shard for shard in self._unexplained if wished is not None and shard not in wished]
        taken = [shard for shard, since_ms in self._unexplained.items() if now_ms - since_ms >= LEARN_MS]
        for shard in {*moved, *taken}:
            del self._unexplained[shard]
        if moved:
            log.info("shards went to another node, as placed", extra={"shards": sorted(moved)})
        if taken := [shard for shard in taken if shard not in moved]:
            _warn(taken)

    def _forget(self, shards: frozenset[int]) -> None:
        self.owned -= shards
        paused = [shard for shard in self._paused if shard.number in shards]
        self._paused = [shard for shard in self._paused if shard.number not in shards]
        leave(self._host, shards, paused)
        self._host.committer.forget(shards)
        self.on_change()


def _warn(shards: Collection[int]) -> None:
    log.warning("shards are another node's: what was decided here is void", extra={"shards": sorted(shards)})
