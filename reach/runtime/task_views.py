"""Tasks as people ask for them: one, many, removed for good (DLV-12). What is in memory is told as it stands, the rest
as the journal has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from reach.core.decision_record import Record, records_of
from reach.core.model import FIRST_TERMINAL, Task, TaskKey
from reach.runtime.retention import Tending
from reach.store.base import StoredTask, TaskQuery, may_go_on

if TYPE_CHECKING:
    from reach.runtime.elsewhere import Whereabouts
    from reach.runtime.host import Host
    from reach.runtime.ownership import Peer


class TaskPage(NamedTuple):
    """A page of a list of tasks, latest first."""

    tasks: list[Task]
    more: bool
    """There may be more."""
    elsewhere: dict[Peer, list[str]]
    """Those among them that go on at other nodes, which know how they stand: here they are as the journal has them."""


class TaskViews:
    """See the module."""

    def __init__(self, host: Host, tending: Tending) -> None:
        self._host = host
        self._tending = tending
        self.abroad: Whereabouts | None = None
        """What other nodes have; None on a node that is alone."""

    async def get(self, tenant: str, task_id: str) -> Task | None:
        """One task, from memory or from the journal. Raises Elsewhere for one that is not over and not here."""
        return await self._told(tenant, task_id, await self._host.read(self._host.past.find, tenant, task_id))

    async def explained(self, tenant: str, task_id: str) -> tuple[Task, dict[int, Record]] | None:
        """The same with why its attempts are where they are (RTE-13), as of one moment: what becomes of a task here
        while somebody waits may still be undone."""
        past = self._host.past
        found, kept = await self._host.read(lambda: (past.find(tenant, task_id), past.decisions(tenant, task_id)))
        task = await self._told(tenant, task_id, found)
        return (task, kept | records_of(task)) if task is not None else None

    async def _told(self, tenant: str, task_id: str, found: StoredTask | None) -> Task | None:
        """As `get`, when it was looked for in the journal. One that is in memory is to be told before anything else."""
        live = self._live((tenant, task_id), found)
        if live is None and self.abroad is not None:
            await self.abroad.check_task(tenant, task_id, found)
        if live is not None or found is None:
            return live
        return self._host.past.shown(found)

    async def decisions(self, task: Task, *, far: bool = False) -> dict[int, Record]:
        """Why the attempts of a task are where they are (RTE-13): from memory, else from the journal. `far`: it goes on
        at another node, and the journal alone knows its attempts."""
        records = records_of(task)
        told = {past.number for past in task.history or ()} | ({task.attempt} if task.instance_id else set())
        if far or (not task.volatile and not told <= records.keys()):
            records = await self._host.read(self._host.past.decisions, task.tenant, task.task_id) | records
        return records

    async def page(self, query: TaskQuery) -> TaskPage:
        """Tasks of the journal; open ones that are here as they stand now."""
        stored: list[StoredTask] = await self._host.read(self._host.past.list_tasks, query)
        page = TaskPage([], may_go_on(query, stored), {})
        for one in stored:
            live = self._live((one.task.tenant, one.task.task_id), one)
            page.tasks.append(live if live is not None else self._host.past.shown(one))
            if live is None and self.abroad is not None and (where := self.abroad.owner_of(one)) is not None:
                page.elsewhere.setdefault(where.peer, []).append(one.task.task_id)
        return page

    async def here(self, tenant: str, task_ids: Sequence[str]) -> list[Task]:
        """Those of these tasks that are in memory, as they stand now; no end that may still be undone."""
        tasks, host = self._host.tasks, self._host
        ended = {name for name in task_ids if (task := tasks.get((tenant, name))) and task.state >= FIRST_TERMINAL}
        await host.settled()
        if host.committer.held is not None:
            ended.clear()
        found = ((name, tasks.get((tenant, name))) for name in task_ids)
        return [
            task for name, task in found
            if task is not None and task.row > 0 and (name in ended or task.state < FIRST_TERMINAL)
        ]  # fmt: skip

    def _live(self, key: TaskKey, stored: StoredTask | None) -> Task | None:
        """A task that is in memory, unless memory is ahead: what the store does not have has not happened yet, for it
        may still be undone; and of an id that turns out to be taken the store knows the truth."""
        task = self._host.tasks.get(key)
        if task is None or task.volatile:
            return task if task is not None and task.row else None
        if stored is None or stored.task.row != task.row or (stored.outcome is None) is (task.state >= FIRST_TERMINAL):
            return None
        return task

    def open_of(self, tenant: str) -> int:
        """How many tasks of a tenant are here that have not ended."""
        return sum(1 for task in self._host.tasks.values() if task.tenant == tenant and task.state < FIRST_TERMINAL)

    async def remove(self, tasks: Iterable[Task]) -> int:
        """Removes tasks that have ended, for good; returns how many there were."""
        rows = {task.row: task.key for task in tasks}
        removed = await self._tending.remove(partial(self._host.past.remove, list(rows)))
        for row, key in rows.items():
            task = self._host.tasks.get(key)
            if task is not None and task.row == row:
                del self._host.tasks[key]  # or its id would still be answered for
        return removed
