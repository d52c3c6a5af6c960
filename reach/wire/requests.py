"""From a caller's `TaskSpec` to a `Task` of the core: every bad field ends here, with its name and what it may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration

from agentreach.v1 import payload_pb2, task_pb2
from reach.core import policies
from reach.core.context import NAMES
from reach.core.intents import INTENT
from reach.core.model import EffectKind, Requirement, Task
from reach.core.resolving import Selector
from reach.core.retry import POLICIES, RETRIED, RetryPolicy
from reach.core.session import TURN
from reach.errors import ErrorClass, InvalidRequest, Reason
from reach.wire.budget import check_budget

ID_BYTES = 256
LABELS = 64
TAGS = 64
ATTACHMENTS = 16
RELATED = 16
VALUE_BYTES = 1 << 10
"""Longest value of a name that the user said."""
DELAYS = 16
TEXT_BYTES = 16 << 10
"""Longest text to be matched with descriptions."""
PAYLOAD_LIMIT = 4 << 20
KEPT_SELECTOR_BYTES = 1 << 10
"""Larger selectors are read anew each time: many of them must not fill the memory."""
SPEC_MARGIN = 128 << 10
"""What a request may have beside its payload, in bytes."""
MAX_DURATION_MS = 30 * 24 * 3_600_000
"""30 days: longer than anything that should wait for an agent."""
SCHEDULE_TO_START_MS = 300_000
SCHEDULE_TO_CLOSE_MS = 3_600_000
PROTOCOL_VERSIONS = ("1",)
TIMEOUT_CLASSES_MS = {"qa": 2_000, "code": 15_000, "document": 30_000}
"""Start-to-close by class (DLV-6)."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Limits(NamedTuple):
    """What a node takes."""

    payload: int = PAYLOAD_LIMIT
    schedule_to_start_ms: int = SCHEDULE_TO_START_MS
    schedule_to_close_ms: int = SCHEDULE_TO_CLOSE_MS
    silence_ms: int | None = None
    retry_on: frozenset[ErrorClass] = RETRIED
    full_jitter: bool = False
    max_retry: int | None = None
    """Retries of the default policy; None: as the policy says."""
    policies: tuple[str, ...] = tuple(policies.POLICIES)
    """Routing policies that a task may name."""


def invalid(field: str, why: str) -> InvalidRequest:
    """The error for one bad field."""
    return InvalidRequest(f"{field}: {why}", Reason.INVALID_FIELD, field=field)


def check_id(field: str, value: str, *, required: bool = False, most: int = ID_BYTES) -> str:
    """An id: at most 256 bytes (or another limit), no control characters."""
    if not value:
        if required:
            raise invalid(field, "is required")
        return value
    if len(value) > most or (not value.isascii() and len(value.encode()) > most):
        raise invalid(field, f"is longer than {most} bytes")
    if not value.isprintable() and _CONTROL.search(value):
        raise invalid(field, "has control characters")
    return value


def check_ids(field: str, values: Iterable[str], most: int) -> tuple[str, ...]:
    """Several ids."""
    found = tuple(values)
    if len(found) > most:
        raise invalid(field, f"has {len(found)} entries, at most {most} are allowed")
    for value in found:
        check_id(field, value, required=True)
    return found


def duration_ms(field: str, value: Duration, *, least: int = 0) -> int:
    """A duration in milliseconds, rounded up; between `least` and 30 days."""
    milliseconds = value.seconds * 1_000 + -(-value.nanos // 1_000_000)
    if milliseconds < least or milliseconds > MAX_DURATION_MS:
        raise invalid(field, f"must be between {least} ms and 30 days, it is {value.seconds} s {value.nanos} ns")
    return milliseconds


def check_enum(field: str, value: int, known: type[IntEnum]) -> int:
    """A number that `known` has. The zero of the contract, which says nothing, is the caller's to look at."""
    if value not in known._value2member_map_:
        names = ", ".join(f"{one.value} ({one.name})" for one in known)
        raise invalid(field, f"has no value {value}; there is {names}")
    return value


class Asked(NamedTuple):
    """What a selector asks for: of a pool, of an instance, and who must not take it."""

    selector: Selector
    requirement: Requirement


class TaskReader:
    """Reads tasks. Selectors repeat, so what they ask for is kept by their bytes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits if limits is not None else Limits()
        self._asked: dict[tuple[bytes, str, str], Asked] = {}
        self._readers: dict[int, Callable[[Task, Any], object]] = {
            **_READERS,
            _WEBHOOK: _no_webhooks,
            _RETRY: self._read_retry,
        }
        self.default_retry: RetryPolicy | None = None
        """The policy of tasks that name none; None: the core's."""
        if self.limits.max_retry is not None:
            ladder = POLICIES["ladder"]
            delays = ladder.delays_ms[: self.limits.max_retry]
            delays += ladder.delays_ms[-1:] * (self.limits.max_retry - len(delays))
            self.default_retry = RetryPolicy("ladder", delays, self.limits.full_jitter, self.limits.retry_on)

    def take_webhooks(self, read: Callable[[Task, task_pb2.Webhook], None]) -> None:
        """Lets tasks have webhooks; `read` checks one, and has the end of its task announced."""
        self._readers[_WEBHOOK] = read

    def asked(self, spec: task_pb2.TaskSpec) -> Asked:
        """What the task's selector, method and payload ask of an instance."""
        media_type = spec.payload.media_type
        key = (spec.selector.SerializeToString(), spec.method, media_type)
        found = self._asked.get(key)
        if found is None:
            if len(self._asked) >= 10_000:
                self._asked.clear()
            found = _read_selector(spec.selector, spec.method, media_type)
            if len(key[0]) <= KEPT_SELECTOR_BYTES:
                self._asked[key] = found
            else:
                found.selector.kept = False
        return found

    def read(
        self, tenant: str, spec: task_pb2.TaskSpec, new_id: Callable[[], str] | None = None
    ) -> tuple[Task, Selector]:
        """A task from a caller.

        Args:
            tenant: The caller's.
            spec: The request; gets a fresh id if it has none.
            new_id: Makes one.

        Raises:
            InvalidRequest: INVALID_FIELD, PAYLOAD_TOO_LARGE, VERSION_NOT_SUPPORTED.
        """
        if not spec.task_id and new_id is not None:
            spec.task_id = new_id()
        task_id = check_id("task.task_id", spec.task_id)
        asked = self.asked(spec)
        raw = spec.SerializeToString()
        if len(raw) > self.limits.payload:
            self._check_size(spec, len(raw))
        task = Task(tenant, task_id, raw, asked.requirement)
        self.fill(task, spec)
        if spec.policy:
            self._read_policy(task, spec.policy)
        return task, asked.selector

    def _check_size(self, spec: task_pb2.TaskSpec, total: int) -> None:
        """Only for requests that are larger than a payload may be: most need no look at their parts."""
        size = len(spec.payload.data) or len(spec.payload.text.encode())
        if size > self.limits.payload or total > self.limits.payload + SPEC_MARGIN:
            message = f"the payload has {max(size, total)} bytes, at most {self.limits.payload} are allowed"
            raise InvalidRequest(message, Reason.PAYLOAD_TOO_LARGE, limit=str(self.limits.payload))

    def fill(self, task: Task, spec: task_pb2.TaskSpec) -> None:
        """Defaults, then what the caller set, but for the policy: each field that is set costs its own reader."""
        limits, readers = self.limits, self._readers
        task.schedule_to_start_ms = limits.schedule_to_start_ms
        task.schedule_to_close_ms = limits.schedule_to_close_ms
        task.silence_ms = limits.silence_ms
        task.retry = self.default_retry
        for field, value in spec.ListFields():
            reader = readers.get(field.number)
            if reader is not None:
                reader(task, value)

    def _read_retry(self, task: Task, value: task_pb2.RetryPolicy) -> None:
        task.retry = _retry_of(value, self.limits)

    def _read_policy(self, task: Task, name: str) -> None:
        known = self.limits.policies
        if name not in known:
            raise invalid("task.policy", f"there is no policy {name!r}; there is {', '.join(known)}")
        task.policy = name


def _read_durability(task: Task, value: int) -> None:
    task.volatile = value == task_pb2.DURABILITY_VOLATILE
    if not task.volatile and value != task_pb2.DURABILITY_DURABLE:
        raise invalid("task.durability", f"has no value {value}")


def _read_effects(task: Task, value: int) -> None:
    task.effects = EffectKind(check_enum("task.effects", value, EffectKind))


def _read_priority(task: Task, value: int) -> None:
    if value > 9:
        raise invalid("task.priority", "must be 0 … 9")
    task.priority = value


def _read_cost(task: Task, value: int) -> None:
    if not 1 <= value <= 1_000:
        raise invalid("task.cost_slots", "must be 1 … 1000")
    task.cost = value


def _read_session(task: Task, value: task_pb2.SessionKey) -> None:
    task.session = session_name(value)
    task.announce = (*task.announce, (TURN, task.session))  # its end is a turn, in order with others of the session


def _read_entities(task: Task, value: Mapping[str, str]) -> None:
    if not task.session:
        raise invalid("task.entities", "are kept with a session: give one")
    if len(value) > NAMES:
        raise invalid("task.entities", f"has {len(value)} entries, at most {NAMES} are allowed")
    for name, said in value.items():
        check_id("task.entities", name, required=True)
        if len(said.encode()) > VALUE_BYTES:
            raise invalid("task.entities", f"the value of {name!r} is longer than {VALUE_BYTES} bytes")


def _read_start_delay(task: Task, value: Duration) -> None:
    task.start_delay_ms = duration_ms("task.start_delay", value)


def _read_attachments(task: Task, value: Sequence[payload_pb2.Attachment]) -> None:
    if len(value) > ATTACHMENTS:
        raise invalid("task.attachments", f"has {len(value)} entries, at most {ATTACHMENTS} are allowed")


def _read_parent(task: Task, value: str) -> None:
    task.parent_task_id = check_id("task.parent_task_id", value)
    task.root_task_id = task.root_task_id or value


def _read_root(task: Task, value: str) -> None:
    task.root_task_id = check_id("task.root_task_id", value)


def _read_fairness_key(task: Task, value: str) -> None:
    task.fairness_key = check_id("task.fairness_key", value)


def _no_webhooks(task: Task, value: task_pb2.Webhook) -> None:
    raise invalid("task.webhook", "this server delivers none")


def check_labels(field: str, labels: Mapping[str, str]) -> None:
    """Labels: at most 64, names and values are ids."""
    if len(labels) > LABELS:
        raise invalid(field, f"has {len(labels)} entries, at most {LABELS} are allowed")
    for name, value in labels.items():
        check_id(field, name, required=True)
        check_id(field, value)


def check_version(version: str) -> None:
    """The version of the envelope must be one that is spoken here."""
    if version not in PROTOCOL_VERSIONS:
        message = f"protocol version {version!r} is not spoken here, only {', '.join(PROTOCOL_VERSIONS)}"
        raise InvalidRequest(message, Reason.VERSION_NOT_SUPPORTED)


def _read_selector(selector: task_pb2.Selector, method: str, media_type: str) -> Asked:
    s = selector
    for field in ("agent_id", "agent_type", "capability", "capability_version", "instance_id", "region"):
        check_id(f"task.selector.{field}", getattr(s, field))
    check_id("task.selector.intent", s.intent)
    if s.intent and not INTENT.fullmatch(s.intent):
        raise invalid("task.selector.intent", "must be words joined by dots, such as 'customer_service.refund'")
    if len(s.text.encode()) > TEXT_BYTES:
        raise invalid("task.selector.text", f"is longer than {TEXT_BYTES} bytes")
    check_id("task.method", method)
    check_id("task.payload.media_type", media_type)
    text = s.text.strip()
    if not (s.agent_id or s.agent_type or s.capability or s.instance_id or s.intent or text or s.required_tags
            or method):  # fmt: skip
        raise invalid("task.selector", "names nobody: give agent_id, agent_type, capability, intent, required_tags, "
                                       "text or instance_id, or the task a method")  # fmt: skip
    requirement = Requirement(
        agent_id=s.agent_id,
        instance_id=s.instance_id,
        capability=s.capability,
        capability_version=s.capability_version,
        method=method,
        required_tags=check_ids("task.selector.required_tags", s.required_tags, TAGS),
        accepted_media_types=check_ids("task.selector.accepted_media_types", s.accepted_media_types, TAGS),
        accepted_languages=check_ids("task.selector.accepted_languages", s.accepted_languages, TAGS),
        input_media_type=media_type,
        excluded_instances=check_ids("task.selector.excluded_instances", s.excluded_instances, TAGS),
        region=s.region,
    )
    check_ids("task.selector.preferred_tags", s.preferred_tags, TAGS)
    asked = Selector(
        s.agent_type,
        s.agent_id,
        s.instance_id,
        s.capability,
        intent=s.intent,
        text=text,
        requirement=requirement,
    )
    return Asked(asked, requirement)


def session_name(key: task_pb2.SessionKey) -> str:
    """The key of a session as one word. All three parts are required (SES-1)."""
    return ":".join(session_part(field, getattr(key, field)) for field in ("app_id", "user_id", "session_id"))


def session_part(field: str, value: str) -> str:
    """One part of the key of a session, as it stands in its name."""
    return check_id(f"session.{field}", value, required=True).replace("%", "%25").replace(":", "%3A")


def _read_timeouts(task: Task, timeouts: task_pb2.Timeouts) -> None:
    t = timeouts
    if t.timeout_class:
        limit = TIMEOUT_CLASSES_MS.get(t.timeout_class)
        if limit is None:
            known = ", ".join(TIMEOUT_CLASSES_MS)
            raise invalid("task.timeouts.timeout_class", f"there is no class {t.timeout_class!r}; there is {known}")
        task.start_to_close_ms = limit
    if t.HasField("schedule_to_start"):
        task.schedule_to_start_ms = duration_ms("task.timeouts.schedule_to_start", t.schedule_to_start, least=1)
    if t.HasField("start_to_close"):
        task.start_to_close_ms = duration_ms("task.timeouts.start_to_close", t.start_to_close, least=1)
    if t.HasField("schedule_to_close"):
        task.schedule_to_close_ms = duration_ms("task.timeouts.schedule_to_close", t.schedule_to_close, least=1)
    if t.HasField("silence"):
        task.silence_ms = duration_ms("task.timeouts.silence", t.silence, least=1)


def _retry_of(retry: task_pb2.RetryPolicy, limits: Limits) -> RetryPolicy:
    if retry.never:
        return POLICIES["never"]
    policy = POLICIES.get(retry.name or "ladder")
    if policy is None:
        raise invalid("task.retry.name", f"there is no policy {retry.name!r}; there is {', '.join(POLICIES)}")
    if not (retry.delays or retry.full_jitter or retry.retry_on or limits.full_jitter) and limits.retry_on == RETRIED:
        return policy
    if len(retry.delays) > DELAYS:
        raise invalid("task.retry.delays", f"has {len(retry.delays)} entries, at most {DELAYS} are allowed")
    delays = tuple(duration_ms("task.retry.delays", delay) for delay in retry.delays) or policy.delays_ms
    known = {one.value for one in ErrorClass}
    if any(one not in known for one in retry.retry_on):
        raise invalid("task.retry.retry_on", "has an unknown class")
    retry_on = frozenset(ErrorClass(one) for one in retry.retry_on) or limits.retry_on
    return RetryPolicy(retry.name or "ladder", delays, retry.full_jitter or limits.full_jitter, retry_on)


_BY_NAME: dict[str, Callable[[Task, Any], object]] = {
    "attachments": _read_attachments,
    "session": _read_session,
    "entities": _read_entities,
    "priority": _read_priority,
    "fairness_key": _read_fairness_key,
    "cost_slots": _read_cost,
    "effects": _read_effects,
    "durability": _read_durability,
    "timeouts": _read_timeouts,
    "start_delay": _read_start_delay,
    "budget": lambda task, value: check_budget(value),
    "parent_task_id": _read_parent,
    "root_task_id": _read_root,
    "related_task_ids": lambda task, value: check_ids("task.related_task_ids", value, RELATED),
    "labels": lambda task, value: check_labels("task.labels", value),
    "source": lambda task, value: check_id("task.source", value),
    "protocol_version": lambda task, value: check_version(value),
}
_READERS = {task_pb2.TaskSpec.DESCRIPTOR.fields_by_name[name].number: read for name, read in _BY_NAME.items()}
"""What reads a field of a TaskSpec, by its number. Fields without a reader are carried, not read."""
_RETRY = task_pb2.TaskSpec.DESCRIPTOR.fields_by_name["retry"].number
_WEBHOOK = task_pb2.TaskSpec.DESCRIPTOR.fields_by_name["webhook"].number
