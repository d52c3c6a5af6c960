"""What a caller asks for, as the fields of a TaskSpec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from agentreach.v1 import task_pb2
from reach.errors import ErrorClass, InvalidRequest
from reach.sdk.capabilities import EFFECTS
from reach.sdk.figures import duration
from reach.sdk.inheritance import Budget
from reach.sdk.payloads import Fields, payload_fields
from reach.sdk.task import SessionKey
from reach.sdk.tracing import current_trace

ID_LIMIT: Final = 256
_MOST_KEPT: Final = 256
_LARGEST_KEPT: Final = 2 << 10
_CONSTANT: Final = frozenset({str, int, float, bool, type(None)})
"""Types of options that say the same whenever they are given."""


class TaskOptions(TypedDict, total=False):
    """Everything that can be said about a task beside its method and its payload.

    Who may take it, all given parts must match: agent_id, agent_type, capability (and capability_version), intent, text
    (matched with what agents say of themselves), tags (must have), preferred_tags, accepted_media_types,
    accepted_languages, region (preferred), instance_id, excluded_instances.
    """

    agent_id: str
    agent_type: str
    capability: str
    capability_version: str
    intent: str
    text: str
    tags: Iterable[str]
    preferred_tags: Iterable[str]
    accepted_media_types: Iterable[str]
    accepted_languages: Iterable[str]
    region: str
    instance_id: str
    excluded_instances: Iterable[str]
    task_id: str | None
    """Chosen by the caller; sending the same task again gives the first answer. None: made here."""
    session: SessionKey | tuple[str, str, str] | tuple[str, str] | None
    """The conversation: (application, user, conversation); without the application, the client's `app_id` is taken."""
    entities: Mapping[str, str] | None
    """Names and values that the user said: agents of the conversation see them. Only with a session."""
    attachments: Mapping[str, Any] | None
    """Content beside the payload, by name."""
    priority: int | None
    """0 to 9, higher is earlier; None: 3."""
    effects: str
    """What running it twice would do: `none`, `idempotent` or `irreversible`."""
    durable: bool
    """False: never written, lost if the server dies, and faster."""
    retry: str | Mapping[str, Any] | None
    """A policy by name, or a dict with `delays` (seconds), `full_jitter`, `retry_on` (class names), `never`."""
    labels: Mapping[str, str] | None
    not_before: float | None
    """Seconds to wait before it starts."""
    schedule_to_start: float | None
    start_to_close: float | None
    schedule_to_close: float | None
    silence: float | None
    timeout_class: str
    """`qa`, `code` or `document`."""
    fairness_key: str
    cost_slots: int | None
    parent_task_id: str
    """The task that asks for this one. Left out in a handler: that it works on, whose time and budget are passed on;
    empty: none, so that cancelling that one leaves this one alone."""
    budget: Budget | None
    """What it and all that it asks for may spend."""
    related_task_ids: Iterable[str]
    policy: str
    """Name of a routing policy."""
    webhook: str | Mapping[str, str] | None
    """A URL that is told when it ends, or a dict with `url` and `secret_name`."""
    source: str
    trace: str
    """A `traceparent`; left out: of the current OpenTelemetry span, if there is one."""


def new_task_id() -> str:
    """128 random bits: five times faster than uuid4, as unique."""
    return os.urandom(16).hex()


class Head(NamedTuple):
    """A TaskSpec without what each task has of its own: its task_id, its payload, and the current trace."""

    content: bytes
    size: int
    """Bytes of its largest attachment."""
    traced: bool
    """The caller gave the trace."""


class Heads:
    """Makes heads, and keeps those that are likely to be asked for again: most programs ask in a few ways only."""

    __slots__ = ("_kept", "_source")

    def __init__(self, source: str) -> None:
        self._source = source
        self._kept: dict[tuple[Any, ...], Head] = {}

    def find(self, method: str, options: TaskOptions) -> Head:
        """The head for a call without its task_id. Raises InvalidRequest or TypeError."""
        call = (method, *options, *options.values())
        try:
            head = self._kept.get(call)
        except TypeError:  # a list, a dict: they may change
            return _head(method, options, self._source)
        if head is None:
            head = _head(method, options, self._source)
            if len(head.content) <= _LARGEST_KEPT and all(type(value) in _CONSTANT for value in options.values()):
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[call] = head
        return head


def spec_fields(method: str, payload: Any, options: TaskOptions) -> tuple[Fields, int]:
    """The fields of a TaskSpec, and the size of its largest content. Raises InvalidRequest or TypeError."""
    fields, largest = _fields(method, options)
    fields["payload"], size = payload_fields(payload)
    if "trace" not in fields and (trace := current_trace()) is not None:
        fields["trace"] = trace
    fields["task_id"] = task_id_of(options.get("task_id"))
    return fields, max(size, largest)


def _fields(method: str, options: TaskOptions) -> tuple[Fields, int]:
    size = 0
    selector: Fields = {}
    fields: Fields = {"selector": selector, "method": method}
    for name, value in options.items():
        if name in _SELECTOR:
            if value:
                selector[_SELECTOR[name]] = value if isinstance(value, str) else _texts(name, value)
        elif name in _PLAIN:
            if value is not None:
                fields[name] = value
        elif (convert := _CONVERTED.get(name)) is None:
            raise TypeError(f"a task has no option {name!r}")
        elif value is not None:
            size = max(size, convert(fields, value) or 0)
    return fields, size


def _head(method: str, options: TaskOptions, source: str) -> Head:
    fields, size = _fields(method, options)
    if source and "source" not in fields:
        fields["source"] = source
    try:
        content = task_pb2.TaskSpec(**fields).SerializeToString()
    except (TypeError, ValueError) as error:
        raise unsendable(error) from error
    return Head(content, size, "trace" in fields)


def trace_content(trace: Fields) -> bytes:
    """A trace, to be joined to a head."""
    return task_pb2.TaskSpec(trace=task_pb2.TraceContext(**trace)).SerializeToString()


def unsendable(error: Exception) -> InvalidRequest:
    """The error of a task that protobuf does not take."""
    return InvalidRequest(f"a part of the task has a value that cannot be sent: {error}")


def task_id_of(task_id: str | None) -> str:
    """The task_id that was asked for, or a new one. Raises InvalidRequest if it is too long or cannot be sent."""
    if not task_id:
        return new_task_id()
    try:
        size = len(task_id) if task_id.isascii() else len(task_id.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise unsendable(error) from error
    if size > ID_LIMIT:
        raise InvalidRequest(f"a task_id has at most {ID_LIMIT} bytes")
    return task_id


def _texts(name: str, value: Any) -> list[str]:
    texts = list(value)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} must be a list of text")
    return texts


def _session(fields: Fields, value: SessionKey | Sequence[str]) -> None:
    parts = (value.app_id, value.user_id, value.session_id) if isinstance(value, SessionKey) else tuple(value)
    if isinstance(value, str) or len(parts) != 3 or not all(parts):
        raise InvalidRequest("a session is (app_id, user_id, session_id), three texts that are not empty")
    fields["session"] = {"app_id": parts[0], "user_id": parts[1], "session_id": parts[2]}


def _attachments(fields: Fields, value: Mapping[str, Any]) -> int:
    made, most = [], 0
    for name, item in value.items():
        content, size = payload_fields(item)
        made.append({"name": name, "payload": content})
        most = max(most, size)
    fields["attachments"] = made
    return most


def _effects(fields: Fields, value: str) -> None:
    if value not in EFFECTS:
        raise InvalidRequest(f"effects is none, idempotent or irreversible, not {value!r}")
    fields["effects"] = EFFECTS[value]


def _durable(fields: Fields, value: bool) -> None:
    if not value:
        fields["durability"] = 2


def _retry(fields: Fields, value: str | Mapping[str, Any]) -> None:
    if isinstance(value, str):
        fields["retry"] = {"name": value}
        return
    made = dict(value)
    unknown = sorted(set(made) - {"name", "delays", "full_jitter", "retry_on", "never"})
    if unknown:
        raise InvalidRequest(f"a retry policy has no field {unknown[0]!r}")
    made["delays"] = [duration(delay) for delay in made.get("delays", ())]
    try:
        made["retry_on"] = [int(ErrorClass[name]) for name in made.get("retry_on", ())]
    except KeyError as error:
        raise InvalidRequest(f"retry_on: there is no error class {error}") from error
    fields["retry"] = made


def _trace(fields: Fields, value: str) -> None:
    if value:
        fields["trace"] = {"traceparent": value}


def _webhook(fields: Fields, value: str | Mapping[str, str]) -> None:
    if value:
        if not isinstance(value, (str, Mapping)):
            raise InvalidRequest(f"a webhook is a URL, or a dict with `url` and `secret_name`, not {value!r}")
        fields["webhook"] = {"url": value} if isinstance(value, str) else dict(value)


def _start_delay(fields: Fields, value: float) -> None:
    fields["start_delay"] = duration(value)


def _timeout(name: str) -> Callable[[Fields, Any], None]:
    def convert(fields: Fields, value: Any) -> None:
        if value:
            fields.setdefault("timeouts", {})[name] = value if name == "timeout_class" else duration(value)

    return convert


def _budget(fields: Fields, value: Budget | None) -> None:
    if value is not None:
        if not isinstance(value, Budget):
            raise InvalidRequest(f"a budget is a Budget(tokens=…, money_micros=…, max_hops=…), not {value!r}")
        fields["budget"] = value.fields()


_SELECTOR: Final = {
    "agent_id": "agent_id",
    "agent_type": "agent_type",
    "capability": "capability",
    "capability_version": "capability_version",
    "intent": "intent",
    "text": "text",
    "tags": "required_tags",
    "preferred_tags": "preferred_tags",
    "accepted_media_types": "accepted_media_types",
    "accepted_languages": "accepted_languages",
    "region": "region",
    "instance_id": "instance_id",
    "excluded_instances": "excluded_instances",
}
_PLAIN: Final = frozenset(
    "priority labels entities fairness_key cost_slots parent_task_id related_task_ids policy source".split()
)
_CONVERTED: Final[Mapping[str, Callable[[Fields, Any], int | None]]] = {
    "session": _session,
    "attachments": _attachments,
    "effects": _effects,
    "budget": _budget,
    "task_id": lambda _fields, _value: None,  # `task_id_of`
    "durable": _durable,
    "retry": _retry,
    "trace": _trace,
    "webhook": _webhook,
    "not_before": _start_delay,
    **{
        name: _timeout(name)
        for name in ("schedule_to_start", "start_to_close", "schedule_to_close", "silence", "timeout_class")
    },
}
