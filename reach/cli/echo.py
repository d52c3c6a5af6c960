"""`reach agents echo`: a fake agent, to try things with: it answers, slowly or wrongly if asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import say
from reach.cli.values import DURATION, is_text

if TYPE_CHECKING:
    import random

    from reach import Task

FAULTS: Final = ("agent_error", "invalid", "busy", "unavailable", "crash", "exit")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the fake agent does with a task."""

    answer: str | None = None
    delay: float = 0.0
    jitter: float = 0.0
    pieces: int = 0
    fail_rate: float = 0.0
    fail_as: str = "agent_error"


@click.command()
@click.option("--agent-id", default="echo", show_default=True, metavar="ID", help="The logical agent.")
@click.option("--type", "agent_type", default="", metavar="TYPE", help="Its type (default: the agent id).")
@click.option("--instance-id", metavar="ID", help="This process (default: agent, host and six random letters).")
@click.option("--capability", "capabilities", multiple=True, default=("echo",), metavar="SKILL", help="Repeatable.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Repeatable.")
@click.option("--agent-version", default="", metavar="VERSION", help="Its version.")
@click.option("--max-concurrency", type=click.IntRange(min=1), default=16, show_default=True, help="Tasks at once.")
@click.option("--heartbeat-interval", type=DURATION, default=5.0, help="Time between beats (default: 5s).")
@click.option("--answer", metavar="TEXT", help="Answer this instead of what was sent.")
@click.option("--delay", type=DURATION, default=0.0, help="How long a task takes.")
@click.option("--jitter", type=DURATION, default=0.0, help="Up to this much longer, at random.")
@click.option("--stream", "pieces", type=click.IntRange(0, 10_000), default=0, metavar="N", help="Answer in N pieces.")
@click.option(
    "--fail-rate", type=click.FloatRange(0, 1), default=0.0, metavar="SHARE", help="Share of the tasks that fail."
)
@click.option(
    "--fail-as",
    type=click.Choice(FAULTS),
    default="agent_error",
    show_default=True,
    help="How: `exit` ends the process in the middle of a task.",
)
@click.option("--seed", type=int, help="Of chance, to get the same failures again.")
@server_options
@click.pass_context
def echo(context: click.Context, /, **given: Any) -> int:
    """Run a fake agent until Ctrl-C: answers, delays and faults by option.

    \b
      reach agents echo --delay 2s --stream 20
      reach agents echo --agent-id flaky --fail-rate 0.3 --fail-as unavailable
    """
    import logging
    import random

    from reach.sdk.agent import Agent

    settings = settings_of(context)
    behaviour = Behaviour(**{name: given.pop(name) for name in Behaviour.__slots__})
    chance = random.Random(given.pop("seed"))
    version = given.pop("agent_version")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("reach.sdk").setLevel(logging.INFO)
    agent = Agent(
        given.pop("agent_id"),
        addr=settings.address,
        api_key=settings.api_key,
        tls=settings.tls_files(),
        version=version,
        **given,
    )
    agent.add_handler(handler_of(behaviour, chance))
    say(f"{agent.instance_id} joins {settings.address}; Ctrl-C ends it")
    agent.run()
    return Exit.OK


def handler_of(behaviour: Behaviour, chance: random.Random) -> Callable[[Task], AsyncIterator[Any]]:
    """The handler of the fake agent."""
    import asyncio

    async def handle(task: Task) -> AsyncIterator[Any]:
        from reach.sdk.payloads import Answer, Progress

        fails = chance.random() < behaviour.fail_rate
        whole = behaviour.delay + behaviour.jitter * chance.random()
        steps = max(behaviour.pieces, 1)
        answer = task.text if behaviour.answer is None else behaviour.answer
        failing_step = (steps + 1) // 2
        for step in range(1, steps + 1):
            await asyncio.sleep(whole / steps)
            if fails and step == failing_step:
                _fail(behaviour.fail_as)
            if behaviour.pieces:
                yield answer[len(answer) * (step - 1) // steps : len(answer) * step // steps]
                yield Progress(step / steps, f"piece {step} of {steps}")
        if not behaviour.pieces and behaviour.answer is not None:
            yield Answer(answer)
        elif not behaviour.pieces:
            yield Answer(answer if is_text(task.media_type) else task.payload, task.media_type)

    return handle


def _fail(how: str) -> None:
    import os

    from reach.errors import AgentError, InvalidRequest, ResourceExhausted, Unavailable

    text = "the fake agent was told to fail"
    if how == "agent_error":
        raise AgentError(text)
    if how == "invalid":
        raise InvalidRequest(text)
    if how == "busy":
        raise ResourceExhausted(text)
    if how == "unavailable":
        raise Unavailable(text)
    if how == "exit":
        os._exit(1)
    raise RuntimeError(text)
