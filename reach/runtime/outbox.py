"""Facts for others, delivered at least once after their commit: the other half of `Writes.outbox`.

A fact is committed together with what it tells of, so a crash loses none. It is handed to the receiver of its kind once
that commit is durable, and handed over again after a restart until `OutboxDone` is committed. A receiver that writes
`outbox_done` in the same turn as what the fact makes it change changes it exactly once; one that tells the outside
world calls `Outbox.done` and is repeated after a crash, so what it tells must name the fact by its key.

Memory is bounded: a lane holds so many facts, the others stay in the journal and are read when there is room. So a lane
that is slow, or hangs, holds back no other one. Within a lane facts are handed over in the order of their commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, Protocol

from reach.core.effects import Turn
from reach.core.rows import OutboxDone, OutboxRow, Writes
from reach.store.base import Journal, StoredFact, StoreError

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.25
"""How long what was delivered may wait for a commit that is made anyway: so many seconds of deliveries are repeated
after a crash. Larger: fewer commits of a node that does little else."""
LANES_AT_ONCE: Final = 256
READ_AGAIN_SECONDS: Final = 1.0
"""How long to wait before a read that failed is tried again, or lanes are looked for that had no room."""

LAST: Final = "\x7f"
"""Behind all that may follow the owner in the name of a lane."""

FactName = tuple[int, str]
"""(shard, key): names a fact within its kind."""


class Bounds(NamedTuple):
    """How much of a kind is in memory."""

    facts: int = 1_000
    """In each lane."""
    lanes: int = 64
    of_owner: int = 0
    """Lanes of one owner, which is the first word of their names; 0: as many as there may be. So nobody takes all."""


def owner_of(lane: str) -> str:
    """Whose a lane is."""
    return lane.partition(" ")[0]


class Receiver(Protocol):
    """Takes the facts of one kind. Called on the loop; must not block, and must not fail."""

    def take(self, fact: OutboxRow) -> None:
        """A fact is to be delivered. It stays with the receiver until it is done, and is not handed over twice."""


class _Lane:
    """One lane of a kind: facts in memory, and whether the journal has more."""

    __slots__ = ("cursor", "gone", "held", "left", "name", "reading", "skipped")

    def __init__(self, name: str, *, left: bool) -> None:
        self.name = name
        self.held: dict[FactName, OutboxRow] = {}
        """Handed over, and not known to be forgotten by the journal."""
        self.left = left
        """The journal may have facts that were not handed over: new ones wait for their turn behind them."""
        self.cursor = 0
        """Number up to which the journal has been read."""
        self.reading = False
        self.skipped = False
        """Facts came since the read began, and were left to the journal."""
        self.gone: set[FactName] = set()
        """What was forgotten since the read began: it may still tell of it."""


class _Kind:
    __slots__ = ("bounds", "lanes", "left", "looking", "name", "owners", "receiver", "refused")

    def __init__(self, name: str, receiver: Receiver, bounds: Bounds) -> None:
        self.name = name
        self.receiver = receiver
        self.bounds = bounds
        self.lanes: dict[str, _Lane] = {}
        self.owners: dict[str, int] = {}
        """How many lanes each has."""
        self.left = True
        """The journal may have facts of lanes that are not open."""
        self.looking = False
        self.refused = False
        """A lane found no room since we looked for lanes."""


class Outbox:
    """The facts of a node.

    Args:
        journal: Where they are.
        reads: The thread in which it is read.
        submit: Takes a turn with `outbox_done`.
    """

    def __init__(self, journal: Journal, reads: Executor, submit: Callable[[Turn], None]) -> None:
        self._journal = journal
        self._reads = reads
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._kinds: dict[str, _Kind] = {}
        self._done: list[OutboxDone] = []
        self._flushing: asyncio.TimerHandle | None = None
        self._stopped = False

    def register(self, kind: str, receiver: Receiver, bounds: Bounds | None = None) -> None:
        """Says who takes the facts of a kind, before `start`. Facts of kinds that nobody takes stay in the journal."""
        self._kinds[kind] = _Kind(kind, receiver, bounds or Bounds())

    def start(self) -> None:
        """Hands over what the journal holds from before. Called once, when all else is restored."""
        for kind in self._kinds.values():
            self._look(kind)

    def look_again(self) -> None:
        """Shards have come, and with them facts, also in lanes that are open: these are read from their beginning."""
        for kind in self._kinds.values():
            for lane in list(kind.lanes.values()):
                lane.cursor, lane.left = 0, True
                self._tend(kind, lane)
            kind.left = kind.refused = True
            if not kind.looking:
                self._look(kind)

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another node's: it delivers their facts, those too that are being delivered here."""
        self._done = [done for done in self._done if done.shard not in shards]
        for kind in self._kinds.values():
            for lane in list(kind.lanes.values()):
                for name in [name for name in lane.held if name[0] in shards]:
                    self._forgotten(kind, lane, name)

    def held(self, kind: str) -> int:
        """Facts of a kind in memory that are not known to be delivered and forgotten."""
        found = self._kinds.get(kind)
        return sum(len(lane.held) for lane in found.lanes.values()) if found is not None else 0

    def facts_held(self, kind: str) -> list[OutboxRow]:
        """The same facts."""
        found = self._kinds.get(kind)
        return [fact for lane in found.lanes.values() for fact in lane.held.values()] if found is not None else []

    def forgotten(self, fact: OutboxRow) -> None:
        """The journal has forgotten a fact by what another node wrote."""
        kind = self._kinds.get(fact.kind)
        lane = kind.lanes.get(fact.lane) if kind is not None else None
        if kind is not None and lane is not None:
            self._forgotten(kind, lane, (fact.shard, fact.key))

    def committed(self, writes: Writes, taken: list[int]) -> None:
        """A turn is durable: its facts are to be delivered, and what was delivered is forgotten."""
        for fact in writes.outbox:
            kind = self._kinds.get(fact.kind)
            if kind is not None and fact.row not in taken:
                self._came(kind, fact)
        for done in writes.outbox_done:
            kind = self._kinds.get(done.kind)
            lane = kind.lanes.get(done.lane) if kind is not None else None
            if kind is not None and lane is not None:
                self._forgotten(kind, lane, (done.shard, done.key))

    def done(self, fact: OutboxRow) -> None:
        """It is delivered. The journal forgets it with one of its next commits."""
        self._done.append(OutboxDone(fact.shard, fact.kind, fact.lane, fact.key))
        if self._flushing is None and not self._stopped:
            self._flushing = self._loop.call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Has the journal forget what is delivered, now."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._done:
            turn = Turn(0, 0)
            turn.writes.outbox_done, self._done = self._done, []
            self._submit(turn)

    def stop(self) -> None:
        """Reads and hands over nothing more; what is done is written with the last commit."""
        self._stopped = True
        self.flush()

    # -- lanes --------------------------------------------------------------------------------------------------------

    def _came(self, kind: _Kind, fact: OutboxRow) -> None:
        lane = kind.lanes.get(fact.lane) or self._open(kind, fact.lane)
        if lane is None:
            return
        if lane.left or len(lane.held) >= kind.bounds.facts:
            lane.left = lane.skipped = True
            self._tend(kind, lane)
        else:
            self._hand_over(kind, lane, fact)

    def _open(self, kind: _Kind, name: str) -> _Lane | None:
        """A lane that is new here; None if there is no room for it: its facts wait in the journal."""
        owner, bounds = owner_of(name), kind.bounds
        owned = kind.owners.get(owner, 0)
        if len(kind.lanes) >= bounds.lanes or 0 < bounds.of_owner <= owned or self._stopped:
            kind.left = kind.refused = True
            return None
        kind.owners[owner] = owned + 1
        lane = kind.lanes[name] = _Lane(name, left=kind.left)
        return lane

    def _close(self, kind: _Kind, lane: _Lane) -> None:
        del kind.lanes[lane.name]
        owner = owner_of(lane.name)
        kind.owners[owner] -= 1
        if not kind.owners[owner]:
            del kind.owners[owner]

    def _hand_over(self, kind: _Kind, lane: _Lane, fact: OutboxRow) -> None:
        name = (fact.shard, fact.key)
        if name in lane.held or name in lane.gone:
            return
        lane.held[name] = fact
        try:
            kind.receiver.take(fact)
        except Exception:
            log.exception("a fact could not be taken: %s; it is tried again after a restart", fact.kind)

    def _forgotten(self, kind: _Kind, lane: _Lane, name: FactName) -> None:
        lane.held.pop(name, None)
        if lane.reading:
            lane.gone.add(name)
        self._tend(kind, lane)

    def _tend(self, kind: _Kind, lane: _Lane) -> None:
        """Reads more of a lane that has room, closes one that is empty."""
        if lane.reading or self._stopped:
            return
        if lane.left:
            if len(lane.held) <= kind.bounds.facts // 2:
                self._fill(kind, lane)
        elif not lane.held:
            self._close(kind, lane)
            if kind.left and not kind.looking:
                kind.looking = True
                self._loop.call_later(READ_AGAIN_SECONDS, self._look, kind)

    # -- the journal --------------------------------------------------------------------------------------------------

    def _fill(self, kind: _Kind, lane: _Lane) -> None:
        """Reads the next facts of a lane, as many as there is room for."""
        lane.reading, lane.skipped = True, False
        limit = kind.bounds.facts - len(lane.held)

        def read(found: list[StoredFact] | None) -> None:
            for stored in found or ():
                lane.cursor = stored.number
                self._hand_over(kind, lane, stored.fact)
            lane.gone.clear()
            lane.reading = False
            if found is None:
                self._loop.call_later(READ_AGAIN_SECONDS, self._tend, kind, lane)
                return
            lane.left = lane.skipped or len(found) == limit
            self._tend(kind, lane)

        self._ask(read, self._journal.facts, kind.name, lane.name, lane.cursor, limit)

    def _look(self, kind: _Kind, after: str | None = None) -> None:
        """Opens the lanes that hold facts, as many as there is room for."""
        kind.looking = True
        if after is None:
            kind.refused = False

        def read(names: list[str] | None) -> None:
            if names is None:
                self._loop.call_later(READ_AGAIN_SECONDS, self._look, kind, after)
                return
            full = ""
            for name in names:
                if full and owner_of(name) == full:
                    continue
                lane = kind.lanes.get(name) or self._open(kind, name)
                if lane is not None:
                    self._tend(kind, lane)
                elif len(kind.lanes) >= kind.bounds.lanes:
                    break
                else:
                    full = owner_of(name)
            else:
                if len(names) == LANES_AT_ONCE:
                    # Past all lanes of an owner that has as many as it may, however many there are.
                    past_all = bool(full) and owner_of(names[-1]) == full
                    self._look(kind, f"{full} {LAST}" if past_all else names[-1])
                    return
            kind.looking = False
            kind.left = kind.refused
            if kind.left and len(kind.lanes) < kind.bounds.lanes and not self._stopped:
                kind.looking = True
                self._loop.call_later(READ_AGAIN_SECONDS, self._look, kind)

        self._ask(read, self._journal.fact_lanes, kind.name, after, LANES_AT_ONCE)

    def _ask(self, then: Callable[[Any], None], function: Callable[..., Any], *arguments: Any) -> None:
        """Reads the journal, and calls `then` with what it says, or None if it cannot be read now."""
        if self._stopped:
            return
        reading = self._loop.run_in_executor(self._reads, function, *arguments)

        def answer(done: asyncio.Future[Any]) -> None:
            if done.cancelled() or self._stopped:
                return
            error = done.exception()
            if error is None:
                then(done.result())
                return
            if not isinstance(error, StoreError):
                log.error("reading the outbox failed", exc_info=error)
            then(None)

        reading.add_done_callback(answer)
