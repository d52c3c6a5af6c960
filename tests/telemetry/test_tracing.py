"""Trace contexts, and spans as a real collector gets them."""

import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.telemetry import tracing
from reach.telemetry.tracing import TraceContext, Tracing, parse_traceparent, sampled
from tests.telemetry.collector import Collector, plain

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
YES = f"00-{TRACE}-{SPAN}-01"
NO = f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(("header", "expected"), [(YES, True), (NO, False), (f"00-{TRACE}-{SPAN}-03", True)])
def test_a_header_is_read(header, expected):
    trace = parse_traceparent(header)
    assert trace is not None
    assert (trace.trace_id, trace.span_id, trace.sampled, trace.root) == (TRACE, SPAN, expected, False)
    assert trace.traceparent == header
    assert sampled(header) is expected


@pytest.mark.parametrize(
    "header",
    [
        "", "00", YES[:-1], YES + "0", YES + "-x", YES.upper(), " " + YES, YES + "\n", YES.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{'g' * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x", "0" * 55, "-" * 55, "\ud800" * 55, f"01-{TRACE}-{SPAN}-01x", "x" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_header_is_none(header):
    assert parse_traceparent(header) is None
    trace = Tracing(1.0).accept(header)
    assert trace.root
    assert parse_traceparent(trace.traceparent) is not None


def test_a_later_version_is_read_and_passed_on_as_ours():
    trace = parse_traceparent(f"01-{TRACE}-{SPAN}-01-more-of-it")
    assert trace is not None
    assert trace.traceparent == YES
    assert trace.sampled


@given(st.text(max_size=80) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_reading_never_fails_and_agrees_with_a_slow_twin(header):
    parts = header.split("-")
    right = (
        [len(part) for part in parts] == [2, 32, 16, 2]
        and set(header) <= set("0123456789abcdef-")
        and parts[0] != "ff"
        and set(parts[1]) != {"0"}
        and set(parts[2]) != {"0"}
    )
    trace = parse_traceparent(header)
    assert (trace is not None) == right
    if trace is not None:
        assert trace.sampled == bool(int(parts[3], 16) & 1) == sampled(header)


def test_without_a_collector_nothing_is_sampled_but_contexts_go_on():
    off = Tracing(1.0)
    roots = [off.root() for _ in range(100)]
    assert not any(root.sampled for root in roots)
    assert len({root.trace_id for root in roots}) == 100
    caller = off.accept(YES)
    assert off.dispatch_started("t", caller) == YES
    assert off.attempt_started("t", 1, YES) == YES
    off.attempt_ended("t", 1, "succeeded")
    off.dispatch_ended("t", "succeeded")


def test_the_current_trace_is_that_of_the_context():
    assert tracing.current_trace_id() == ""
    token = tracing.set_current_trace(TraceContext(YES, sampled=True))
    try:
        assert tracing.current_trace_id() == TRACE
    finally:
        tracing._current.reset(token)


async def test_a_task_is_one_connected_trace_from_the_caller_to_the_agent():
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 0.0, node_id="n1", version="1.2")
        kept = traces.dispatch_started(("acme", "task-1"), traces.accept(YES), durability="volatile")
        first = traces.attempt_started(("acme", "task-1"), 1, kept)
        traces.attempt_ended(("acme", "task-1"), 1, "lost", "INSTANCE_LOST")
        second = traces.attempt_started(("acme", "task-1"), 2, kept)
        traces.attempt_ended(("acme", "task-1"), 2, "SUCCEEDED")
        traces.dispatch_ended(("acme", "task-1"), "succeeded")
        await traces.stop()
        await collector.wait_for(lambda got: len(got.spans) == 3)
        tree = collector.trace(TRACE)
        (dispatch,) = tree[SPAN]
        assert dispatch.name == "dispatch"
        assert kept == f"00-{TRACE}-{dispatch.span_id.hex()}-01"
        attempts = {plain(span.attributes)["agentreach.attempt"]: span for span in tree[dispatch.span_id.hex()]}
        assert {number: span.span_id.hex() for number, span in attempts.items()} == {1: first[36:52], 2: second[36:52]}
        assert plain(attempts[1].attributes) == {
            "agentreach.attempt": 1,
            "agentreach.outcome": "lost",
            "agentreach.reason": "INSTANCE_LOST",
        }
        assert [attempts[1].status.code, attempts[2].status.code] == [2, 0]
        assert collector.resources[0]["service.name"] == "agentreach"
        assert collector.resources[0]["service.instance.id"] == "n1"
        assert b"task-1" not in b"".join(collector.raw), "no id of a task leaves in spans"


async def test_a_sampled_root_is_recorded_under_the_ids_that_the_caller_was_told():
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 1.0, node_id="n1", version="1")
        root = traces.accept(None)
        assert root.sampled
        assert traces.dispatch_started("t", root) == root.traceparent
        agent = traces.attempt_started("t", 1, root.traceparent)
        assert agent != root.traceparent
        # As a header, and a second task in the same trace: that one is a child.
        second = traces.dispatch_started("u", traces.accept(root.traceparent))
        traces.dispatch_started("v", traces.root())
        traces.attempt_ended("t", 1, "succeeded")
        for key in "tuv":
            traces.dispatch_ended(key, "succeeded")
        await traces.stop()
        await collector.wait_for(lambda got: len(got.spans) == 4)
        tree = collector.trace(root.trace_id)
        assert [span.span_id.hex() for span in tree[""]] == [root.span_id]
        assert {span.span_id.hex() for span in tree[root.span_id]} == {agent[36:52], second[36:52]}


async def test_a_root_that_travelled_as_a_header_is_a_root_still():
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 1.0, node_id="n1", version="1")
        root = [traces.root() for _ in range(1100)][-1]
        assert len(traces._roots) == 1000
        kept = traces.dispatch_started("t", traces.accept(root.traceparent))
        assert kept == root.traceparent
        traces.dispatch_ended("t", "succeeded")
        await traces.stop()
        await collector.wait_for(lambda got: len(got.spans) == 1)
        assert collector.spans[0].parent_span_id == b""


async def test_what_is_not_sampled_is_not_sent():
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 0.0, node_id="n1", version="1")
        traces.dispatch_started("t", traces.accept(NO))
        traces.dispatch_ended("t", "succeeded")
        assert not any(traces.root().sampled for _ in range(1000))
        await traces.stop()
        assert collector.spans == []


async def test_a_tenth_of_the_roots_is_sampled_by_the_rule_of_opentelemetry():
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 0.1, node_id="n1", version="1")
        roots = [traces.root() for _ in range(5000)]
        await traces.stop()
    assert 350 < sum(root.sampled for root in roots) < 650
    theirs = TraceIdRatioBased(0.1)
    for root in roots[:500]:
        decision = theirs.should_sample(None, int(root.trace_id, 16), "x").decision
        assert (decision is Decision.RECORD_AND_SAMPLE) == root.sampled


async def test_g7_attributes_come_from_closed_sets():
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 0.0, node_id="n1", version="1")
        for key in range(20):
            traces.dispatch_started(key, traces.accept(YES), durability=f"d-{key}")
            traces.attempt_started(key, 1000 + key, YES)
            traces.attempt_ended(key, 1000 + key, f"o-{key}", f"r-{key}")
            traces.dispatch_ended(key, f"o-{key}", f"r-{key}")
        await traces.stop()
        await collector.wait_for(lambda got: len(got.spans) == 40)
        assert {span.name for span in collector.spans} == {"dispatch", "attempt"}
        values = {(item.key, str(item.value)) for span in collector.spans for item in span.attributes}
        assert len(values) == 4
        assert {key for key, _ in values} == {
            "agentreach.outcome",
            "agentreach.reason",
            "agentreach.durability",
            "agentreach.attempt",
        }


async def test_open_spans_are_bounded_and_ended_at_the_stop(monkeypatch):
    monkeypatch.setattr(tracing, "MAX_OPEN_SPANS", 5)
    async with Collector() as collector:
        traces = tracing.to_collector(collector.endpoint, 0.0, node_id="n1", version="1")
        for key in range(20):
            traces.dispatch_started(key, traces.accept(YES))
            assert len(traces._open) <= 5
        traces.dispatch_ended(0, "succeeded")
        await traces.stop()
        await collector.wait_for(lambda got: len(got.spans) == 20)
        assert traces.dispatch_started("late", traces.accept(YES)) == YES, "after the stop nothing is recorded"


@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "hangs"])
async def test_a_collector_that_is_away_delays_the_stop_by_its_timeout_at_most(answers):
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel accepts, nobody reads
    port = silent.getsockname()[1]
    if not answers:
        silent.close()
    traces = tracing.to_collector(f"http://127.0.0.1:{port}", 1.0, node_id="n1", version="1")
    traces.dispatch_started("t", traces.root())
    traces.dispatch_ended("t", "succeeded")
    began = time.monotonic()
    await traces.stop(0.5)
    assert time.monotonic() - began < 2
    silent.close()
