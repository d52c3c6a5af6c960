"""`reach explain`: why a task went where it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reach.cli.candidates import write_candidates
from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import one_line, write, write_json

if TYPE_CHECKING:
    from agentreach.v1 import ops_pb2


@click.command()
@click.argument("task_id", metavar="TASK")
@server_options
@click.pass_context
def explain(context: click.Context, /, task_id: str) -> int:
    """Tell the story of one task: each attempt, why it went there, who else was looked at, and how it ended."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        answer: ops_pb2.ExplainTaskResponse = server.ask(stub.ExplainTask, ops_pb2.ExplainTaskRequest(task_id=task_id))
    if settings.json:
        write_json(plain(answer))
        return Exit.OK
    for line in answer.story:
        write(f"{one_line(line, 2_000)}\n")
    for attempt in answer.task.attempts:
        if attempt.decision.candidates:
            write(f"\nattempt {attempt.number}, {attempt.decision.policy}, {attempt.decision.cause}\n")
            write_candidates(attempt.decision.candidates)
    return Exit.OK
