"""`reach agents`: which agents there are, and whether work can go to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reach.cli.agent_views import COLUMNS, facts_of, filter_options, history_of, row_of, wanted_of
from reach.cli.echo import echo
from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import one_line, write, write_facts, write_json, write_table
from reach.cli.values import DURATION
from reach.cli.watch import watch

if TYPE_CHECKING:
    from agentreach.v1.agent_pb2 import Agent
    from reach.cli.connection import Connection


@click.group()
def agents() -> None:
    """Look at agents, drain them, or start a fake one."""


agents.add_command(echo)
agents.add_command(watch)


@agents.command("list")
@filter_options
@server_options
@click.pass_context
def list_agents(context: click.Context, /, **given: Any) -> int:
    """All instances. ROUTED says whether new work goes there, and if not, why not."""
    from reach.cli.messages import plain

    settings = settings_of(context)
    wanted = wanted_of(given)
    with settings.connect() as server:
        found = _listed(server, wanted)
    if settings.json:
        write_json({"agents": [plain(agent) for agent in found]})
        return Exit.OK
    if not found:
        everything = not any(wanted.values())
        write("No agents. `reach agents echo` starts one to try things with.\n" if everything else "None.\n")
        return Exit.OK
    write_table(COLUMNS, map(row_of, found))
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
        found = [_whole(server, agent) for agent in _named(server, name)]
    if settings.json:
        write_json(plain(found[0]) if len(found) == 1 else {"agents": [plain(agent) for agent in found]})
        return Exit.OK
    for number, agent in enumerate(found):
        write("\n" if number else "")
        write_facts(facts_of(agent))
        if agent.history:
            write("\n")
            write_table(("WHEN", "STATE", "<WHY"), history_of(agent))
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


@agents.command()
@click.argument("name", metavar="ID")
@server_options
@click.pass_context
def remove(context: click.Context, name: str) -> int:
    """Take one instance, or all instances of an agent, out of the fleet. Their tasks move elsewhere.

    One that runs the SDK comes back with its next word; stop it first.
    """
    from agentreach.v1 import registry_pb2, registry_pb2_grpc

    settings = settings_of(context)
    with settings.connect() as server:
        instances = [agent.registration.instance_id for agent in _named(server, name)]
        stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
        for instance_id in instances:
            server.ask(stub.Deregister, registry_pb2.DeregisterRequest(instance_id=instance_id))
    if settings.json:
        write_json({"instance_ids": instances})
        return Exit.OK
    for instance_id in instances:
        write(f"{one_line(instance_id)} is removed\n")
    return Exit.OK


def _listed(server: Connection, wanted: dict[str, Any]) -> list[Agent]:
    from agentreach.v1 import registry_pb2, registry_pb2_grpc

    stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
    request = registry_pb2.ListAgentsRequest(filter=registry_pb2.AgentFilter(**wanted))
    return server.listed(stub.ListAgents, request, "agents")


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


def _whole(server: Connection, agent: Agent) -> Agent:
    """The same with its history, which lists leave out. It may have gone meanwhile."""
    from agentreach.v1 import registry_pb2, registry_pb2_grpc
    from reach.errors import InvalidRequest

    if agent.history:
        return agent
    stub = registry_pb2_grpc.RegistryServiceStub(server.channel)
    request = registry_pb2.GetAgentRequest(instance_id=agent.registration.instance_id)
    try:
        found: Agent = server.ask(stub.GetAgent, request).agent
    except InvalidRequest:
        return agent
    return found
