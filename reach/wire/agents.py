"""Between the contract's agents and the core's instances: registrations, statuses, reports."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal
from urllib.parse import urlsplit

from agentreach.v1 import agent_pb2, attempt_pb2, error_pb2, event_pb2, task_pb2
from reach.core import events as ev
from reach.core.dialogue import Ask
from reach.core.documents import Document
from reach.core.endpoint import Endpoint
from reach.core.joining import Joining
from reach.core.model import EffectKind, Fault, Instance, Profile
from reach.core.pieces import Delta, Mode, size_in_bytes
from reach.core.questions import PROMPT_BYTES
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.wire.addresses import SCHEMES, read_address
from reach.wire.answers import content_of
from reach.wire.requests import (
    ID_BYTES,
    TAGS,
    check_enum,
    check_id,
    check_ids,
    check_labels,
    duration_ms,
    invalid,
)
from reach.wire.schemas import check_schema, schema_id
from reach.wire.sessions import HANDOFF, read_names
from reach.wire.status import bounded_text, error_from_proto
from reach.wire.statuses import check_between, check_share, read_availability

CAPABILITIES = 256
EXAMPLES = 64
REGISTRATION_BYTES = 256 << 10
CHECKPOINT_BYTES = 256 << 10
NOTE_BYTES = 1 << 10
HANDLE_BYTES = 4 << 10
FIGURES = 64
"""Entries in the `usage` of a result."""


BOUNDS: dict[Literal["weight", "priority", "max_concurrency", "max_sessions"], tuple[int, int]] = {
    "weight": (1, 100),
    "priority": (0, 9),
    "max_concurrency": (1, 100_000),
    "max_sessions": (1, 1_000_000),
}
OPTIONAL: tuple[Literal["weight", "priority", "max_concurrency", "max_sessions", "heartbeat_interval"], ...] = (
    *BOUNDS,
    "heartbeat_interval",
)
"""Fields of a registration that keep their value where a later one leaves them out, also over restarts of the agent."""


def read_registration(registration: agent_pb2.Registration, *, stored: bool = False) -> tuple[str, Joining]:
    """(agent_type, what joins), from what an agent says, which gets an instance id and a type where it has none.

    Args:
        registration: What the agent says.
        stored: It was taken before: its schemas need no second look.

    Raises:
        InvalidRequest: INVALID_FIELD with the name of the field.
        Internal: NOT_IMPLEMENTED, for endpoints that a later version brings.
    """
    r = registration
    check_id("registration.agent_id", r.agent_id, required=True)
    check_id("registration.boot_id", r.boot_id, required=True)
    for field in ("agent_type", "instance_id", "version", "region", "zone", "host", "sdk"):
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
    endpoint = _read_endpoint(r)
    joining = Joining(r.instance_id, r.boot_id, _read_profile(r, stored), r.SerializeToString(deterministic=True))
    joining.endpoint, joining.dialled = endpoint, endpoint is not None
    joining.merge = merged
    for field, (least, most) in BOUNDS.items():
        if r.HasField(field):
            setattr(joining, field, check_between(f"registration.{field}", getattr(r, field), least, most))
    if r.HasField("heartbeat_interval"):
        milliseconds = duration_ms("registration.heartbeat_interval", r.heartbeat_interval)
        joining.heartbeat_ms = check_between("registration.heartbeat_interval", milliseconds, 1_000, 60_000)
    if r.HasField("ready"):
        joining.ready = r.ready
    if r.availability:
        joining.availability = read_availability("registration.availability", r.availability)
    return r.agent_type, joining


def merged(former: bytes, said: bytes) -> bytes:
    """A registration as it is kept: optional fields that it leaves out have the value of the former one (REG-3)."""
    before, now = agent_pb2.Registration.FromString(former), agent_pb2.Registration.FromString(said)
    kept = [name for name in OPTIONAL if before.HasField(name) and not now.HasField(name)]
    if not kept:
        return said
    for name in kept:
        if name == "heartbeat_interval":
            now.heartbeat_interval.CopyFrom(before.heartbeat_interval)
        else:
            setattr(now, name, getattr(before, name))
    return now.SerializeToString(deterministic=True)


def _read_endpoint(r: agent_pb2.Registration) -> Endpoint | None:
    """Where the agent wants to be dialled, None if it dials us."""
    found = None
    for endpoint in r.endpoints:
        check_id("registration.endpoints.url", endpoint.url)
        check_id("registration.endpoints.auth_reference", endpoint.auth_reference)
        try:
            scheme = urlsplit(endpoint.url).scheme if endpoint.url else "stream"
        except ValueError:  # such as an open bracket
            scheme = "no URL"
        if scheme in SCHEMES:
            if found is not None:
                raise invalid("registration.endpoints", "names two addresses to dial; one instance has one")
            read_address(endpoint.url)
            features = frozenset(r.features)
            found = Endpoint(
                endpoint.url,
                endpoint.auth_reference,
                rejoins="rejoin" in features,
                asks_effects="effects" in features,
                keeps_alive="keepalive" in features,
                hands_over=HANDOFF in features,
                cancels="cancel" in features,
                health_path=_health_path(endpoint.health_path),
                gives_html="text/html" in r.output_media_types,
            )
            if scheme.startswith("a2a+"):
                found = _adopted(endpoint, found)
        elif scheme != "stream":
            text = f"{endpoint.url!r} is none of stream:, grpc://, http(s)://, a2a+https://"
            raise invalid("registration.endpoints", text)
    return found


def _adopted(endpoint: agent_pb2.Endpoint, found: Endpoint) -> Endpoint:
    """An A2A agent: what its card said of calls goes along. What it runs is asked about by its handle."""
    if not endpoint.card.binding:
        raise invalid("registration.endpoints.card", "is required of A2A agents: RegistryService.Adopt reads it")
    return found._replace(card=endpoint.card.SerializeToString(deterministic=True))


def _health_path(path: str) -> str:
    check_id("registration.endpoints.health_path", path)
    if path and (not path.startswith("/") or not path.isascii() or " " in path or "#" in path):
        raise invalid("registration.endpoints.health_path", "must be a path of printable characters, such as /healthz")
    return path


def _read_profile(r: agent_pb2.Registration, stored: bool) -> Profile:
    if len(r.capabilities) > CAPABILITIES:
        raise invalid("registration.capabilities", f"has more than {CAPABILITIES} entries")
    check_labels("registration.labels", r.labels)
    documents = tuple(_read_capability(capability, stored) for capability in r.capabilities)
    for method in r.methods:
        if method.HasField("concurrency"):
            check_between("registration.methods.concurrency", method.concurrency, 1, 100_000)
    check_ids("registration.features", r.features, TAGS)
    return Profile(
        r.agent_id,
        r.version,
        tuple((document.name, document.version) for document in documents),
        check_ids("registration.methods.name", (method.name for method in r.methods), CAPABILITIES),
        check_ids("registration.tags", r.tags, TAGS),
        check_ids("registration.languages", r.languages, TAGS),
        check_ids("registration.input_media_types", r.input_media_types, TAGS),
        check_ids("registration.output_media_types", r.output_media_types, TAGS),
        r.region,
        check_ids("registration.allowed_tenants", r.allowed_tenants, CAPABILITIES),
        documents,
        tuple(
            (method.name, duration_ms("registration.methods.expected_latency", method.expected_latency))
            for method in r.methods
            if method.HasField("expected_latency")
        ),
    )


def _read_capability(capability: agent_pb2.Capability, stored: bool) -> Document:
    """What routing looks at of a capability document (REG-4); the rest is checked, and kept in the registration."""
    field = "registration.capabilities"
    check_id(f"{field}.name", capability.name, required=True)
    check_id(f"{field}.version", capability.version)
    if capability.effects:
        check_enum(f"{field}.effects", capability.effects, EffectKind)
    latency_ms = 0
    if capability.HasField("expected_latency"):
        latency_ms = duration_ms(f"{field}.expected_latency", capability.expected_latency)
    if capability.HasField("concurrency"):
        check_between(f"{field}.concurrency", capability.concurrency, 1, 100_000)
    if capability.HasField("cost_slots"):
        check_between(f"{field}.cost_slots", capability.cost_slots, 1, 1_000)
    if capability.HasField("success_rate"):
        check_share(f"{field}.success_rate", capability.success_rate)
    if len(capability.examples) > EXAMPLES:
        raise invalid(f"{field}.examples", f"has {len(capability.examples)} entries, at most {EXAMPLES} are allowed")
    schema = capability.parameter_schema
    tags, languages, takes, gives = [
        check_ids(f"{field}.{name}", getattr(capability, name), TAGS)
        for name in ("tags", "languages", "input_media_types", "output_media_types")
    ]
    return Document(
        capability.name,
        capability.name,
        capability.version,
        schema,
        schema_id(schema) if stored else check_schema(f"{field}.parameter_schema", schema),
        blake2b(capability.SerializeToString(deterministic=True), digest_size=8).hexdigest(),
        capability.description,
        tuple(capability.examples),
        tags, languages, takes, gives,
        latency_ms, int(capability.effects), capability.cost_slots,
    )  # fmt: skip


def fault_from_proto(error: error_pb2.Error) -> Fault:
    """What an agent says went wrong; nonsense becomes the agent's own failure, never ours."""
    if not error.error_class and not error.reason:
        message = bounded_text(error.message) or "the agent gave no reason"
        return Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, message)
    known = error_from_proto(error)
    return Fault(known.error_class, known.reason, known.message, dict(known.metadata) or None, known.retry_after_ms)


def read_key(field: str, key: attempt_pb2.AttemptKey, tenant: str) -> tuple[str, str, int]:
    """(tenant, task_id, attempt) of what an agent speaks of; `tenant` is the agent's own."""
    task_id, attempt, said = key.task_id, key.attempt, key.tenant
    if said or not attempt or not _is_plain(task_id):
        check_id(f"{field}.task_id", task_id, required=True)
        if not attempt:
            raise invalid(f"{field}.attempt", "is required")
        check_id(f"{field}.tenant", said)
    return said or tenant, task_id, attempt


def _is_plain(value: str) -> bool:
    """Whether it is an id, as nearly all are. What is not plain may be one all the same: `check_id` looks closer."""
    return 0 < len(value) <= ID_BYTES and value.isascii() and value.isprintable()


def read_progress(message: attempt_pb2.AttemptProgress) -> tuple[float | None, str, bytes | None]:
    """(fraction, note, checkpoint) of a sign of life."""
    progress = message.progress
    checkpoint = message.checkpoint if message.HasField("checkpoint") else None
    if checkpoint is not None and len(checkpoint) > CHECKPOINT_BYTES:
        text = f"progress.checkpoint: has {len(checkpoint)} bytes, at most {CHECKPOINT_BYTES} are allowed"
        raise InvalidRequest(text, Reason.PAYLOAD_TOO_LARGE)
    fraction = check_share("progress.fraction", progress.fraction) if progress.HasField("fraction") else None
    return fraction, bounded_text(progress.note, NOTE_BYTES) if progress.note else "", checkpoint


def read_delta(message: attempt_pb2.AttemptDelta) -> Delta:
    """A piece of an answer."""
    delta = message.delta
    media_type, content = content_of(delta.payload)
    if media_type:
        check_id("delta.payload.media_type", media_type)
    if delta.channel:
        check_id("delta.channel", delta.channel)
    if delta.mode:
        check_enum("delta.mode", delta.mode, Mode)
    mode = Mode.REPLACE if delta.mode == event_pb2.DELTA_MODE_REPLACE else Mode.APPEND
    return Delta(delta.channel, mode, media_type, content)


def read_result(
    instance: Instance, key: tuple[str, str, int], message: attempt_pb2.AttemptResult, limit: int, reply: Any = None
) -> ev.Reported:
    """The outcome of an attempt, as the agent says; `key` is its name. An answer over the limit is a failure of its
    own."""
    report = ev.Reported(instance, *key, reply)
    kind = message.WhichOneof("outcome")
    if kind == "output":
        report.media_type, report.content = content_of(message.output)
        size = size_in_bytes(report.content)
        if size > limit:
            text = f"the answer has {size} bytes, at most {limit} are allowed"
            report.content = None
            report.fault = Fault(ErrorClass.INVALID_REQUEST, Reason.RESULT_TOO_LARGE, text)
        elif report.media_type:
            report.media_type = bounded_text(report.media_type, NOTE_BYTES)
    elif kind == "error":
        report.fault = fault_from_proto(message.error)
    elif kind == "folded":
        report.folded = message.folded.last_attempt_sequence
    elif kind == "released":
        report.released = bounded_text(message.released.reason, NOTE_BYTES)
    elif kind == "waiting":
        report.waiting = _ask(message.waiting)
    else:
        report.fault = Fault(ErrorClass.INTERNAL, Reason.PROTOCOL_VIOLATION, "the agent's result has no outcome")
    if message.HasField("confidence") or message.usage or message.conflict_hint or message.executed_intent:
        report.extra = _extra(message)
    if message.entities or message.inferred:
        names = {"entities": read_names(message.entities), "inferred": read_names(message.inferred)}
        report.extra = {**(report.extra or {}), **names}
    return report


def _ask(message: task_pb2.Waiting) -> Ask:
    """What an agent asks. Raises InvalidRequest."""
    media_type, content = content_of(message.prompt)
    check_id("waiting.prompt.media_type", media_type)
    size = size_in_bytes(content)
    if size > PROMPT_BYTES:
        raise InvalidRequest(f"the question has {size} bytes, at most {PROMPT_BYTES} are allowed",
                             Reason.PAYLOAD_TOO_LARGE, limit=str(PROMPT_BYTES))  # fmt: skip
    kind = message.waiting_for or task_pb2.WAITING_FOR_INPUT
    if kind not in task_pb2.WaitingFor.values():
        raise invalid("waiting.waiting_for", f"has no value {kind}")
    timeout_ms = duration_ms("waiting.timeout", message.timeout, least=1) if message.HasField("timeout") else None
    return Ask(int(kind), media_type, content, check_id("waiting.question", message.question), timeout_ms)


def _extra(message: attempt_pb2.AttemptResult) -> dict[str, Any]:
    """What an agent says beside its answer. An answer is never refused for it: what is no figure, or too much, is left
    out."""
    extra: dict[str, Any] = {
        "conflict_hint": bounded_text(message.conflict_hint, NOTE_BYTES),
        "executed_intent": bounded_text(message.executed_intent, ID_BYTES),
    }
    if message.HasField("confidence") and 0 <= message.confidence <= 1:
        extra["confidence"] = message.confidence
    if message.usage:
        extra["usage"] = _figures(message.usage)
    return extra


def _figures(usage: Mapping[str, float]) -> dict[str, float]:
    """The finite ones: NaN and infinity have no place in JSON, and would break whoever renders the task later."""
    named = [(name, value) for name, value in usage.items() if len(name) <= ID_BYTES and math.isfinite(value)]
    return dict(sorted(named)[:FIGURES])
