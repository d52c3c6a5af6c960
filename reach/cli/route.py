"""`reach route preview`: where a task would go, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reach.cli.exits import Exit
from reach.cli.selector import payload_of, selector_options, task_options
from reach.cli.settings import server_options, settings_of
from reach.cli.simulate import simulate
from reach.cli.terminal import span, write, write_facts, write_json, write_table

if TYPE_CHECKING:
    from agentreach.v1 import dispatch_pb2, task_pb2


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
    fields, _ = spec_fields(method, payload, task_options(given))
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
        rows = sorted(answer.decision.candidates, key=lambda one: (bool(one.drop_reason), -one.score, one.instance_id))
        signals = sorted({name for candidate in rows for name in candidate.signals})
        titles = ("INSTANCE", ">SCORE", *(f">{name.upper()}" for name in signals), "<DROPPED")
        write_table(titles, (_row(candidate, signals) for candidate in rows))
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
        ("refused", refusal),
        ("type", answer.pool),
        ("policy", decision.policy),
        ("dropped", dropped),
        ("time limit", span(seconds(answer.start_to_close)) if answer.HasField("start_to_close") else ""),
        ("retries after", ", ".join(span(seconds(delay)) for delay in answer.retry_delays)),
    ]


def _row(candidate: task_pb2.Candidate, signals: list[str]) -> tuple[str, ...]:
    score = "" if candidate.drop_reason else f"{candidate.score:.3f}"
    figures = (f"{candidate.signals[name]:.2f}" if name in candidate.signals else "" for name in signals)
    return candidate.instance_id, score, *figures, candidate.drop_reason
