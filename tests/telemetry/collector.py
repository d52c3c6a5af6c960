"""An OpenTelemetry collector that keeps what it gets: real OTLP over gRPC, for tests here and end to end."""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def plain(attributes: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes as a dict of plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in attributes}


class Collector:
    """Listens on a free port of loopback while it is entered.

    Attributes:
        endpoint: What to configure as `telemetry.otlp_endpoint`.
        spans: All spans, in the order of their arrival.
        metrics: The last state of each metric, by name.
        resources: Attributes of whoever sent something.
        raw: Every request as bytes, to look for what must not be there.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}
        self.resources: list[dict[str, object]] = []
        self.raw: list[bytes] = []
        self._changed = asyncio.Event()
        self._server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)

    async def __aenter__(self) -> Self:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    def took(self, request: "trace_service_pb2.ExportTraceServiceRequest") -> None:
        for sender in request.resource_spans:
            self.resources.append(plain(sender.resource.attributes))
            self.spans += [span for scope in sender.scope_spans for span in scope.spans]
        self._took(request.SerializeToString())

    def measured(self, request: "metrics_service_pb2.ExportMetricsServiceRequest") -> None:
        for sender in request.resource_metrics:
            self.resources.append(plain(sender.resource.attributes))
            for scope in sender.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})
        self._took(request.SerializeToString())

    def _took(self, raw: bytes) -> None:
        self.raw.append(raw)
        self._changed.set()

    async def wait_for(self, condition: Callable[["Collector"], bool], timeout: float = 10.0) -> None:
        """Returns as soon as the condition holds; TimeoutError if it does not in time."""
        async with asyncio.timeout(timeout):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    def trace(self, trace_id: str) -> dict[str, list[Span]]:
        """The spans of one trace by the id of their parent; "" is the root's."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.trace_id.hex() == trace_id:
                found.setdefault(span.parent_span_id.hex(), []).append(span)
        return found


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def Export(self, request, context):
        self.collector.took(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def Export(self, request, context):
        self.collector.measured(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()
