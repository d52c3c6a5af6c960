"""`reach demo`: the main job end to end, with real processes, real files, and a crash in the middle."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Final

import click

from reach.cli.demo_files import jobs_for
from reach.cli.exits import Exit
from reach.cli.settings import json_option, settings_of
from reach.cli.terminal import say, write_json

if TYPE_CHECKING:
    from reach.cli.demo_files import Job
    from reach.cli.demo_processes import DemoProcesses
    from reach.cli.demo_show import Show, Track
    from reach.sdk.answers import Event
    from reach.sdk.client import Client

WORK_S: Final = 22.0
"""How long all tasks together may take; what has not ended then is lost."""
_ASK_S: Final = 2.0


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--keep", is_flag=True, help="Leave server and agents running until Ctrl-C, to try things with them.")
@json_option
@click.pass_context
def demo(context: click.Context, paths: tuple[str, ...], keep: bool) -> int:
    """See all of it: a server, agents, real files, and a crash in the middle of a task.

    Starts a server and four agents as separate processes, gives them tasks (each text or Markdown file is summed up,
    each Python file reviewed, and a few questions asked about a table of orders), kills one of the two summarizers with
    SIGKILL while it works, and shows its tasks finish on the other one. Without PATH the files are this project's own.
    Takes about ten seconds, needs no network and no model, and leaves nothing behind.

    Exit code 0 means: no task failed, none was lost, and at least one moved.
    """
    from reach.cli.demo_processes import DemoProcesses
    from reach.cli.demo_show import Show

    jobs = jobs_for(paths)
    show = Show(quiet=settings_of(context).json)
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _interrupt(ended, number))
    with DemoProcesses() as processes:
        try:
            return _play(context, processes, show, jobs, keep)
        except KeyboardInterrupt:
            if not ended:
                raise
            return 128 + ended[0]


def _interrupt(ended: list[int], number: int) -> None:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: everything is cleaned up."""
    if not ended:
        ended.append(number)
        raise KeyboardInterrupt


def _play(context: click.Context, processes: DemoProcesses, show: Show, jobs: list[Job], keep: bool) -> int:
    from reach.cli.connection import Connection
    from reach.cli.demo_processes import AGENTS
    from reach.cli.demo_show import Track, figures_of
    from reach.sdk.channel import Target

    began = time.monotonic()
    show.stage("starting a server")
    processes.start_server()
    show.stage(f"server at {processes.address}; starting {len(AGENTS)} agents, each a process of its own")
    processes.start_agents()
    with Connection(Target(processes.address, "", None)) as server:
        processes.await_agents(server)
    show.stage(f"joined: {', '.join(instance_id for instance_id, *_ in AGENTS)}")
    tracks = [Track(job) for job in jobs]
    asyncio.run(_send_all(processes, show, tracks))
    figures = figures_of(tracks)
    show.table(tracks, figures, time.monotonic() - began)
    if settings_of(context).json:
        write_json(figures, pretty=False)
    good = figures["lost"] == 0 and figures["failed"] == 0 and figures["transfers"] >= 1
    if not figures["transfers"]:
        say("No task moved: the summarizer that was killed had nothing to hand over.")
    if keep:
        _keep(processes)
    return Exit.OK if good else Exit.TASK_FAILED


def _keep(processes: DemoProcesses) -> None:
    say(f"\nStill running. In another terminal:\n  export AGENT_REACH_ADDR={processes.address}")
    say(
        '  reach agents list\n  reach dispatch --agent order-reports "total revenue by region in 2025"\nCtrl-C ends it.'
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        say()


async def _send_all(processes: DemoProcesses, show: Show, tracks: list[Track]) -> None:
    """Gives all tasks at once and follows each to its end."""
    from reach.sdk.client import Client

    show.stage(f"{len(tracks)} tasks")
    async with Client(processes.address, api_key="", source="reach-demo") as client:
        try:
            async with asyncio.timeout(WORK_S):
                await asyncio.gather(*(_send(client, processes, show, track) for track in tracks))
        except TimeoutError:
            await asyncio.gather(*(_look_again(client, track) for track in tracks))


async def _send(client: Client, processes: DemoProcesses, show: Show, track: Track) -> None:
    from reach.errors import ReachError
    from reach.sdk.specs import new_task_id

    track.task_id = new_task_id()
    track.began = time.monotonic()
    job = track.job
    try:
        async for event in client.stream("task.process", job.payload, task_id=track.task_id, **job.options):
            _note(track, event)
            show.event(track, event)
            if job.interrupted and event.kind == "delta":
                job.interrupted = False
                pid = processes.kill(track.instance_id)
                if pid is not None:
                    show.stage(f"SIGKILL to {track.instance_id} (pid {pid}) in the middle of {job.title!r}")
    except ReachError as error:
        track.problem = str(error)


def _note(track: Track, event: Event) -> None:
    """Keeps what the table needs."""
    track.accepted = True
    if event.kind == "started":
        track.instance_id, track.attempts = event.instance_id, event.attempt
    elif event.result is not None:
        result = event.result
        track.state, track.attempts, track.transfers = result.state.name, result.attempts, result.transfers
        track.instance_id = result.instance_id or track.instance_id
        track.took_ms = (time.monotonic() - track.began) * 1000
        if result.error is not None:
            track.problem = str(result.error)


async def _look_again(client: Client, track: Track) -> None:
    """Time is over: asks the server once more before a task counts as lost."""
    from reach.errors import ReachError

    if track.state:
        return
    track.took_ms = (time.monotonic() - track.began) * 1000
    try:
        info = await client.get_task(track.task_id, timeout=_ASK_S)
    except ReachError as error:
        track.problem = track.problem or str(error)
        return
    track.accepted = True
    if info.result is not None:
        track.state, track.attempts, track.transfers = info.state.name, info.result.attempts, info.result.transfers
    else:
        track.problem = info.pending_reason or f"still {info.state.name}"
