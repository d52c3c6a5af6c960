"""What dialled agents have beside others: a place to ask about an attempt, and calls that outlast a report."""

from __future__ import annotations

from typing import Any

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


def acknowledge(event: ev.Reported, link: Any, turn: Turn) -> None:
    """Tells who reported (`link`) that it counts; and the link of its instance too, if that is dialled and reported by
    itself: its call may be open nevertheless."""
    turn.sends.append(Acknowledge(link, event.tenant, event.task_id, event.attempt))
    if event.reply is not None and event.instance.endpoint is not None:
        turn.sends.append(Acknowledge(event.instance.link, event.tenant, event.task_id, event.attempt))
