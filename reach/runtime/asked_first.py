"""What is asked before a task is taken: the meaning of its text, and whether the task that asks for it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reach.core.model import Fault, Task, TaskKey
from reach.core.resolving import Selector
from reach.core.stream import Reader
from reach.errors import ReachError
from reach.runtime.faults import fault_of
from reach.runtime.texts import Texts

if TYPE_CHECKING:
    from reach.runtime.host import Host


class AskedFirst:
    """Tasks that wait for an answer, for some milliseconds. Then they are submitted again."""

    def __init__(self, host: Host, texts: Texts) -> None:
        self._host = host
        self._texts = texts
        self._waiting: dict[TaskKey, Callable[[], None] | None] = {}

    def meaning(self, task: Task, selector: Selector, again: Callable[[], None]) -> bool:
        """Lets a task wait until the meaning of its text is known, or the time for that is over; then it comes
        `again`. False: go on."""
        key = task.key
        if key in self._waiting:
            self.hurry(key)
            return False

        def go_on() -> None:
            if self._waiting.get(key) is go_on:
                self._waiting[key] = None  # it has had its time
                again()
                del self._waiting[key]

        self._waiting[key] = go_on
        if self._texts.ask(task.tenant, selector, go_on):
            return True
        del self._waiting[key]
        return False

    def parent(self, task: Task, reader: Reader, again: Callable[[], None]) -> bool:
        """Refuses a task that a cancelled one asks for (DLV-11), or one without budget. True: it is refused, or waits
        some milliseconds for the word of the journal. False: go on."""
        key, trees = task.key, self._host.trees
        refusal = trees.refusal(task)
        if refusal is not None:
            reader.sink.refused(reader, refusal)
            return True
        parent = self._host.tasks.get((task.tenant, task.parent_task_id))
        if parent is not None and parent is not task:
            try:
                task.spec = self._host.codec.bounded(task.spec, parent.spec)
            except ReachError as error:
                reader.sink.refused(reader, fault_of(error))
                return True
        if key in self._waiting:
            return False

        def go_on() -> None:
            told(None)

        def told(fault: Fault | None) -> None:
            if self._waiting.get(key) is not go_on:
                return
            self._waiting[key] = None
            if fault is None:
                again()
            else:
                reader.sink.refused(reader, fault)
            del self._waiting[key]

        self._waiting[key] = go_on
        if trees.ask_parent(task, told):
            return True
        del self._waiting[key]
        return False

    def hurry(self, key: TaskKey) -> None:
        """Somebody speaks of a task that waits for the meaning of its text: it is to be there first."""
        go_on = self._waiting.get(key)
        if go_on is not None:
            go_on()
