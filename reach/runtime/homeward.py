"""Turns on their way to the homes of their sessions, and contexts on their way to the agents (SES-3, CLU-1).

A task runs where its pool is; what is known of its session is where the shard of the session is. The fact that the
task ended is committed with its outcome. Its turn then goes home before anybody hears of that outcome, so a caller that
goes on finds it in the context. The home keeps it together with the end of the fact, in one commit under its own shard:
so it counts once whatever dies, and whoever owns the home next finds in the journal what is not kept. A turn whose home
does not answer waits, and those of its session behind it; its caller is told after a while, for the fact is safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from reach.core.effects import then
from reach.core.homes import Accepted
from reach.core.model import FIRST_TERMINAL, Fault, Task
from reach.core.placement import shard_of_session
from reach.core.rows import OutboxDone, OutboxRow
from reach.core.session import TURN, SessionName
from reach.runtime.outbox import Bounds, FactName
from reach.runtime.ownership import Peer
from reach.store.base import StoredTask

if TYPE_CHECKING:
    from reach.runtime.host import Host

log = logging.getLogger(__name__)

BOUNDS: Final = Bounds(facts=1_000, lanes=100_000)
"""Of the facts in memory. Each session is a lane, so turns are in the order of their commits."""
READ_AGAIN_SECONDS: Final = 1.0
MOST_BYTES: Final = 64 << 20
"""What the turns take that are on their way; others wait in the journal."""
TELL_SECONDS: Final = 1.0
"""How long an end is kept from its callers for its home's sake."""
CONTEXT_SECONDS: Final = 8.0
"""How long an offer waits for the context of its session: longer than it takes to move the shards of a node that died
or stands still (CLU-3). Then the task goes on without."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5


class Told(IntEnum):
    """What a home says of a turn that was brought to it."""

    HEARD = 1
    """It is part of the context in memory."""
    KEPT = 2
    """It is kept, and its fact forgotten."""
    LOST = 3
    """The home is not there, or nobody knows: it is to be brought again."""

    @classmethod
    def _missing_(cls, value: object) -> Told:
        """A later version may say more (CLU-6)."""
        return cls.LOST


class Brought(NamedTuple):
    """The turn of a task, for the home of its session."""

    name: SessionName
    task_id: str
    accepted: Accepted
    ttl_ms: int | None
    """How long the session is kept, where its route says so."""
    content: bytes
    """See `Codec.turn_bytes`."""
    fact: OutboxDone | None
    """What the home is to write with it; None for a volatile task, which has no fact."""


class FarHomes(Protocol):
    """The homes on other nodes. Methods never suspend and never raise; `told` is called on the loop, not before they
    return."""

    def context(self, peer: Peer, name: SessionName, accepted: Accepted, ttl_ms: int | None,
                told: Callable[[bytes | None], None]) -> None:  # fmt: skip
        """Asks what is known of a session, which is used now; None: no answer."""

    def turn(self, peer: Peer, turn: Brought, told: Callable[[Told], None]) -> None:
        """Brings a turn. `told` hears HEARD, then KEPT if it has a fact; or LOST, at any time, and nothing more."""


class _Item:
    """A turn that waits or is on its way."""

    __slots__ = ("brought", "fact", "on_told")

    def __init__(self, fact: OutboxRow | None, brought: Brought | None, on_told: Callable[[], None] | None) -> None:
        self.fact = fact
        """None for a volatile task."""
        self.brought = brought
        """None if it has to be read first."""
        self.on_told = on_told

    def tell(self) -> None:
        """Lets go of whoever waits for it."""
        on_told, self.on_told = self.on_told, None
        if on_told is not None:
            on_told()

    @property
    def size(self) -> int:
        """What it takes, in bytes."""
        return len(self.brought.content) if self.brought is not None else 0


class _Road:
    """The turns of one session, in order; only the first one is on its way."""

    __slots__ = ("busy", "items", "pause_s")

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.busy = False
        self.pause_s = FIRST_PAUSE_S


class Homeward:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sessions = host.sessions
        self._loop = asyncio.get_running_loop()
        self.far: FarHomes | None = None
        """None on a node that is alone."""
        self._roads: dict[SessionName, _Road] = {}
        self._bytes = 0
        self._underway: set[FactName] = set()
        """Facts that are on a road, or that a home has heard of and not kept."""
        self._unkept: dict[FactName, OutboxRow] = {}
        """The latter."""

    def _peer(self, name: SessionName) -> Peer | None:
        """Where a session is; None: here."""
        return None if self.far is None else self._host.owners.node_of(shard_of_session(name))

    # -- contexts -----------------------------------------------------------------------------------------------------

    def given(self, task: Task, then_give: Callable[[bytes], None]) -> None:
        """What is known of the session of a task, for its agent, at once or as soon as its home has answered. Whatever
        goes wrong, the task goes on."""
        if self._peer((task.tenant, task.session)) is None:
            then_give(self._sessions.offered(task))
        else:
            self._ask(task, task.attempt, self._loop.time() + CONTEXT_SECONDS, then_give)

    def _ask(self, task: Task, attempt: int, until: float, then_give: Callable[[bytes], None]) -> None:
        name = (task.tenant, task.session)
        peer = self._peer(name)
        if task.attempt != attempt or task.state >= FIRST_TERMINAL or self._host.tasks.get(task.key) is not task:
            return  # nobody needs it any more
        if peer is None or self.far is None:
            self._host.committer.submit(then(lambda: then_give(self._sessions.offered(task))))
            return

        def told(context: bytes | None) -> None:
            if context is None and self._loop.time() < until:
                self._loop.call_later(FIRST_PAUSE_S, self._ask, task, attempt, until, then_give)
                return
            if context is None:
                log.warning("a task is offered without the context of its session: its home does not answer")
            # Like all that is sent: not while this node does not know what it owns.
            self._host.committer.submit(then(lambda: then_give(self._sessions.field_of(task, context))))

        self.far.context(peer, name, Accepted(task.row, task.accepted_ms), task.session_ttl_ms, told)

    # -- turns --------------------------------------------------------------------------------------------------------

    def ended(self, task: Task, on_told: Callable[[Task], None]) -> bool:
        """A task of a session has ended. True: its turn is there, and whoever hears of the end may go on at once; else
        `on_told` is called as soon as that is so."""
        name, fact = (task.tenant, task.session), None
        if not task.volatile:
            shard, key = task.pool.shard, str(task.row)
            fact = OutboxRow(shard, TURN, task.session, key, task.row, task.tenant, task.task_id, 0, b"")
        if self._peer(name) is None:
            self._sessions.apply(task)
            if fact is not None:
                self._sessions.keep(self._done_of(name, fact))
            return True
        brought = self._brought(task, fact)
        if brought is None or self._bytes + len(brought.content) > MOST_BYTES:
            return True  # the outbox hands it over
        item = _Item(fact, brought, lambda: self._host.committer.submit(then(lambda: on_told(task))))
        self._loop.call_later(TELL_SECONDS, item.tell)
        self._add(name, item)
        return False

    def take(self, fact: OutboxRow) -> None:
        """The fact that a task of a session has ended (`outbox.Receiver`). Mostly its turn is there already."""
        name = (fact.tenant, fact.lane)
        if (fact.shard, fact.key) in self._underway:
            return
        if name not in self._roads and self._is_there(name, fact):
            self._sessions.keep(self._done_of(name, fact))
        else:
            self._add(name, _Item(fact, None, None))

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another node's: it brings the turns of their tasks. Those of sessions that lived there go to
        their new home."""
        for name, road in list(self._roads.items()):
            for item in [item for item in road.items if item.fact is not None and item.fact.shard in shards]:
                if item is road.items[0]:
                    road.busy = False
                road.items.remove(item)
                self._bytes -= item.size
                item.tell()
            self._go_on(name)
        for gone in [one for one in self._underway if one[0] in shards]:
            self._underway.discard(gone)
            self._unkept.pop(gone, None)
        for fact in self._host.outbox.facts_held(TURN):
            if shard_of_session((fact.tenant, fact.lane)) in shards:
                self.take(fact)

    def _is_there(self, name: SessionName, fact: OutboxRow) -> bool:
        if self._peer(name) is not None:
            return False
        return self._sessions.home(name).has(name, fact.task_id) or self._sessions.keeps((fact.shard, fact.key))

    def _done_of(self, name: SessionName, fact: OutboxRow) -> OutboxDone:
        return OutboxDone(fact.shard, TURN, fact.lane, fact.key, shard_of_session(name))

    def _brought(self, task: Task, fact: OutboxRow | None) -> Brought | None:
        name = (task.tenant, task.session)
        try:
            content = self._host.codec.turn_bytes(task)
        except Exception:
            log.exception("the turn of a task was lost; please report this")
            return None
        done = self._done_of(name, fact) if fact is not None else None
        return Brought(name, task.task_id, Accepted(task.row, task.accepted_ms), task.session_ttl_ms, content, done)

    # -- the road -----------------------------------------------------------------------------------------------------

    def _add(self, name: SessionName, item: _Item, *, first: bool = False) -> None:
        road = self._roads.setdefault(name, _Road())
        if item.fact is not None:
            self._underway.add((item.fact.shard, item.fact.key))
        self._bytes += item.size
        if first:
            road.items.insert(1 if road.busy else 0, item)
        else:
            road.items.append(item)
        self._go_on(name)

    def _go_on(self, name: SessionName) -> None:
        """Sets the first turn of a session on its way, if none is."""
        road = self._roads.get(name)
        if road is None or road.busy:
            return
        if not road.items:
            del self._roads[name]
            return
        item, road.busy = road.items[0], True
        fact = item.fact
        if item.brought is not None:
            self._bring(name, item, item.brought)
        elif fact is not None and self._is_there(name, fact):
            self._sessions.keep(self._done_of(name, fact))
            self._over(name, item)
        elif fact is not None:
            self._host.past.look_up(fact.tenant, fact.task_id, partial(self._was_read, name, item, fact))

    def _was_read(self, name: SessionName, item: _Item, fact: OutboxRow, found: StoredTask | Fault | None) -> None:
        road = self._roads.get(name)
        if road is None or not road.items or road.items[0] is not item:
            return  # its shard has left
        if isinstance(found, Fault):  # the store is in trouble: again, when it may be well
            self._again(name, item, READ_AGAIN_SECONDS)
            return
        brought = None
        if found is not None and found.outcome is not None and found.task.row == fact.row:
            brought = self._brought(self._host.past.task_of(found), fact)
        if brought is None:  # its task was purged: there is nothing to tell any more
            self._host.outbox.done(fact)
            self._over(name, item)
            return
        item.brought = brought
        self._bytes += item.size
        self._bring(name, item, brought)

    def _bring(self, name: SessionName, item: _Item, brought: Brought) -> None:
        peer = self._peer(name)
        if peer is not None and self.far is not None:
            self.far.turn(peer, brought, partial(self._heard, name, item))
            return
        self._sessions.take_in(brought)
        if brought.fact is not None:
            self._sessions.keep(brought.fact)
        self._over(name, item)

    def _heard(self, name: SessionName, item: _Item, what: Told) -> None:
        road, fact = self._roads.get(name), item.fact
        is_first = road is not None and bool(road.items) and road.items[0] is item
        key = (fact.shard, fact.key) if fact is not None else None
        if what is Told.HEARD and is_first:
            self._over(name, item, unkept=True)
        elif what is Told.LOST and road is not None and is_first:
            road.pause_s = min(LONGEST_PAUSE_S, 2 * road.pause_s)
            self._again(name, item, road.pause_s)
        elif fact is None or key not in self._unkept:
            return  # its shard has left
        else:
            del self._unkept[key]
            self._underway.discard(key)
            if what is Told.LOST:
                self._add(name, _Item(fact, None, None), first=True)
            else:
                self._host.outbox.forgotten(fact)

    def _again(self, name: SessionName, item: _Item, seconds: float) -> None:
        road = self._roads[name]

        def again() -> None:
            if road.items and road.items[0] is item:
                road.busy = False
                self._go_on(name)

        self._loop.call_later(seconds, again)

    def _over(self, name: SessionName, item: _Item, *, unkept: bool = False) -> None:
        """The first turn of a session is where it belongs, if not kept there."""
        road = self._roads[name]
        road.items.popleft()
        road.busy, road.pause_s = False, FIRST_PAUSE_S
        self._bytes -= item.size
        item.brought = None
        if item.fact is not None:
            key = (item.fact.shard, item.fact.key)
            if unkept:
                self._unkept[key] = item.fact
            else:
                self._underway.discard(key)
        item.tell()
        self._loop.call_soon(self._go_on, name)  # there may be thousands behind it
