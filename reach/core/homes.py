"""Where sessions live: the contexts of one shard (HAZARDS 2). A pool knows pins; what is known of a session is here.

Everything is bounded: sessions that are idle go when their time is over, and when there is too much, those that were
used longest ago go first. A session that was deleted is remembered for a while, so that tasks which were accepted
before and end later do not bring back what was to be forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

from reach.core.context import CONTEXT_BYTES, Context, Exchange, Facts
from reach.core.row_numbers import BLOCK_BITS, accepted_before
from reach.core.rows import ContextRow
from reach.core.session import IDLE_TTL_MS, SessionName

MAX_SESSIONS = 100_000
MAX_BYTES = 256 << 20
"""What all contexts of a node may take."""
SESSION_OVERHEAD = 2_048
"""What a session counts beside what was said, in bytes."""
RESTORED_MS = 60_000
"""How long a session lives at least after a restart, whatever the clock says."""
MAX_LEFT_MS = 30 * 86_400_000
"""How long at most: no session is kept longer without activity, so more is a clock that leapt."""


class Accepted(NamedTuple):
    """When a task was accepted."""

    row: int
    """After which others."""
    at_ms: int
    """By the monotonic clock; 0: long ago."""


class Room:
    """What the sessions of a node take, and may take; the homes of its shards share it."""

    __slots__ = ("_used", "bytes", "context_bytes", "evicted", "max_bytes", "max_sessions", "restored_row", "sessions",
                 "tenants", "ttl_ms")  # fmt: skip

    def __init__(
        self,
        max_sessions: int = MAX_SESSIONS,
        max_bytes: int = MAX_BYTES,
        context_bytes: int = CONTEXT_BYTES,
        ttl_ms: int = IDLE_TTL_MS,
    ) -> None:
        self.max_sessions = max_sessions
        self.max_bytes = max_bytes
        self.context_bytes = context_bytes
        self.ttl_ms = ttl_ms
        self.sessions = 0
        self.bytes = 0
        self.tenants: dict[str, list[int]] = {}
        """[sessions, bytes] of each tenant."""
        self._used: dict[str, OrderedDict[SessionName, Home]] = {}
        """The sessions of each tenant, the one that was used longest ago first, and where they are."""
        self.evicted = 0
        """Sessions that had to go before their time, for there were too many."""
        self.restored_row = 0
        """The last task that the journal knew when we started; rows of volatile tasks behind it are given again."""

    def count(self, tenant: str, sessions: int, size: int) -> None:
        """A tenant has so many sessions more, and so many bytes."""
        self.sessions += sessions
        self.bytes += size
        used = self.tenants.setdefault(tenant, [0, 0])
        used[0] += sessions
        used[1] += size
        if not used[0]:
            del self.tenants[tenant]

    def use(self, name: SessionName, home: Home) -> None:
        """A session is used now."""
        sessions = self._used.setdefault(name[0], OrderedDict())
        sessions[name] = home
        sessions.move_to_end(name)

    def leave(self, name: SessionName) -> None:
        """A session is gone."""
        sessions = self._used[name[0]]
        del sessions[name]
        if not sessions:
            del self._used[name[0]]

    def first_to_go(self, but: SessionName) -> tuple[SessionName, Home] | None:
        """The session that was used longest ago of the tenant that has most, but for the one that is used now."""
        for tenant in nlargest(2, self.tenants, key=self._share):
            found = next((one for one in self._used[tenant].items() if one[0] != but), None)
            if found is not None:
                return found
        return None

    def _share(self, tenant: str) -> float:
        sessions, size = self.tenants[tenant]
        return max(sessions / self.max_sessions, size / self.max_bytes)

    @property
    def is_short(self) -> bool:
        """There is too much."""
        return self.sessions > self.max_sessions or self.bytes > self.max_bytes


class Home:
    """The sessions of one shard."""

    __slots__ = ("_contexts", "_dirty", "asks_first", "busy", "room", "shard")

    def __init__(self, shard: int, room: Room) -> None:
        self.shard = shard
        self.room = room
        self._contexts: OrderedDict[SessionName, Context] = OrderedDict()
        """The one that was used longest ago comes first."""
        self._dirty: dict[SessionName, None] = {}
        """Sessions that are not kept as they are now."""
        self.busy: Callable[[SessionName], bool] = lambda _: False
        """Whether a session has open tasks: then its time is not over. Seldom asked: it looks through all tasks."""
        self.asks_first = False
        """Other nodes may have open tasks of a session, so that only `expire` ends it, once they were asked."""

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[Context]:
        """All of them, also those that nobody has looked at since the start (`wake`) and those that were deleted."""
        return iter(self._contexts.values())

    def wake(self, context: Context) -> Context:
        """A context with all that is known."""
        if context.packed is not None:
            before = context.size
            context.wake()
            context.deleted_rows = tuple(map(self._not_given_again, context.deleted_rows))
            self.room.count(context.tenant, 0, context.size - before)
        return context

    def _not_given_again(self, row: int) -> int:
        """A row of this node's block that only a volatile task had is another task's by now."""
        restored = self.room.restored_row
        return min(row, restored) if row >> BLOCK_BITS == restored >> BLOCK_BITS else row

    def _find(self, name: SessionName) -> Context | None:
        context = self._contexts.get(name)
        return context if context is None or context.packed is None else self.wake(context)

    def look(self, name: SessionName, now_ms: int) -> Context | None:
        """What is known of a session, if it is there."""
        context = self._find(name)
        return context if context is not None and context.is_there and not self._is_over(context, now_ms) else None

    def _is_over(self, context: Context, now_ms: int, accepted: Accepted | None = None) -> bool:
        """Whether the time of a session is over. One with an open task lives on, be it the one that is spoken of, which
        was accepted while it lived, or another one."""
        if context.expires_ms > now_ms or self.asks_first:
            return False
        if (accepted is None or accepted.at_ms >= context.expires_ms) and not self.busy(context.name):
            return True
        context.expires_ms = now_ms + context.ttl_ms
        return False

    def has(self, name: SessionName, task_id: str) -> bool:
        """Whether the turn of a task is part of its session."""
        context = self._find(name)
        return context is not None and context.has(task_id)

    def open(
        self, name: SessionName, now_ms: int, ttl_ms: int | None = None, accepted: Accepted | None = None
    ) -> Context:
        """The session, which is used now: it begins, or its time begins anew. One that was deleted begins anew only
        for a task that was accepted after that."""
        context = self._find(name)
        if context is not None and self._is_over(context, now_ms, accepted):
            self._drop(context)
            context = None
        if context is None:
            context = self._contexts[name] = Context(*name)
            self._count_new(context)
        else:
            self._contexts.move_to_end(name)
        if accepted is None or not accepted_before(context.deleted_rows, accepted.row):
            context.is_there = True
        context.ttl_ms = ttl_ms or context.ttl_ms or self.room.ttl_ms
        context.used_ms, context.expires_ms = now_ms, now_ms + context.ttl_ms
        self.room.use(name, self)
        self._make_room(context)
        return context

    def add(self, name: SessionName, turn: Exchange, facts: Facts, accepted: Accepted, now_ms: int,
            ttl_ms: int | None = None) -> Context | None:  # fmt: skip
        """A task has ended: its turn, once. None if it is there already, or the session was deleted meanwhile.

        Args:
            name: The session.
            turn: What was said.
            facts: Names and values that came with it.
            accepted: When the task was accepted.
            now_ms: Now.
            ttl_ms: How long the session is kept, where its route says so.
        """
        known = self._find(name)
        if known is not None and (known.has(turn.task_id) or accepted_before(known.deleted_rows, accepted.row)):
            return None
        context = self.open(name, now_ms, ttl_ms, accepted)
        before = context.size
        context.add(turn, facts, self.room.context_bytes)
        self.room.count(context.tenant, 0, context.size - before)
        self._dirty[name] = None
        self._make_room(context)
        return context

    def summarised(self, context: Context, turns: list[Exchange], text: str) -> None:
        """These turns of a session, its oldest ones, are part of its summary now. A summary that comes late, when they
        have become part of another one, is not taken."""
        count = len(turns)
        older = context.older
        if self._contexts.get(context.name) is not context or context.summarising != count:
            return
        if len(older) < count or older[0].task_id != turns[0].task_id:
            return
        before = context.size
        context.summarised(count, text)
        self.room.count(context.tenant, 0, context.size - before)
        self._dirty[context.name] = None

    def delete(self, name: SessionName, now_ms: int, lasts: Sequence[int]) -> None:
        """Forgets what is known of a session, and what its tasks still bring that were accepted before, also if nothing
        is known of it yet. `lasts`: the last row that each node has numbered."""
        known = self._find(name)
        if known is not None:
            self._drop(known)
        grave = self.open(name, now_ms, known.ttl_ms if known is not None else None)
        grave.is_there = False
        grave.revision = known.revision + 1 if known is not None else 1  # revisions only grow
        grave.deleted_rows = tuple(lasts)
        self._dirty[name] = None

    def over(self, now_ms: int) -> list[SessionName]:
        """Sessions whose time is over, but for those with open tasks."""
        return [one.name for one in self._contexts.values() if one.expires_ms <= now_ms]

    def expire(self, now_ms: int, busy: Callable[[], Collection[SessionName]],
               among: Collection[SessionName] | None = None) -> int:  # fmt: skip
        """Lets go of sessions whose time is over, but of those with open tasks (`busy`); returns how many. `among`:
        only of these."""
        over = [one for one in self._contexts.values() if one.expires_ms <= now_ms]
        over = over if among is None else [one for one in over if one.name in among]
        if over:
            kept = busy()
            for one in over:
                if one.name in kept:
                    self._contexts.move_to_end(one.name)
                    one.expires_ms = now_ms + one.ttl_ms
                else:
                    self._drop(one)
        return len(over)

    def _make_room(self, but: Context) -> None:
        """There may be too much: then those go that were used longest ago, of tenants that have most, wherever they
        are; but not the one that is used now."""
        room = self.room
        while room.is_short and (found := room.first_to_go(but.name)) is not None:
            name, home = found
            home.evict(name)
            room.evicted += 1

    def evict(self, name: SessionName) -> None:
        """A session has to go before its time."""
        self._drop(self._contexts[name])

    def _count_new(self, context: Context) -> None:
        self.room.count(context.tenant, 1, context.size + SESSION_OVERHEAD)

    def _drop(self, context: Context) -> None:
        del self._contexts[context.name]
        self.room.leave(context.name)
        self.room.count(context.tenant, -1, -context.size - SESSION_OVERHEAD)
        self._dirty[context.name] = None

    def clear(self) -> None:
        """The shard is another node's: nothing of it is known here, and nothing is to be written."""
        for context in list(self._contexts.values()):
            self._drop(context)
        self._dirty.clear()

    # -- keeping ------------------------------------------------------------------------------------------------------

    def rows(self, now_ms: int, wall_ms: int) -> list[ContextRow]:
        """What is to be written of the sessions that have changed since the last time."""
        rows = []
        for name in self._dirty:
            context = self._contexts.get(name)
            if context is None:
                rows.append(ContextRow(self.shard, *name, 0, 0, None))
            else:
                expires = wall_ms + context.expires_ms - now_ms
                rows.append(ContextRow(self.shard, *name, context.revision, expires, context.state(), context.size))
        self._dirty.clear()
        return rows

    @property
    def is_dirty(self) -> bool:
        """Whether something is to be written."""
        return bool(self._dirty)

    def restore(self, row: ContextRow, now_ms: int, wall_ms: int) -> None:
        """A session as it was kept, for what is left of its time."""
        context = Context(row.tenant, row.session)
        context.packed, context.size, context.revision = row.state, row.size, row.revision
        context.ttl_ms = self.room.ttl_ms
        left = min(max(row.expires_wall_ms - wall_ms, RESTORED_MS), MAX_LEFT_MS)
        context.expires_ms = now_ms + left
        context.used_ms = min(now_ms, context.expires_ms - context.ttl_ms)
        self._contexts[context.name] = context
        self.room.use(context.name, self)
        self._count_new(context)
