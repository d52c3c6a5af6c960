"""Requests of the demo agents: text, JSON, and everything that is neither."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents.payload import BadRequestError, argument_parser, read_fields

OPTIONS = {"sentences": int, "temperature": float}


def test_plain_text_is_taken_as_it_is() -> None:
    assert read_fields("Café.".encode(), "text/plain", "text") == {"text": "Café."}


def test_byte_order_mark_is_dropped() -> None:
    assert read_fields(b"\xef\xbb\xbfHello.", "text/plain", "text") == {"text": "Hello."}


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"])
def test_json_by_media_type(media_type: str) -> None:
    assert read_fields(b'{"text": "a", "sentences": 2}', media_type, "text", OPTIONS) == {"text": "a", "sentences": 2}


def test_json_in_plain_text_counts_if_it_has_the_text() -> None:
    assert read_fields(b' {"text": "a", "sentences": 2}', "text/plain", "text", OPTIONS)["sentences"] == 2


@pytest.mark.parametrize("text", ['{"other": 1}', '{"text": 5}', "{not json", "[1]", '"text"', "{}"])
def test_other_text_that_looks_like_json_stays_text(text: str) -> None:
    assert read_fields(text.encode(), "text/plain", "text", OPTIONS) == {"text": text}


def test_a_json_string_is_the_text() -> None:
    assert read_fields(b'"just this"', "application/json", "text") == {"text": "just this"}


def test_float_takes_whole_numbers_and_null_counts_as_absent() -> None:
    fields = read_fields(b'{"text": "a", "temperature": 1, "sentences": null}', "application/json", "text", OPTIONS)
    assert fields == {"text": "a", "temperature": 1}


def test_instead_stands_for_the_text() -> None:
    options = {"messages": list}
    payload = b'{"messages": [1]}'
    assert read_fields(payload, "application/json", "prompt", options, instead="messages") == {"messages": [1]}
    assert read_fields(payload, "text/plain", "prompt", options, instead="messages") == {"messages": [1]}
    with pytest.raises(BadRequestError, match="not both"):
        read_fields(b'{"messages": [], "prompt": ""}', "application/json", "prompt", options, instead="messages")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\xff\xfe", "not UTF-8: byte 0 is 0xff"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "expected a JSON object with the keys text, sentences, temperature"),
        (b"{}", "'text' is missing"),
        (b'{"text": 1}', "'text' must be of type str, not int"),
        (b'{"text": "a", "sentences": "3"}', "'sentences' must be of type int, not str"),
        (b'{"text": "a", "sentences": true}', "'sentences' must be of type int, not bool"),
        (b'{"text": "a", "sentences": 2.5}', "'sentences' must be of type int, not float"),
        (b'{"text": "a", "colour": 1}', "unknown key 'colour'; known are text, sentences, temperature"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_wrong_requests_say_what_is_wrong(payload: bytes, message: str) -> None:
    with pytest.raises(BadRequestError, match=message.replace("[", r"\[")):
        read_fields(payload, "application/json", "text", OPTIONS)


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(),
        st.text().map(str.encode),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ).map(lambda value: json.dumps(value).encode()),
    ),
    st.sampled_from(["text/plain", "application/json", "", "x/y+json"]),
)
def test_never_anything_but_fields_or_bad_request(payload: bytes, media_type: str) -> None:
    try:
        fields = read_fields(payload, media_type, "text", OPTIONS)
    except BadRequestError:
        pass
    else:
        assert isinstance(fields["text"], str)
        fields["text"].encode()


def test_every_agent_has_the_same_options() -> None:
    options = argument_parser("First line.\nSecond.", "x").parse_args(["--addr", "h:1", "--instance-id", "i"])
    assert (options.addr, options.agent_id, options.instance_id, options.max_concurrency) == ("h:1", "x", "i", 4)
