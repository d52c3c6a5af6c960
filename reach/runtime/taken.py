"""Tasks whose id the journal had given to another task before, which nobody remembered: they are undone.

Whether an id is free, only the commit tells. Until then the task is in memory and answers are made of it; none of them
leaves. When the id turns out to be taken, whoever asked is answered from the journal instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reach.core import effects as fx
from reach.core.events import RowTaken
from reach.core.model import Task
from reach.core.stream import Reader

if TYPE_CHECKING:
    from reach.runtime.host import Host

TAKEN = -1
"""The row of such a task."""


def undo(host: Host, turn: fx.Turn, taken: list[int]) -> None:
    """Marks the tasks of these rows, and has their pools forget them."""
    rows = set(taken)
    for task in turn.accepted:
        if task.row in rows:
            task.row = TAKEN
            host.post(task.pool, RowTaken(task), first=True)
            host.trees.left(task)


def ask_again(host: Host, send: fx.Accepted | fx.Events | fx.Ended | fx.Refused | fx.Done, task: Task) -> None:
    """Has the journal answer what was to be answered from such a task."""
    past, key = host.past, task.key
    if isinstance(send, fx.Accepted):
        _ask(host, send.reply, task, 0)  # it has heard of no event
    elif isinstance(send, fx.Events):
        _ask(host, send.reader, task, send.events[0][0] - 1 if send.events else send.reader.after)
    elif isinstance(send, fx.Ended):
        for reader in send.readers:
            _ask(host, reader, task, reader.after)
    elif isinstance(send, fx.Refused) and send.given is not None:
        past.asked(fx.AskJournal(None, *key, 0, send.reply, send.given))
    elif isinstance(send, fx.Refused):
        past.answer(send.reply, *key, send.spec)
    elif send.reply is not None:
        past.asked(fx.AskJournal(None, *key, 0, send.reply))


def _ask(host: Host, reader: Reader, task: Task, after: int) -> None:
    """Answers a reader, once."""
    if reader.task is task:
        reader.task = None
        reader.after = after
        host.past.answer(reader, *task.key, None if reader.reads else task.spec)
