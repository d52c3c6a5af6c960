"""Instances as rows of the contract: what ListAgents, GetAgent and WatchAgents show (REG-9)."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration

from agentreach.v1 import agent_pb2
from reach.core.health import reach_score_of
from reach.core.model import Instance
from reach.core.policies import load_of
from reach.core.pool import Pool
from reach.wire.answers import timestamp
from reach.wire.status import bounded_text

NOTE_BYTES = 1 << 10
"""Longest evidence, reason or error in a row."""
OWNERS_ONLY = ("boot_id", "endpoints", "host", "sdk", "allowed_tenants")
"""Parts of a registration that tenants who may call the instance do not see."""
_DURATIONS = ("last_task_duration", "last_completion_age", "availability_ttl", "longest_task", "loop_stalled")
_FIGURES = (
    "inflight", "queue_length", "max_concurrency", "free_slots", "free_session_slots", "memory_watermark",
    "consecutive_failure_count", "ready",
)  # fmt: skip


def fill_agent(
    message: agent_pb2.Agent,
    pool: Pool,
    instance: Instance,
    now_ms: int,
    *,
    foreign: bool = False,
    history: bool = False,
) -> None:
    """An instance as the server sees it; `foreign`: for a tenant that may call it without owning it."""
    _fill_registration(message.registration, instance)
    message.revision = instance.revision
    message.generation = instance.generation
    message.health = int(instance.health)  # type: ignore[assignment]
    message.availability = int(instance.availability)  # type: ignore[assignment]
    until_ms = instance.drain_until_ms or instance.availability_until_ms
    if until_ms > now_ms:
        _set(message.availability_ttl, until_ms - now_ms)
    for condition, (evidence, since_ms) in instance.conditions.items():
        row = message.conditions.add(
            type=int(condition), evidence="" if foreign else bounded_text(evidence, NOTE_BYTES)
        )
        _set(row.since, max(0, now_ms - since_ms))
    _fill_reach(message, pool, instance, now_ms)
    if instance.beat_ms:
        _set(message.last_heartbeat_age, max(0, now_ms - instance.beat_ms))
    message.load = load_of(instance)
    message.inflight = instance.inflight
    message.max_concurrency = instance.max_concurrency
    message.sessions = pool.pins.counts.get(instance.instance_id, 0)
    message.registered_at.CopyFrom(timestamp(instance.registered_wall_ms))
    message.blocked_by = instance.blocked_by
    message.suspected_by = instance.suspected
    if foreign:
        for field in OWNERS_ONLY:
            message.registration.ClearField(field)  # type: ignore[arg-type]
        return
    message.tenant = pool.key.tenant
    message.last_probe_error = bounded_text(instance.last_probe_error, NOTE_BYTES)
    message.warnings.extend(instance.warnings)
    if instance.status:
        _fill_status(message.status, instance.status)
    if (adopted := instance.status.get("adopted")) is not None:
        _fill_adopted(message.adopted, adopted, now_ms)
    if history:
        for wall_ms, state, reason in instance.history:
            message.history.add(at=timestamp(wall_ms), state=state, reason=bounded_text(reason, NOTE_BYTES))


def _fill_reach(message: agent_pb2.Agent, pool: Pool, instance: Instance, now_ms: int) -> None:
    """What beats and probes show, as of now."""
    score = reach_score_of(instance, now_ms, pool.thresholds.weights)
    if score is not None:
        message.reach_score = score
    message.probe_status = instance.probe_status
    if instance.probe_rtt_ms is not None:
        message.probe_rtt.FromMicroseconds(round(instance.probe_rtt_ms * 1_000))
    if instance.probe_loss is not None:
        message.probe_loss = instance.probe_loss


def _fill_registration(message: agent_pb2.Registration, instance: Instance) -> None:
    """What it registered, with the values that count where it said nothing."""
    message.ParseFromString(instance.registration)
    message.weight = instance.weight
    message.priority = instance.priority
    message.max_concurrency = instance.max_concurrency
    _set(message.heartbeat_interval, instance.heartbeat_ms)


def _fill_adopted(message: agent_pb2.Adopted, facts: dict[str, Any], now_ms: int) -> None:
    """What is known of an A2A agent."""
    if "card_read_ms" in facts:
        _set(message.card_age, max(0, now_ms - facts["card_read_ms"]))
    message.card_error = facts.get("card_error", "")
    message.calls, message.failed_calls = facts["calls"], facts["failed_calls"]
    message.last_call_error = facts.get("last_call_error", "")


def _set(field: Duration, milliseconds: int) -> None:
    field.seconds, rest = divmod(milliseconds, 1_000)
    field.nanos = rest * 1_000_000


def _fill_status(message: agent_pb2.AgentStatus, said: dict[str, Any]) -> None:
    """What an instance reported of itself, as `wire.statuses.read_status` keeps it."""
    for name in _FIGURES:
        if name in said:
            setattr(message, name, said[name])
    for name in _DURATIONS:
        if name in said:
            _set(getattr(message, name), said[name])
    if "availability" in said:
        message.availability = int(said["availability"])  # type: ignore[assignment]
    for method, inflight in said.get("methods", {}).items():
        message.methods.add(name=method, inflight=inflight)
