"""`reach dlq`: what was given up; trying it again, or removing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.tasks import show
from reach.cli.terminal import moment, write, write_json, write_table

if TYPE_CHECKING:
    from agentreach.v1 import task_pb2


@click.group(short_help="Dead letters: look, try again, remove.")
def dlq() -> None:
    """Dead letters: tasks that were given up after the last try. Look at them, try them again, remove them."""


dlq.add_command(show)


def _which(command: Any) -> Any:
    """Which dead letters: ids, or a filter."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="All there are."),
        click.option("--reason", default="", metavar="REASON", help="With this reason, such as START_TO_CLOSE."),
        click.option("--type", "agent_type", default="", metavar="TYPE", help="For this type of agents."),
        click.argument("task_ids", metavar="[TASK]...", nargs=-1),
    ):
        command = option(command)
    return command


def _check_which(task_ids: tuple[str, ...], agent_type: str, reason: str, everything: bool) -> None:
    """That nothing is named must not mean all; and who names some does not mean others, too."""
    if bool(task_ids) is bool(agent_type or reason or everything):
        raise click.UsageError("Say which: TASK..., or --type, --reason or both, or --all.")


@dlq.command("list")
@click.option("--type", "agent_type", default="", metavar="TYPE", help="Only for this type of agents.")
@click.option("--reason", default="", metavar="REASON", help="Only with this reason, such as START_TO_CLOSE.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@server_options
@click.pass_context
def list_dead_letters(context: click.Context, agent_type: str, reason: str, limit: int) -> int:
    """Dead letters, latest first."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    request = ops_pb2.ListDeadLettersRequest(agent_type=agent_type, reason=reason)
    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        found = server.listed(stub.ListDeadLetters, request, "tasks", limit)
    if settings.json:
        write_json({"tasks": [plain(task) for task in found]})
        return Exit.OK
    if not found:
        write("None.\n")
        return Exit.OK
    write_table(("<TASK", "FOR", ">TRIES", "GIVEN UP", "REASON", "<WHY"), map(_row, found))
    return Exit.OK


@dlq.command()
@_which
@click.option("--request-id", default="", metavar="ID", help="To try again what was tried again before: another one.")
@server_options
@click.pass_context
def requeue(
    context: click.Context, task_ids: tuple[str, ...], agent_type: str, reason: str, everything: bool, request_id: str
) -> int:
    """Try dead letters again, as new tasks that name the old ones. Doing it twice does it once."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc

    _check_which(task_ids, agent_type, reason, everything)
    settings = settings_of(context)
    request = ops_pb2.RequeueDeadLettersRequest(
        task_ids=task_ids, agent_type=agent_type, reason=reason, all=everything, request_id=request_id
    )
    made: dict[str, str] = {}
    refused: dict[str, str] = {}
    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        for answer in server.pages(stub.RequeueDeadLetters, request):
            made.update(answer.new_task_ids)
            refused.update(answer.refused)
    if settings.json:
        write_json({"new_task_ids": made, "refused": refused})
    elif made or refused:
        rows = [(old, new, "") for old, new in made.items()] + [(old, "", why) for old, why in refused.items()]
        write_table(("<TASK", "<NEW TASK", "<REFUSED"), rows)
    else:
        write("None.\n")
    return Exit.WRONG_REQUEST if refused else Exit.OK


@dlq.command()
@_which
@server_options
@click.pass_context
def purge(context: click.Context, task_ids: tuple[str, ...], agent_type: str, reason: str, everything: bool) -> int:
    """Remove dead letters for good."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc

    _check_which(task_ids, agent_type, reason, everything)
    settings = settings_of(context)
    request = ops_pb2.PurgeDeadLettersRequest(task_ids=task_ids, agent_type=agent_type, reason=reason, all=everything)
    with settings.connect() as server:
        purged = server.ask(ops_pb2_grpc.OpsServiceStub(server.channel).PurgeDeadLetters, request).purged
    if settings.json:
        write_json({"purged": purged})
    else:
        write(f"{purged} removed.\n")
    return Exit.OK


@dlq.command()
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@server_options
@click.pass_context
def webhooks(context: click.Context, limit: int) -> int:
    """Webhooks that were given up, oldest first."""
    from agentreach.v1 import ops_pb2, ops_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    request = ops_pb2.ListFailedWebhooksRequest()
    with settings.connect() as server:
        stub = ops_pb2_grpc.OpsServiceStub(server.channel)
        found = server.listed(stub.ListFailedWebhooks, request, "webhooks", limit)
    if settings.json:
        write_json({"webhooks": [plain(webhook) for webhook in found]})
        return Exit.OK
    if not found:
        write("None.\n")
        return Exit.OK
    rows = ((one.task_id, one.destination, str(one.tries), moment(one.gave_up_at.seconds), one.error) for one in found)
    write_table(("<TASK", "<DESTINATION", ">TRIES", "GIVEN UP", "<LAST TRY"), rows)
    return Exit.OK


def _row(task: task_pb2.Task) -> tuple[str, ...]:
    from reach.cli.messages import name_of

    error, selector = task.result.error, task.spec.selector
    return (
        task.spec.task_id,
        task.pool or selector.agent_type or selector.agent_id or selector.capability or selector.intent,
        str(task.result.attempts),
        moment(task.ended_at.seconds),
        name_of(error, "reason"),
        error.message,
    )
