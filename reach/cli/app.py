"""`reach` itself: the list of commands, and what every error becomes: a line on stderr and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from reach.cli.adopt import adopt
from reach.cli.agents import agents
from reach.cli.backup import backup, restore
from reach.cli.cluster import cluster
from reach.cli.demo import demo
from reach.cli.dispatch import cancel, dispatch, tail, wait
from reach.cli.dlq import dlq
from reach.cli.doctor import doctor
from reach.cli.exits import MEANINGS, Exit, advice_for, exit_of
from reach.cli.explain import explain
from reach.cli.input import give_input
from reach.cli.keys import keys
from reach.cli.route import route
from reach.cli.serve import configuration, serve, version
from reach.cli.sessions import sessions
from reach.cli.settings import Settings, server_options
from reach.cli.tasks import tasks
from reach.cli.terminal import prepare_streams, printable, say
from reach.errors import ReachError
from reach.version import VERSION


class Root(click.Group):
    """Lists the commands in the order in which people need them, and the exit codes below."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click. `agent echo` reads as well as `agents echo`."""
        return super().get_command(ctx, "agents" if cmd_name == "agent" else cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in MEANINGS.items()])


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@server_options
@click.version_option(VERSION, prog_name="reach", message="%(prog)s %(version)s")
def reach() -> None:
    """Agent-Reach finds the right agent for a task, gets the task there, and brings the answer back.

    \b
      reach demo                                      see all of it in ten seconds
      reach serve                                     run a server
      reach agents echo --stream 5                    run an agent to try things with
      reach dispatch --agent echo "hello"             give it a task

    \b
    When something is wrong:
      reach agents list                               who takes work, and if not, why not
      reach tasks list --state pending --since 1h     what waits, and for what
      reach explain TASK                              what happened to one, and what to do
      reach tail                                      what happens now
      reach dlq list                                  what was given up
      reach cluster status                            how the server and its nodes do
      reach doctor                                    what is wrong, and what to do

    The options below may be given behind the command too.
    """


for _command in (
    serve,
    demo,
    dispatch,
    tail,
    wait,
    cancel,
    give_input,
    tasks,
    agents,
    adopt,
    route,
    explain,
    sessions,
    dlq,
    keys,
    cluster,
    doctor,
    backup,
    restore,
    configuration,
    version,
):
    reach.add_command(_command)


class _Told(logging.Handler):
    """What the SDK warns about, as a line for people. That a server cannot be reached is told once, at the end."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not text.startswith("cannot reach"):
            say(text)


def run(arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code. Errors that are expected are one line, never a traceback."""
    prepare_streams()
    sdk = logging.getLogger("reach.sdk")
    if not sdk.handlers:
        sdk.addHandler(_Told(logging.WARNING))
    settings = Settings()
    try:
        with reach.make_context("reach", list(arguments), obj=settings) as context:
            result: Any = reach.invoke(context)
        sys.stdout.flush()
    except ReachError as error:
        return _tell(error, settings)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return Exit.WRONG_REQUEST
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except OSError as error:
        say(f"Error: {error}")
        return Exit.WRONG_REQUEST
    except Exception as fault:  # noqa: BLE001 - the last place to give a bug its exit code
        traceback.print_exc()
        say(f"reach: internal error ({type(fault).__name__}); please report it with the lines above")
        return Exit.INTERNAL
    return int(result) if isinstance(result, int) else Exit.OK


def _tell(error: ReachError, settings: Settings) -> int:
    """Says what went wrong and what to do; a program gets both as JSON."""
    code = exit_of(error)
    advice = advice_for(error, settings.addr or os.environ.get("AGENT_REACH_ADDR", "") or "127.0.0.1:8900")
    if settings.json:
        described = {
            "class": error.error_class.name,
            "reason": error.reason.name,
            "message": error.message,
            "retryable": error.retryable,
            "metadata": error.metadata,
            "exit_code": int(code),
        }
        sys.stderr.write(json.dumps({"error": described}) + "\n")
        return code
    say(f"Error: {printable(error.message)} ({error.reason.name})")
    if advice:
        say(advice)
    return code
