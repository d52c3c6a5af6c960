"""`reach input`: answers what a task asks."""

from __future__ import annotations

from typing import Any

import click

from reach.cli.exits import Exit
from reach.cli.selector import payload_of
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import write, write_json


@click.command("input")
@click.argument("task_id", metavar="TASK")
@click.argument("content", metavar="[TEXT|@FILE|-]", required=False)
@click.option("--json-payload", metavar="JSON", help="The answer as JSON.")
@click.option("--media-type", default="", metavar="TYPE", help="Media type of the answer.")
@click.option("--question", default="", metavar="NAME", help="Only if it is this that is asked.")
@click.option("--input-id", default="", metavar="ID", help="Names the answer: it counts once.")
@server_options
@click.pass_context
def give_input(context: click.Context, /, task_id: str, question: str, input_id: str, **given: Any) -> int:
    """Answer what a WAITING task asks; `reach tasks list --state waiting` lists those that do.

    The answer is kept with the task. Do not send a lasting secret as text: pipe it in (`-`), and rather one that ends
    soon.
    """
    import asyncio

    if given["content"] is None and given["json_payload"] is None:
        raise click.UsageError(
            f"Give the answer: TEXT, @FILE, - or --json-payload. `reach tasks show {task_id}` shows what is asked."
        )
    settings = settings_of(context)
    value = payload_of(given)

    async def work() -> int:
        async with settings.client() as client:
            state = await client.send_input(task_id, value, question=question, input_id=input_id)
        if settings.json:
            write_json({"task_id": task_id, "state": state.name})
        else:
            write(f"{state.name}\n")
        return Exit.OK

    return asyncio.run(work())
