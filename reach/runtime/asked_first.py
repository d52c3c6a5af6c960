"""What is asked before a task is taken: what its text means, where its session is, whether who asks for it goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from reach.core.model import Fault, Task, TaskKey
from reach.core.resolving import Selector
from reach.core.stream import Reader
from reach.errors import ErrorClass, ReachError
from reach.runtime.faults import fault_of
from reach.runtime.texts import Texts

if TYPE_CHECKING:
    from reach.runtime.host import Host


BEHIND = 64
"""What can be asked of a task while it waits for the word of the journal; what is more finds no such task."""


class AskedFirst:
    """Tasks that wait for an answer, for some milliseconds. Then they are submitted again."""

    def __init__(self, host: Host, texts: Texts) -> None:
        self._host = host
        self._texts = texts
        self._waiting: dict[TaskKey, Callable[[], None] | None] = {}
        """For their meaning."""
        self._seeking: dict[TaskKey, Callable[[], None] | None] = {}
        """For where their session is."""
        self._behind: dict[TaskKey, list[Callable[[], None]]] = {}
        """For the word of the journal, and what was asked of each meanwhile."""

    def meaning(self, task: Task, selector: Selector, again: Callable[[], None]) -> bool:
        """Lets a task wait until the meaning of its text is known, or the time for that is over; then it comes
        `again`. False: go on."""
        return _wait_in(self._waiting, task.key, again, partial(self._texts.ask, task.tenant, selector))

    def pins(self, task: Task, selector: Selector, again: Callable[[], None]) -> bool:
        """Lets a task wait until its session is found that may be pinned on another node, or the time for that is over;
        then it comes `again`. False: go on."""
        level_1 = self._host.level_1
        pools = level_1.unknown_pins(task, selector)
        if not pools or level_1.far_pins is None:
            return False
        name = (task.tenant, task.session)
        return _wait_in(self._seeking, task.key, again, partial(level_1.far_pins.ask, name, pools))

    def parent(self, task: Task, reader: Reader, again: Callable[[], None]) -> bool:
        """Refuses a task that a cancelled one asks for (DLV-11), or one without budget. True: it is refused, or waits
        some milliseconds for the word of the journal. False: go on."""
        key, trees = task.key, self._host.trees
        refusal = trees.refusal(task)
        if refusal is not None:
            self._refuse(task, reader, refusal)
            return True
        name = (task.tenant, task.parent_task_id)
        parent = self._host.tasks.get(name)
        asker = trees.budget_of(name) if parent is None else parent.spec
        if asker and parent is not task:
            try:
                task.spec = self._host.codec.bounded(task.spec, asker)
            except ReachError as error:
                self._refuse(task, reader, fault_of(error))
                return True
        if self._wait(key, again):
            return True

        def told(fault: Fault | None) -> None:
            asked = self._behind.pop(key, [])
            if fault is None:
                again()
            else:
                self._refuse(task, reader, fault)
            for act in asked:
                act()

        if trees.ask_parent(task, told):
            self._behind[key] = []
            return True
        return False

    def _refuse(self, task: Task, reader: Reader, fault: Fault) -> None:
        """Unless it was taken, and ended, before: then it comes again, and is answered (DLV-3)."""
        if fault.error_class is not ErrorClass.INVALID_REQUEST:
            reader.sink.refused(reader, fault)
            return
        refuse = partial(reader.sink.refused, reader, fault)
        self._host.past.answer(reader, task.tenant, task.task_id, task.spec, refuse)

    def _wait(self, key: TaskKey, act: Callable[[], None]) -> bool:
        asked = self._behind.get(key)
        if asked is None or len(asked) >= BEHIND:
            return False
        asked.append(act)
        return True

    def hurry(self, key: TaskKey, act: Callable[[], None]) -> bool:
        """Somebody speaks of a task that waits: it is to be there first. If its meaning, or its session, is all that it
        waits for, that waits no longer. True: `act` is called when the journal has said whether the task can be there
        at all."""
        for waiting in (self._waiting, self._seeking):
            go_on = waiting.get(key)
            if go_on is not None:
                go_on()
        return self._wait(key, act) if self._behind else False


def _wait_in(waiting: dict[TaskKey, Callable[[], None] | None], key: TaskKey, again: Callable[[], None],
             ask: Callable[[Callable[[], None]], bool]) -> bool:  # fmt: skip
    """Lets a task wait for an answer, once; then it comes `again`. False: go on."""
    if key in waiting:
        go_on = waiting[key]
        if go_on is not None:
            go_on()  # it is brought again
        return False

    def resume() -> None:
        if waiting.get(key) is resume:
            waiting[key] = None  # it has had its time
            again()
            del waiting[key]

    waiting[key] = resume
    if ask(resume):
        return True
    del waiting[key]
    return False
