"""`reach adopt`: A2A agents become members of the fleet, by their cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reach.cli.agent_views import adopted_facts
from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import one_line, say, write, write_facts, write_json
from reach.cli.values import PAIR

if TYPE_CHECKING:
    from agentreach.v1 import agent_pb2


@click.command()
@click.argument("card_url", metavar="CARD_URL")
@click.option("--type", "agent_type", metavar="TYPE", help="Its type (default: its id).")
@click.option("--id", "agent_id", metavar="ID", help="The agent's id (default: the name on the card).")
@click.option("--instance", "instance_id", metavar="ID", help="The instance's id (default: made of id and address).")
@click.option("--url", metavar="URL", help="What to call, instead of the URL on the card.")
@click.option("--credential", "auth_reference", metavar="NAME", help="Entry of the server's agents.auth to send.")
@click.option(
    "--slots", "max_concurrency", type=click.IntRange(1, 100_000), help="Tasks at once (default: 1, and it grows)."
)
@click.option("--weight", type=click.IntRange(1, 100), help="Its share of the work (default: 10).")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher first (default: 3).")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="For selectors (repeatable).")
@click.option("--label", "labels", type=PAIR, multiple=True, help="name=value (repeatable).")
@click.option("--any-media", is_flag=True, help="Give it any content, whatever its card says it takes.")
@click.option("--region", metavar="REGION", help="Where it is.")
@click.option("--allow", "allowed_tenants", metavar="TENANT", multiple=True, help="May call it too (repeatable).")
@server_options
@click.pass_context
def adopt(context: click.Context, /, **given: Any) -> int:
    """Make an A2A agent a member of the fleet: its skills are capabilities, and tasks go to it.

    CARD_URL is where its agent card is, such as https://agent.example; without a path it is
    looked for at /.well-known/agent-card.json. The server reads it again every 30 s. To adopt
    it once more is an update; `reach agents remove ID` ends it.
    """
    from agentreach.v1 import registry_pb2, registry_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    given["labels"] = dict(given["labels"])
    terms: dict[str, Any] = {
        name: value for name, value in given.items() if value or (value == 0 and value is not False)
    }
    request = registry_pb2.AdoptRequest(terms=terms)  # type: ignore[arg-type]
    with settings.connect() as server:
        answer = server.ask(registry_pb2_grpc.RegistryServiceStub(server.channel).Adopt, request)
    if settings.json:
        write_json(plain(answer))
        return Exit.OK
    registration: agent_pb2.Registration = answer.registration
    write(f"{one_line(registration.instance_id)} is a member of the fleet\n\n")
    write_facts([*adopted_facts(registration), ("routed", _routed(answer.blocked_by))])
    for warning in answer.warnings:
        say(f"warning: {warning}")
    return Exit.OK


def _routed(blocked_by: str) -> str:
    if blocked_by == "not_ready":  # as each is that has not beaten twice
        return "from its next probe on"
    return f"no: {blocked_by}" if blocked_by else "yes"
