"""Requests of streams that are alike are read once, and it makes no difference (PRF-1b)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agentreach.v1 import task_pb2
from reach.core.resolving import Selector
from reach.errors import InvalidRequest, Reason
from reach.wire.requests import ID_BYTES, TaskReader
from reach.wire.streamed import StreamedReader
from tests.wire.test_shapes import fields_of, specs


def copy(spec: task_pb2.TaskSpec, task_id: str = "") -> task_pb2.TaskSpec:
    made = task_pb2.TaskSpec.FromString(spec.SerializeToString())
    made.task_id = task_id or made.task_id
    return made


def outcome(read: Any, spec: task_pb2.TaskSpec) -> Any:
    """All that comes of a request: the fields of its task, or the refusal."""
    try:
        task, selector = read("acme", spec, lambda: "made")
    except InvalidRequest as error:
        return error.reason, error.message
    assert type(selector) is Selector
    said = fields_of(task)
    said["spec"] = task_pb2.TaskSpec.FromString(said["spec"])  # entries of a map have no order in the bytes
    return said


@given(specs(), specs())
def test_what_is_read_of_a_stream_is_what_is_read_alone(one: task_pb2.TaskSpec, other: task_pb2.TaskSpec) -> None:
    reader = TaskReader()
    streamed = StreamedReader(reader)
    for spec in (one, other, one, other):
        for task_id in ("", "again"):
            assert outcome(streamed.read, copy(spec, task_id)) == outcome(TaskReader().read, copy(spec, task_id))


def spec_of(**said: Any) -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(**{"task_id": "t", "selector": {"agent_id": "a"}, **said})


def test_the_selector_of_requests_that_are_alike_is_one_object() -> None:
    """Level 1 knows it again by that."""
    streamed = StreamedReader(TaskReader())
    first = streamed.read("acme", spec_of(payload={"data": b"1"}), str)[1]
    assert streamed.read("acme", spec_of(task_id="u", payload={"text": "2"}), str)[1] is first


def test_each_is_checked_in_what_is_its_own() -> None:
    reader = TaskReader()
    reader.limits = reader.limits._replace(payload=1_000)
    streamed = StreamedReader(reader)
    streamed.read("acme", spec_of(), str)
    for reason, said in (
        (Reason.INVALID_FIELD, {"task_id": "x" * (ID_BYTES + 1)}),
        (Reason.INVALID_FIELD, {"task_id": "a\nb"}),
        (Reason.PAYLOAD_TOO_LARGE, {"payload": {"data": b"x" * 1_001}}),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            streamed.read("acme", spec_of(**said), str)
        assert refusal.value.reason is reason


def test_what_was_read_under_other_limits_is_read_anew() -> None:
    """The configuration has lost a policy that tasks name."""
    reader = TaskReader()
    reader.limits = reader.limits._replace(policies=("balanced", "own"))
    streamed = StreamedReader(reader)
    streamed.read("acme", spec_of(policy="own"), str)
    reader.limits = reader.limits._replace(policies=("balanced",))
    with pytest.raises(InvalidRequest):
        streamed.read("acme", spec_of(policy="own"), str)


def test_a_refusal_that_follows_leaves_the_request_whole() -> None:
    """The stream names it in its answer."""
    spec = spec_of(priority=12)
    with pytest.raises(InvalidRequest):
        StreamedReader(TaskReader()).read("acme", spec, str)
    assert spec == spec_of(priority=12)
