"""`reach dispatch`, `tail`, `wait`, `cancel`: one task, from giving it to its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.selector import payload_of, selector_options, task_options
from reach.cli.settings import Settings, server_options, settings_of
from reach.cli.terminal import say, write, write_json
from reach.cli.values import DURATION, OUTPUT, SESSION

if TYPE_CHECKING:
    from reach.cli.following import Follower, JsonFollower
    from reach.sdk.answers import Event
    from reach.sdk.client import Client

_PATIENCE_S: Final = 2.0
"""After this long without a start people are told what a task waits for."""
_CANCEL_S: Final = 3.0
_WAITS: Final = {
    "no_match": "nobody is registered that could take it (`reach agents list`, `reach route preview`)",
    "capacity": "all that could take it are full",
    "queued": "others are before it",
    "handoff": "its conversation goes to another instance, and the one before is asked what it knows",
    "pinned_instance_full": "the instance that has its conversation is full",
    "session_slots": "all that could take it hold as many conversations as they may",
    "canary": "those that could take it are new versions on trial",
    "match": "no agent fits its text well enough",
    "start_delay": "it is to start later",
    "retry": "it will be tried again soon",
    "retry_budget": "too many tasks are being tried again just now",
}
"""What the server's words for why a task does not run mean."""


@click.command()
@selector_options
@click.option("--no-wait", is_flag=True, help="Return when the task is accepted; prints its id.")
@click.option("--timeout", type=DURATION, help="How long to wait (exit code 4); the task goes on.")
@click.option("--cancel-on-exit", is_flag=True, help="Cancel the task when this command ends first.")
@click.option("--no-stream", is_flag=True, help="Print only the whole answer, at the end; for scripts.")
@click.option("-o", "--output", type=OUTPUT, help="Write the answer to a file.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@server_options
@click.pass_context
def dispatch(
    context: click.Context,
    /,
    no_wait: bool,
    timeout: float | None,
    cancel_on_exit: bool,
    no_stream: bool,
    output: str | None,
    quiet: bool,
    **given: Any,
) -> int:
    """Give a task to an agent and print its answer as it comes.

    The answer goes to stdout, everything else to stderr. With --json each event is one line of JSON.

    \b
      reach dispatch --type summarizer @README.md
      echo "def f(): return 1" | reach dispatch --capability code_review -
      reach dispatch --agent order-reports "total revenue by region in 2025"
      reach dispatch --agent calculator --method sum --json-payload '[1, 2, 3]' --no-stream
    """
    import asyncio

    settings = settings_of(context)
    method = given.pop("method")
    payload = payload_of(given)
    options = task_options(given, method)
    if no_wait:
        return asyncio.run(_submit(settings, method, payload, options, timeout))
    from reach.errors import Timeout
    from reach.sdk.specs import new_task_id

    task_id = options.get("task_id") or new_task_id()
    options["task_id"] = task_id
    follower = _follower(settings, streams=not no_stream, quiet=quiet, output=output)

    async def work() -> int:
        async with settings.client() as client:
            events = client.stream(method, payload, timeout=timeout, **options)
            try:
                return await _follow(client, task_id, events, follower)
            except (asyncio.CancelledError, Timeout):
                if cancel_on_exit and follower.goes_on:
                    follower.goes_on = False
                    state = await client.cancel(task_id, "the command that gave it ended", timeout=_CANCEL_S)
                    follower.note(f"task {task_id} {state.name}")
                raise

    return _watched(work, task_id, follower)


@click.command(short_help="Show a task from its first event to its end, or all tasks as they change.")
@click.argument("task_id", metavar="[TASK]", required=False)
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after this sequence.")
@click.option("--type", "agent_type", default="", metavar="TYPE", help="Without TASK: only of this type of agents.")
@click.option("--session", type=SESSION, help="Without TASK: only of this conversation.")
@click.option("--root", "root_task_id", default="", metavar="TASK", help="Without TASK: only of the tree of this task.")
@click.option("--timeout", type=DURATION, help="How long to wait (exit code 4); without TASK: how long to watch.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@server_options
@click.pass_context
def tail(
    context: click.Context, /, task_id: str | None, after: int, timeout: float | None, quiet: bool, **given: Any
) -> int:
    """Show a task from its first event (or after N) to its end, as `dispatch` does. Without TASK: a line for each task
    that is accepted, offered to an instance, tried again, or ends, from now on."""
    settings = settings_of(context)
    if task_id is None:
        from reach.cli.task_lines import watch_tasks

        return watch_tasks(settings, timeout, quiet=quiet, **given)
    follower = _follower(settings, quiet=quiet)

    async def work() -> int:
        async with settings.client() as client:
            events = client.follow(task_id, after_sequence=after, timeout=timeout)
            return await _follow(client, task_id, events, follower)

    return _watched(work, task_id, follower)


@click.command()
@click.argument("task_id", metavar="TASK")
@click.option("--timeout", type=DURATION, help="How long to wait (exit code 4); the task goes on.")
@click.option("-o", "--output", type=OUTPUT, help="Write the answer to a file.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
@server_options
@click.pass_context
def wait(context: click.Context, task_id: str, timeout: float | None, output: str | None, quiet: bool) -> int:
    """Wait until a task ends and print its answer."""
    import asyncio

    from reach.cli.following import Screen, exit_of_result, outcome_line, write_output
    from reach.cli.messages import plain

    settings = settings_of(context)

    async def work() -> int:
        async with settings.client() as client:
            result = await client.wait_for_result(task_id, timeout)
        if settings.json:
            write_json(plain(result.message))
            return exit_of_result(result)
        if result.ok:
            write_output(result, Screen(streams=False), output)
        if not (quiet and result.ok):
            say(outcome_line(result))
        return exit_of_result(result)

    return asyncio.run(work())


@click.command()
@click.argument("task_id", metavar="TASK")
@click.option("--reason", default="", help="For people.")
@server_options
@click.pass_context
def cancel(context: click.Context, task_id: str, reason: str) -> int:
    """Cancel a task and its children. One that ended stays as it is; the answer says how it ended."""
    from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc
    from reach.cli.messages import name_of, plain

    settings = settings_of(context)
    with settings.connect() as server:
        stub = dispatch_pb2_grpc.DispatchServiceStub(server.channel)
        request = dispatch_pb2.CancelTaskRequest(task_id=task_id, reason=reason)
        answer: dispatch_pb2.CancelTaskResponse = server.ask(stub.CancelTask, request)
    if settings.json:
        write_json({"task_id": task_id, **plain(answer)})
    else:
        write(f"{name_of(answer, 'state')}\n")
    return Exit.OK


def _follower(
    settings: Settings, *, streams: bool = True, quiet: bool = False, output: str | None = None
) -> Follower | JsonFollower:
    from reach.cli.following import Follower, JsonFollower

    return JsonFollower() if settings.json else Follower(streams=streams, quiet=quiet, output=output)


def _watched(work: Callable[[], Coroutine[Any, Any, int]], task_id: str, follower: Follower | JsonFollower) -> int:
    """Runs the work; whatever ends it early, the terminal is left in order and people know where their task is."""
    import asyncio

    from reach.errors import Timeout

    try:
        return asyncio.run(work())
    except (KeyboardInterrupt, Timeout):
        if follower.goes_on:
            follower.note(f"task {task_id} goes on: `reach tail {task_id}` shows it, `reach cancel {task_id}` ends it")
        raise
    finally:
        follower.close()


async def _submit(settings: Settings, method: str, payload: Any, options: Any, timeout: float | None) -> int:
    async with settings.client() as client:
        handle = await client.submit(method, payload, timeout=timeout, **options)
    if settings.json:
        write_json(
            {
                "task_id": handle.task_id,
                "state": handle.state.name,
                "deduplicated": handle.deduplicated,
                "warnings": list(handle.warnings),
            }
        )
        return Exit.OK
    for warning in handle.warnings:
        say(f"warning: {warning}")
    write(f"{handle.task_id}\n")
    return Exit.OK


async def _follow(client: Client, task_id: str, events: AsyncIterator[Event], follower: Follower | JsonFollower) -> int:
    """Shows events to the last; the exit code."""
    import asyncio

    from reach.cli.following import exit_of_result

    code: int = Exit.INTERNAL
    asking = asyncio.create_task(_tell_pending(client, task_id, follower))
    try:
        async for event in events:
            if event.kind not in ("accepted", "resumed"):
                asking.cancel()
            follower.show(event)
            if event.result is not None:
                code = exit_of_result(event.result)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return code


async def _tell_pending(client: Client, task_id: str, follower: Follower | JsonFollower) -> None:
    """Says why a task does not start, as long as it does not."""
    import asyncio

    from reach.errors import ReachError

    told = ""
    while True:
        await asyncio.sleep(_PATIENCE_S)
        try:
            info = await client.get_task(task_id)
        except ReachError:
            continue
        if info.pending_reason and info.pending_reason != told:
            told = info.pending_reason
            word, _, more = told.partition(": ")
            kept = f"those that could take it take no work now: {word} (`reach agents list`, `reach agents show ID`)"
            meaning = f"{more} (`reach agents list`, `reach route preview`)" if more else _WAITS.get(word, kept)
            follower.note(f"waiting: {meaning}")
