"""What happens in `reach demo`: tasks are given, an instance is killed, and everything is followed to its end."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from reach.cli.connection import Connection
from reach.cli.demo_files import Job
from reach.cli.demo_processes import AGENTS, DemoProcesses
from reach.cli.demo_show import Show, Track, figures_of
from reach.cli.exits import Exit
from reach.cli.terminal import say, write_json
from reach.errors import ReachError
from reach.sdk.answers import Event
from reach.sdk.channel import Target
from reach.sdk.client import Client
from reach.sdk.specs import new_task_id

WORK_S: Final = 22.0
"""How long all tasks together may take; what has not ended then is lost."""
WORK_ELSEWHERE_S: Final = 60.0
"""The same with servers of others: a node may be killed meanwhile, and started again."""
_ASK_S: Final = 2.0


def play(processes: DemoProcesses, jobs: list[Job], *, as_json: bool, keep: bool) -> int:
    """All of it, with processes that somebody else ends; the exit code."""
    show = Show(quiet=as_json)
    began = time.monotonic()
    processes.prepare()
    if not processes.given:
        show.stage("starting a server")
        processes.start_server()
    where = ", ".join(processes.servers)
    show.stage(f"server at {where}; starting {len(AGENTS)} agents, each a process of its own")
    processes.start_agents()
    with Connection(_target(processes)) as server:
        processes.await_agents(server)
    show.stage(f"joined: {', '.join(processes.agents.values())}")
    tracks = [Track(job) for job in jobs]
    asyncio.run(_send_all(processes, show, tracks))
    figures = figures_of(tracks)
    show.table(tracks, figures, time.monotonic() - began)
    if as_json:
        write_json(figures, pretty=False)
    good = figures["lost"] == 0 and figures["failed"] == 0 and figures["transfers"] >= 1
    if not figures["transfers"]:
        say("No task moved: the summarizer that was killed had nothing to hand over.")
    if keep:
        _keep(processes)
    return Exit.OK if good else Exit.TASK_FAILED


def _target(processes: DemoProcesses) -> Target:
    return Target(processes.servers, None if processes.given else "", None)


def _keep(processes: DemoProcesses) -> None:
    say(f"\nStill running. In another terminal:\n  export AGENT_REACH_ADDR={','.join(processes.servers)}")
    say(
        '  reach agents list\n  reach dispatch --agent order-reports "total revenue by region in 2025"\nCtrl-C ends it.'
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        say()


async def _send_all(processes: DemoProcesses, show: Show, tracks: list[Track]) -> None:
    """Gives all tasks at once and follows each to its end."""
    show.stage(f"{len(tracks)} tasks")
    key, limit_s = (None, WORK_ELSEWHERE_S) if processes.given else ("", WORK_S)
    async with Client(processes.servers, api_key=key, source="reach-demo") as client:
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(_send(client, processes, show, track) for track in tracks))
        except TimeoutError:
            await asyncio.gather(*(_look_again(client, track) for track in tracks))


async def _send(client: Client, processes: DemoProcesses, show: Show, track: Track) -> None:
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
