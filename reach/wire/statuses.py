"""What an instance says of itself with each beat, and the checks of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentreach.v1 import agent_pb2
from reach.core.instance_states import Availability
from reach.wire.requests import check_enum, duration_ms, invalid

STATUS_BYTES = 2 << 10


def read_availability(field: str, value: int) -> Availability:
    """What it says of itself, checked."""
    return Availability(check_enum(field, value, Availability))


def check_share(field: str, value: float) -> float:
    """A value that is a share."""
    if not 0 <= value <= 1:  # not so for NaN either
        raise invalid(field, f"must be 0 … 1, it is {value}")
    return value


def check_between(field: str, value: int, least: int, most: int) -> int:
    """A value within its bounds."""
    if not least <= value <= most:
        raise invalid(field, f"must be {least} … {most}, it is {value}")
    return value


_AVAILABILITIES = {one.value: one for one in Availability}


def _watermark(said: dict[str, Any], value: float) -> None:
    said["memory_watermark"] = check_share("status.memory_watermark", value)


def _slots(said: dict[str, Any], value: int) -> None:
    said["max_concurrency"] = check_between("status.max_concurrency", value, 1, 100_000)


def _says(said: dict[str, Any], value: int) -> None:
    said["availability"] = _AVAILABILITIES.get(value) or read_availability("status.availability", value)


def _until(said: dict[str, Any], value: Any) -> None:
    if "availability" in said:  # it comes after it
        said["availability_ttl"] = duration_ms("status.availability_ttl", value)


def _duration(name: str) -> Callable[[dict[str, Any], Any], None]:
    field = f"status.{name}"

    def read(said: dict[str, Any], value: Any) -> None:
        said[name] = duration_ms(field, value)

    return read


def _methods(said: dict[str, Any], value: Any) -> None:
    said["methods"] = {one.name: one.inflight for one in value}


_READ_STATUS: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "memory_watermark": _watermark,
    "max_concurrency": _slots,
    "availability": _says,
    "availability_ttl": _until,
    "methods": _methods,
    **{name: _duration(name) for name in ("last_task_duration", "last_completion_age", "longest_task", "loop_stalled")},
}
"""How a field of a status is read, where its value is not simply kept."""
_STATUS = {field: (field.name, _READ_STATUS.get(field.name)) for field in agent_pb2.AgentStatus.DESCRIPTOR.fields}


def read_status(status: agent_pb2.AgentStatus) -> dict[str, Any]:
    """What a status says; absent fields are absent (REG-3). A status over 2 KiB loses its methods (`is_cut`)."""
    said: dict[str, Any] = {}
    for field, value in status.ListFields():  # only those that are there: a beat is read thousands of times a second
        name, read = _STATUS[field]
        if read is None:
            said[name] = value
        else:
            read(said, value)
    if "methods" in said and status.ByteSize() > STATUS_BYTES:
        del said["methods"]
    return said


def is_cut(status: agent_pb2.AgentStatus, said: dict[str, Any]) -> bool:
    """Whether `said`, read of a status, lacks what that says of methods, for it is over 2 KiB (HLT-2)."""
    return "methods" not in said and bool(status.methods)
