"""Between the contract's agents and the core's instances: registrations, statuses, reports."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import urlsplit

from agentreach.v1 import agent_pb2, attempt_pb2, error_pb2, event_pb2
from reach.core import events as ev
from reach.core.model import Availability, Fault, Instance, Profile
from reach.core.pool import Pool
from reach.core.signals import load
from reach.core.stream import Delta, Mode
from reach.errors import ErrorClass, Internal, Reason
from reach.wire.answers import content_of, duration, timestamp
from reach.wire.requests import TAGS, check_id, check_ids, check_labels, duration_ms, invalid
from reach.wire.status import error_from_proto

CAPABILITIES = 256
REGISTRATION_BYTES = 256 << 10
CHECKPOINT_BYTES = 256 << 10
STATUS_BYTES = 2 << 10
NOTE_BYTES = 1 << 10


def read_registration(registration: agent_pb2.Registration) -> tuple[str, ev.Joining]:
    """(agent_type, what joins), from what an agent says.

    The registration gets its instance id and type where it has none.

    Raises:
        InvalidRequest: INVALID_FIELD with the name of the field.
        Internal: NOT_IMPLEMENTED, for endpoints that a later version brings.
    """
    r = registration
    check_id("registration.agent_id", r.agent_id, required=True)
    check_id("registration.boot_id", r.boot_id, required=True)
    for field in ("agent_type", "instance_id", "version", "region", "zone", "host"):
        check_id(f"registration.{field}", getattr(r, field))
    if r.ByteSize() > REGISTRATION_BYTES:
        raise invalid("registration", f"has {r.ByteSize()} bytes, at most {REGISTRATION_BYTES} are allowed")
    if not r.agent_type:
        r.agent_type = r.agent_id
    if r.agent_type.startswith("~"):
        raise invalid("registration.agent_type", "must not begin with '~'")
    if not r.instance_id:
        r.instance_id = f"{r.agent_id}@{r.host or 'unknown'}#{secrets.token_hex(3)}"
        check_id("registration.instance_id", r.instance_id)
    _check_endpoints(r)
    joining = ev.Joining(r.instance_id, r.boot_id, _read_profile(r), r.SerializeToString(deterministic=True))
    if r.HasField("weight"):
        joining.weight = _between("registration.weight", r.weight, 1, 100)
    if r.HasField("priority"):
        joining.priority = _between("registration.priority", r.priority, 0, 9)
    if r.HasField("max_concurrency"):
        joining.max_concurrency = _between("registration.max_concurrency", r.max_concurrency, 1, 100_000)
    if r.HasField("heartbeat_interval"):
        milliseconds = duration_ms("registration.heartbeat_interval", r.heartbeat_interval)
        joining.heartbeat_ms = _between("registration.heartbeat_interval", milliseconds, 1_000, 60_000)
    if r.HasField("ready"):
        joining.ready = r.ready
    if r.availability:
        joining.availability = Availability(r.availability)
    return r.agent_type, joining


def _check_endpoints(r: agent_pb2.Registration) -> None:
    for endpoint in r.endpoints:
        scheme = urlsplit(endpoint.url).scheme if endpoint.url else "stream"
        if scheme in ("grpc", "grpcs", "http", "https", "a2a+https"):
            message = f"endpoints of kind {scheme} are not built yet: dial us and open an Attach stream"
            raise Internal(message, Reason.NOT_IMPLEMENTED)
        if scheme != "stream":
            raise invalid(
                "registration.endpoints", f"{endpoint.url!r} is none of stream:, grpc://, http(s)://, a2a+https://"
            )


def _read_profile(r: agent_pb2.Registration) -> Profile:
    if len(r.capabilities) > CAPABILITIES:
        raise invalid("registration.capabilities", f"has more than {CAPABILITIES} entries")
    check_labels("registration.labels", r.labels)
    for capability in r.capabilities:
        check_id("registration.capabilities.name", capability.name, required=True)
        check_id("registration.capabilities.version", capability.version)
    return Profile(
        r.agent_id,
        r.version,
        tuple((capability.name, capability.version) for capability in r.capabilities),
        check_ids("registration.methods.name", (method.name for method in r.methods), CAPABILITIES),
        check_ids("registration.tags", r.tags, TAGS),
        check_ids("registration.languages", r.languages, TAGS),
        check_ids("registration.input_media_types", r.input_media_types, TAGS),
        check_ids("registration.output_media_types", r.output_media_types, TAGS),
        r.region,
        check_ids("registration.allowed_tenants", r.allowed_tenants, CAPABILITIES),
    )


def _between(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise invalid(field, f"must be {least} … {most}, it is {value}")
    return value


def read_status(status: agent_pb2.AgentStatus) -> dict[str, Any]:
    """What a status says; absent fields are absent (REG-3). A status over 2 KiB loses its methods."""
    said: dict[str, Any] = {}
    for field in ("inflight", "queue_length", "free_slots", "free_session_slots", "memory_watermark",
                  "consecutive_failure_count", "ready"):  # fmt: skip
        if status.HasField(field):
            said[field] = getattr(status, field)
    if status.HasField("max_concurrency"):
        said["max_concurrency"] = _between("status.max_concurrency", status.max_concurrency, 1, 100_000)
    for field in ("last_task_duration", "last_completion_age", "longest_task", "loop_stalled"):
        if status.HasField(field):  # type: ignore[arg-type]
            said[field] = duration_ms(f"status.{field}", getattr(status, field))
    if status.availability:
        said["availability"] = Availability(status.availability)
    if status.methods and status.ByteSize() <= STATUS_BYTES:
        said["methods"] = {one.name: one.inflight for one in status.methods}
    return said


def fault_from_proto(error: error_pb2.Error) -> Fault:
    """What an agent says went wrong; nonsense becomes the agent's own failure, never ours."""
    if not error.error_class:
        return Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, error.message[:4096] or "the agent gave no reason")
    known = error_from_proto(error)
    return Fault(known.error_class, known.reason, known.message, dict(known.metadata) or None, known.retry_after_ms)


def read_delta(message: attempt_pb2.AttemptDelta) -> Delta:
    """A piece of an answer."""
    delta = message.delta
    media_type, content = content_of(delta.payload)
    mode = Mode.REPLACE if delta.mode == event_pb2.DELTA_MODE_REPLACE else Mode.APPEND
    return Delta(delta.channel, mode, media_type, content)


def read_result(
    instance: Instance, tenant: str, message: attempt_pb2.AttemptResult, limit: int, reply: Any = None
) -> ev.Reported:
    """The outcome of an attempt, as the agent says. An answer over the limit is a failure of its own."""
    report = ev.Reported(instance, tenant, message.key.task_id, message.key.attempt, reply)
    kind = message.WhichOneof("outcome")
    if kind == "output":
        report.media_type, report.content = content_of(message.output)
        if len(report.content) > limit:
            text = f"the answer has {len(report.content)} bytes, at most {limit} are allowed"
            report.content = None
            report.fault = Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, text)
    elif kind == "error":
        report.fault = fault_from_proto(message.error)
    elif kind == "folded":
        report.folded = message.folded.last_attempt_sequence
    elif kind == "released":
        report.released = message.released.reason[:NOTE_BYTES]
    elif kind == "waiting":
        report.waiting = (message.waiting.waiting_for, *content_of(message.waiting.prompt))
    else:
        report.fault = Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, "the agent's result has no outcome")
    if message.HasField("confidence") or message.usage or message.conflict_hint or message.executed_intent:
        report.extra = {"conflict_hint": message.conflict_hint, "executed_intent": message.executed_intent}
        if message.HasField("confidence"):
            report.extra["confidence"] = message.confidence
        if message.usage:
            report.extra["usage"] = dict(message.usage)
    return report


def fill_agent(message: agent_pb2.Agent, pool: Pool, instance: Instance, now_ms: int) -> None:
    """An instance as the server sees it."""
    message.registration.ParseFromString(instance.registration)
    message.tenant = pool.key.tenant
    message.revision = instance.revision
    message.generation = instance.generation
    message.health = int(instance.health)  # type: ignore[assignment]
    message.availability = int(instance.availability)  # type: ignore[assignment]
    for condition, (evidence, since_ms) in instance.conditions.items():
        message.conditions.add(type=int(condition), evidence=evidence, since=duration(max(0, now_ms - since_ms)))
    message.probe_status = "none"
    if instance.beat_ms:
        message.last_heartbeat_age.CopyFrom(duration(max(0, now_ms - instance.beat_ms)))
    message.load = load(instance.inflight, instance.max_concurrency)
    message.inflight = instance.inflight
    message.max_concurrency = instance.max_concurrency
    message.registered_at.CopyFrom(timestamp(instance.registered_wall_ms))
    message.warnings.extend(instance.warnings)
    message.blocked_by = instance.blocked_by
