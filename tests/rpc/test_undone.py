"""What calls tell of a task has happened for good (DLV-1): while they wait for something, more may be decided of it
that is undone if its shard is lost. Found by the simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentreach.v1 import dispatch_pb2, task_pb2
from reach.core.model import Outcome, Requirement, Task, TaskState
from reach.rpc import far_tasks
from reach.rpc.access import SCOPES
from reach.rpc.dispatch import DispatchServicer
from reach.rpc.principal import Principal, set_principal
from reach.runtime.ownership import Peer
from reach.runtime.task_views import TaskPage


def ends(task: Task) -> None:
    """It is decided, and not written."""
    task.state, task.outcome = TaskState.SUCCEEDED, Outcome(TaskState.SUCCEEDED, "done", "text/plain")


@pytest.fixture
def task() -> Task:
    set_principal(Principal("acme", "tests", SCOPES))
    task = Task("acme", "t", task_pb2.TaskSpec(task_id="t").SerializeToString(), Requirement())
    task.row, task.state = 1, TaskState.RUNNING
    return task


async def test_DLV_1_a_list_tells_no_end_that_was_decided_while_other_nodes_were_asked(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(query: Any) -> TaskPage:
        return TaskPage([task], False, {Peer("b", "b:1"): ["u"]})

    async def ask(*_: Any, **__: Any) -> tuple[dict[str, task_pb2.Task], set[str]]:
        ends(task)
        return {}, set()

    monkeypatch.setattr(far_tasks, "ask", ask)
    services: Any = SimpleNamespace(reach=SimpleNamespace(tasks=SimpleNamespace(page=page)), peers=object())
    answer = await DispatchServicer(services).ListTasks(dispatch_pb2.ListTasksRequest(), None)
    assert [one.state for one in answer.tasks] == [task_pb2.TASK_STATE_RUNNING]
    assert not answer.tasks[0].HasField("result")


async def test_DLV_1_a_call_that_waited_in_vain_tells_no_end_that_is_not_written(task: Task) -> None:
    class Door:
        def submit(self, given: Task, selector: Any, reader: Any, placing: Any) -> None:
            reader.sink.accepted(reader, task, TaskState.PENDING, False)
            ends(task)

        def unsubscribe(self, *_: Any) -> None: ...

        def warnings(self, *_: Any) -> tuple[str, ...]:
            return ()

    services: Any = SimpleNamespace(reach=Door(), until_stopped=lambda sink: sink, begin_trace=lambda *_: None)
    servicer = DispatchServicer(services)
    servicer._read = lambda context, spec: (task, None)  # type: ignore[method-assign]
    request = dispatch_pb2.DispatchRequest()
    request.wait.FromMilliseconds(1)
    context: Any = SimpleNamespace(time_remaining=lambda: None)
    answer = await servicer.Dispatch(request, context)
    assert answer.state == task_pb2.TASK_STATE_PENDING
    assert not answer.HasField("result")
