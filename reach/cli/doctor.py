"""`reach doctor`: looks at the configuration, this machine, the stores and a running server, and says what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import Settings, server_options, settings_of
from reach.cli.terminal import one_line, write, write_json
from reach.errors import ReachError

if TYPE_CHECKING:
    from reach.config import Config
    from reach.doctor.findings import Finding

_FILE: Final = click.Path(exists=True, dir_okay=False)
_LINE: Final = 500


@click.command()
@click.option("--config", "file", type=_FILE, metavar="FILE", help="The configuration of the server.")
@click.option("--journal", metavar="URL", help="As for `reach serve`, where it is not in the file.")
@click.option("--cluster", metavar="URL", help="As for `reach serve`, where it is not in the file.")
@click.option("--cluster-secret", metavar="FILE", help="As for `reach serve`, where it is not in the file.")
@click.option("--no-server", is_flag=True, help="Do not ask a running server.")
@click.option("--all", "tell_all", is_flag=True, help="Also tell what is well.")
@server_options
@click.pass_context
def doctor(
    context: click.Context, file: str | None, journal: str | None, cluster: str | None, cluster_secret: str | None,
    no_server: bool, tell_all: bool,
) -> int:  # fmt: skip
    """Say what is wrong with a server, its stores, its nodes and its agents, and what to do about it.

    Looks at the configuration, ports and files of this machine, at PostgreSQL and etcd where they are used, and asks a
    running server (--addr) about all nodes, agents and queues. Exit code 8 if something does not work.
    """
    from reach.doctor.findings import Level, worst_of

    settings = settings_of(context)
    found = list(_local(file, journal, cluster, cluster_secret))
    if not no_server:
        found += list(_live(settings))
    worst = worst_of(found)
    if settings.json:
        write_json({"findings": [_fields(one) for one in found], "worst": worst.name.lower()})
        return Exit.ATTENTION if worst is Level.ERROR else Exit.OK
    for one in sorted(found, key=lambda one: -one.level):
        if one.level is Level.OK and not tell_all:
            continue
        line = f"{one.level.name.lower():7}  {one.check}: {one.what}"
        if one.why:
            line += f"; {one.why}; {one.todo}"
        write(one_line(line, _LINE) + "\n")
    counts = [sum(1 for one in found if one.level is level) for level in (Level.ERROR, Level.WARNING, Level.OK)]
    write("{} errors, {} warnings, {} checks are well\n".format(*counts))
    return Exit.ATTENTION if worst is Level.ERROR else Exit.OK


def _local(file: str | None, journal: str | None, cluster: str | None, secret: str | None) -> Iterator[Finding]:
    """This machine and the stores, as the configuration says."""
    from reach.cli.serve import overrides_of
    from reach.config import ConfigError, load
    from reach.doctor.findings import error, ok
    from reach.doctor.machine import machine

    try:
        config = load(file, os.environ, {**overrides_of(journal, cluster), "cluster.secret_file": secret})
    except ConfigError as problem:
        for text in problem.problems:
            yield error("config", text, "the server would not start", "see configuration.md; reach config check FILE")
        return
    yield ok("config", f"{file or 'the default configuration'} can be used")
    yield from machine(config)
    yield from _stores(config)


def _stores(config: Config) -> Iterator[Finding]:
    if config.storage.type == "postgres":
        yield from _database(config)
    if config.cluster.endpoints:
        import asyncio

        from reach.doctor.coordination import coordination
        from reach.membership import access_of

        yield from asyncio.run(coordination(access_of(config), config.cluster.name))


def _database(config: Config) -> list[Finding]:
    from reach.doctor.database import database
    from reach.doctor.findings import error
    from reach.stores import database_of

    try:
        address = database_of(config)
    except ReachError as problem:
        return [error("postgres", problem.message, "the server would not start", "see configuration.md")]
    return database(address, max(1, 3 * bool(config.cluster.endpoints)))


def _live(settings: Settings) -> Iterator[Finding]:
    """What a running server knows."""
    from agentreach.v1 import (
        cluster_pb2,
        dispatch_pb2,
        dispatch_pb2_grpc,
        ops_pb2_grpc,
        registry_pb2,
        registry_pb2_grpc,
    )
    from agentreach.v1.task_pb2 import TASK_STATE_PENDING
    from reach.cli import doctor_fleet as fleet
    from reach.doctor.findings import error, ok

    try:
        with settings.connect() as server:
            ops = ops_pb2_grpc.OpsServiceStub(server.channel)
            cluster = server.ask(ops.GetCluster, cluster_pb2.GetClusterRequest(check_peers=True))
            yield ok("server", f"{settings.address} answers")
            yield from fleet.nodes(cluster)
            registry = registry_pb2_grpc.RegistryServiceStub(server.channel)
            agents = server.listed(registry.ListAgents, registry_pb2.ListAgentsRequest(), "agents")
            yield from fleet.agents(agents)
            dispatch = dispatch_pb2_grpc.DispatchServiceStub(server.channel)
            pending = dispatch_pb2.ListTasksRequest()
            pending.filter.states.append(TASK_STATE_PENDING)
            yield from fleet.waiting(server.listed(dispatch.ListTasks, pending, "tasks", fleet.TASKS), agents)
    except ReachError as failure:
        todo = "start it, or name it by --addr; a key with the scope reader is needed where keys are"
        yield error("server", failure.message, "it cannot tell all that it knows", todo)


def _fields(one: Finding) -> dict[str, Any]:
    return {**one._asdict(), "level": one.level.name.lower()}
