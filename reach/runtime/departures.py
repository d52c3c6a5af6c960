"""Waiting tasks that change their shard: those that wait where nobody can take them, and whom another node can (CLU-1).

A task is in one shard at a time, which its row says. So the owner first writes that it goes, and from then on knows
nothing more of it; who reads it is sent after it. Whoever owns the new shard finds it there: as soon as somebody asks
for it, or is told to look, and once a second anyway (HAZARDS 1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from reach.core.effects import Turn
from reach.core.events import Arrived, Subscribed
from reach.core.model import PoolKey, Requirement, Task, TaskKey
from reach.core.placement import shard_of
from reach.core.pool import Pool
from reach.core.rows import MoveRow
from reach.core.stream import Reader, told_of
from reach.runtime.agents import DEAF, let_go
from reach.runtime.elsewhere import Elsewhere, place_of
from reach.runtime.taken import TAKEN

if TYPE_CHECKING:
    from reach.runtime.host import Host
    from reach.store.base import StoredTask

log = logging.getLogger(__name__)

ARRIVALS: Final = 1_000
"""Tasks that are brought in at a time."""


class Departed:
    """That a task goes to another shard is durable."""

    __slots__ = ("key", "requirement", "task")

    def __init__(self, task: Task, key: PoolKey, requirement: Requirement) -> None:
        self.task = task
        self.key = key
        self.requirement = requirement

    @property
    def readers(self) -> list[Reader]:
        """Who reads it still: some may have let go of it while its going was written."""
        return readers_of(self.task)


def readers_of(task: Task) -> list[Reader]:
    """All that wait for something of a task."""
    return [*(task.waiters or ()), *(task.log.readers if task.log is not None else ())]


class Departures:
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._leaving: dict[TaskKey, int] = {}
        """Tasks whose going is not durable yet: what is read of them now may be old."""
        self.look: Callable[[], None] = lambda: None
        """Has what came to the shards of this node looked for at once."""
        self._went: set[TaskKey] = set()
        """Tasks that have left since the look that is under way began: it may have seen them here."""
        self.tell: Callable[[Elsewhere], None] = lambda where: None
        """Has the owner of a pool look for what came."""
        self.bring: Callable[[Elsewhere, Task, Callable[[bool], None]], None] = lambda where, task, then: then(False)
        """Brings a task that has no row to the owner of its pool; says whether it has it."""
        self._asking: list[Callable[[], None]] = []
        """Called after the next look. Bound: callers that wait for an answer, each with one."""

    def goes(self, pool: Pool, key: PoolKey) -> bool:
        """Whether a task of a pool would change its shard on its way to another one, and others may own that."""
        return self._host.by_shard and shard_of(key) != pool.shard

    def depart(self, pool: Pool, task: Task, key: PoolKey, requirement: Requirement) -> None:
        """A task that waits in a pool goes to the pool of this key, which is of another shard."""
        host = self._host
        if task.volatile:
            self._depart_at_once(pool, task, key, requirement)
            return
        pool.hand_over(task, pool)
        if host.tasks.get(task.key) is task:
            del host.tasks[task.key]
        self._leaving[task.key] = pool.shard
        turn = Turn(host.clock.now_ms(), host.clock.wall_ms())
        turn.shard = host.shards.get(pool.shard)
        turn.writes.moves.append(
            MoveRow(task.row, pool.shard, shard_of(key), key.tenant, key.agent_type, task.hop + 1, told_of(task))
        )
        turn.sends.append(Departed(task, key, requirement))
        host.committer.submit(turn)

    def _depart_at_once(self, pool: Pool, task: Task, key: PoolKey, requirement: Requirement) -> None:
        """One without a row is nowhere but in memory: it goes by the hand of this node."""
        host = self._host
        where = place_of(host.owners, key)
        pool.hand_over(task, pool)
        if where is None:
            self._come(task, key, requirement)
            return
        del host.tasks[task.key]
        if task.root_task_id:
            host.trees.left(task)
        readers = readers_of(task)

        def brought(there: bool) -> None:
            for reader in readers:
                self._send_after(reader, task, where, b"" if there else task.spec)

        self.bring(where, task, brought)

    def departed(self, effect: Departed) -> None:
        """Sends those who read it after it, or goes on with it here. One that never was goes nowhere: its pool answers
        those who read it."""
        task, host = effect.task, self._host
        self._leaving.pop(task.key, None)
        if task.row == TAKEN:
            return
        self._went.add(task.key)
        where = place_of(host.owners, effect.key)
        task.hop += 1
        if where is None and task.key not in host.tasks:
            self._come(task, effect.key, effect.requirement)
            return
        if task.root_task_id:
            host.trees.left(task)
        if where is None:
            for reader in effect.readers:
                let_go(reader)
            return
        for reader in effect.readers:
            self._send_after(reader, task, where, b"")
        self.tell(where)

    def leave(self, shards: Collection[int]) -> None:
        """These shards are another node's: what was about to leave them is void, or where it goes already."""
        for key in [key for key, shard in self._leaving.items() if shard in shards]:
            del self._leaving[key]
            self._went.add(key)

    def _come(self, task: Task, key: PoolKey, requirement: Requirement) -> None:
        host = self._host
        pool = host.pool(key)
        task.pool, task.requirement, task.pending_reason = pool, requirement, ""
        host.tasks[task.key] = task
        host.post(pool, Arrived(task))

    def _send_after(self, reader: Reader, task: Task, where: Elsewhere, spec: bytes) -> None:
        sink, reader.sink = reader.sink, DEAF
        reader.task = None
        sink.elsewhere(reader, task.task_id, b"" if reader.reads else spec, where)

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def looks(self) -> int:
        """A look begins; who asks later is not answered by it."""
        self._went.clear()
        return len(self._asking)

    def came(self, found: list[StoredTask]) -> tuple[list[StoredTask], list[tuple[int, int]]]:
        """Of what came to shards of this node, in the order of the writer: what is to be brought in now, and the moves
        that need not be told again. Somebody may just have given a task of the same id, who will hear that it is taken,
        or it leaves this very node: until then it stays out. Of what left since the look began nobody can tell whether
        it was seen before or after that: the next look can."""
        host = self._host
        new, heard = [], []
        for stored in found:
            row = stored.task
            key = (row.tenant, row.task_id)
            known = host.tasks.get(key)
            if (known is not None and known.row != row.row) or key in self._leaving or key in self._went:
                continue
            heard.append((row.row, stored.hop))
            ours = host.owners.node_of(row.shard) is None
            if ours and known is None and stored.outcome is None:
                new.append(stored)
        return new, heard

    def looked(self, asked: int) -> None:
        """All that had come is in memory: answers the first who asked."""
        asking, self._asking = self._asking[:asked], self._asking[asked:]
        for ask in asking:
            ask()

    def look_for(self, stored: StoredTask, then: Callable[[Task | None], None]) -> None:
        """Looks for a task whose row says that it is here, and which is not in memory."""
        row = stored.task

        def told() -> None:
            task = self._host.tasks.get((row.tenant, row.task_id))
            then(task if task is not None and task.row == row.row else None)

        self._asking.append(told)
        self.look()

    def read(self, task: Task, reader: Reader, *, submitted: bool) -> None:
        """Somebody who was sent after a task that has come reads on."""
        if submitted:
            reader.sink.accepted(reader, task, task.state, True)
        self._host.post(task.pool, Subscribed(task.tenant, task.task_id, reader))
