"""`reach cluster`: the nodes that work as one, what each owns, and steering them. Any node answers for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import Settings, server_options, settings_of
from reach.cli.terminal import one_line, span, write, write_facts, write_json, write_table

if TYPE_CHECKING:
    from agentreach.v1 import cluster_pb2

_WELL: Final = frozenset({"serving", "door"})
"""States in which nothing needs an operator."""


@click.group(short_help="Look at the nodes of a cluster, drain one, place shards.")
def cluster() -> None:
    """Look at the nodes of a cluster, drain one, place shards.

    Ask any node: it asks the others. A server that is alone is a cluster of one.
    """


@cluster.command()
@server_options
@click.pass_context
def status(context: click.Context) -> int:
    """How each node does, as it says itself. Exit code 8 if one of them does not do well."""
    settings = settings_of(context)
    found = _asked(settings)
    well = all(_is_well(node) for node in found.nodes)
    if settings.json:
        write_json({**_plain(found), "well": well})
        return Exit.OK if well else Exit.ATTENTION
    titles = ("NODE", "STATE", "SHARDS", "WEIGHT", "VERSION", "STORE", "ETCD", "LEASE", "UP", "<ADDRESS")
    write_table(titles, (_row(node, found) for node in found.nodes))
    for node in found.nodes:
        for problem in (*node.problems, *([node.error] if node.error else [])):
            write(f"{one_line(node.node_id)}: {one_line(problem, 300)}\n")
    nobody = sum(1 for one in found.placement if not one.owner)
    if nobody:
        write(f"{nobody} of {len(found.placement)} shards are owned by nobody who answers\n")
    return Exit.OK if well else Exit.ATTENTION


@cluster.command()
@server_options
@click.pass_context
def placement(context: click.Context) -> int:
    """Which node owns each shard, at which epoch, and which one should."""
    settings = settings_of(context)
    found = _asked(settings)
    if settings.json:
        write_json({"placement": _plain(found)["placement"]})
        return Exit.OK
    write_table((">SHARD", "OWNER", "WISH", ">EPOCH", "<"), map(_placement_row, found.placement))
    return Exit.OK


@cluster.command()
@server_options
@click.pass_context
def leader(context: click.Context) -> int:
    """Who places the shards, and since when. Exit code 8 if nobody does."""
    settings = settings_of(context)
    found = _asked(settings)
    node = next((one for one in found.nodes if one.term), None)
    if settings.json:
        known: dict[str, object] = {"leader": found.leader}
        if node is not None:
            known |= {"term": str(node.term), "leading_seconds": node.leading_for.ToMilliseconds() / 1_000}
        write_json(known)
    elif not found.name:
        write("The server is alone: there is nothing to lead.\n")
    elif node is None:
        write(f"{one_line(found.leader)} (it does not say so itself)\n" if found.leader else "Nobody leads just now.\n")
    else:
        since = span(node.leading_for.ToMilliseconds() / 1_000)
        write_facts([("leader", node.node_id), ("since", f"{since} ago"), ("term", str(node.term))])
    return Exit.OK if found.leader or not found.name else Exit.ATTENTION


@cluster.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it own its share again.")
@server_options
@click.pass_context
def drain(context: click.Context, node: str, undo: bool) -> int:
    """Let a node give all it owns to the others; it goes on as a door.

    It stays drained until --undo, over restarts of it, of the others and of etcd. No task is lost or run again by it.
    """
    from agentreach.v1 import cluster_pb2

    settings = settings_of(context)
    answer = _ask(settings, "DrainNode", cluster_pb2.DrainNodeRequest(node_id=node, undo=undo))
    if settings.json:
        write_json({"drained": list(answer.drained)})
        return Exit.OK
    write(f"{one_line(node)} {'gets its share again' if undo else 'gives its shards to the others'}\n")
    if answer.drained:
        write(f"drained: {', '.join(map(one_line, answer.drained))}\n")
    return Exit.OK


@cluster.command()
@server_options
@click.pass_context
def rebalance(context: click.Context) -> int:
    """Give each node its fair share now, without waiting for others that may be about to join."""
    from agentreach.v1 import cluster_pb2

    settings = settings_of(context)
    answer = _ask(settings, "Rebalance", cluster_pb2.RebalanceRequest())
    if settings.json:
        write_json({"moved": answer.moved, "leader": answer.leader})
    elif answer.moved:
        write(f"{one_line(answer.leader)} moves {answer.moved} shards\n")
    else:
        write("Each node has its share already.\n")
    return Exit.OK


def _ask(settings: Settings, method: str, request: Any) -> Any:
    """The answer of a method of OpsService. Raises ReachError."""
    from agentreach.v1 import ops_pb2_grpc

    with settings.connect() as server:
        return server.ask(getattr(ops_pb2_grpc.OpsServiceStub(server.channel), method), request)


def _asked(settings: Settings) -> cluster_pb2.GetClusterResponse:
    """What all nodes say of themselves. Raises ReachError."""
    from agentreach.v1 import cluster_pb2

    found: cluster_pb2.GetClusterResponse = _ask(settings, "GetCluster", cluster_pb2.GetClusterRequest())
    return found


def state_name(node: cluster_pb2.Node) -> str:
    """The state as people read it: `in doubt`."""
    from agentreach.v1 import cluster_pb2

    return cluster_pb2.NodeState.Name(node.state).removeprefix("NODE_STATE_").replace("_", " ").lower()


def _is_well(node: cluster_pb2.Node) -> bool:
    state = state_name(node)
    return (state in _WELL and node.ready and not node.problems) or state in ("draining", "absent")


def _plain(message: Any) -> dict[str, Any]:
    from reach.cli.messages import plain

    made: dict[str, Any] = plain(message)
    return made


def _row(node: cluster_pb2.Node, found: cluster_pb2.GetClusterResponse) -> tuple[str, ...]:
    leads = " (leads)" if node.term or (found.name and node.node_id == found.leader) else ""
    name = one_line(node.node_id) + leads
    weight = f"{node.weight} (drained)" if node.drained else str(node.weight)
    state = state_name(node)
    if state in ("unreachable", "absent"):
        return name, state, "", weight if node.version else "", one_line(node.version), "", "", "", "", node.address
    lease = span(node.lease_age.ToMilliseconds() / 1_000) if node.HasField("lease_age") else "none"
    return (
        name, state, str(len(node.shards)), weight, one_line(node.version),
        f"{node.store} {'ok' if node.store_reachable else 'away'}",
        ("ok" if node.etcd_reachable else "away") if found.name else "-",
        lease if found.name else "-", span(node.uptime.ToMilliseconds() / 1_000), one_line(node.address),
    )  # fmt: skip


def _placement_row(one: cluster_pb2.Placement) -> tuple[str, ...]:
    note = "" if one.owner == one.wish else "moving" if one.wish else "nobody can own it"
    return str(one.shard), one_line(one.owner) or "nobody", one_line(one.wish) or "nobody", str(one.epoch), note
