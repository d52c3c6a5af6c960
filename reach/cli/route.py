"""`reach route`: where a task would go, and why; and whether the files that say so can be used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reach.cli.candidates import write_candidates
from reach.cli.exits import Exit
from reach.cli.policies import config_option, policies_in
from reach.cli.selector import payload_of, selector_options, task_options
from reach.cli.settings import server_options, settings_of
from reach.cli.simulate import simulate
from reach.cli.terminal import span, write, write_facts, write_json

if TYPE_CHECKING:
    from agentreach.v1 import dispatch_pb2


@click.group()
def route() -> None:
    """Ask where tasks would go."""


route.add_command(simulate)


@route.command()
@selector_options
@server_options
@click.pass_context
def preview(context: click.Context, /, **given: Any) -> int:
    """Show all candidates for a task with score, signals and drop reasons, without sending it."""
    from agentreach.v1 import dispatch_pb2, dispatch_pb2_grpc, task_pb2
    from reach.cli.messages import plain
    from reach.sdk.specs import spec_fields

    settings = settings_of(context)
    method, payload = given.pop("method"), payload_of(given)
    fields, _ = spec_fields(method, payload, task_options(given, method))
    with settings.connect() as server:
        stub = dispatch_pb2_grpc.DispatchServiceStub(server.channel)
        request = dispatch_pb2.PreviewRouteRequest(task=task_pb2.TaskSpec(**fields))
        answer: dispatch_pb2.PreviewRouteResponse = server.ask(stub.PreviewRoute, request)
    if settings.json:
        write_json(plain(answer))
        return Exit.OK
    write_facts(_facts(answer))
    if answer.decision.candidates:
        write("\n")
        write_candidates(answer.decision.candidates)
    return Exit.OK


@route.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Routes that name skills the vocabulary does not have are errors.")
@config_option
def check(files: tuple[Path, ...], strict: bool, config: str | None) -> int:
    """Check files of routes and of the vocabulary, without a server: every problem with its line.

    A file is one or the other by its first key, `routes` or `skills`. Given together they are compared. Routes may
    name own policies of --config.
    """
    from reach.config import ConfigError
    from reach.config.rules import check_capabilities, kind_of, load_routes, load_vocabulary
    from reach.core.intents import Routes
    from reach.core.vocabulary import Vocabulary

    policies = policies_in(config)
    problems: list[str] = []
    vocabulary = Vocabulary()
    routes: list[tuple[Path, Routes]] = []
    for file in files:
        try:
            kind = kind_of(file)
            if kind == "skills":
                vocabulary = load_vocabulary(file)
                write(f"{file}: {len(vocabulary.skills)} skills\n")
            else:
                loaded = load_routes(file, policies)
                routes.append((file, loaded))
                write(f"{file}: {len(loaded)} routes\n")
        except ConfigError as error:
            problems.extend(error.problems)
    unknown = [text for file, loaded in routes for text in check_capabilities(file, loaded, vocabulary)]
    if problems or (strict and unknown):
        raise click.ClickException("\n".join(problems + unknown))
    for text in unknown:
        write(f"{text}\n")
    return Exit.OK


def _facts(answer: dispatch_pb2.PreviewRouteResponse) -> list[tuple[str, str]]:
    from reach.cli.messages import name_of, seconds

    decision = answer.decision
    refusal = ""
    if answer.HasField("refusal"):
        refusal = f"{name_of(answer.refusal, 'reason')}: {answer.refusal.message}"
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(decision.dropped.items()))
    return [
        ("goes to", decision.chosen_instance_id or "nobody now: it would wait"),
        ("because", refusal),
        ("type", "" if answer.pool.startswith("~") else answer.pool),
        ("policy", decision.policy),
        ("by", decision.picked_by if decision.chosen_instance_id else ""),
        ("dropped", dropped),
        ("time limit", span(seconds(answer.start_to_close)) if answer.HasField("start_to_close") else ""),
        ("retries after", ", ".join(span(seconds(delay)) for delay in answer.retry_delays)),
    ]
