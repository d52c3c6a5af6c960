"""Requests that come again (DLV-3): the same task id with the same content gets the first answer."""

from __future__ import annotations

from agentreach.v1 import task_pb2


def same_content(one: bytes, other: bytes) -> bool:
    """Whether two requests ask for the same (DLV-3): all but deadlines, trace, budget left and retry count."""
    return content_of(one) == content_of(other)


def content_of(raw: bytes) -> bytes:
    """What a request asks for, always the same bytes for the same: without what differs when it is sent again."""
    spec = task_pb2.TaskSpec.FromString(raw)
    for field in ("timeouts", "trace", "budget", "retry", "cancel_with_caller", "protocol_version", "source"):
        spec.ClearField(field)
    return spec.SerializeToString(deterministic=True)
