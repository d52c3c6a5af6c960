"""`reach agents`: which agents there are, and whether work can go to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reach.cli.echo import echo
from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import moment, one_line, span, write, write_facts, write_json, write_table
from reach.cli.values import DURATION

if TYPE_CHECKING:
    from agentreach.v1.agent_pb2 import Agent
    from reach.cli.connection import Connection


@click.group()
def agents() -> None:
    """Look at agents, drain them, or start a fake one."""


agents.add_command(echo)


@agents.command("list")
@click.option("--agent", "agent_id", metavar="ID", help="Only instances of this agent.")
@click.option("--type", "agent_type", metavar="TYPE", help="Only of this type.")
@click.option("--capability", metavar="SKILL", help="Only those that can do this.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only those with this tag (repeatable).")
@click.option(
    "--health",
    multiple=True,
    type=click.Choice(["STARTING", "HEALTHY", "SUSPECT", "UNHEALTHY", "OFFLINE"], case_sensitive=False),
    help="Only in this health (repeatable).",
)
@server_options
@click.pass_context
def list_agents(context: click.Context, /, health: tuple[str, ...], **given: Any) -> int:
    """All instances. ROUTED says whether new work goes there, and if not, why not."""
    from agentreach.v1 import agent_pb2
    from reach.cli.messages import plain

    settings = settings_of(context)
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value}
    wanted["health"] = [agent_pb2.Health.Value(f"HEALTH_{name.upper()}") for name in health]
    with settings.connect() as server:
        found = _listed(server, wanted)
    if settings.json:
        write_json({"agents": [plain(agent) for agent in found]})
        return Exit.OK
    if not found:
        everything = not any(wanted.values())
        write("No agents. `reach agents echo` starts one to try things with.\n" if everything else "None.\n")
        return Exit.OK
    write_table(
        ("INSTANCE", "TYPE", "HEALTH", "STATE", ">SLOTS", ">BEAT", "<CAPABILITIES", "<ROUTED"), map(_row, found)
    )
    return Exit.OK


@agents.command()
@click.argument("name", metavar="ID")
@server_options
@click.pass_context
def show(context: click.Context, name: str) -> int:
    """One instance, or all instances of an agent, with everything that is known of it."""
    from reach.cli.messages import plain

    settings = settings_of(context)
    with settings.connect() as server:
        found = _named(server, name)
    if settings.json:
        write_json(plain(found[0]) if len(found) == 1 else {"agents": [plain(agent) for agent in found]})
        return Exit.OK
    for number, agent in enumerate(found):
        write("\n" if number else "")
        write_facts(_facts(agent))
    return Exit.OK


@agents.command()
@click.argument("name", metavar="ID")
@click.option("--undo", is_flag=True, help="Let it take work again.")
@click.option("--deadline", type=DURATION, help="When its sessions are handed over (default: 30 s).")
@server_options
@click.pass_context
def drain(context: click.Context, name: str, undo: bool, deadline: float | None) -> int:
    """Stop new work for one instance, or for all instances of an agent. What runs is finished."""
    from google.protobuf.duration_pb2 import Duration

    from agentreach.v1 import registry_pb2, registry_pb2_grpc
    from reach.sdk.figures import duration

    settings = settings_of(context)
    with settings.connect() as server:
        instances = [agent.registration.instance_id for agent in _named(server, name)]
        stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
        drained: list[str] = []
        until = None if deadline is None else Duration(**duration(deadline))
        for instance_id in instances:
            request = registry_pb2.DrainRequest(instance_id=instance_id, undo=undo, deadline=until)
            drained.extend(server.ask(stub.Drain, request).instance_ids)
    if settings.json:
        write_json({"instance_ids": drained, "draining": not undo})
        return Exit.OK
    for instance_id in drained:
        write(f"{one_line(instance_id)} {'takes work again' if undo else 'drains'}\n")
    return Exit.OK


def _listed(server: Connection, wanted: dict[str, Any]) -> list[Agent]:
    from agentreach.v1 import registry_pb2, registry_pb2_grpc

    stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
    request = registry_pb2.ListAgentsRequest(filter=registry_pb2.AgentFilter(**wanted), page_size=1000)
    found: list[Agent] = []
    while True:
        answer = server.ask(stub.ListAgents, request)
        found.extend(answer.agents)
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token


def _named(server: Connection, name: str) -> list[Agent]:
    """The instance of this id, or all instances of the agent of this id. Raises InvalidRequest (AGENT_NOT_FOUND)."""
    from agentreach.v1 import registry_pb2, registry_pb2_grpc
    from reach.errors import InvalidRequest, Reason

    stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
    try:
        return [server.ask(stub.GetAgent, registry_pb2.GetAgentRequest(instance_id=name)).agent]
    except InvalidRequest as error:
        if error.reason is not Reason.AGENT_NOT_FOUND or "@" in name:
            raise
        found = _listed(server, {"agent_id": name})
        if not found:
            text = f"there is no instance and no agent {name!r}"
            raise InvalidRequest(text, Reason.AGENT_NOT_FOUND) from error
        return found


def _row(agent: Agent) -> tuple[str, ...]:
    from reach.cli.messages import name_of, seconds

    asked = agent.registration
    beat = span(seconds(agent.last_heartbeat_age)) if agent.HasField("last_heartbeat_age") else ""
    return (
        asked.instance_id,
        asked.agent_type or asked.agent_id,
        name_of(agent, "health"),
        name_of(agent, "availability"),
        f"{agent.inflight}/{agent.max_concurrency}",
        beat,
        ", ".join(capability.name for capability in asked.capabilities),
        agent.blocked_by or "yes",
    )


def _facts(agent: Agent) -> list[tuple[str, str]]:
    from reach.cli.messages import name_of, seconds

    asked = agent.registration
    facts = [
        ("instance", asked.instance_id),
        ("agent", asked.agent_id),
        ("type", asked.agent_type or asked.agent_id),
        ("version", asked.version),
        ("routed", f"no: {agent.blocked_by}" if agent.blocked_by else "yes"),
        ("health", name_of(agent, "health")),
        ("suspected", agent.suspected_by),
        ("availability", name_of(agent, "availability")),
        ("slots", f"{agent.inflight} of {agent.max_concurrency} in use"),
        ("reach score", f"{agent.reach_score:.2f}" if agent.HasField("reach_score") else ""),
        ("beat", f"{span(seconds(agent.last_heartbeat_age))} ago" if agent.HasField("last_heartbeat_age") else ""),
        ("probe", agent.probe_status + (f": {agent.last_probe_error}" if agent.last_probe_error else "")),
        ("registered", moment(agent.registered_at.seconds) if agent.HasField("registered_at") else ""),
        ("generation", str(agent.generation)),
        ("capabilities", ", ".join(" ".join((one.name, one.version)).strip() for one in asked.capabilities)),
        ("methods", ", ".join(method.name for method in asked.methods)),
        ("tags", ", ".join(asked.tags)),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(asked.labels.items()))),
        ("languages", ", ".join(asked.languages)),
        ("region", asked.region),
        ("weight", str(asked.weight) if asked.HasField("weight") else ""),
        ("host", asked.host),
        ("sdk", asked.sdk),
    ]
    facts.extend(
        (name_of(condition, "type"), f"{condition.evidence}, for {span(seconds(condition.since))}")
        for condition in agent.conditions
    )
    facts.extend(("warning", warning) for warning in agent.warnings)
    facts.extend(
        ("was", f"{moment(change.at.seconds)} {change.state}: {change.reason}") for change in reversed(agent.history)
    )
    return facts
