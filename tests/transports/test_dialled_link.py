"""What becomes of attempts that an agent was left with: which are taken up again, and when one is lost (HAZARDS 4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reach.core.endpoint import Endpoint
from reach.core.model import TaskState
from reach.transports.dialled import Dialled
from reach.transports.dialled_link import DialledLink

pytestmark = pytest.mark.asyncio


def running(name: str, state: TaskState = TaskState.RUNNING, attempt: int = 2, handle: str = "/jobs/1") -> Any:
    key = ("acme", name)
    return SimpleNamespace(key=key, task_id=name, state=state, attempt=attempt, handle=handle, attempt_sequence=0)


async def test_HAZ4_only_attempts_that_are_current_and_go_on_are_taken_up_again():
    tasks = [
        running("placed"),
        running("joined", handle=""),
        running("older"),
        running("asks", TaskState.WAITING),
        running("over", TaskState.SUCCEEDED),
        running("unknown"),
    ]
    way: Any = SimpleNamespace(line=lambda *_: SimpleNamespace(), payload_limit=1)
    pool: Any = SimpleNamespace(tasks={task.key: task for task in tasks})
    nobody: Any = None
    endpoint = Endpoint("http://agent", rejoins=True)
    link = DialledLink(nobody, "acme", pool, endpoint, way, nobody, lambda: None, lambda: None, set())
    resumed: list[str] = []
    joined: list[tuple[str, int]] = []
    cancelled: list[tuple[str, str, int]] = []
    acts: Any = link
    acts._resume = lambda task: resumed.append(task.task_id)
    acts._execute = lambda task, _trace, last: joined.append((task.task_id, last))
    acts.cancel_there = cancelled.append
    link.running = [("acme", task.task_id, 1 if task.task_id == "older" else 2, 7) for task in tasks]
    link.running.append(("acme", "gone", 2, 0))
    welcome: Any = SimpleNamespace(instance=object(), unknown=[("acme", "unknown", 2)], replay=[])
    link.welcome(welcome)
    assert (resumed, joined, cancelled) == (["placed"], [("joined", 7)], [("acme", "unknown", 2)])
    assert link.running == []


async def test_HAZ4_an_attempt_is_lost_when_two_checks_in_a_row_leave_it_out():
    nobody: Any = None
    dialled: Any = Dialled(nobody, "acme", "type", nobody)
    posted: list[Any] = []
    instance: Any = SimpleNamespace(instance_id="one", running={1: running("left", attempt=1), 2: running("called")})
    dialled.instance = instance
    dialled.post = posted.append
    dialled._link = SimpleNamespace(calls=lambda name: name[1] == "called")
    left = ("acme", "left", 1)
    for named in (set(), {left}, set()):
        dialled._give_up_unnamed(instance, named)
    assert posted == [], "it was named in between"
    dialled._give_up_unnamed(instance, set())
    assert [(report.task_id, report.attempt) for report in posted] == [("left", 1)]


async def test_DLV_11_what_still_has_its_call_is_not_told_to_stop_once_more():
    nobody: Any = None
    dialled: Any = Dialled(nobody, "acme", "type", nobody)
    told: list[Any] = []
    tasks = [running("runs"), running("older"), running("over", TaskState.SUCCEEDED)]
    dialled.pool = SimpleNamespace(tasks={task.key: task for task in tasks})
    dialled._link = SimpleNamespace(calls=lambda name: name[1] == "ending", cancel_there=told.append)
    dialled._stop_unwanted({("acme", "runs", 2), ("acme", "older", 1), ("acme", "over", 2), ("acme", "ending", 1)})
    assert told == [("acme", "older", 1), ("acme", "over", 2)]
