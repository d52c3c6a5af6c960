"""Which shards this node owns: as the leader wishes, and as the journal says (CLU-2, CLU-3).

The wish says what to claim and what to give up; the epochs in the journal are the only truth. Every half second they
are confirmed. A node that was paused, or does not reach the journal, has not confirmed them for `SURE_MS` by its own
clock: it is in doubt, and sends nothing until it knows. What turns out to be another node's is forgotten, that and only
that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from reach.runtime.departures import ARRIVALS
from reach.runtime.host import Host
from reach.runtime.loading import turns_of
from reach.runtime.moving import add, leave, take
from reach.runtime.retention import Tending
from reach.runtime.sessions import Ended
from reach.store.base import Loaded, SharedJournal, StoreError

log = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 0.5
"""How often epochs are confirmed. Larger: a node that lost a shard it has nothing to write for notices later."""
SURE_MS: Final = 2_000
"""How long a confirmation is worth something. Others may claim at any time, and serve at once."""
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
    """

    def __init__(self, host: Host, journal: SharedJournal) -> None:
        self._host = host
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
        self.owned: frozenset[int] = frozenset()
        """What is served."""
        self.on_change: Callable[[], None] = lambda: None
        """Hears when that has changed."""
        self.may_claim: Callable[[], bool] = lambda: True
        """Whether the wish can be trusted. Who does not surely belong to the cluster keeps what it has, and would only
        take away, time and again, what others were given meanwhile."""
        self._unexplained: dict[int, int] = {}
        """Shards that another node has claimed though, as far as is known, they are to be here; and since when."""
        self._brought: list[tuple[int, int]] = []
        """Rows and hops of tasks that had come when it was looked last."""
        host.by_shard = True
        host.departures.look = self._stirred.set
        self._doubted: list[Callable[[], object]] = []
        """What is to be done once what is owned is confirmed."""
        host.certainly = self.certainly
        host.committer.doubt = self.is_in_doubt
        host.committer.on_lost = self._lost

    def wish(self, shards: Collection[int]) -> None:
        """What this node should own from now on."""
        if self._wished == frozenset(shards):
            return
        self._wished = frozenset(shards)
        self._explain()
        self._settled.clear()
        self._stirred.set()

    async def fulfilled(self) -> None:
        """Returns when this node owns what is wished, and nothing else."""
        await self._settled.wait()

    def epochs(self) -> dict[int, int]:
        """The epochs of what is served."""
        known = self._journal.epochs()
        return {shard: known[shard] for shard in sorted(self.owned) if shard in known}

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
        while True:
            self._stirred.clear()
            try:
                await self._confirm()
                await self._follow()
                await self._bring()
            except StoreError as error:
                now_ms = self._clock.now_ms()
                if now_ms - self._logged_ms > LOG_EVERY_MS:
                    self._logged_ms = now_ms
                    log.error("what this node owns cannot be confirmed: %s", error)
            try:
                async with asyncio.timeout(CONFIRM_SECONDS):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    async def _confirm(self) -> None:
        asked_ms, doubted = self._clock.now_ms(), len(self._doubted)
        held = await self._tending.do(self._journal.confirm)
        self._lost(self.owned - held)
        self._confirmed_ms = asked_ms  # what held when it was asked may hold no more when it is answered
        if not self.is_in_doubt():
            self._host.committer.sure()
        acts, self._doubted = self._doubted[:doubted], self._doubted[doubted:]
        for act in acts:
            act()

    async def _bring(self) -> None:
        """Goes on with tasks that others have sent to shards of this node."""
        departures = self._host.departures
        asked = departures.looks()
        found = await self._tending.do(partial(self._journal.arrived, self._brought, ARRIVALS))
        new, self._brought = departures.came(found)
        add(self._host, new)
        departures.looked(asked)
        if len(found) == ARRIVALS:
            self._stirred.set()

    async def _follow(self) -> None:
        wished = self._wished
        if wished is None:
            return
        if too_many := self.owned - wished:
            await self._leave(too_many)
        self._explain()
        if (missing := wished - self.owned - self._unexplained.keys()) and self.may_claim():
            await self._claim(missing)
        if self.owned == self._wished:
            self._settled.set()
            self.has_settled = True

    async def _claim(self, shards: frozenset[int]) -> None:
        self._host.committer.forget(shards)
        loaded, turns, held = await self._tending.do(partial(self._take_over, shards))
        if not shards <= held:
            log.info("shards were claimed by another node meanwhile", extra={"shards": sorted(shards - held)})
            await self._tending.do(partial(self._journal.give_up, shards))
            return
        count = take(self._host, shards, loaded, turns)
        self.owned |= shards
        self.on_change()
        epochs = self._journal.epochs()
        claimed = {shard: epochs.get(shard) for shard in sorted(shards)}
        log.info("shards came", extra={"epochs": claimed, "tasks": count})

    def _take_over(self, shards: frozenset[int]) -> tuple[Loaded, list[Ended], frozenset[int]]:
        """In the writer: after all that was written before, and before anything that is decided under the claim. What
        is held after all was loaded was held all the time."""
        self._journal.claim(shards)
        return self._journal.load_shards(shards), turns_of(self._journal, shards), self._journal.confirm()

    async def _leave(self, shards: frozenset[int]) -> None:
        if not shards:
            return
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._host.settled()  # what is decided is kept, and told
        except TimeoutError:
            return  # it may wait for what is owned to be confirmed: that first, and then again
        self._forget(shards)
        await self._tending.do(partial(self._journal.give_up, shards))
        log.info("shards were given up", extra={"shards": sorted(shards)})

    def _lost(self, shards: frozenset[int]) -> None:
        if lost := shards & self.owned:
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
        leave(self._host, shards)
        self._host.committer.forget(shards)
        self.on_change()


def _warn(shards: Collection[int]) -> None:
    log.warning("shards are another node's: what was decided here is void", extra={"shards": sorted(shards)})
