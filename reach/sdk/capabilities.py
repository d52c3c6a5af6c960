"""What an agent can do."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from reach.errors import InvalidRequest
from reach.sdk.figures import duration
from reach.sdk.payloads import Fields


@dataclass(slots=True, kw_only=True)
class Capability:
    """A skill of an agent. Only `name` is needed; the rest helps routing.

    Attributes:
        expected_latency: Usual seconds for a task.
        success_rate: 0 to 1, as declared.
        parameter_schema: JSON Schema of the parameters, as JSON text.
        effects: `none`, `idempotent` or `irreversible`.
    """

    name: str
    version: str = ""
    description: str = ""
    parameter_schema: str = ""
    expected_latency: float | None = None
    success_rate: float | None = None
    concurrency: int | None = None
    cost_slots: int | None = None
    effects: str = ""
    languages: tuple[str, ...] = ()
    input_media_types: tuple[str, ...] = ()
    output_media_types: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    resource_model: str = ""


CapabilityLike = Capability | Mapping[str, Any] | str
EFFECTS: Final = {"": 0, "none": 1, "idempotent": 2, "irreversible": 3}


@functools.singledispatch
def capability_fields(value: Any) -> Fields:
    """What was given as a capability, as fields of the message. Raises InvalidRequest for what is none."""
    raise InvalidRequest(f"a capability is a name, a dict or a Capability, not {type(value).__name__}")


@capability_fields.register
def _(value: str) -> Fields:
    return {"name": value}


@capability_fields.register(Mapping)
def _(value: Mapping[str, Any]) -> Fields:
    known = {field.name for field in fields(Capability)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise InvalidRequest(f"a capability has no field {unknown[0]!r}; it has: {', '.join(sorted(known))}")
    return capability_fields(Capability(**value))


@capability_fields.register
def _(value: Capability) -> Fields:
    given = {field.name: getattr(value, field.name) for field in fields(Capability)}
    made: Fields = {name: item for name, item in given.items() if item not in (None, "", ())}
    if value.expected_latency is not None:
        made["expected_latency"] = duration(value.expected_latency)
    if value.effects not in EFFECTS:
        raise InvalidRequest(f"effects is none, idempotent or irreversible, not {value.effects!r}")
    if value.effects:
        made["effects"] = EFFECTS[value.effects]
    return made
