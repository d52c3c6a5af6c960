"""What is written as bytes is what the messages would be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentreach.v1 import attach_pb2, attempt_pb2, dispatch_pb2, payload_pb2, task_pb2
from reach.core.model import Fault, Outcome, Requirement, Task, TaskState
from reach.errors import ErrorClass, Reason
from reach.wire.answers import duration, fill_complete
from reach.wire.encoding import acknowledgement_item, complete_item, limits_of, offer_item, sequence_field

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
numbers = st.integers(0, 2**32 - 1)
milliseconds = st.one_of(st.integers(0, 5_000), st.integers(0, 2_592_000_000))


@given(texts, st.text(min_size=1, max_size=40), st.integers(1, 2**32 - 1))
def test_acknowledgements(tenant: str, task_id: str, attempt: int) -> None:
    frame = attach_pb2.AttachResponse.FromString(acknowledgement_item(tenant, task_id, attempt))
    key = attempt_pb2.AttemptKey(tenant=tenant, task_id=task_id, attempt=attempt)
    assert frame == attach_pb2.AttachResponse(acknowledgements=[key])


@given(
    st.integers(1, 70_000),
    st.integers(1, 2**31),
    st.binary(max_size=400),
    *[st.one_of(st.none(), milliseconds)] * 3,
)
def test_offers(link: int, attempt: int, data: bytes, close: int | None, left: int | None, silence: int | None) -> None:
    spec = task_pb2.TaskSpec(task_id="t", payload=payload_pb2.Payload(data=data), labels={"a": "b"})
    rest = limits_of(close, left, silence)
    frame = attach_pb2.AttachResponse.FromString(offer_item(link, attempt, spec.SerializeToString(), rest))
    offer = attempt_pb2.Offer(link=link, attempt=attempt, fencing_token=attempt, task=spec)
    for field, value in ((offer.start_to_close, close), (offer.schedule_to_close, left), (offer.silence, silence)):
        if value is not None:
            field.CopyFrom(duration(value))
    assert frame == attach_pb2.AttachResponse(offers=[offer])


@given(
    st.one_of(st.none(), texts, st.binary(max_size=300)),
    texts,
    texts,
    st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED]),
    st.booleans(),
    st.lists(milliseconds, min_size=3, max_size=3),
    st.lists(numbers, min_size=3, max_size=3),
)
def test_the_last_event(
    content: str | bytes | None,
    media_type: str,
    name: str,
    state: TaskState,
    extra: bool,
    times: list[int],
    counts: list[int],
) -> None:
    task = Task("acme", name, b"", Requirement())
    outcome = Outcome(state, content, media_type if content is not None else "")
    if state is TaskState.FAILED:
        outcome.fault = Fault(ErrorClass.AGENT_ERROR, Reason.AGENT_FAILED, "no", {"a": "b"}, 5)
    if extra:
        outcome.extra = {"confidence": 0.5, "usage": {"tokens": 3.0}}
    outcome.agent_id, outcome.instance_id = name, media_type
    outcome.queued_ms, outcome.ran_ms, outcome.ended_wall_ms = times
    outcome.attempts, outcome.transfers, outcome.sequence = counts
    expected = dispatch_pb2.DispatchStreamResponse()
    fill_complete(expected.events.add(), task, outcome)
    assert dispatch_pb2.DispatchStreamResponse.FromString(complete_item(task, outcome)) == expected


@given(st.integers(1, 2**63))
def test_the_number_of_a_frame(number: int) -> None:
    frame = acknowledgement_item("", "t", 1) + sequence_field(number)
    assert attach_pb2.AttachResponse.FromString(frame).sequence == number
