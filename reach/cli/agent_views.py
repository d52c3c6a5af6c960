"""How instances are shown, and the options that choose them: for `reach agents list`, `show` and `watch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from reach.cli.terminal import moment, span

if TYPE_CHECKING:
    from agentreach.v1.agent_pb2 import Agent, AgentStatus, Registration

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS: Final = (
    "INSTANCE", "TYPE", "HEALTH", "STATE", ">SLOTS", ">SCORE", ">BEAT", "<CONDITIONS", "<CAPABILITIES", "<ROUTED",
)  # fmt: skip


def filter_options(command: F) -> F:
    """The options that say which instances are meant."""
    for option in reversed(
        (
            click.option("--agent", "agent_id", metavar="ID", help="Only instances of this agent."),
            click.option("--type", "agent_type", metavar="TYPE", help="Only of this type."),
            click.option("--capability", metavar="SKILL", help="Only those that can do this."),
            click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only those with this tag (repeatable)."),
            click.option(
                "--health",
                multiple=True,
                type=click.Choice(["STARTING", "HEALTHY", "SUSPECT", "UNHEALTHY", "OFFLINE"], case_sensitive=False),
                help="Only in this health (repeatable).",
            ),
        )
    ):
        command = option(command)
    return command


def wanted_of(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of an AgentFilter, from the options."""
    from agentreach.v1 import agent_pb2

    wanted = {name: value for name, value in given.items() if value and name != "health"}
    if given["health"]:
        wanted["health"] = [agent_pb2.Health.Value(f"HEALTH_{name.upper()}") for name in given["health"]]
    return wanted


def row_of(agent: Agent) -> tuple[str, ...]:
    """One line of a list."""
    from reach.cli.messages import name_of, seconds

    asked = agent.registration
    beat = span(seconds(agent.last_heartbeat_age)) if agent.HasField("last_heartbeat_age") else ""
    return (
        asked.instance_id,
        asked.agent_type or asked.agent_id,
        name_of(agent, "health"),
        name_of(agent, "availability"),
        f"{agent.inflight}/{agent.max_concurrency}",
        f"{agent.reach_score:.0f}" if agent.HasField("reach_score") else "",
        beat,
        ", ".join(name_of(condition, "type") for condition in agent.conditions),
        ", ".join(capability.name for capability in asked.capabilities),
        agent.blocked_by or "yes",
    )


def facts_of(agent: Agent) -> list[tuple[str, str]]:
    """Everything that is known of one."""
    from reach.cli.messages import name_of, seconds

    asked = agent.registration
    state = name_of(agent, "availability")
    if agent.HasField("availability_ttl"):
        state += f" for {span(seconds(agent.availability_ttl))}"
    sessions = str(agent.sessions) if agent.sessions else ""
    if asked.HasField("max_sessions"):
        sessions = f"{agent.sessions} of {asked.max_sessions}"
    facts = [
        ("instance", asked.instance_id),
        ("agent", asked.agent_id),
        ("type", asked.agent_type or asked.agent_id),
        ("version", asked.version),
        ("routed", f"no: {agent.blocked_by}" if agent.blocked_by else "yes"),
        ("health", name_of(agent, "health")),
        ("suspected", agent.suspected_by),
        ("availability", state),
        *((name_of(one, "type"), f"{one.evidence}, for {span(seconds(one.since))}") for one in agent.conditions),
        ("slots", f"{agent.inflight} of {agent.max_concurrency} in use, load {agent.load:.2f}"),
        ("sessions", sessions),
        ("reach score", f"{agent.reach_score:.2f}" if agent.HasField("reach_score") else ""),
        ("beat", f"{span(seconds(agent.last_heartbeat_age))} ago" if agent.HasField("last_heartbeat_age") else ""),
        ("probe", _probed(agent)),
        ("reports", _reported(agent.status)),
        ("registered", moment(agent.registered_at.seconds) if agent.HasField("registered_at") else ""),
        ("generation", str(agent.generation)),
        ("capabilities", ", ".join(" ".join((one.name, one.version)).strip() for one in asked.capabilities)),
        ("methods", ", ".join(method.name for method in asked.methods)),
        ("tags", ", ".join(asked.tags)),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(asked.labels.items()))),
        ("languages", ", ".join(asked.languages)),
        ("media types", _both(asked.input_media_types, asked.output_media_types)),
        ("endpoints", ", ".join(endpoint.url for endpoint in asked.endpoints)),
        ("region", "/".join(filter(None, (asked.region, asked.zone)))),
        ("weight", str(asked.weight) if asked.HasField("weight") else ""),
        ("priority", str(asked.priority) if asked.HasField("priority") else ""),
        ("interval", span(seconds(asked.heartbeat_interval)) if asked.HasField("heartbeat_interval") else ""),
        ("may be called by", ", ".join(asked.allowed_tenants)),
        ("host", asked.host),
        ("sdk", asked.sdk),
        *_adopted(agent),
    ]
    facts.extend(("warning", warning) for warning in agent.warnings)
    return facts


def adopted_facts(registration: Registration) -> list[tuple[str, str]]:
    """What was made of an agent card, in short."""
    card = registration.endpoints[0].card
    return [
        ("agent", registration.agent_id),
        ("type", registration.agent_type),
        ("name", card.name),
        ("provider", card.organization),
        ("version", registration.version),
        ("capabilities", ", ".join(one.name for one in registration.capabilities)),
        ("called by", f"{card.binding} of A2A {card.protocol_version}, {'streams' if card.streaming else 'polled'}"),
        ("at", registration.endpoints[0].url.removeprefix("a2a+")),
    ]


def _adopted(agent: Agent) -> Iterator[tuple[str, str]]:
    """Of an A2A agent: whether its card is found, and how calls go. Whether it is reached is said by its probes."""
    from reach.cli.messages import seconds

    card = agent.registration.endpoints[0].card if agent.registration.endpoints else None
    if card is None or not card.binding:
        return
    told, found = agent.adopted, "not read yet"
    if told.HasField("card_age"):
        found = f"read {span(seconds(told.card_age))} ago"
    yield "card", f"{card.terms.card_url}, {told.card_error or found}"
    failed = f", {told.failed_calls} failed" if told.failed_calls else ""
    yield "calls", f"{told.calls}{failed}" + (f", the last: {told.last_call_error}" if told.last_call_error else "")
    yield "a2a", f"{card.protocol_version}, {card.binding}, {'streams' if card.streaming else 'polled'}"


def _probed(agent: Agent) -> str:
    from reach.cli.messages import seconds

    parts = [agent.probe_status]
    if agent.HasField("probe_rtt"):
        parts.append(f"{span(seconds(agent.probe_rtt))} there and back")
    if agent.HasField("probe_loss"):
        parts.append(f"{agent.probe_loss:.0%} lost")
    if agent.last_probe_error:
        parts.append(agent.last_probe_error)
    return ", ".join(parts)


def _both(taken: Any, given: Any) -> str:
    return " → ".join((", ".join(taken) or "any", ", ".join(given) or "any")) if taken or given else ""


def _reported(status: AgentStatus) -> str:
    """What it said of itself last, in short."""
    from reach.cli.messages import seconds

    parts = [
        f"{getattr(status, field)} {words}"
        for field, words in (
            ("inflight", "running"),
            ("queue_length", "waiting"),
            ("free_slots", "free slots"),
            ("free_session_slots", "free session slots"),
            ("consecutive_failure_count", "failures in a row"),
        )
        if status.HasField(field)  # type: ignore[arg-type]
    ]
    if status.HasField("memory_watermark"):
        parts.append(f"memory {status.memory_watermark:.0%}")
    if status.HasField("last_task_duration"):
        parts.append(f"last task took {span(seconds(status.last_task_duration))}")
    return ", ".join(parts)


def history_of(agent: Agent) -> Iterator[tuple[str, ...]]:
    """Its changes, latest first."""
    for change in reversed(agent.history):
        yield moment(change.at.seconds), change.state, change.reason
