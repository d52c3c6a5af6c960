"""The adapter for OpenAI-compatible endpoints, against a server that answers well, badly, or half."""

from __future__ import annotations

import json
import logging
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents.openai_adapter import (
    EndpointError,
    Finish,
    Settings,
    SettingsError,
    complete,
    read_request,
    read_stream,
    retry_after_ms,
)
from reach.demo_agents.payload import BadRequestError
from tests.examples.fake_endpoint import DONE, Endpoint, chunk, delta, endpoint, reply, stream_head

KEY = "sk-very-secret-0123456789"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def config_of(server: Endpoint, key: str = KEY, timeout: float = 5.0) -> Settings:
    environment = {"OPENAI_MODEL": "small", "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": key}
    return Settings.from_environment(environment, timeout)


def ask(*pieces: bytes, hang: bool = False, timeout: float = 5.0) -> list[str | Finish]:
    with endpoint(*pieces, hang=hang) as server:
        return list(complete(config_of(server, timeout=timeout), BODY))


def refused(*pieces: bytes, hang: bool = False, timeout: float = 5.0) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        ask(*pieces, hang=hang, timeout=timeout)
    assert KEY not in str(caught.value)
    return caught.value


def test_deltas_come_one_by_one_and_the_request_is_right() -> None:
    pieces = [stream_head(), delta("Hel"), b": still here\n\n", delta("lo"), delta(None, "stop"), DONE]
    with endpoint(*pieces) as server:
        assert list(complete(config_of(server), BODY)) == ["Hel", "lo", Finish("stop")]
    request = server.requests[0]
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.body == {"model": "small", **BODY}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept"] == "text/event-stream"


def test_the_first_delta_comes_before_the_last_is_sent() -> None:
    with endpoint(stream_head(), delta("first"), hang=True) as server:
        pieces = complete(config_of(server), BODY)
        assert next(pieces) == "first"
        pieces.close()  # type: ignore[attr-defined]
        assert server.closed_by_client.wait(5)


def test_no_key_no_header() -> None:
    with endpoint(stream_head(), delta("x", "stop")) as server:
        list(complete(config_of(server, key=""), BODY))
    assert "authorization" not in server.requests[0].headers


def test_characters_may_be_cut_between_packets() -> None:
    event = delta("é🐝文")
    cuts = [event[i : i + 1] for i in range(len(event))]
    assert ask(stream_head(), *cuts, delta(None, "stop")) == ["é🐝文", Finish("stop")]


def test_chunked_transfer_with_cuts_inside_characters() -> None:
    event = delta("héllo") + delta("🐝", "stop") + DONE
    pieces = [chunk(event[i : i + 7]) for i in range(0, len(event), 7)]
    found = ask(stream_head("Transfer-Encoding: chunked"), *pieces, chunk(b""))
    assert found == ["héllo", "🐝", Finish("stop")]


def test_surrogate_pairs_may_be_cut_between_deltas() -> None:
    halves = [
        b'data: {"choices": [{"delta": {"content": "a\\ud83d"}}]}\n\n',
        b'data: {"choices": [{"delta": {"content": "\\udc1db"}}]}\n\n',
    ]
    assert ask(stream_head(), *halves, DONE) == ["a", "🐝b", Finish("stop")]
    assert ask(stream_head(), halves[0], DONE) == ["a", "\ufffd", Finish("stop")]
    assert ask(stream_head(), halves[1], DONE) == ["\ufffdb", Finish("stop")]


def test_length_and_filter_are_told() -> None:
    assert ask(stream_head(), delta("x", "length"), DONE)[-1] == Finish("length")
    assert ask(stream_head(), delta("x"), delta(None, "content_filter"))[-1] == Finish("content_filter")


def test_an_endpoint_that_does_not_stream() -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "All\nat once"}, "finish_reason": "stop"}]}
    assert ask(reply("200 OK", json.dumps(answer, indent=2).encode())) == ["All\nat once", Finish("stop")]


@pytest.mark.parametrize(
    "pieces",
    [
        [stream_head(), delta("half of it")],
        [stream_head("Transfer-Encoding: chunked"), chunk(delta("half of it")), b"40\r\ndata: {"],
        [stream_head("Content-Length: 1000"), delta("half of it")],
        [stream_head(), delta("half of it"), delta(" and ")[:-9]],
    ],
)
def test_a_stream_that_breaks_off_is_unavailable(pieces: list[bytes]) -> None:
    got: list[str | Finish] = []
    with endpoint(*pieces) as server, pytest.raises(EndpointError) as caught:
        got.extend(complete(config_of(server), BODY))
    assert caught.value.kind == "unavailable"
    assert "bro" in str(caught.value)


def test_what_came_before_the_break_was_given() -> None:
    with endpoint(stream_head(), delta("half")) as server:
        pieces = complete(config_of(server), BODY)
        assert next(pieces) == "half"
        with pytest.raises(EndpointError, match="broke off"):
            next(pieces)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("429 Too Many Requests", "exhausted"),
        ("500 Internal Server Error", "unavailable"),
        ("502 Bad Gateway", "unavailable"),
        ("503 Service Unavailable", "unavailable"),
        ("408 Request Timeout", "unavailable"),
        ("400 Bad Request", "invalid"),
        ("401 Unauthorized", "invalid"),
        ("403 Forbidden", "invalid"),
        ("404 Not Found", "invalid"),
        ("422 Unprocessable Entity", "invalid"),
        ("307 Temporary Redirect", "invalid"),
        ("204 No Content", "unavailable"),
    ],
)
def test_each_status_has_its_class(status: str, kind: str) -> None:
    body = b"" if status.startswith("204") else json.dumps({"error": {"message": f"About {KEY}: no."}}).encode()
    error = refused(reply(status, body, "Location: http://127.0.0.1:1/"))
    assert error.kind == kind
    assert status[:3] in str(error)


def test_the_words_of_the_endpoint_are_passed_on_without_the_key() -> None:
    body = json.dumps({"error": {"message": f"model 'small' of {KEY} is unknown {'x' * 999}"}}).encode()
    error = refused(reply("404 Not Found", body))
    assert str(error).startswith("the endpoint answers 404: model 'small' of *** is unknown xxx")
    assert len(str(error)) < 400
    assert str(refused(reply("400 Bad Request", b"<html>no</html>"))) == "the endpoint answers 400: Bad Request"


def test_retry_after_is_kept() -> None:
    assert refused(reply("429 Slow Down", b"{}", "Retry-After: 1.5")).retry_after_ms == 1500
    assert retry_after_ms("0") == 0
    for odd in (None, "", "-1", "nan", "inf", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT"):
        assert retry_after_ms(odd) is None


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": f"slow down, {KEY}", "code": "rate_limit_exceeded"}}, "exhausted"),
        ({"error": {"message": "overloaded", "type": "server_error"}}, "unavailable"),
        ({"error": "no"}, "unavailable"),
        ([], "unavailable"),
    ],
)
def test_errors_inside_the_stream(event: object, kind: str) -> None:
    assert refused(stream_head(), delta("a"), b"data: " + json.dumps(event).encode() + b"\n\n").kind == kind


@pytest.mark.parametrize(
    "pieces",
    [[b"not http at all\r\n\r\n"], [b""], [stream_head(), b"data: {not json\n\n"], [stream_head(), b"data: 1\n\n"]],
)
def test_nonsense_is_unavailable(pieces: list[bytes]) -> None:
    assert refused(*pieces).kind == "unavailable"


def test_silence_is_unavailable() -> None:
    assert refused(stream_head(), delta("a"), hang=True, timeout=0.2).kind == "unavailable"


def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EndpointError, match=r"no connection to 127\.0\.0\.1") as caught:
        list(complete(config_of(Endpoint([], port=port)), BODY))
    assert caught.value.kind == "unavailable"


def test_the_key_is_never_shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    with endpoint(reply("401 Unauthorized", f'{{"error": {{"message": "bad key {KEY[:8]}"}}}}'.encode())) as server:
        config = config_of(server)
        with pytest.raises(EndpointError) as caught:
            list(complete(config, BODY))
    captured = capfd.readouterr()
    shown = f"{config!r} {config} {caught.value!r} {caplog.text} {captured.out} {captured.err}"
    assert KEY[:8] not in shown


def test_settings_from_the_environment() -> None:
    config = Settings.from_environment({"OPENAI_MODEL": "m"})
    assert (config.host, config.port, config.path, config.secure) == (
        "api.openai.com",
        None,
        "/v1/chat/completions",
        True,
    )
    config = Settings.from_environment({"OPENAI_MODEL": "m", "OPENAI_BASE_URL": "http://[::1]:8080/api/"})
    assert (config.host, config.port, config.path, config.secure) == ("::1", 8080, "/api/chat/completions", False)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "OPENAI_MODEL is not set"),
        ({"OPENAI_BASE_URL": "api.example.org/v1"}, "must begin with http"),
        ({"OPENAI_BASE_URL": "ftp://x/v1"}, "must begin with http"),
        ({"OPENAI_BASE_URL": "http://x:99999/v1"}, "is not a URL"),
        ({"OPENAI_BASE_URL": f"https://me:{KEY}@x/v1"}, "no user"),
        ({"OPENAI_BASE_URL": f"https://x/v1?key={KEY}"}, "no user, query"),
        ({"OPENAI_BASE_URL": "https://x/v 1"}, "plain ASCII"),
        ({"OPENAI_API_KEY": f"{KEY}\r\nX: y"}, "no key has"),
        ({"OPENAI_API_KEY": f"{KEY}é"}, "no key has"),
    ],
)
def test_wrong_settings_are_told_without_the_key(environment: dict[str, str], message: str) -> None:
    model = {"OPENAI_MODEL": "m"} if environment else {}
    with pytest.raises(SettingsError, match=message) as caught:
        Settings.from_environment(model | environment)
    assert KEY not in str(caught.value)


def test_requests() -> None:
    assert read_request(b"Hi", "text/plain") == BODY
    full = {"prompt": "Hi", "system": "Be short.", "temperature": 0, "max_tokens": 5}
    assert read_request(json.dumps(full).encode(), "application/json") == {
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 5,
    }
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert read_request(json.dumps({"messages": messages}).encode(), "application/json")["messages"] == messages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "a", "temperature": 3}, "from 0 to 2"),
        ({"prompt": "a", "temperature": "hot"}, "type float"),
        ({"prompt": "a", "temperature": float("nan")}, "from 0 to 2"),
        ({"prompt": "a", "max_tokens": 0}, "at least 1"),
        ({"messages": []}, "list of objects"),
        ({"messages": ["a"]}, "list of objects"),
        ({"messages": [{"content": "a"}]}, "list of objects"),
        ({"prompt": "a", "messages": [{"role": "user"}]}, "not both"),
        ({"prompt": "a", "model": "other"}, "unknown key 'model'"),
    ],
)
def test_wrong_requests(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        read_request(json.dumps(fields).encode(), "application/json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "delta", "message", "content", "finish_reason", "error"]), inner)
    ),
)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), JSON.map(lambda v: f"data: {json.dumps(v)}\n\n".encode())), max_size=6)
)
def test_any_stream_ends_in_a_finish_or_an_endpoint_error(chunks: list[bytes]) -> None:
    pieces: list[str | Finish] = []
    try:
        pieces.extend(read_stream(chunks))
    except EndpointError as error:
        assert error.kind in ("exhausted", "unavailable")  # noqa: PT017
    else:
        assert isinstance(pieces[-1], Finish)
