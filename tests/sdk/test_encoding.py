"""What is written by hand is what protobuf writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreach.v1 import agent_pb2, attach_pb2, attempt_pb2, dispatch_pb2, error_pb2, payload_pb2, task_pb2
from reach import Answer, InvalidRequest
from reach.sdk.encoding import accept_item, output_outcome, payload_message, result_item, submit_item
from reach.sdk.payloads import payload_fields
from reach.sdk.specs import Heads, spec_fields

SIZES = (0, 1, 127, 128, 2_047, 2_048, 16_383, 16_384, 3 << 20)
VALUES = [b"", "", None, "plain", "höhe 😀", "\ud800", {"a": [1, None]}, bytearray(b"x"), Answer("a", "text/html")]
VALUES += [b"x" * size for size in SIZES] + ["x" * size for size in SIZES]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_payloads(value):
    fields, size = payload_fields(value)
    message, told = payload_message(value)
    assert told == size
    assert payload_pb2.Payload.FromString(message) == payload_pb2.Payload(**fields)
    outcome, told = output_outcome(value)
    assert told == size
    assert attempt_pb2.AttemptResult.FromString(outcome) == attempt_pb2.AttemptResult(
        output=payload_pb2.Payload(**fields)
    )


@pytest.mark.parametrize("attempt", [1, 127, 128, 2_048, (1 << 32) - 1])
@pytest.mark.parametrize("tenant", ["", "t", "ü" * 128])
@pytest.mark.parametrize("task_id", ["a", "ä" * 200])
def test_results(tenant, task_id, attempt):
    outcome = attempt_pb2.AttemptResult(
        error=error_pb2.Error(message="m" * 300), status=agent_pb2.AgentStatus(inflight=3)
    )
    item = attach_pb2.AttachRequest.FromString(result_item((tenant, task_id), attempt, outcome.SerializeToString()))
    outcome.link = 1
    outcome.key.MergeFrom(attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant=tenant))
    assert item == attach_pb2.AttachRequest(results=[outcome])


@pytest.mark.parametrize("attempt", [1, 127, 128, 2_048, (1 << 32) - 1])
@pytest.mark.parametrize("tenant", ["", "t", "ü" * 128])
@pytest.mark.parametrize("task_id", ["a", "ä" * 200])
def test_accepts(tenant, task_id, attempt):
    item = attach_pb2.AttachRequest.FromString(accept_item((tenant, task_id), attempt))
    key = attempt_pb2.AttemptKey(task_id=task_id, attempt=attempt, tenant=tenant)
    assert item == attach_pb2.AttachRequest(accepts=[attempt_pb2.AttemptAccept(link=1, key=key)])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(1, 2**32 - 1), st.binary(max_size=300)
)
def test_results_of_any_size(name, attempt, data):
    content, size = output_outcome(data)
    assert size == len(data)
    item = attach_pb2.AttachRequest.FromString(result_item((name, name), attempt, content))
    key = attempt_pb2.AttemptKey(task_id=name, attempt=attempt, tenant=name)
    result = attempt_pb2.AttemptResult(link=1, key=key, output=payload_pb2.Payload(data=data))
    assert item == attach_pb2.AttachRequest(results=[result])


@pytest.mark.parametrize("reference", [1, 127, 128, 2_048, 16_383, 16_384, 2_097_151, 2_097_152, 1 << 40])
@pytest.mark.parametrize("size", SIZES)
def test_submits(reference, size):
    head = task_pb2.TaskSpec(
        method="m", selector=task_pb2.Selector(agent_id="a"), durability=task_pb2.DURABILITY_VOLATILE
    )
    payload, _ = payload_message(b"x" * size)
    item = submit_item(reference, 2, head.SerializeToString(), "task", payload)
    head.task_id = "task"
    head.payload.data = b"x" * size
    expected = dispatch_pb2.Submit(reference=reference, task=head, interest=dispatch_pb2.INTEREST_OUTCOME)
    assert dispatch_pb2.DispatchStreamRequest.FromString(item) == dispatch_pb2.DispatchStreamRequest(submits=[expected])


OPTIONS: Any = {
    "agent_id": "a",
    "priority": 3,
    "durable": False,
    "start_to_close": 1.5,
    "retry": "never",
    "policy": None,
}


def _copy(options: Any) -> Any:
    return {**options}


def test_heads_are_kept():
    heads = Heads("source")
    head = heads.find("m", _copy(OPTIONS))
    assert heads.find("m", _copy(OPTIONS)) is head
    fields, _ = spec_fields("m", None, _copy({**OPTIONS, "source": "source", "task_id": "t"}))
    spec = task_pb2.TaskSpec.FromString(head.content)
    spec.task_id = "t"
    spec.payload.SetInParent()
    assert spec == task_pb2.TaskSpec(**fields)
    changed: Any = ({**OPTIONS, "agent_id": "b"}, {**OPTIONS, "durable": True}, {})
    for options in changed:
        spec = task_pb2.TaskSpec.FromString(heads.find("m", options).content)
        assert (spec.selector.agent_id, spec.durability) == (
            options.get("agent_id", ""),
            2 * (options.get("durable") is False),
        )
    assert task_pb2.TaskSpec.FromString(heads.find("n", _copy(OPTIONS)).content).method == "n"


@pytest.mark.parametrize("name", ["tags", "labels", "session", "attachments", "retry"])
def test_what_may_change_is_not_kept(name):
    before: Any = {"tags": ["a"], "labels": {"a": "b"}, "session": ("a", "b", "c"), "attachments": {"a": b"b"}}
    value = before.get(name, {"delays": [1.0]})
    heads = Heads("")
    options: Any = {name: value}
    first = heads.find("m", _copy(options))
    if isinstance(value, list):
        value.append("b")
    elif isinstance(value, dict):
        value.clear()
    second = heads.find("m", _copy(options))
    assert second is not first
    assert (second.content != first.content) is not isinstance(value, tuple)


def test_what_is_used_up_is_not_kept():
    tags = iter(["a"])
    heads = Heads("")
    assert list(task_pb2.TaskSpec.FromString(heads.find("", {"tags": tags}).content).selector.required_tags) == ["a"]
    assert not task_pb2.TaskSpec.FromString(heads.find("", {"tags": tags}).content).selector.required_tags


def test_heads_are_bounded():
    heads = Heads("")
    for number in range(1_000):
        heads.find("m", {"fairness_key": f"key {number}"})
    long = heads.find("m", {"fairness_key": "k" * 4_000})
    assert heads.find("m", {"fairness_key": "k" * 4_000}) is not long
    assert len(heads._kept) <= 256


@pytest.mark.parametrize("options", [{"priority": "x"}, {"region": "\ud800"}, {"labels": {"a": 1}}])
def test_what_cannot_be_sent(options):
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        Heads("").find("m", options)
