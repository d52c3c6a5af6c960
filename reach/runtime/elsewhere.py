"""What this node is asked for and another one has to do (CLU-1): whose it is, and how that is found out.

The one door decides; the faces bring it there. A task that is in memory is here. For all others the row in the journal
says the shard; a task without a row is looked for by asking every node once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from reach.core.dialogue import Input
from reach.core.effects import AskJournal
from reach.core.model import Fault, PoolKey
from reach.core.placement import shard_of
from reach.core.spread import Placing
from reach.core.stream import KEEP_MS, Interest, Reader
from reach.errors import ErrorClass, Reason, Unavailable
from reach.runtime.ownership import NOBODY, Owners, Peer

if TYPE_CHECKING:
    from reach.runtime.host import Host
    from reach.store.base import StoredTask

log = logging.getLogger(__name__)

EVENTS_HELD_MS: Final = 60_000
"""How long after its end the events of a task may be in the memory of its owner."""
SEARCHES: Final = 1_000
"""Tasks that are looked for on other nodes at the same time."""

Ask = Callable[[Peer, str, str], Awaitable[bool]]
"""Asks a node whether it has a task of a tenant in memory. Raises OSError if it does not answer."""
Answer = Callable[["Elsewhere | Fault | None"], None]
"""Hears where a task is: elsewhere, or here if anywhere (None), or why nobody can tell."""


class Elsewhere(Exception):
    """It is another node's to do. Not an error: whoever brought it brings it there."""

    def __init__(self, peer: Peer, pool: PoolKey | None = None, placing: Placing | None = None) -> None:
        super().__init__(peer.node_id)
        self.peer = peer
        """Who owns it, as far as we know."""
        self.pool = pool
        """The pool that it belongs to; None if only the owner knows."""
        self.placing = placing
        """Of a task that could go to several pools: how far it has come. Without a pool: the one that was chosen is
        full, and the next one is to be."""


def place_of(owners: Owners, pool: PoolKey) -> Elsewhere | None:
    """Where a pool is; None: here."""
    peer = owners.node_of(shard_of(pool))
    return Elsewhere(peer, pool) if peer is not None else None


class Whereabouts:
    """See the module. A node that is alone has none."""

    def __init__(self, host: Host, owners: Owners, ask: Ask) -> None:
        self._host = host
        self.owners = owners
        self._ask = ask
        self._searches: set[asyncio.Task[None]] = set()

    def check(self, pool: PoolKey) -> None:
        """Raises Elsewhere for a pool that another node owns."""
        peer = self.owners.node_of(shard_of(pool))
        if peer is not None:
            raise Elsewhere(peer, pool)

    def is_here(self, pool: PoolKey) -> bool:
        """Whether this node owns a pool."""
        return self.owners.node_of(shard_of(pool)) is None

    def find(
        self,
        tenant: str,
        task_id: str,
        then: Answer,
        place: Callable[[StoredTask], Elsewhere | None] | None = None,
    ) -> None:
        """Where a task is that is not in the memory of this node. What has ended, any node can tell of.

        Args:
            tenant: Of the task.
            task_id: Which.
            then: Hears it.
            place: Says where a stored task is; None: where it goes on.
        """
        place = place or self.owner_of

        def told(found: StoredTask | Fault | None) -> None:
            if found is None:
                self._search(tenant, task_id, then)
            elif isinstance(found, Fault):
                then(found)
            else:
                then(place(found))

        self._host.past.look_up(tenant, task_id, told)

    def owner_of(self, stored: StoredTask) -> Elsewhere | None:
        """Where a stored task goes on; None: here, or nowhere because it has ended."""
        row = stored.task
        if stored.outcome is not None:
            return None
        peer = self.owners.node_of(row.shard)
        return Elsewhere(peer, PoolKey(row.pool_tenant, row.agent_type)) if peer is not None else None

    def ask(self, tenant: str, task_id: str, reply: Any, given: Input | None = None) -> None:
        """A cancel, or the answer to a question, of a task that is not in memory: `reply` hears where it is, or what
        the journal says of it."""

        def told(where: Elsewhere | Fault | None) -> None:
            if isinstance(where, Elsewhere):
                if reply is not None:  # else a caller that left cancels what it gave us, which is here
                    reply.elsewhere(where)
            elif isinstance(where, Fault):
                if reply is not None:
                    reply.refused(where)
            else:
                self._host.past.asked(AskJournal(None, tenant, task_id, 0, reply, given))

        self.find(tenant, task_id, told)

    def read(self, reader: Reader, tenant: str, task_id: str) -> None:
        """Somebody wants to read a task that is not in memory."""

        def told(where: Elsewhere | Fault | None) -> None:
            if isinstance(where, Elsewhere):
                reader.sink.elsewhere(reader, task_id, b"", where)
            elif isinstance(where, Fault):
                reader.sink.refused(reader, where)
            else:
                self._host.past.answer(reader, tenant, task_id, None)

        self.find(tenant, task_id, told, self._holder_of if reader.interest == Interest.EVENTS else None)

    def _holder_of(self, stored: StoredTask) -> Elsewhere | None:
        """Where the events of a task are: also of one that has just ended, of which the journal has only the last. If
        that is changing hands, its heir will be told of them."""
        row, outcome = stored.task, stored.outcome
        peer = self.owners.node_of(row.shard)
        if peer is None or (peer == NOBODY and outcome is None):
            return None
        held_ms = KEEP_MS if peer == NOBODY else EVENTS_HELD_MS
        if outcome is not None and outcome.ended_wall_ms < self._host.clock.wall_ms() - held_ms:
            return None
        return Elsewhere(peer, PoolKey(row.pool_tenant, row.agent_type))

    async def check_task(self, tenant: str, task_id: str, stored: StoredTask | None) -> None:
        """Raises Elsewhere for a task that is not in memory and goes on elsewhere, given its row."""
        if stored is not None:
            where = self.owner_of(stored)
        else:
            try:
                where = await self.locate(tenant, task_id)
            except OSError as error:
                message = f"nobody can tell now where task {task_id!r} is: {error}"
                raise Unavailable(message, Reason.OWNER_UNAVAILABLE, retry_after_ms=500) from None
        if where is not None:
            raise where

    async def locate(self, tenant: str, task_id: str) -> Elsewhere | None:
        """Where a task is that has no row, by asking every node once; None: nowhere.

        Raises:
            OSError: a node did not answer, and no other one has it.
        """
        peers = self.owners.others()
        answers = await asyncio.gather(*(self._ask(one, tenant, task_id) for one in peers), return_exceptions=True)
        for peer, answer in zip(peers, answers, strict=True):
            if answer is True:
                return Elsewhere(peer)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer if isinstance(answer, OSError) else OSError(str(answer))
        return None

    def _search(self, tenant: str, task_id: str, then: Answer) -> None:
        if len(self._searches) >= SEARCHES:
            then(_cannot_tell(task_id, "too many tasks are being looked for"))
            return

        async def search() -> None:
            try:
                found: Elsewhere | Fault | None = await self.locate(tenant, task_id)
            except OSError:
                found = _cannot_tell(task_id, "a node does not answer")
            try:
                then(found)
            except Exception:
                log.exception("an answer about the place of a task failed")

        searching = asyncio.create_task(search(), name="search-task")
        self._searches.add(searching)
        searching.add_done_callback(self._searches.discard)

    async def stop(self) -> None:
        """Ends the searches."""
        for search in self._searches:
            search.cancel()
        await asyncio.gather(*self._searches, return_exceptions=True)


def _cannot_tell(task_id: str, why: str) -> Fault:
    message = f"nobody can tell now where task {task_id!r} is: {why}"
    return Fault(ErrorClass.UNAVAILABLE, Reason.OWNER_UNAVAILABLE, message, None, 500)
