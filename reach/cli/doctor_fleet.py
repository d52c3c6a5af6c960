"""What a running server knows of its nodes, agents and waiting tasks, as `reach doctor` judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from reach.cli.cluster import state_name
from reach.doctor.findings import Finding, error, ok, warning
from reach.doctor.machine import files

if TYPE_CHECKING:
    from agentreach.v1.agent_pb2 import Agent
    from agentreach.v1.cluster_pb2 import GetClusterResponse, PeerCheck
    from agentreach.v1.task_pb2 import Task

SKEW_MS: Final = 1_000
TASKS: Final = 1_000
"""Waiting tasks that are looked at."""
BEATING_MS: Final = 15_000
"""A beat that is younger is one of an agent that lives."""
_ADVICE: Final = {
    "no_link": "it must hold an Attach stream, or be reachable at its endpoint; see its log",
    "not_ready": "see what it waits for; an agent says itself when it is ready",
    "draining": "reach agents drain ID --undo, if that is over",
    "stalled": "its handlers are blocked: restart it, or let it report progress",
    "deaf": "what it is sent does not arrive: look at proxies in between",
    "self_reported_failures": "see its log for the failures that it reports",
    "circuit_open": "see why its tasks fail: reach tasks list --state failed",
    "unhealthy": "is it frozen, or the network?",
    "offline": "start it again, or let it deregister",
}
_STATES: Final = {
    "starting": ("it owns nothing yet", "wait; if it stays so, see its log"),
    "in doubt": ("what it owns stands still", "does it reach PostgreSQL? See its log"),
    "replaced": ("it owns nothing any more", "give each process a name of its own (--node-id)"),
    "unreachable": ("what it owns is moved when its lease ends", "is it running? Is its address (--advertise) right?"),
}


def nodes(found: GetClusterResponse) -> Iterator[Finding]:
    """How the nodes do, and whether they reach each other."""
    for node in found.nodes:
        state = state_name(node)
        if state in _STATES:
            why, todo = _STATES[state]
            detail = f": {node.error}" if node.error else ""
            yield error("nodes", f"{node.node_id} is {state}{detail}", why, todo)
        elif state == "absent":
            yield warning(
                "nodes", f"{node.node_id} is drained, and not there", "when it comes it owns nothing",
                f"reach cluster drain {node.node_id} --undo, if that is over",
            )  # fmt: skip
        else:
            yield ok("nodes", f"{node.node_id} is {state} with {len(node.shards)} shards")
            for problem in node.problems:
                yield error("nodes", f"{node.node_id}: {problem}", "see operations.md", "see its log")
            if node.open_files_limit:
                yield files(node.open_files_limit, f"node {node.node_id}")
    if found.name:
        yield from _as_one(found)
    for name, checks in sorted(found.peers.items()):
        for check in checks.checks:
            yield from _peer(name, check)


def _as_one(found: GetClusterResponse) -> Iterator[Finding]:
    if not found.leader:
        yield error("nodes", "nobody leads", "shards of a node that dies stay where they are", "does etcd answer?")
    versions = sorted({node.version for node in found.nodes if node.version})
    if len(versions) > 2:
        yield error(
            "nodes", f"versions {', '.join(versions)} run beside each other", "only two adjacent ones work together",
            "bring all to the newest",
        )  # fmt: skip
    elif len(versions) == 2:
        yield warning(
            "nodes", f"versions {' and '.join(versions)} run beside each other", "fine for an upgrade, not for long",
            "finish the upgrade",
        )  # fmt: skip
    nobody = [one.shard for one in found.placement if not one.owner]
    if nobody:
        yield error(
            "nodes", f"{len(nobody)} of {len(found.placement)} shards are owned by nobody who answers",
            "their tasks stand still", "reach cluster placement; do the nodes reach PostgreSQL?",
        )  # fmt: skip


def _peer(name: str, check: PeerCheck) -> Iterator[Finding]:
    if check.error:
        secret = "secret" in check.error
        yield error(
            "peers", f"{name} does not reach {check.node_id} at {check.address}: {check.error}",
            "calls that come in at the one for the other fail",
            "give both the same cluster.secret_file, and let their clocks agree" if secret
            else f"is the address right (--advertise at {check.node_id}), and the way free?",
        )  # fmt: skip
        return
    ahead_ms = check.clock_ahead.ToMilliseconds()
    slack_ms = check.took.ToMilliseconds() / 2
    if abs(ahead_ms) - slack_ms > SKEW_MS:
        yield warning(
            "peers", f"the clock of {check.node_id} is {ahead_ms / 1_000:+.1f} s off that of {name}",
            "nodes that differ by 5 minutes refuse each other", "let all machines follow a time server (NTP)",
        )  # fmt: skip
    else:
        yield ok("peers", f"{name} reaches {check.node_id} in {check.took.ToMilliseconds()} ms")


def agents(found: Iterable[Agent]) -> Iterator[Finding]:
    """Agents that beat but take nothing, and what is odd about them."""
    taking = 0
    for agent in found:
        name = agent.registration.instance_id
        for text in agent.warnings:
            yield warning("agents", f"{name}: {text}", "the server may not reach it", "see its registration")
        blocked = agent.blocked_by
        if not blocked:
            taking += 1
        elif blocked in ("capacity", "full"):
            continue
        else:
            beats = agent.HasField("last_heartbeat_age") and agent.last_heartbeat_age.ToMilliseconds() < BEATING_MS
            what = "beats but takes nothing" if beats else "takes nothing"
            yield warning(
                "agents", f"{name} {what}: {blocked}", "its tasks go to others, or wait",
                _ADVICE.get(blocked, f"reach agents show {name} has the evidence"),
            )  # fmt: skip
    yield ok("agents", f"{taking} instances take work")


def waiting(tasks: Iterable[Task], found: Iterable[Agent]) -> Iterator[Finding]:
    """Pools with a queue and nobody who takes it."""
    ready = {one.registration.agent_type or one.registration.agent_id for one in found if not one.blocked_by}
    by_pool = Counter((task.pool, task.pending_reason) for task in tasks if task.pending_reason != "start_delay")
    for (pool, reason), count in sorted(by_pool.items()):
        many = (
            f"{count} or more tasks wait" if count >= TASKS else f"{count} tasks wait" if count > 1 else "a task waits"
        )
        if pool not in ready:
            where = f"for {pool!r}, where no instance is ready" if pool else "for agents that nobody has"
            yield error(
                "queues", f"{many} {where} ({reason or 'no reason yet'})", "they wait until their time is over",
                "start agents of that kind, or see why those take nothing: reach agents list",
            )  # fmt: skip
