"""Traces: W3C context in and out, and spans for the few tasks that are sampled.

Most tasks are not sampled, and they must cost nothing: `sampled()` looks at one character. Only when it says yes does
the runtime call a `Tracing`, whose spans are

    dispatch    from the moment the task was accepted to its outcome, child of the caller's span, or the root
    attempt     from the offer to an instance to what became of it, child of the dispatch

and whose attributes come from closed sets: no id, no payload, no text of anybody else (G7, G8). What a method returns
is the `traceparent` to pass on: the dispatch's is kept with the task, the attempt's is sent to the agent. Spans that
are open are held here, not in the core.

OpenTelemetry is imported only when an endpoint is configured; without one, contexts are still read, made and passed on.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, cast

from reach.errors import Reason

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span

OUTCOMES: Final = frozenset({
    "succeeded", "failed", "cancelled", "rejected", "dead_lettered",  # a task's
    "lost", "expired", "refused", "superseded", "released", "waiting",  # an attempt's
})  # fmt: skip
_FAILED: Final = OUTCOMES - {"succeeded", "cancelled", "superseded", "released", "waiting"}
DURABILITIES: Final = frozenset({"durable", "volatile"})
MAX_OPEN_SPANS: Final = 10_000
"""Open spans of one process; the oldest is ended as `other` to make room."""
_MAX_ROOTS: Final = 1_000
"""Sampled roots that wait for their dispatch; one that is dropped only misses its first span."""

# Version 00 exactly; a later version may append fields, which we must not read. All zeros is "no id".
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_ODD: Final = "13579bdf"

_random: Final = random.Random()  # ids need no cryptography; seeded by the system


class TraceContext:
    """Where a call stands in a trace.

    Attributes:
        traceparent: The W3C header, valid to be passed on as it is.
        sampled: Whether spans are recorded.
        root: The trace began here: the ids are those of a span that this process may record itself.
    """

    __slots__ = ("root", "sampled", "traceparent")

    def __init__(self, traceparent: str, sampled: bool, root: bool = False) -> None:
        self.traceparent = traceparent
        self.sampled = sampled
        self.root = root

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    def __repr__(self) -> str:
        return f"TraceContext({self.traceparent})"


_NO_TRACE: Final = TraceContext("", sampled=False)
_current: Final[ContextVar[TraceContext]] = ContextVar("reach_trace", default=_NO_TRACE)
set_current_trace: Final = _current.set
current_trace: Final = _current.get
"""The trace of the call that is being handled; outside of calls one that is empty."""


def current_trace_id() -> str:
    """Its id, for logs; empty outside of calls."""
    return _current.get().traceparent[3:35]


def sampled(traceparent: str) -> bool:
    """Whether a header asks for spans. The look that each task gets, so it trusts the form; parse before using it."""
    return len(traceparent) >= 55 and traceparent[54] in _ODD


def parse_traceparent(traceparent: str) -> TraceContext | None:
    """The context of a W3C `traceparent` header, or None if it is not one; about 0.5 µs."""
    if _TRACEPARENT(traceparent) is None:
        return _parse_later_version(traceparent)
    return TraceContext(traceparent, traceparent[54] in _ODD)


def _parse_later_version(traceparent: str) -> TraceContext | None:
    """A version we do not know may append fields behind a hyphen; what we pass on is then version 00."""
    if len(traceparent) < 56 or traceparent[55] != "-" or traceparent.startswith("00"):
        return None
    head = traceparent[:55]
    return TraceContext(f"00{head[2:]}", head[54] in _ODD) if _TRACEPARENT(head) else None


class RootIds:
    """OpenTelemetry's source of ids: random ones, or those that a root was given before its span was recorded."""

    def __init__(self) -> None:
        self.pending: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        """Asked before the span id, and only for a root."""
        return self.pending[0] if self.pending is not None else _random.getrandbits(128) | 1

    def generate_span_id(self) -> int:
        """Asked once per span."""
        pending, self.pending = self.pending, None
        return pending[1] if pending is not None else _random.getrandbits(64) | 1

    def is_trace_id_random(self) -> bool:
        """Whether to set the flag that newer headers have; ours do not."""
        return False


class Tracing:
    """Decides about roots, and records spans of sampled tasks if there is somewhere to send them."""

    def __init__(
        self,
        sample_ratio: float = 0.0,
        provider: TracerProvider | None = None,
        ids: RootIds | None = None,
        exporter: SpanExporter | None = None,
    ) -> None:
        """Without a provider nothing is recorded and no root is sampled; see `to_collector`."""
        self._provider = provider
        self._ids = ids if ids is not None else RootIds()
        self._exporter = exporter
        self._tracer = provider.get_tracer("reach") if provider is not None else None
        # The rule of OpenTelemetry's TraceIdRatioBased, so that other services with the same ratio agree.
        self._bound = round(sample_ratio * 2**64) if provider is not None else 0
        self._open: dict[Hashable, Span] = {}
        # Roots whose own span is not recorded yet: the first dispatch in such a trace is that span.
        self._roots: dict[str, None] = {}
        self._lock = threading.Lock()

    @property
    def records(self) -> bool:
        """Whether there is somewhere to send spans; if not, nothing is sampled."""
        return self._tracer is not None

    def accept(self, traceparent: str | None) -> TraceContext:
        """The context of a call: what the caller sent, or a new root."""
        if traceparent:
            trace = parse_traceparent(traceparent)
            if trace is not None:
                return trace
        return self.root()

    def root(self) -> TraceContext:
        """A new trace, sampled by the ratio."""
        number = _random.getrandbits(192) | 1 << 64 | 1
        is_sampled = (number >> 64) & 0xFFFF_FFFF_FFFF_FFFF < self._bound
        digits = f"{number:048x}"
        traceparent = f"00-{digits[:32]}-{digits[32:]}-{'01' if is_sampled else '00'}"
        if is_sampled:
            if len(self._roots) >= _MAX_ROOTS:
                self._roots.pop(next(iter(self._roots)), None)
            self._roots[traceparent] = None
        return TraceContext(traceparent, is_sampled, root=True)

    def dispatch_started(self, key: Hashable, trace: TraceContext, *, durability: str = "durable") -> str:
        """Opens the span of a task; returns the traceparent to keep with it. `key` is any name of the task."""
        if self._tracer is None:
            return trace.traceparent
        attributes = {"agentreach.durability": durability if durability in DURABILITIES else "other"}
        return self._start(key, "dispatch", trace, attributes)

    def dispatch_ended(self, key: Hashable, outcome: str, reason: str = "") -> None:
        """Closes it. Outcome and reason of closed sets; of a task that this process did not start, nothing happens."""
        self._end(key, outcome, reason)

    def attempt_started(self, key: Hashable, number: int, traceparent: str) -> str:
        """Opens the span of an attempt of a task; returns the traceparent to send to the agent."""
        trace = parse_traceparent(traceparent) if self._tracer is not None else None
        if trace is None:
            return traceparent
        return self._start((key, number), "attempt", trace, {"agentreach.attempt": min(number, 16)})

    def attempt_ended(self, key: Hashable, number: int, outcome: str, reason: str = "") -> None:
        """Closes it, as `dispatch_ended`."""
        self._end((key, number), outcome, reason)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Ends open spans and sends what is left; after the timeout what did not arrive is dropped."""
        if self._provider is None:
            return
        provider, self._provider, self._tracer = self._provider, None, None
        for key in list(self._open):
            self._end(key, "other", "")
        sending = asyncio.ensure_future(asyncio.to_thread(provider.force_flush))
        done, _ = await asyncio.wait({sending}, timeout=timeout_s)
        if not done and self._exporter is not None:
            self._exporter.shutdown()  # ends the call that is under way, and further tries
        await sending
        await asyncio.to_thread(provider.shutdown)

    def _start(self, key: Hashable, name: str, trace: TraceContext, attributes: Mapping[str, str | int]) -> str:
        assert self._tracer is not None
        with self._lock:
            if name == "dispatch" and trace.traceparent in self._roots:
                del self._roots[trace.traceparent]
                self._ids.pending = (int(trace.trace_id, 16), int(trace.span_id, 16))
                span = self._tracer.start_span(name, context=_empty_context(), attributes=attributes)
            else:
                span = self._tracer.start_span(name, context=as_otel_context(trace), attributes=attributes)
            if len(self._open) >= MAX_OPEN_SPANS:
                self._open.pop(next(iter(self._open))).end()
            self._open[key] = span
        here = span.get_span_context()
        return f"00-{here.trace_id:032x}-{here.span_id:016x}-{int(here.trace_flags):02x}"

    def _end(self, key: Hashable, outcome: str, reason: str) -> None:
        span = self._open.pop(key, None)
        if span is None:
            return
        outcome = outcome.lower()
        span.set_attribute("agentreach.outcome", outcome if outcome in OUTCOMES else "other")
        if reason:
            span.set_attribute("agentreach.reason", reason if reason in Reason.__members__ else "other")
        if outcome in _FAILED:
            from opentelemetry.trace import StatusCode

            span.set_status(StatusCode.ERROR)
        span.end()


def as_otel_context(trace: TraceContext) -> Context:
    """The context for OpenTelemetry's own API: a span started in it is a child of `trace`."""
    from opentelemetry import trace as api

    flags = api.TraceFlags(int(trace.traceparent[53:], 16))
    remote = api.SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), is_remote=True, trace_flags=flags)
    return api.set_span_in_context(api.NonRecordingSpan(remote), _empty_context())


def _empty_context() -> Context:
    from opentelemetry.context import Context

    return Context()


def resource_of(node_id: str, version: str) -> Resource:
    """Who sends: the same for traces and metrics."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({
        "service.name": "agentreach", "service.instance.id": node_id, "service.version": version,
    })  # fmt: skip


def to_collector(endpoint: str, sample_ratio: float, *, node_id: str, version: str) -> Tracing:
    """A Tracing that sends to an OTLP/gRPC endpoint, `http://host:4317` in clear or `https://host:4317`.

    Imports the SDK and the exporter, about 0.2 s, so it is called only when an endpoint is configured. A collector that
    is away costs nothing but its spans: the queue is bounded and sent by a thread of its own.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=5)
    return to_exporter(exporter, sample_ratio, node_id=node_id, version=version)


def to_exporter(exporter: SpanExporter, sample_ratio: float, *, node_id: str, version: str) -> Tracing:
    """The same with any exporter of OpenTelemetry."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    ids = RootIds()
    provider = TracerProvider(
        # Roots that come here were sampled by `root` already.
        sampler=ParentBased(root=ALWAYS_ON),
        resource=resource_of(node_id, version),
        id_generator=cast("IdGenerator", ids),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096, schedule_delay_millis=1000))
    return Tracing(sample_ratio, provider, ids, exporter)
