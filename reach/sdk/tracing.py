"""The trace of a task, from the caller to the handler and on to what the handler asks for.

OpenTelemetry is used where the program uses it and never loaded here: a handler then runs inside the caller's trace.
Without it the trace is still passed on.
"""

from __future__ import annotations

import contextvars
import sys
from typing import Any

from agentreach.v1 import task_pb2
from reach.sdk.payloads import Fields

_current: contextvars.ContextVar[tuple[str, str]] = contextvars.ContextVar("reach_trace", default=("", ""))


def current_trace() -> Fields | None:
    """The fields of a TraceContext for what is asked now; None if there is no trace."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        span = api.get_current_span().get_span_context()
        if span.is_valid:
            fields = {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"}
            if span.trace_state:
                fields["tracestate"] = span.trace_state.to_header()
            return fields
    traceparent, tracestate = _current.get()
    return {"traceparent": traceparent, "tracestate": tracestate} if traceparent else None


def trace_context(trace: task_pb2.TraceContext | None) -> contextvars.Context | None:
    """A context for a handler, inside the caller's trace; None if there is none."""
    if trace is None or not trace.traceparent:
        return None
    context = contextvars.copy_context()
    context.run(_enter, trace.traceparent, trace.tracestate)
    return context


def _enter(traceparent: str, tracestate: str) -> None:
    _current.set((traceparent, tracestate))
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return
    parts = traceparent.split("-")
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return
    state = api.TraceState.from_header([tracestate]) if tracestate else None
    span = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags), trace_state=state)
    if span.is_valid:
        sys.modules["opentelemetry.context"].attach(api.set_span_in_context(api.NonRecordingSpan(span)))
