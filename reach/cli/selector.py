"""Options that say which agent may take a task, and how it is to be handled; for `dispatch` and `route preview`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from reach.cli.values import DURATION, PAIR, RETRY, SESSION, read_content, read_json

if TYPE_CHECKING:
    from reach.sdk.specs import TaskOptions

F = TypeVar("F", bound=Callable[..., Any])

_SELECTORS = ("agent_id", "agent_type", "capability", "intent", "text", "instance_id", "tags")


def selector_options(command: F) -> F:
    """Who may take it, what it is, and how it is to be handled. Content: TEXT, `-` or `@file`."""
    for option in reversed(
        (
            click.argument("content", metavar="[TEXT|-|@FILE]", required=False),
            click.option("--agent", "agent_id", metavar="ID", help="Agent that shall take it, such as doc-summarizer."),
            click.option("--type", "agent_type", metavar="TYPE", help="Type of the agents that may take it."),
            click.option("--capability", metavar="SKILL", help="What the agent must be able to do."),
            click.option("--intent", metavar="INTENT", help="What it is about, such as shop.refund; see the routes."),
            click.option("--match", "text", metavar="TEXT", help="Words to match with what agents say they can do."),
            click.option("--tag", "tags", metavar="TAG", multiple=True, help="Tag the agent must have (repeatable)."),
            click.option("--region", metavar="REGION", help="Region to prefer."),
            click.option("--policy", metavar="NAME", help="Routing policy (default: the route's, pool's or server's)."),
            click.option("--instance", "instance_id", metavar="ID", help="One instance, for operators and tests."),
            click.option("--method", default="", metavar="NAME", help="Handler of the agent, such as task.process."),
            click.option(
                "--json-payload", metavar="JSON|-|@FILE", help="The content as JSON (application/json), not as text."
            ),
            click.option("--media-type", default="", metavar="TYPE", help="Media type of the content."),
            click.option(
                "--attach", type=PAIR, multiple=True, metavar="NAME=@FILE", help="Content beside it (repeatable)."
            ),
            click.option("--task-id", metavar="ID", help="Chosen by you: the same task sent twice runs once."),
            click.option("--session", type=SESSION, help="The conversation it belongs to."),
            click.option(
                "--said",
                "entities",
                type=PAIR,
                multiple=True,
                help="What the user said, for the conversation (repeatable).",
            ),
            click.option("--priority", type=click.IntRange(0, 9), help="Higher is earlier (default: 3)."),
            click.option(
                "--class",
                "timeout_class",
                type=click.Choice(["qa", "code", "document"]),
                help="Time limit of an attempt by class: 2, 15 or 30 s.",
            ),
            click.option("--start-to-close", type=DURATION, help="Time limit of an attempt."),
            click.option("--deadline", "schedule_to_close", type=DURATION, help="Time limit of the whole task."),
            click.option("--not-before", type=DURATION, help="Start no earlier than this from now."),
            click.option(
                "--retry", type=RETRY, help="ladder, exponential, quick, patient, never, or waits such as 1s,5s."
            ),
            click.option(
                "--effects",
                type=click.Choice(["none", "idempotent", "irreversible"]),
                help="What running it twice would do (default: idempotent).",
            ),
            click.option("--volatile", is_flag=True, help="Never written to disk: faster, lost if the server dies."),
            click.option("--label", "labels", type=PAIR, multiple=True, help="For searching (repeatable)."),
            click.option("--webhook", metavar="URL", help="Told when it ends."),
        )
    ):
        command = option(command)
    return command


def payload_of(given: dict[str, Any]) -> Any:
    """Takes the options about content out of `given`; the content as the SDK takes it."""
    content, json_payload, media_type = given.pop("content"), given.pop("json_payload"), given.pop("media_type")
    if content is not None and json_payload is not None:
        raise click.UsageError("Give the content as TEXT or as --json-payload, not both.")
    if json_payload is not None:
        from reach.sdk.payloads import JSON_MEDIA_TYPE, Answer, json_text

        return Answer(json_text(read_json(json_payload)), media_type or JSON_MEDIA_TYPE)
    value = None if content is None else read_content(content)
    if not media_type:
        return value
    from reach.sdk.payloads import Answer

    return Answer(value, media_type)


def task_options(given: dict[str, Any], method: str) -> TaskOptions:
    """What is left of the options, as the SDK takes it; `method` alone says who may take it too."""
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    options = {name: value for name, value in options.items() if value not in ("", ())}
    if not method and not any(name in options for name in _SELECTORS):
        raise click.UsageError(
            "Say who shall take it: --agent, --type, --capability, --intent, --match, --tag, --method or --instance."
        )
    if options.pop("volatile", False):
        options["durable"] = False
    if "labels" in options:
        options["labels"] = dict(options["labels"])
    if "entities" in options:
        options["entities"] = dict(options["entities"])
    attached = options.pop("attach", ())
    if attached:
        options["attachments"] = {name: read_content(source) for name, source in attached}
    return cast("TaskOptions", options)
