"""`reach tail` without a task: all tasks as they change, a line for each event."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from reach.cli.exits import Exit
from reach.cli.terminal import moment, one_line, say, span, write, write_json

if TYPE_CHECKING:
    from agentreach.v1 import event_pb2
    from reach.cli.settings import Settings


def watch_tasks(
    settings: Settings, seconds: float | None, *, quiet: bool, agent_type: str, session: Any, root_task_id: str
) -> int:
    """Follows them until it is interrupted, or for so long."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc, task_pb2
    from reach.cli.messages import plain

    request = ops_pb2.WatchTasksRequest(agent_type=agent_type, root_task_id=root_task_id)
    if session is not None:
        app_id, user_id, session_id = session
        request.session.CopyFrom(task_pb2.SessionKey(app_id=app_id, user_id=user_id, session_id=session_id))
    began = False
    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        for answer in server.follow(stub.WatchTasks, request, seconds):
            if not began and not quiet:
                say("watching")
            began = True
            for event in answer.events:
                if settings.json:
                    write_json(plain(event), pretty=False)
                else:
                    write(line_of(event))
            if answer.missed:
                say(f"{answer.missed} events were missed: this reader is too slow")
    return Exit.OK


def line_of(event: event_pb2.TaskEvent) -> str:
    """An event as people read it."""
    kind = event.WhichOneof("kind") or ""
    time_of_day = moment(event.time.seconds or time.time()).partition(" ")[2]
    return f"{time_of_day} {one_line(f'{event.task_id} {_said(event, kind)}')}\n"


def _said(event: event_pb2.TaskEvent, kind: str) -> str:
    from reach.cli.messages import name_of, seconds

    if kind == "started":
        return f"offered to {event.started.instance_id} (try {event.attempt})"
    if kind == "retrying":
        return f"try {event.attempt} failed: {event.retrying.reason}: {event.retrying.message}"
    if kind != "complete":
        return kind
    result = event.complete
    took = span(seconds(result.queued) + seconds(result.ran))
    why = f": {name_of(result.error, 'reason')}: {result.error.message}" if result.HasField("error") else ""
    at = f" by {result.instance_id}" if result.instance_id else ""
    return f"{name_of(result, 'state')}{at} after {took}{why}"
