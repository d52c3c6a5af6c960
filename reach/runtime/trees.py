"""Which task asked for which, and cancelling a task with all that it asked for (DLV-11).

A task that is to be cancelled is marked before its children are listed, so that none slips in: from then on what names
it as its parent or root is refused. Children are listed at once, after a second, and when the grace of the agents is
over. Marks are bounded; when one is forgotten the journal still knows that the task was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from reach.core import events as ev
from reach.core.delivery import STOP_GRACE_MS
from reach.core.model import FIRST_TERMINAL, Fault, Task, TaskKey, TaskState
from reach.errors import ErrorClass, Reason

if TYPE_CHECKING:
    from reach.runtime.host import Host
    from reach.store.base import StoredTask

MARKS = 10_000
"""Cancelled tasks that are remembered by themselves."""
PARENTS = 10_000
"""Tasks that are not in memory and are known not to be cancelled."""
LOOKS_S = (1.0, STOP_GRACE_MS / 1_000)
"""When the children of a cancelled task are listed again."""


class Trees:
    """The open tasks of a node that another task asked for."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._parent_of: dict[TaskKey, TaskKey] = {}
        self._children: dict[TaskKey, dict[TaskKey, None]] = {}
        self._marks: dict[TaskKey, None] = {}
        self.tell: Callable[[TaskKey, bool], None] = lambda key, mark: None
        """Tells the other nodes that a task is cancelled with all that it asked for; what is still to be refused for it
        (True), or what there is (False)."""
        self._fine: dict[TaskKey, bytes] = {}
        """Those of the journal that go on, with their budgets (`Codec.budget_of`)."""
        self._timers: set[asyncio.TimerHandle] = set()

    def joined(self, task: Task, among: Mapping[TaskKey, Task] | None = None) -> None:
        """A task that another one asked for is taken in; to be called before it can be heard of. `among`: tasks with
        which it comes, and which nobody knows yet."""
        parent, root = (task.tenant, task.parent_task_id or task.root_task_id), (task.tenant, task.root_task_id)
        come = among or {}
        if not (parent in come or self._is_open(parent)) and (root in come or self._is_open(root)):
            parent = root  # who asked has ended; it belongs to the tree all the same
        if parent != task.key:
            self._parent_of[task.key] = parent
            self._children.setdefault(parent, {})[task.key] = None

    def _is_open(self, key: TaskKey) -> bool:
        task = self._host.tasks.get(key)
        return task is not None and task.state < FIRST_TERMINAL

    def came(self, tasks: Iterable[Task]) -> None:
        """These have joined, and are known from now on. What they belong to may have been cancelled while they were on
        their way, when nobody found them."""
        for task in tasks if self._marks else ():
            for name in dict.fromkeys((task.parent_task_id, task.root_task_id)):
                if name and name != task.task_id and (task.tenant, name) in self._marks:
                    self._cancel_for(task, name)
                    break

    def left(self, task: Task) -> None:
        """A task has ended, or is undone. What it asked for belongs to the one that asked for it."""
        key = task.key
        parent = self._parent_of.pop(key, None)
        if parent is None:
            return
        siblings = self._children.get(parent, {})
        siblings.pop(key, None)
        for child in self._children.pop(key, ()):
            self._parent_of[child] = parent
            siblings[child] = None
        if siblings:
            self._children[parent] = siblings
        else:
            self._children.pop(parent, None)

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(self, key: TaskKey) -> None:
        """Marks a task, and cancels all that it asked for, also at other nodes. The task itself is the caller's to
        cancel."""
        task = self._host.tasks.get(key)
        is_open = task is not None and task.state < FIRST_TERMINAL
        if is_open:
            self._mark(key)
        elif key not in self._children:
            self.tell(key, False)
            return
        self._look_often(key, mark=is_open)

    def cancelled_elsewhere(self, key: TaskKey, *, mark: bool) -> None:
        """Another node has cancelled a task. `mark`: what still asks to be taken for it is refused."""
        if mark:
            self._mark(key)
        self._look(key)

    def _look_often(self, key: TaskKey, *, mark: bool) -> None:
        """Looks for children now and later, here and at other nodes."""
        self._look(key)
        self.tell(key, mark)
        for delay_s in LOOKS_S:
            self._later(delay_s, key, mark=mark)

    def _mark(self, key: TaskKey) -> None:
        self._marks.pop(key, None)
        self._fine.pop(key, None)  # what was known of its id before holds no longer
        self._marks[key] = None
        while len(self._marks) > MARKS:
            del self._marks[next(iter(self._marks))]

    def _look(self, key: TaskKey) -> None:
        tasks = self._host.tasks
        for child in list(self._below(key)):
            task = tasks.get(child)
            if task is not None and task.state < FIRST_TERMINAL and task.pool is not None:
                self._cancel_for(task, key[1])

    def _cancel_for(self, task: Task, name: str) -> None:
        self._mark(task.key)
        reason = f"task {name!r}, which it belongs to, was cancelled"
        self._host.post(task.pool, ev.Cancelled(*task.key, reason, None))
        self.tell(task.key, True)  # what it asked for may be at a third node

    def _below(self, key: TaskKey) -> Iterator[TaskKey]:
        """All that a task asked for, and what that asked for."""
        seen, open_ = {key}, [key]
        while open_:
            for child in self._children.get(open_.pop(), ()):
                if child not in seen:
                    seen.add(child)
                    open_.append(child)
                    yield child

    def _later(self, delay_s: float, key: TaskKey, *, mark: bool) -> None:
        def look() -> None:
            self._timers.discard(timer)
            self._look(key)
            self.tell(key, mark)

        timer = self._loop.call_later(delay_s, look)
        self._timers.add(timer)

    def stop(self) -> None:
        """Ends the timers."""
        for timer in self._timers:
            timer.cancel()

    # -- admission ----------------------------------------------------------------------------------------------------

    def refusal(self, task: Task) -> Fault | None:
        """Why a task cannot be taken: the one that asks for it, or the first of its tree, is cancelled."""
        for name in {task.parent_task_id, task.root_task_id} - {"", task.task_id}:
            key = (task.tenant, name)
            known = self._host.tasks.get(key)
            if key in self._marks or (known is not None and known.state is TaskState.CANCELLED):
                return _cancelled(name)
        return None

    def ask_parent(self, task: Task, then: Callable[[Fault | None], None]) -> bool:
        """If nothing in memory tells whether the asking task, or the first of the tree, is cancelled, the journal is
        asked of one of them, and `then` hears why the task cannot be taken, or None: then this is to be called again.
        False: there is no need."""
        names = self._unknown(task)
        if not names:
            return False
        key = names[0]

        def told(found: StoredTask | Fault | None) -> None:
            if isinstance(found, Fault):
                then(found)
            elif found is not None and found.outcome is not None and found.outcome.state == TaskState.CANCELLED:
                then(_cancelled(key[1]))
            else:
                if len(self._fine) >= PARENTS:
                    self._fine.clear()
                self._fine[key] = self._host.codec.budget_of(found.task.spec) if found is not None else b""
                then(None)

        self._host.past.look_up(*key, told)
        return True

    def budget_of(self, key: TaskKey) -> bytes:
        """What is known of the budget of a task that is not in memory, once it was asked for."""
        return self._fine.get(key, b"")

    def _unknown(self, task: Task) -> list[TaskKey]:
        """Those of whom only the journal can say whether they are cancelled: nobody, while the asking task is open, for
        it would be cancelled with the first of the tree."""
        names: list[TaskKey] = []
        for name in dict.fromkeys((task.parent_task_id, task.root_task_id)):
            key = (task.tenant, name)
            if not name or name == task.task_id:
                continue
            known = self._host.tasks.get(key)
            if known is not None and not known.volatile and self._host.committer.may_undo(known.row):
                known = None  # it came again, perhaps: then the journal has it as it ended
            if known is not None and known.state < FIRST_TERMINAL:
                break
            if known is None and key not in self._fine:
                names.append(key)
        return names


def _cancelled(name: str) -> Fault:
    message = f"task {name!r}, which it belongs to, was cancelled: nothing is taken for it any more"
    return Fault(ErrorClass.INVALID_REQUEST, Reason.PARENT_CANCELLED, message, {"task_id": name})
