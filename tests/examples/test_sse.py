"""Server-sent events, cut at every place where they can be cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.demo_agents.sse import LARGEST_EVENT, Event, EventTooLargeError, SseParser

STREAM = (
    "\ufeff: hello\r\ndata: café 🐝\n\nevent: end\rdata:two\rdata: lines\rid: 7\rretry: 9\r\r\r\ndata\n\ndata: lost"
).encode()
EVENTS = [Event("message", "café 🐝"), Event("end", "two\nlines"), Event("message", "")]


def test_a_stream_at_once() -> None:
    assert SseParser().feed(STREAM) == EVENTS


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_a_stream_in_two_pieces(cut: int) -> None:
    parser = SseParser()
    assert parser.feed(STREAM[:cut]) + parser.feed(STREAM[cut:]) == EVENTS


def test_a_stream_byte_by_byte() -> None:
    parser = SseParser()
    assert [event for byte in STREAM for event in parser.feed(bytes([byte]))] == EVENTS


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert SseParser().feed(b"data: a\xffb\n\n") == [Event("message", "a\ufffdb")]


def test_endless_lines_and_events_are_refused() -> None:
    with pytest.raises(EventTooLargeError):
        SseParser().feed(b"data: " + b"x" * LARGEST_EVENT + b"\n")
    parser = SseParser()
    for _ in range(LARGEST_EVENT // 4096):
        parser.feed(b"x" * 4096)
    with pytest.raises(EventTooLargeError):
        parser.feed(b"x")


@settings(deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_cuts_never_matter(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    parser = SseParser()
    pieces = [parser.feed(data[a:b]) for a, b in itertools.pairwise(places)]
    assert [event for piece in pieces for event in piece] == SseParser().feed(data)
