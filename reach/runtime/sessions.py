"""The sessions of a node: contexts are added to, given with offers, kept, forgotten (SES-2, SES-3).

A turn comes out of the outbox: the fact that a task of a session ended is committed with its outcome, and is applied to
the session's home before anybody hears of that outcome, so a caller that goes on finds its turn in the context. What
changed is written a moment later, together with the end of the fact: nobody waits for that commit, and a crash in
between finds the fact again. Here are the homes of this node; how turns come to those of others: `homeward.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from reach.core.context import MOST_OLDER, Context, Exchange, Facts
from reach.core.effects import Then, Turn
from reach.core.homes import Accepted, Home, Room
from reach.core.model import FIRST_TERMINAL, Task
from reach.core.placement import SHARDS, shard_of_session
from reach.core.rows import ContextRow, OutboxDone, OutboxRow
from reach.core.session import SessionName
from reach.core.summary import extract
from reach.errors import ReachError
from reach.runtime.outbox import FactName
from reach.runtime.settings import Settings
from reach.store.base import StoredTask

if TYPE_CHECKING:
    from reach.runtime.homeward import Brought
    from reach.runtime.host import Host

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 0.1
"""How long what changed may wait for its commit. Larger: fewer rows where sessions are busy, more to apply again after
a crash."""
LONGEST_FLUSH_SECONDS: Final = 2.0
FLUSH_RATE: Final = 8 << 20
"""Bytes of contexts that are written in a second, more or less: a context is written whole, however little was added,
so busy sessions are written less often the larger they are."""
SUMMARIES: Final = 2
"""Summaries that are made at the same time, where a summariser is asked."""
EXPIRED_AT_ONCE: Final = 1_000
"""Sessions that other nodes are asked for together."""
EXPIRE_SECONDS: Final = 0.5
"""How often the sessions of one shard are looked at, one shard after the other."""


Ended = tuple[OutboxRow, StoredTask]
"""The fact that a task of a session has ended, and the task."""


class Waiting(NamedTuple):
    """Who wants to hear that a turn is kept."""

    home: int
    """The shard of its session."""
    told: Callable[[bool], None]


class Sessions:
    """See the module.

    Args:
        host: Whose sessions they are.
        settings: What they may take, and what makes them short.
    """

    def __init__(self, host: Host, settings: Settings) -> None:
        self.room = room = Room(
            settings.session_limit, settings.session_bytes, settings.context_bytes, settings.session_ttl_ms
        )
        summariser = settings.summariser
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._summariser = summariser
        self._threads = ThreadPoolExecutor(SUMMARIES, "summaries") if summariser is not None else None
        self._homes = [Home(number, room) for number in range(SHARDS)]
        for home in self._homes:
            home.busy = self._is_busy
        self._done: dict[FactName, OutboxDone] = {}
        """Facts whose turns are part of their sessions; by (shard, key)."""
        self._keeping: dict[FactName, OutboxDone] = {}
        """The same, on their way to the journal."""
        self._waiting: dict[FactName, Waiting] = {}
        """Who wants to hear when the next commit has kept a turn that other nodes brought."""
        self._leaving: list[dict[FactName, Waiting]] = []
        """The same for the commits that are open."""
        self.ask_busy: Callable[[Sequence[SessionName]], Awaitable[set[SessionName]]] | None = None
        """Which of these have open tasks at other nodes. None on a node that is alone."""
        self._asking: asyncio.Task[None] | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._expiring: asyncio.TimerHandle | None = None
        self._next_home = 0
        self._flushed_bytes = 0
        """What was written the last time."""
        self._summaries: set[asyncio.Future[str]] = set()

    def share(self, ask_busy: Callable[[Sequence[SessionName]], Awaitable[set[SessionName]]]) -> None:
        """Other nodes have tasks of sessions that live here, too."""
        self.ask_busy = ask_busy
        for home in self._homes:
            home.asks_first = True

    def home(self, name: SessionName) -> Home:
        """Where a session is."""
        return self._homes[shard_of_session(name)]

    def homes(self) -> list[Home]:
        """All of this node."""
        return self._homes

    # -- life ---------------------------------------------------------------------------------------------------------

    def restore(self, contexts: Sequence[ContextRow], turns: Sequence[Ended]) -> None:
        """Contexts as they were kept, and turns that they lack, before they are served. What that changes is written
        once they are this node's."""
        clock = self._host.clock
        self.room.restored_row = self._host.last_row
        for row in contexts:
            self.home((row.tenant, row.session)).restore(row, clock.now_ms(), clock.wall_ms())
        for fact, stored in turns:
            self.apply(self._host.past.task_of(stored))
            self.keep(
                OutboxDone(fact.shard, fact.kind, fact.lane, fact.key, shard_of_session((fact.tenant, fact.lane)))
            )

    def came(self) -> None:
        """What was restored is this node's from now on."""
        if self._done or any(home.is_dirty for home in self._homes):
            self._flush_soon()

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another node's: what is known of their sessions is there."""
        for number in shards:
            self._homes[number].clear()
        self._done = {name: done for name, done in self._done.items() if done.fence not in shards}
        self._keeping = {name: done for name, done in self._keeping.items() if done.fence not in shards}
        for waiting in (self._waiting, *self._leaving):
            for name in [name for name, one in waiting.items() if one.home in shards]:
                waiting.pop(name).told(False)

    def start(self) -> None:
        """Looks for sessions whose time is over, from now on."""
        self._expiring = self._loop.call_later(EXPIRE_SECONDS, self._expire)

    def stop(self) -> None:
        """Writes what has changed; nothing more happens."""
        for timer in (self._flushing, self._expiring):
            if timer is not None:
                timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for summary in list(self._summaries):
            summary.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self.flush()

    def _expire(self) -> None:
        self._expiring = self._loop.call_later(EXPIRE_SECONDS, self._expire)
        home = self._next()
        if self.ask_busy is None:
            if home.expire(self._host.clock.now_ms(), self.busy):
                self._flush_soon()
        elif (names := home.over(self._host.clock.now_ms())) and not self._asking:
            self._asking = self._loop.create_task(self._expire_unless_busy(home, names[:EXPIRED_AT_ONCE]))

    def _next(self) -> Home:
        """The home that is looked at next: one with sessions, if there is one."""
        order = (*range(self._next_home, SHARDS), *range(self._next_home))
        number = next((one for one in order if len(self._homes[one])), self._next_home)
        self._next_home = (number + 1) % SHARDS
        return self._homes[number]

    async def _expire_unless_busy(self, home: Home, names: list[SessionName]) -> None:
        """Their tasks may be open at other nodes; while one of these does not answer, none of them goes."""
        assert self.ask_busy is not None
        try:
            busy = await self.ask_busy(names)
            if home.expire(self._host.clock.now_ms(), lambda: self.busy() | busy, frozenset(names)):
                self._flush_soon()
        except ReachError as error:
            log.info("sessions are kept beyond their time: %s", error)
        finally:
            self._asking = None

    def _is_busy(self, name: SessionName) -> bool:
        """Whether a session has tasks that have not ended."""
        tenant, session = name
        tasks = self._host.tasks.values()
        return any(task.session == session and task.tenant == tenant and task.state < FIRST_TERMINAL for task in tasks)

    def busy(self) -> set[SessionName]:
        """Sessions with tasks that have not ended."""
        tasks = self._host.tasks.values()
        return {(task.tenant, task.session) for task in tasks if task.session and task.state < FIRST_TERMINAL}

    # -- what happens -------------------------------------------------------------------------------------------------

    def offered(self, task: Task) -> bytes:
        """An attempt of a session's task is offered: what is known of the session, for the agent. Whatever goes wrong
        here, the task goes on."""
        name = (task.tenant, task.session)
        try:
            context = self.opened(name, Accepted(task.row, task.accepted_ms), task.session_ttl_ms)
        except Exception:
            log.exception("a task is offered without the context of its session; please report this")
            return b""
        return self.field_of(task, context)

    def opened(self, name: SessionName, accepted: Accepted, ttl_ms: int | None) -> bytes:
        """What is known of a session, which is used now for a task that was accepted then."""
        context = self.home(name).open(name, self._host.clock.now_ms(), ttl_ms, accepted)
        return self._host.codec.context_bytes(context)

    def field_of(self, task: Task, context: bytes | None) -> bytes:
        """The same for an offer, with what the instance before knew. None: nobody can tell."""
        try:
            snapshot, number = task.pool.handoffs.given(task)
            return self._host.codec.offered_context(context or b"", snapshot, number)
        except Exception:
            log.exception("a task is offered without the context of its session; please report this")
            return b""

    def apply(self, task: Task) -> None:
        """The turn of a task becomes part of its session, once. Whatever goes wrong here, its callers are told."""
        name = (task.tenant, task.session)
        try:
            turn, facts = self._host.codec.exchange_of(task)
        except Exception:
            log.exception("the turn of a task was lost; please report this")
            return
        self._add(name, turn, facts, Accepted(task.row, task.accepted_ms), task.session_ttl_ms)

    def take_in(self, brought: Brought) -> None:
        """The same for one that was brought here."""
        if brought.fact is not None and self.keeps((brought.fact.shard, brought.fact.key)):
            return
        turn, facts = self._host.codec.turn_of(brought.content)
        self._add(brought.name, turn, facts, brought.accepted, brought.ttl_ms)

    def _add(self, name: SessionName, turn: Exchange, facts: Facts, accepted: Accepted, ttl_ms: int | None) -> None:
        home = self.home(name)
        try:
            context = home.add(name, turn, facts, accepted, self._host.clock.now_ms(), ttl_ms)
            if context is not None:
                self._summarise(home, context)
        except Exception:
            log.exception("the turn of a task was lost; please report this")
        if home.is_dirty:
            self._flush_soon()

    def _is_ours(self, shard: int) -> bool:
        return self._host.owners.node_of(shard) is None

    def keep(self, done: OutboxDone, told: Callable[[bool], None] | None = None) -> None:
        """The turn of a fact is part of its session: it is forgotten with the commit that keeps that. `told` hears that
        it is so (True), or that the session has another home (False)."""
        name = (done.shard, done.key)
        self._done[name] = done
        if told is not None:
            self._waiting[name] = Waiting(done.fence, told)
        self._flush_soon()

    def keeps(self, fact: FactName) -> bool:
        """Whether the turn of a fact is part of its session, and that is about to be kept: a context remembers only the
        last turns, and facts may come late (`outbox.py`)."""
        return fact in self._done or fact in self._keeping

    def delete(self, name: SessionName, lasts: Sequence[int]) -> None:
        """Forgets what is known of a session, and what tasks up to these rows still bring (`accepted_before`)."""
        self.home(name).delete(name, self._host.clock.now_ms(), lasts)
        self._flush_soon()

    # -- summaries ----------------------------------------------------------------------------------------------------

    def _summarise(self, home: Home, context: Context) -> None:
        if len(context.older) >= MOST_OLDER:  # whoever is asked for the summary does not answer
            context.summarising = 0
        turns = context.due()
        if not turns:
            return
        if self._summariser is None or len(turns) >= MOST_OLDER:
            home.summarised(context, turns, extract(context.summary, turns))
            return
        summary = context.summary
        asking = self._loop.run_in_executor(self._threads, self._summariser.summarise, summary, turns)
        self._summaries.add(asking)

        def answered(done: asyncio.Future[str]) -> None:
            self._summaries.discard(done)
            if done.cancelled():
                return
            error = done.exception()
            if error is not None:
                log.warning("a session is summarised by extracts, for the summariser failed: %s", error)
            text = done.result() if error is None else extract(summary, turns)
            home.summarised(context, turns, text)
            self._flush_soon()

        asking.add_done_callback(answered)

    # -- keeping ------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if self._flushing is None:
            wait = min(LONGEST_FLUSH_SECONDS, max(FLUSH_SECONDS, self._flushed_bytes / FLUSH_RATE))
            self._flushing = self._loop.call_later(wait, self.flush)

    def flush(self) -> None:
        """Writes what has changed, with the ends of the facts that changed it. What is on its way to this node is
        written when it has come (`came`)."""
        self._flushing = None
        clock = self._host.clock
        turn, now_ms, wall_ms = Turn(0, 0), clock.now_ms(), clock.wall_ms()
        for home in self._homes:
            if home.is_dirty and self._is_ours(home.shard):
                turn.writes.contexts += home.rows(now_ms, wall_ms)
        self._flushed_bytes = sum(context.size for context in turn.writes.contexts)
        ours = {name: done for name, done in self._done.items() if self._is_ours(done.fence)}
        turn.writes.outbox_done = list(ours.values())
        self._done = {name: done for name, done in self._done.items() if name not in ours}
        if ours:
            self._keeping |= ours
            turn.sends.append(Then(lambda: self._kept(ours)))
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._leaving.append(waiting)
            turn.sends.append(Then(lambda: self._tell(waiting)))
        if turn.writes or turn.sends:
            self._host.committer.submit(turn)

    def _kept(self, facts: dict[FactName, OutboxDone]) -> None:
        for name, done in facts.items():
            if self._keeping.get(name) is done:
                del self._keeping[name]

    def _tell(self, waiting: dict[FactName, Waiting]) -> None:
        self._leaving.remove(waiting)
        for one in waiting.values():
            one.told(True)
