"""Envelopes over HTTP: what we say can be read back, and what agents say never breaks anything (GOV-5, G1, G2, G3)."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from agentreach.v1 import attempt_pb2, endpoint_pb2, result_pb2
from reach.errors import InvalidRequest
from reach.wire.agent_answers import RAW_BYTES, Unreadable, item_of, of_event, status_from, whole_answer
from reach.wire.agent_http import (
    believed_in,
    believed_text,
    fault_of_status,
    handle_from,
    read_health,
    said_in,
    warm_status,
)
from reach.wire.agent_requests import envelope_of, offer_from
from reach.wire.agent_told import items_of

WHO = result_pb2.Reporter(instance_id="i", boot_id="b")
TYPES = ["", "application/json", "text/plain", "text/html", "application/octet-stream", "text/plain; charset=latin-1",
         "application/problem+json", ";;;", "text/plain; charset=utf-16"]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from([
            "result", "error", "waiting", "released", "folded", "data", "agent_output", "task_id", "attempt", "delta",
            "progress", "checkpoint", "usage", "confidence", "entities", "agent_status", "media_type", "base64", "mode",
            "prompt", "timeout_ms", "retry_after_ms", "error_class", "reason", "metadata", "ready", "running",
            "availability", "inflight", "last_task_duration_ms", "status_url", "status", "accept", "attempt_sequence",
        ]),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
BODIES = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())


def full_offer() -> attempt_pb2.Offer:
    said = {
        "attempt": 3, "fencing_token": "3", "tenant": "other", "checkpoint": "AAE=", "effect_granted": True,
        "start_to_close": "1.500s", "schedule_to_close": "9s", "silence": "2s", "lease": "15s",
        "session_context": {"revision": "4", "summary": "so far", "turns": [{"task_id": "t0"}]},
        "inputs": [{"input_id": "1", "question": "q", "payload": {"text": "yes", "media_type": "text/plain"}}],
        "task": {
            "task_id": "t\u00fc", "method": "m", "priority": 7,
            "session": {"app_id": "a", "user_id": "u", "session_id": "s"},
            "payload": {"text": "[1, 2 ,12345678901234567890123]", "media_type": "application/json"},
            "attachments": [{"name": "doc", "payload": {"data": "/w==", "media_type": "image/png"}}],
            "labels": {"k": "v"}, "trace": {"traceparent": "00-1-2-01"}, "effects": "EFFECTS_NONE",
        },
    }  # fmt: skip
    return json_format.ParseDict(said, attempt_pb2.Offer())


def test_an_envelope_is_read_back_as_it_was_said():
    offer = full_offer()
    raw = msgspec.json.encode(envelope_of(offer, WHO))
    assert b"[1, 2 ,12345678901234567890123]" in raw, "JSON goes byte for byte"
    back = offer_from(raw)
    back.task.payload.text = offer.task.payload.text  # the SDK reads its numbers, and says them in its own way
    assert back == offer


@given(BODIES)
def test_GOV_5_no_body_breaks_who_reads_envelopes(body):
    with suppress(InvalidRequest):
        offer_from(body)


@given(BODIES, st.sampled_from(TYPES))
def test_GOV_5_no_answer_breaks_us_and_what_is_refused_keeps_what_came(body, media_type):
    try:
        result = whole_answer(body, media_type)
    except Unreadable as error:
        kept = error.fault.metadata or {}
    else:
        kept = {"raw": ""}
        result.SerializeToString()
        assert result.WhichOneof("outcome")
    assert len(kept["raw"].encode()) <= RAW_BYTES


@given(st.sampled_from(["", "message", "delta", "progress", "result", "error", "waiting", "ping", "accept"]), BODIES)
def test_GOV_5_no_event_breaks_us(name, data):
    try:
        said = of_event(name, data.decode("utf-8", "replace"))
    except Unreadable:
        return
    assert said is None or said.SerializeToString()


@given(
    st.integers(200, 599),
    st.dictionaries(st.sampled_from(["retry-after", "agentreach-status", "agentreach-ready", "location"]),
                    st.text(st.characters(max_codepoint=255), max_size=30)),
    BODIES,
)  # fmt: skip
def test_GOV_5_no_status_header_or_health_breaks_us(status, headers, body):
    fault, _ = fault_of_status(status, headers, body)
    assert fault.message
    health = read_health(status, headers, body)
    health.answer.SerializeToString()
    assert not (status >= 500 and health.ready)
    warm_status(headers)
    handle = handle_from("http://agent:8950/ask", headers, body)
    assert handle == "" or (handle.startswith("/") and not handle.startswith("//") and " " not in handle)


@pytest.mark.parametrize(
    ("place", "handle"),
    [
        ("/jobs/1?x=2", "/jobs/1?x=2"),
        ("jobs/1", "/jobs/1"),
        ("http://agent:8950/jobs/1", "/jobs/1"),
        ("http://other:8950/jobs/1", ""),
        ("https://agent:8950/jobs/1", ""),
        ("//other/jobs", ""),
        ("http://agent:8950@other/", ""),
        ("http://agent:x/", ""),
        ("/a b", ""),
        ("/" + "x" * 5_000, ""),
    ],
)
def test_GOV_6_a_place_is_at_the_origin_of_the_agent(place, handle):
    assert handle_from("http://agent:8950/ask", {"location": place}, b"") == handle
    assert handle_from("http://agent:8950/ask", {}, json.dumps({"status_url": place}).encode()) == handle


@pytest.mark.parametrize("said", [
    {"accept": {}},
    {"deltas": [{"attempt_sequence": "2", "delta": {"channel": "c", "mode": "DELTA_MODE_REPLACE",
                                                    "payload": {"text": "x", "media_type": "text/plain"}}}]},
    {"progress": [{"progress": {"fraction": 0.5, "note": "so"}, "checkpoint": "AAE="}]},
    {"result": {"output": {"text": "x", "media_type": "text/plain"}, "confidence": 0.5, "usage": {"tokens": 3.0},
                "entities": {"a": "b"}, "executed_intent": "i"}},
    {"result": {"output": {"data": "/w==", "media_type": "image/png"}}},
    {"result": {"folded": {"last_attempt_sequence": "7"}}},
    {"result": {"released": {"reason": "it drains"}}},
    {"result": {"waiting": {"waiting_for": "WAITING_FOR_AUTH", "question": "q", "timeout": "3s",
                            "prompt": {"text": "who?", "media_type": "text/plain"}}}},
    {"result": {"error": {"error_class": "ERROR_CLASS_UNAVAILABLE", "reason": "ERROR_REASON_AGENT_UNAVAILABLE",
                          "message": "later", "retry_after": "2s", "metadata": {"k": "v"}}}},
])  # fmt: skip
def test_what_an_agent_of_ours_says_is_heard_as_it_was_said(said):
    response = json_format.ParseDict(said, endpoint_pb2.ExecuteResponse())
    ((name, told),) = items_of(response)
    raw = msgspec.json.encode(told)
    assert of_event(name, raw.decode()) == response
    assert item_of(msgspec.json.decode(raw), raw) == response


def test_the_header_of_attempts_is_bounded_and_read_back():
    names = [("", "a/b,c", 1), ("other", "t\u00fc", 2)]
    assert believed_in(believed_text([("own", "a/b,c", 1), ("other", "t\u00fc", 2)], "own")) == names
    assert len(believed_text([("own", "x" * 250, number) for number in range(1_000)], "own")) < 8_000
    assert believed_in("rubbish,/,a/b,a/b/x,a/b/99999999999") == []


def test_a_status_leaves_out_what_is_none():
    said = {"current_load": 2, "queue_length": "x", "memory_watermark": 0.5, "last_task_duration_ms": 1_500, "x": 1}
    assert json_format.MessageToDict(status_from(said), preserving_proto_field_name=True) == {
        "inflight": 2, "memory_watermark": 0.5, "last_task_duration": "1.500s",
    }  # fmt: skip


def test_headers_are_in_small_letters():
    assert said_in([(b"Retry-After", b"1"), (b"X", b"\xff")]) == {"retry-after": "1", "x": "\xff"}


@pytest.mark.parametrize(
    ("base", "place", "handle"),
    [
        ("http://agent:80/ask", "http://agent/jobs/1", "/jobs/1"),
        ("https://agent/ask", "https://agent:443/jobs/1", "/jobs/1"),
        ("http://agent/ask", "http://agent:443/jobs/1", ""),
        ("http://agent/ask", "https://agent:80/jobs/1", ""),
    ],
)
def test_REG_6_a_place_may_leave_out_the_port_that_all_know(base, place, handle):
    assert handle_from(base, {"location": place}, b"") == handle


def test_a_body_without_a_task_id_is_told_what_it_lacks():
    with pytest.raises(InvalidRequest, match="the body has no task_id"):
        offer_from(b'{"payload": "Ada"}')
