"""Tasks whose pool is full go to the next one that can take them, on whichever node it is (RTE-15).

A pool that takes no more of a task says so before anything is kept of it, so the task is still the one that its caller
asked for. The node that chose the pool chooses another; who was only brought the task gives it back, and says what it
would be refused with. Each pool is tried once, three at most, each at most one hop away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reach.core.effects import Full
from reach.core.model import PoolKey, Task
from reach.core.resolving import Selector
from reach.core.spread import Placing
from reach.core.stream import Reader
from reach.runtime.elsewhere import Elsewhere
from reach.runtime.ownership import NOBODY

if TYPE_CHECKING:
    from reach.runtime.host import Host

NEW = Placing()

Submit = Callable[[Task, Selector, Reader, Placing], None]


class Spilling:
    """See the module.

    Args:
        host: The pools of this node.
        submit: Brings a task to the door again.
    """

    def __init__(self, host: Host, submit: Submit) -> None:
        self._host = host
        self._submit = submit
        host.sends.on_full = self.full

    def full(self, effect: Full) -> None:
        """A pool of this node takes no more of a task."""
        reader: Reader = effect.reply
        task, placing, fault = effect.submitted, effect.placing, effect.fault
        if task.root_task_id:
            self._host.trees.left(task)
        pool: PoolKey = task.pool.key
        name, now_ms = (task.tenant, task.session), self._host.clock.now_ms()
        if task.session and task.pool.pins.look(name, now_ms) is not None:
            reader.sink.refused(reader, fault)  # a conversation waits for its agent, and is not another one's meanwhile
            return
        if placing is not None and placing.brought:
            if placing.others:
                where = Elsewhere(NOBODY, placing=placing.and_full(pool, fault))
                reader.sink.elsewhere(reader, task.task_id, task.spec, where)
            else:
                reader.sink.refused(reader, fault)
        elif reader.left or (placing is None and not self._host.level_1.had_choice(pool)):
            reader.sink.refused(reader, fault)
        else:
            selector = self._host.codec.selector_of(task.spec)
            self._submit(task, selector, reader, (placing or NEW).and_full(pool, fault))

    def along(self, task: Task, selector: Selector, pool: PoolKey, placing: Placing | None) -> Placing | None:
        """What goes along with a task that is brought to the owner of a pool; None: nothing, it is refused if that is
        full."""
        if placing is not None and placing.brought:
            return placing if placing.others else None  # to where it came from
        full = placing.full if placing is not None else ()
        if not self._host.level_1.others(task, selector, pool, full):
            return None
        return (placing or NEW)._replace(pool=None, others=True)
