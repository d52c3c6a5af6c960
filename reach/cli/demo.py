"""`reach demo`: the main job end to end, with real processes, real files, and a crash in the middle."""

from __future__ import annotations

import signal

import click

from reach.cli.settings import checked_address, json_option, settings_of


@click.command(short_help="See all of it: real agents, real files, and a crash in the middle.")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--server", metavar="HOST:PORT,...", help="Use a server, or nodes of a cluster, that run already.")
@click.option("--keep", is_flag=True, help="Leave server and agents running until Ctrl-C, to try things with them.")
@json_option
@click.pass_context
def demo(context: click.Context, paths: tuple[str, ...], server: str | None, keep: bool) -> int:
    """See all of it: a server, agents, real files, and a crash in the middle of a task.

    Starts a server and four agents as separate processes, gives them tasks (each text or Markdown file is summed up,
    each Python file reviewed, and a few questions asked about a table of orders), kills one of the two summarizers with
    SIGKILL while it works, and shows its tasks finish on the other one. Without PATH the files are this project's own.
    Takes about ten seconds, needs no network and no model, and leaves nothing behind. With --server it starts agents
    only, and gives them what the server that is named, or any node of a cluster, is given; the key is the one of
    AGENT_REACH_API_KEY.

    Exit code 0 means: no task failed, none was lost, and at least one moved.
    """
    from reach.cli.demo_files import jobs_for
    from reach.cli.demo_play import play
    from reach.cli.demo_processes import DemoProcesses

    jobs = jobs_for(paths)
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _interrupt(ended, number))
    processes = DemoProcesses(_addresses(server))
    try:
        return play(processes, jobs, as_json=settings_of(context).json, keep=keep)
    except KeyboardInterrupt:
        if not ended:
            raise
        return 128 + ended[0]
    finally:
        processes.stop()


def _addresses(server: str | None) -> list[str]:
    """The servers that were named, without those that say nothing."""
    if server is None:
        return []
    if addresses := checked_address(server):
        return addresses.split(",")
    raise click.UsageError("--server is host:port, or several of them with commas between.")


def _interrupt(ended: list[int], number: int) -> None:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: the running loop is asked to end, everything is cleaned up."""
    if not ended:
        ended.append(number)
        signal.raise_signal(signal.SIGINT)
