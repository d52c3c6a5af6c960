"""What dialled agents have beside others: a place to ask about an attempt, and calls that outlast a report."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from reach.core import events as ev
from reach.core.effects import Acknowledge, Turn
from reach.core.model import Task
from reach.core.rows import HandleRow


def keep_handle(task: Task, handle: str, shard: int, turn: Turn) -> None:
    """Keeps where the current attempt can be asked about, if that is new: whoever owns the task next asks there."""
    if handle and handle != task.handle:
        task.handle = handle
        if not task.volatile:
            turn.writes.handles.append(HandleRow(task.row, shard, task.attempt, handle))


def acknowledge(event: ev.Reported, turn: Turn) -> None:
    """Tells who reported that it counts; and the link of its instance too, if that is dialled and reported by
    itself: its call may be open nevertheless."""
    turn.sends.append(Acknowledge(event.asker, event.tenant, event.task_id, event.attempt))
    if event.reply is not None and event.instance.endpoint is not None:
        turn.sends.append(Acknowledge(event.instance.link, event.tenant, event.task_id, event.attempt))


PROCESSES: Final = 64
"""Processes that are remembered of one address."""


class Answered(Enum):
    """Who has answered at the address of an instance that registered no process."""

    SAME = auto()
    """Who answered before, or the first."""
    ANOTHER = auto()
    """A process that was not there before: it was restarted, as far as is known."""
    SEVERAL = auto()
    """There are several, as workers of one server are: what one of them says is not of the others."""


class Processes:
    """Tells a restart from several processes at one address: a process that is gone does not come back."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}
        self._latest = ""
        self._several = False

    def answered(self, boot_id: str) -> Answered:
        """One has answered, and says which it is."""
        before, self._latest = self._latest, boot_id
        known = boot_id in self._seen
        if known and before != boot_id:
            self._several = True
        elif not known:
            self._seen[boot_id] = None
            while len(self._seen) > PROCESSES:
                del self._seen[next(iter(self._seen))]
        if self._several:
            return Answered.SEVERAL
        return Answered.SAME if before in ("", boot_id) else Answered.ANOTHER
