"""How metrics leave the process: scraped as Prometheus text, or pushed by OTLP. Both read the same families.

Histograms are kept in buckets already, so they are handed to the OTLP exporter as data points. (OpenTelemetry has no
observable histogram, and its own one would cost several µs for each task on the hot path.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from reach.telemetry.logs import RepeatedLogger
from reach.telemetry.metrics import Family, Histogram, Metrics
from reach.telemetry.tracing import resource_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as sdk
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_log: Final = RepeatedLogger(logging.getLogger(__name__))


def prometheus_text(metrics: Metrics) -> bytes:
    """All metrics in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return generate_latest(registry)


class _Collector:
    """What prometheus_client calls a custom collector: it makes metrics when it is asked."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        """Nothing is told before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        for family in self._metrics.families():
            yield _prometheus(family)


def _prometheus(family: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if family.kind == "histogram":
        histograms = HistogramMetricFamily(family.name, family.text, labels=family.labels)
        for labels, value in family.samples:
            assert isinstance(value, Histogram)
            reached, buckets = 0, []
            for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
                reached += count
                buckets.append((bound, float(reached)))
            histograms.add_metric(labels, buckets, value.total)
        return histograms
    numbers: CounterMetricFamily | GaugeMetricFamily
    if family.kind == "counter":
        numbers = CounterMetricFamily(family.name.removesuffix("_total"), family.text, labels=family.labels)
    else:
        numbers = GaugeMetricFamily(family.name, family.text, labels=family.labels)
    for labels, value in family.samples:
        assert not isinstance(value, Histogram)
        numbers.add_metric(labels, value)
    return numbers


class OtlpMetrics:
    """Pushes all metrics to a collector, every `every_s` and once at the end."""

    def __init__(self, metrics: Metrics, endpoint: str, *, node_id: str, version: str, every_s: float = 15.0) -> None:
        """Imports the exporter, about 0.2 s, so it is built only when an endpoint is configured."""
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        self._metrics = metrics
        self._every_s = every_s
        self._began_ns = time.time_ns()
        self._resource = resource_of(node_id, version)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=5)

    async def run(self) -> None:
        """Pushes until it is cancelled; the owner runs it as a task. What a push could not send, the next one sends."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.push()

    async def push(self) -> bool:
        """Sends what is counted now; whether it arrived. Values are read here, on the loop; only the sending is not."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._data()
        result = await asyncio.to_thread(self._exporter.export, data)
        if result is not MetricExportResult.SUCCESS:
            _log.warning("push", "metrics could not be sent to the collector")
        return result is MetricExportResult.SUCCESS

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Pushes once more, and gives up after the timeout."""
        pushing = asyncio.ensure_future(self.push())
        await asyncio.wait({pushing}, timeout=timeout_s)
        self._exporter.shutdown()
        await pushing

    def _data(self) -> sdk.MetricsData:
        from opentelemetry.sdk.metrics import export as sdk
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = time.time_ns()
        metrics = [_otlp(family, self._began_ns, now_ns) for family in self._metrics.families() if family.samples]
        scope = sdk.ScopeMetrics(InstrumentationScope("reach"), metrics, "")
        return sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")])


def _otlp(family: Family, began_ns: int, now_ns: int) -> sdk.Metric:
    from opentelemetry.sdk.metrics import export as sdk

    numbers, histograms = [], []
    for labels, value in family.samples:
        attributes = dict(zip(family.labels, labels, strict=True))
        if isinstance(value, Histogram):
            counts = list(value.counts)  # a copy: the loop goes on counting while this is sent
            # The extremes are optional in the protocol and not kept here.
            unknown = cast("float", None)
            histograms.append(
                sdk.HistogramDataPoint(
                    attributes, began_ns, now_ns, sum(counts), value.total, counts, value.bounds, unknown, unknown
                )
            )
        else:
            numbers.append(sdk.NumberDataPoint(attributes, began_ns, now_ns, value))
    data: sdk.Histogram | sdk.Sum | sdk.Gauge
    if family.kind == "histogram":
        data = sdk.Histogram(histograms, sdk.AggregationTemporality.CUMULATIVE)
    elif family.kind == "counter":
        data = sdk.Sum(numbers, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = sdk.Gauge(numbers)
    return sdk.Metric(family.name, family.text, _unit(family.name), data)


def _unit(name: str) -> str:
    words = name.removesuffix("_total").split("_")
    return {"seconds": "s", "bytes": "By"}.get(words[-1], "1")
