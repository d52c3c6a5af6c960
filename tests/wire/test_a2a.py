"""A2A's states, parts, errors and routes in our terms, and the other way round (API-3)."""

import json

import pytest
from a2a.types import a2a_pb2
from a2a.utils import errors as a2a
from google.protobuf.json_format import ParseDict

from agentreach.v1 import payload_pb2, task_pb2
from reach.errors import InvalidRequest, Reason, error_of
from reach.wire.a2a.errors import a2a_error, our_error
from reach.wire.a2a.parts import (
    MOST_PARTS,
    PARTS,
    URIS,
    is_json,
    media_type_of,
    one_payload,
    part_of,
    parts_of,
    parts_of_task,
    payload_of,
    split_payloads,
)
from reach.wire.a2a.states import INTERRUPTED, OURS, TERMINAL, THEIRS, WAITING_FOR, a2a_state
from reach.wire.a2a.words import RouteTo, route_of
from reach.wire.status import TABLE

A = a2a_pb2.TaskState
R = task_pb2.TaskState


def data(value):
    part = a2a_pb2.Part()
    ParseDict(value, part.data)
    return part


def text(words, **more):
    return a2a_pb2.Part(text=words, **more)


def test_API_3_each_state_has_its_name_in_the_other_contract():
    assert set(OURS) == set(R.values()) - {R.TASK_STATE_UNSPECIFIED}
    assert set(THEIRS) == set(A.values()) - {A.TASK_STATE_UNSPECIFIED}
    assert set(WAITING_FOR) == INTERRUPTED
    assert TERMINAL.isdisjoint(INTERRUPTED)
    ended = {R.TASK_STATE_SUCCEEDED, R.TASK_STATE_FAILED, R.TASK_STATE_CANCELLED, R.TASK_STATE_REJECTED}
    ended.add(R.TASK_STATE_DEAD_LETTERED)
    assert {state for state, theirs in OURS.items() if theirs in TERMINAL} == ended
    assert {THEIRS[state] for state in TERMINAL} <= ended
    for state in TERMINAL | INTERRUPTED:
        assert a2a_state(THEIRS[state], WAITING_FOR.get(state, 0)) == state


def test_API_3_a_task_that_is_tried_elsewhere_does_not_go_back_to_submitted():
    assert a2a_state(R.TASK_STATE_PENDING) == A.TASK_STATE_SUBMITTED
    assert a2a_state(R.TASK_STATE_PENDING, begun=True) == A.TASK_STATE_WORKING
    assert a2a_state(R.TASK_STATE_FAILED, begun=True) == A.TASK_STATE_FAILED
    assert a2a_state(99) == A.TASK_STATE_WORKING


@pytest.mark.parametrize(
    ("part", "payload"),
    [
        (text("hi"), payload_pb2.Payload(text="hi")),
        (text("# hi", media_type="text/markdown"), payload_pb2.Payload(text="# hi", media_type="text/markdown")),
        (data({"a": [1, None]}), payload_pb2.Payload(text='{"a": [1, null]}', media_type="application/json")),
        (a2a_pb2.Part(raw=b"\0", media_type="image/png"), payload_pb2.Payload(data=b"\0", media_type="image/png")),
        (a2a_pb2.Part(url="https://x/y"), payload_pb2.Payload(text="https://x/y", media_type=URIS)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_API_3_a_part_is_a_payload_and_comes_back(part, payload):
    assert payload_of(part) == payload
    again = part_of(payload)
    assert again.WhichOneof("content") == part.WhichOneof("content")
    assert payload_of(again).text == payload.text
    assert payload_of(again).data == payload.data
    assert again.media_type in ("", media_type_of(part))


def test_API_3_texts_are_one_text_and_other_parts_are_a_document_of_parts():
    assert one_payload([text("a"), text("b")]) == payload_pb2.Payload(text="a\n\nb")
    assert one_payload([]) == payload_pb2.Payload(text="")
    parts = [text("look"), a2a_pb2.Part(raw=b"\xff", filename="cat.png", media_type="image/png"), data({"n": 1.5})]
    packed = one_payload(parts)
    assert packed.media_type == PARTS
    assert parts_of(packed) == parts
    for odd in ("{", '{"parts": 1}', '{"parts": [{}]}', "[]", '{"parts": []}', "[" * 100_000):
        assert len(parts_of(payload_pb2.Payload(media_type=PARTS, text=odd))) == 1


def test_API_3_a_message_is_a_payload_and_attachments():
    picture = a2a_pb2.Part(raw=b"\xff", filename="cat.png", media_type="image/png")
    payload, attachments = split_payloads([picture, text("what"), data([1]), text("is"), picture], most=16)
    assert payload.text == "what\n\nis"
    assert [one.name for one in attachments] == ["cat.png", "part-2", "part-3"]
    assert attachments[0].payload.data == b"\xff"
    again = parts_of_task(payload, attachments)
    assert [part.filename for part in again] == ["", "cat.png", "part-2", "part-3"]
    assert again[1] == picture
    payload, attachments = split_payloads([data({"a": 1})], most=16)
    assert (payload.text, attachments) == ('{"a": 1}', [])
    payload, attachments = split_payloads([text("a"), data(1), data(2)], most=1)
    assert payload.media_type == PARTS
    assert attachments == []


@pytest.mark.parametrize("bad", [a2a_pb2.Part(), data(1.0), text("x")], ids=["empty", "nan", "many"])
def test_G2_parts_that_are_none_are_the_callers_mistake(bad):
    parts = [bad]
    if bad.WhichOneof("content") == "data":
        bad.data.number_value = float("nan")
        parts = [bad, text("x")]
    elif bad.text:
        parts = [bad] * (MOST_PARTS + 1)
    for read in (one_payload, lambda found: split_payloads(found, most=1)):
        with pytest.raises(InvalidRequest) as error:
            read(parts)
        assert error.value.reason is Reason.INVALID_FIELD


def test_API_3_json_that_data_would_change_stays_text():
    for odd in (
        "{",
        str(2**60),
        '{"n": 9007199254740993}',
        "[" * 50_000,
        "[" * 90 + "]" * 90,
        "NaN",
        "-Infinity",
        "[1e999]",
        "",
    ):
        assert part_of(payload_pb2.Payload(media_type="application/json", text=odd)).text == odd
    assert part_of(payload_pb2.Payload(media_type="application/ld+json; a=b", text="{}")).HasField("data")
    assert is_json("Application/JSON")
    assert not is_json("text/json5")


def test_API_3_a_uri_list_of_several_stays_text():
    assert part_of(payload_pb2.Payload(media_type=URIS, text="https://a\nhttps://b")).text


def test_API_3_each_reason_is_an_error_that_callers_of_A2A_can_be_told():
    for reason, row in TABLE.items():
        told = a2a_error(error_of(row.error_class, reason, "why"))
        assert told is None or (told.message == "why" and type(told) in a2a.A2A_ERROR_REASONS)
    told = a2a_error(InvalidRequest("task_id: is required", field="task_id"))
    assert told is not None
    assert told.data == {"errors": [{"field": "task_id", "message": "task_id: is required"}]}


def test_API_3_each_error_of_an_agent_means_something_for_the_attempt():
    for name in a2a.A2A_REASON_TO_ERROR:
        assert our_error(name, "why").metadata == {"a2a_reason": name}
    assert our_error("TASK_NOT_FOUND", "").retryable
    assert our_error("", "why").reason is Reason.AGENT_FAILED
    assert our_error("NOBODY_KNOWS", "why").reason is Reason.AGENT_FAILED


@pytest.mark.parametrize("kind", "tci")
@pytest.mark.parametrize("name", ["summarizer", "a.b-c_d~e", "with space", "a/b", "ünï", "x" * 200, "."])
def test_API_3_a_route_is_one_step_of_a_path_and_comes_back(kind, name):
    token = RouteTo(kind, name).token
    assert "/" not in token
    assert token.isascii()
    assert route_of(token) == RouteTo(kind, name)
    assert len(route_of(token).selector("hi").ListFields()) == 1


def test_API_3_no_route_is_any_and_a_wrong_one_is_an_error():
    assert route_of("") == route_of("any") == RouteTo("")
    assert RouteTo("").selector("hi").text == "hi"
    for wrong in ("t.", "t", "z.x", "summarizer", "tx.!", "tx._w", "t." + "x" * 300, "anything", "."):
        with pytest.raises(InvalidRequest) as error:
            route_of(wrong)
        assert error.value.reason is Reason.NO_ROUTE
    assert json.loads(json.dumps(RouteTo("t", "a/b").token)) == "tx.YS9i"
