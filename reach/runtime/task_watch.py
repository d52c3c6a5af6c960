"""Watching all tasks of a tenant as they change (`OpsService.WatchTasks`): for operators, without payloads.

Nothing is done while nobody watches. While somebody does, each durable turn is looked through for what it tells of
tasks. A watcher that is slow is told how much it missed, and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from reach.core.effects import Ended, Noted, Offer, Turn
from reach.core.model import Fault, Task
from reach.core.pieces import Kind
from reach.runtime.taken import TAKEN

MOST_HELD: Final = 10_000
"""Events that wait for a watcher; what is beyond is missed."""


class TaskNews(NamedTuple):
    """What happened to a task: an event as its readers get it, but for the content of its result."""

    task: Task
    event: tuple[int, int, int, int, Any]
    """(sequence, attempt, wall_ms, kind, data)"""


class TaskWatch:
    """One watcher: what it wants, and what it has not been told yet."""

    def __init__(self, tenant: str, agent_type: str = "", session: str = "", root_task_id: str = "") -> None:
        self._tenant = tenant
        self._agent_type = agent_type
        self._session = session
        self._root = root_task_id
        self._news: deque[TaskNews] = deque()
        self._missed = 0
        self._fault: Fault | None = None
        self._wake = asyncio.Event()

    def tell(self, news: TaskNews) -> None:
        """Something happened, which it may want to know."""
        task = news.task
        if task.tenant != self._tenant:
            return
        if self._agent_type and (task.pool is None or task.pool.key.agent_type != self._agent_type):
            return
        if self._session and task.session != self._session:
            return
        if self._root and self._root not in (task.root_task_id, task.task_id):
            return
        if len(self._news) >= MOST_HELD:
            self._missed += 1
        else:
            self._news.append(news)
        self._wake.set()

    def refused(self, _: object, fault: Fault) -> None:
        """The server stops (as a sink of `Services.until_stopped`)."""
        self._fault = fault
        self._wake.set()

    async def take(self, most: int, seconds: float) -> tuple[list[TaskNews], int, Fault | None]:
        """(what is new, how much was missed after that, why it ends); nothing at all if nothing happens in time."""
        if not self._news and self._fault is None:
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return [], 0, None
        news = [self._news.popleft() for _ in range(min(most, len(self._news)))]
        missed = 0
        if not self._news:
            missed, self._missed = self._missed, 0
        return news, missed, self._fault if not self._news else None


class TaskWatchers:
    """The watchers of a node."""

    def __init__(self) -> None:
        self.open: set[TaskWatch] = set()

    @contextmanager
    def watching(self, watch: TaskWatch) -> Iterator[TaskWatch]:
        """From now on it is told what happens."""
        self.open.add(watch)
        try:
            yield watch
        finally:
            self.open.discard(watch)

    def saw(self, turn: Turn) -> None:
        """A turn is durable, and its sends are out."""
        for task in turn.accepted:
            if task.row != TAKEN:
                self._tell(task, (1, 0, task.accepted_wall_ms, Kind.ACCEPTED, None))
        for send in turn.sends:
            kind = type(send)
            if kind is Ended:
                if send.first and send.task.row != TAKEN:
                    outcome = send.outcome
                    event = (outcome.sequence, outcome.attempts, outcome.ended_wall_ms, int(Kind.COMPLETE), outcome)
                    self._tell(send.task, event)
            elif kind is Offer:
                instance = send.instance
                place = (instance.instance_id, instance.agent_id)
                self._tell(send.task, (send.task.sequence, send.attempt, turn.wall_ms, Kind.STARTED, place))
            elif kind is Noted and send.kind == "retry" and send.task is not None and send.task.history:
                past = send.task.history[-1]
                self._tell(send.task, (send.task.sequence, past.number, turn.wall_ms, Kind.RETRYING, past.fault))

    def _tell(self, task: Task, event: tuple[int, int, int, int, Any]) -> None:
        news = TaskNews(task, event)
        for watch in self.open:
            watch.tell(news)
