"""`reach tasks`: what became of tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import moment, one_line, printable, span, write, write_facts, write_json, write_table
from reach.cli.values import DURATION, PAIR, SESSION, is_text, session_text

if TYPE_CHECKING:
    from agentreach.v1 import error_pb2, payload_pb2, task_pb2
    from reach.cli.connection import Connection

_STATES: Final = (
    "PENDING",
    "DELIVERED",
    "RUNNING",
    "WAITING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
    "REJECTED",
    "DEAD_LETTERED",
)
_MOST_SHOWN: Final = 4_000
"""Characters of an output or payload in `tasks show`; --json has all."""


@click.group()
def tasks() -> None:
    """Look at tasks: those that run and those that ended lately."""


@tasks.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES, case_sensitive=False), help="Only in this state."
)
@click.option("--type", "agent_type", metavar="TYPE", help="Only for this type of agents.")
@click.option("--session", type=SESSION, help="Only of this conversation.")
@click.option("--label", "labels", type=PAIR, multiple=True, help="Only with this label (repeatable).")
@click.option("--root", "root_task_id", metavar="TASK", help="Only of the tree of this task.")
@click.option("--since", type=DURATION, help="Only accepted since then: 2h, 90s.")
@click.option("--until", type=DURATION, help="Only accepted before then: 1h.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@server_options
@click.pass_context
def list_tasks(context: click.Context, /, limit: int, **given: Any) -> int:
    """Tasks, latest first."""
    from reach.cli.messages import plain

    settings = settings_of(context)
    with settings.connect() as server:
        found = _listed(server, _filter(given), limit)
    if settings.json:
        write_json({"tasks": [plain(task) for task in found]})
        return Exit.OK
    if not found:
        write("None.\n")
        return Exit.OK
    write_table(("TASK", "STATE", "TYPE", "INSTANCE", ">TRIES", "ACCEPTED", ">TOOK", "<WHY"), map(_row, found))
    return Exit.OK


@tasks.command()
@click.argument("task_id", metavar="TASK")
@server_options
@click.pass_context
def show(context: click.Context, task_id: str) -> int:
    """One task: what was asked, each attempt with its reason, and the answer."""
    from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, task_pb2
    from reach.cli.messages import plain

    settings = settings_of(context)
    with settings.connect() as server:
        stub = dispatch_pb2_grpc.DispatchServiceStub(server.channel)
        request = dispatch_pb2.GetTaskRequest(task_id=task_id, view=task_pb2.TASK_VIEW_FULL)
        task: task_pb2.Task = server.ask(stub.GetTask, request).task
    if settings.json:
        write_json(plain(task))
        return Exit.OK
    write_facts(_facts(task))
    if task.attempts:
        write("\n")
        rows = (_attempt(attempt, task) for attempt in task.attempts)
        write_table((">TRY", "INSTANCE", "OFFERED", ">QUEUED", ">TOOK", "<OUTCOME"), rows)
    if task.HasField("result") and task.result.HasField("output"):
        write(f"\n{_shown(task.result.output)}\n")
    return Exit.OK


def _filter(given: dict[str, Any]) -> Any:
    from agentreach.v1 import dispatch_pb2, task_pb2

    wanted = dispatch_pb2.TaskFilter(
        states=[task_pb2.TaskState.Value(f"TASK_STATE_{state.upper()}") for state in given["states"]],
        agent_type=given["agent_type"] or "",
        root_task_id=given["root_task_id"] or "",
        labels=dict(given["labels"]),
    )
    if given["session"] is not None:
        app_id, user_id, session_id = given["session"]
        wanted.session.CopyFrom(task_pb2.SessionKey(app_id=app_id, user_id=user_id, session_id=session_id))
    for field, ago in (("accepted_after", given["since"]), ("accepted_before", given["until"])):
        if ago is not None:
            getattr(wanted, field).FromMilliseconds(int((time.time() - ago) * 1_000))
    return wanted


def _listed(server: Connection, wanted: Any, limit: int) -> list[task_pb2.Task]:
    from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc

    stub = dispatch_pb2_grpc.DispatchServiceStub(server.channel)
    return server.listed(stub.ListTasks, dispatch_pb2.ListTasksRequest(filter=wanted), "tasks", limit)


def _seconds(moment: Any) -> float:
    return float(moment.seconds + moment.nanos / 1e9)


def _took(task: task_pb2.Task) -> str:
    return span(_seconds(task.ended_at) - _seconds(task.accepted_at)) if task.HasField("ended_at") else ""


def _why(task: task_pb2.Task) -> str:
    if task.HasField("waiting"):
        from agentreach.v1 import task_pb2

        what = "credentials" if task.waiting_for == task_pb2.WAITING_FOR_AUTH else "input"
        return f"waits for {what} until {moment(task.waiting.until.seconds)} (reach input {task.spec.task_id})"
    return _error(task.result.error) if task.result.HasField("error") else task.pending_reason


def _error(error: error_pb2.Error) -> str:
    from reach.cli.messages import name_of

    return f"{name_of(error, 'reason')}: {error.message}" if error.message else name_of(error, "reason")


def _tries(task: task_pb2.Task) -> int:
    return max((attempt.number for attempt in task.attempts), default=task.result.attempts)


def _instance(task: task_pb2.Task) -> str:
    return task.result.instance_id or (task.attempts[-1].instance_id if task.attempts else "")


def _row(task: task_pb2.Task) -> tuple[str, ...]:
    from reach.cli.messages import name_of

    return (
        task.spec.task_id,
        name_of(task, "state"),
        task.pool,
        _instance(task),
        str(_tries(task) or ""),
        moment(task.accepted_at.seconds),
        _took(task),
        _why(task),
    )


def _facts(task: task_pb2.Task) -> list[tuple[str, str]]:
    from reach.cli.messages import name_of, plain

    spec = task.spec
    asked = ", ".join(
        f"{name}={','.join(value) if isinstance(value, list) else value}"
        for name, value in plain(spec.selector).items()
    )
    session = spec.session
    return [
        ("task", spec.task_id),
        ("state", name_of(task, "state")),
        ("why", _why(task)),
        ("question", task.waiting.question),
        ("asks", one_line(_shown(task.waiting.prompt)) if task.HasField("waiting") else ""),
        ("wake", task.wake),
        ("asked for", asked),
        ("method", spec.method),
        ("type", task.pool),
        ("instance", _instance(task)),
        (
            "session",
            session_text(session.app_id, session.user_id, session.session_id) if spec.HasField("session") else "",
        ),
        ("priority", str(spec.priority) if spec.HasField("priority") else ""),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(spec.labels.items()))),
        ("source", spec.source),
        ("parent", spec.parent_task_id),
        ("related", ", ".join(spec.related_task_ids)),
        ("webhook", spec.webhook.url),
        ("accepted", moment(task.accepted_at.seconds)),
        ("ended", moment(task.ended_at.seconds) if task.HasField("ended_at") else ""),
        ("took", _took(task)),
        ("moved", str(task.result.transfers or "")),
        ("payload", one_line(_shown(spec.payload))),
    ]


def _attempt(attempt: task_pb2.Attempt, task: task_pb2.Task) -> tuple[str, ...]:
    from reach.cli.messages import seconds

    ended = attempt.HasField("ended_at")
    took = span(_seconds(attempt.ended_at) - _seconds(attempt.offered_at)) if ended else ""
    if attempt.HasField("error"):
        outcome = _error(attempt.error)
    elif not ended:
        outcome = "waits for input" if task.HasField("waiting") else "runs"
    elif attempt.number == task.result.attempts and task.result.HasField("error"):
        outcome = _error(task.result.error)  # the task ended with it
    else:
        outcome = "done"
    queued = span(seconds(attempt.queued)) if attempt.HasField("queued") else ""
    return str(attempt.number), attempt.instance_id, moment(attempt.offered_at.seconds), queued, took, outcome


def _shown(payload: payload_pb2.Payload) -> str:
    """Content for people, cut with a mark."""
    if payload.WhichOneof("content") == "data" and not is_text(payload.media_type):
        return f"({len(payload.data)} bytes of {payload.media_type or 'application/octet-stream'})"
    text = printable(payload.text or payload.data.decode(errors="replace"))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}… ({len(text)} characters; --json has all)"
