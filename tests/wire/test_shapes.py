"""Requests that are alike are read once, and it makes no difference (PRF-8)."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from agentreach.v1 import payload_pb2, task_pb2
from reach.core.model import Task
from reach.wire.codec import ProtoCodec
from reach.wire.requests import TaskReader
from reach.wire.shapes import KEPT, KEPT_BYTES, parts_of

IDS = st.text("abcü", min_size=1, max_size=200)
SAID: dict[str, st.SearchStrategy[Any]] = {
    "method": st.sampled_from(["", "run"]),
    "session": st.sampled_from([{"app_id": "a", "user_id": "u", "session_id": one} for one in "st"]),
    "priority": st.integers(0, 9),
    "fairness_key": st.sampled_from(["one", "other"]),
    "cost_slots": st.integers(1, 300),
    "effects": st.integers(1, 3),
    "timeouts": st.sampled_from([{"silence": {"seconds": 3}}, {"start_to_close": {"seconds": 300}}]),
    "retry": st.sampled_from([{"never": True}, {"name": "ladder", "full_jitter": True}]),
    "start_delay": st.sampled_from([{"seconds": 3}, {"nanos": 5_000_000}]),
    "budget": st.just({}),
    "parent_task_id": IDS,
    "root_task_id": IDS,
    "related_task_ids": st.lists(IDS, max_size=2),
    "labels": st.dictionaries(IDS, IDS, max_size=2),
    "source": IDS,
    "trace": st.sampled_from([{}, {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}]),
    "protocol_version": st.just("1"),
    "policy": st.sampled_from(["", "latency"]),
    "cancel_with_caller": st.booleans(),
}
CARRIED = ("labels", "source", "trace", "related_task_ids", "budget", "cancel_with_caller", "protocol_version")
PAYLOADS = st.one_of(
    st.builds(payload_pb2.Payload, data=st.binary(max_size=300), media_type=st.sampled_from(["", "text/x"])),
    st.builds(payload_pb2.Payload, text=st.text(max_size=300), media_type=st.sampled_from(["", "text/x"])),
)


@st.composite
def specs(draw: st.DrawFn) -> task_pb2.TaskSpec:
    spec = task_pb2.TaskSpec(task_id=draw(IDS), selector=task_pb2.Selector(agent_id=draw(st.sampled_from("ab"))))
    for name, strategy in draw(st.fixed_dictionaries({}, optional=SAID)).items():
        spec.MergeFrom(task_pb2.TaskSpec(**{name: strategy}))
    if draw(st.booleans()):
        spec.payload.CopyFrom(draw(PAYLOADS))
    return spec


def read_slowly(spec: bytes) -> Task:
    return ProtoCodec(TaskReader()).task_of("acme", spec)  # the first one, of which nothing is known


def fields_of(task: Task) -> dict[str, Any]:
    found = {name: getattr(task, name) for name in Task.__slots__}
    if task.retry is not None:
        found["retry"] = {name: getattr(task.retry, name) for name in type(task.retry).__slots__}
    return found


@given(specs(), specs(), st.sets(st.sampled_from([*SAID, "payload"])))
def test_a_task_of_a_known_shape_is_as_if_its_request_were_parsed(one, other, same):
    for name in same:  # so that they are often alike
        other.ClearField(name)
        field = task_pb2.TaskSpec.DESCRIPTOR.fields_by_name[name]
        if any(set_field is field for set_field, _ in one.ListFields()):
            other.MergeFrom(task_pb2.TaskSpec(**{name: getattr(one, name)}))
    codec = ProtoCodec(TaskReader())
    for spec in (one.SerializeToString(), other.SerializeToString()):
        task, selector = codec.restored("acme", spec)
        assert fields_of(task) == fields_of(read_slowly(spec))
        assert selector == codec.selector_of(spec)


@given(specs(), IDS, st.data())
def test_ids_payloads_and_what_is_merely_carried_do_not_make_another_shape(one, task_id, data):
    alike = task_pb2.TaskSpec()
    alike.CopyFrom(one)
    alike.task_id = task_id
    if one.HasField("payload"):
        alike.payload.CopyFrom(data.draw(PAYLOADS))
        alike.payload.media_type = one.payload.media_type
    for name in CARRIED:
        alike.ClearField(name)  # type: ignore[arg-type]
    first, second = parts_of(one.SerializeToString()), parts_of(alike.SerializeToString())
    assert first is not None
    assert second is not None
    assert (first[0], second[0], first[1]) == (one.task_id, task_id, second[1])


def test_the_second_one_is_not_parsed(monkeypatch):
    reader = TaskReader()
    codec = ProtoCodec(reader)
    codec.restored("acme", _spec("one"))
    monkeypatch.setattr(reader, "fill", None)
    task, _ = codec.restored("acme", _spec("two", text="another"))
    assert (task.task_id, task.requirement.agent_id) == ("two", "echo")
    with pytest.raises(TypeError):
        codec.restored("others", _spec("three"))


def test_the_limits_of_today_hold():
    reader = TaskReader()
    codec = ProtoCodec(reader)
    codec.restored("acme", _spec("one"))
    reader.limits = reader.limits._replace(silence_ms=77)
    assert codec.restored("acme", _spec("one"))[0].silence_ms == 77


@pytest.mark.parametrize(
    "unusual",
    [
        _payload := payload_pb2.Payload(media_type="text/x").SerializeToString(),
        payload_pb2.Payload(text="x").SerializeToString() + _payload,
        _payload + _payload,
        _payload + payload_pb2.Payload(text="x").SerializeToString() * 2,
    ],
)
def test_payloads_in_another_order_are_read_as_they_are(unusual):
    head = task_pb2.TaskSpec(task_id="t", selector=task_pb2.Selector(agent_id="echo")).SerializeToString()
    spec = head + b"\x22" + bytes([len(unusual)]) + unusual
    codec = ProtoCodec(TaskReader())
    codec.restored("acme", _spec("before"))
    assert codec.restored("acme", spec)[0].requirement.input_media_type == "text/x"


@pytest.mark.parametrize("twice", [{"task_id": "two"}, {"payload": payload_pb2.Payload(media_type="text/x")}])
def test_fields_that_come_twice_count_as_protobuf_says(twice):
    spec = _spec("one") + task_pb2.TaskSpec(**twice).SerializeToString()
    codec = ProtoCodec(TaskReader())
    codec.restored("acme", _spec("one"))
    assert fields_of(codec.restored("acme", spec)[0]) == fields_of(read_slowly(spec))


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail(spec):
    parts = parts_of(spec)
    if parts is not None:
        try:
            message = task_pb2.TaskSpec.FromString(spec)
        except DecodeError:
            return  # what cannot be parsed was never accepted
        assert message.task_id == parts[0]


def test_it_forgets_when_there_are_too_many_and_keeps_no_large_ones():
    codec = ProtoCodec(TaskReader())
    known = codec._shapes._known
    for number in range(KEPT + 10):
        codec.restored("acme", _spec("one", fairness_key=str(number)))
        assert 0 < len(known) <= KEPT
    before = len(known)
    codec.restored("acme", _spec("one", selector=task_pb2.Selector(text="x" * KEPT_BYTES)))
    assert len(known) == before


def _spec(task_id: str, text: str = "hello", **fields: Any) -> bytes:
    fields.setdefault("selector", task_pb2.Selector(agent_id="echo"))
    return task_pb2.TaskSpec(task_id=task_id, payload=payload_pb2.Payload(text=text), **fields).SerializeToString()
