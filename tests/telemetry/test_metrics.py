"""Counters, and how they are scraped and pushed."""

import asyncio
import gc
import re
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from reach.errors import Reason
from reach.telemetry.exposition import OtlpMetrics, prometheus_text
from reach.telemetry.metrics import HEALTH, LABEL_CAP, Histogram, Metrics, Sources, resident_bytes
from tests.telemetry.collector import Collector, plain


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """All series: (name, values of the labels, in the order of the labels' names) to number."""
    text = prometheus_text(metrics).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_obs_2_what_happened_is_scraped_under_its_documented_name():
    metrics = Metrics(
        Sources(
            queue_length=lambda: 7,
            inflight=lambda: 3,
            agents=lambda: {"HEALTHY": 2, "SUSPECT": 1},
            buffer_bytes=lambda: 1234,
            sessions=lambda: {"known": 9, "skew": 1.5},
            streams=lambda: {"control": 1, "streams": 5},
        )
    )
    metrics.delivered("succeeded")
    metrics.delivered("succeeded")
    metrics.delivered("dead_lettered")
    metrics.retried(Reason.INSTANCE_LOST)
    metrics.dead_lettered(Reason.OUTCOME_UNKNOWN)
    metrics.refused(Reason.QUEUE_FULL)
    metrics.transferred(1)
    metrics.mismatched()
    metrics.beat("stream")
    metrics.gapped()
    metrics.finished("summarization", 80.0)
    metrics.finished("summarization", 3000.0)
    metrics.committed(12, 2.0)
    metrics.called("DispatchService/Dispatch", "OK")
    metrics.lagged(4.0)
    series = scraped(metrics)
    expected = {
        ("agentreach_router_delivery_total", ("succeeded",)): 2,
        ("agentreach_router_delivery_total", ("dead_lettered",)): 1,
        ("agentreach_router_delivery_total", ("failed",)): 0,
        ("agentreach_router_retry_total", ("INSTANCE_LOST",)): 1,
        ("agentreach_router_dead_letter_total", ("OUTCOME_UNKNOWN",)): 1,
        ("agentreach_router_refusal_total", ("QUEUE_FULL",)): 1,
        ("agentreach_router_transfer_total", ()): 1,
        ("agentreach_router_queue_length", ()): 7,
        ("agentreach_router_inflight", ()): 3,
        ("agent_route_mismatch_total", ()): 1,
        ("agentreach_agents", ("HEALTHY",)): 2,
        ("agentreach_agents", ("OFFLINE",)): 0,
        ("agentreach_heartbeat_total", ("stream",)): 1,
        ("agentreach_streams_open", ("streams",)): 5,
        ("agentreach_stream_gap_total", ()): 1,
        ("agentreach_buffer_bytes", ()): 1234,
        ("agentreach_sessions", ()): 9,
        ("agentreach_session_skew_ratio", ()): 1.5,
        ("agentreach_session_evicted_total", ()): 0,
        ("agentreach_store_commit_total", ()): 1,
        ("agentreach_store_row_total", ()): 12,
        ("agentreach_store_commit_duration_seconds_bucket", ("0.0025",)): 1,
        ("agentreach_store_commit_duration_seconds_bucket", ("0.001",)): 0,
        ("agentreach_store_commit_duration_seconds_sum", ()): 0.002,
        ("agentreach_rpc_total", ("OK", "DispatchService/Dispatch")): 1,
        ("agentreach_task_duration_seconds_count", ("summarization",)): 2,
        ("agentreach_task_duration_seconds_bucket", ("summarization", "0.1")): 1,
        ("agentreach_task_duration_seconds_bucket", ("summarization", "+Inf")): 2,
        ("agentreach_loop_lag_seconds_count", ()): 1,
    }
    assert {key: series.get(key) for key in expected} == expected
    assert series["agentreach_process_resident_bytes", ()] > 10_000_000
    assert ("agentreach_gc_collection_total", ("2",)) in series


def test_g7_random_ids_do_not_grow_the_number_of_series():
    metrics = Metrics(Sources(agents=lambda: {f"x{i}": 1 for i in range(100)}))
    for _ in range(60):
        metrics.finished(str(uuid.uuid4()), 1)
        metrics.called(str(uuid.uuid4()), "OK")
    before = None
    for _ in range(10_000):
        name = str(uuid.uuid4())
        metrics.finished(name, 1)
        metrics.delivered(name)
        metrics.beat(name)
        metrics.called(name, name)
        before = before if before is not None else scraped(metrics).keys()
    for reason in Reason:
        metrics.retried(reason)
        metrics.dead_lettered(reason)
        metrics.refused(reason)
    series = scraped(metrics)
    rpc = [labels for name, labels in series if name == "agentreach_rpc_total"]
    assert len(rpc) <= 2 * LABEL_CAP + 2
    assert len(metrics.durations.values) == LABEL_CAP + 1
    assert metrics.durations.values["other"].counts[0] == 10_060 - LABEL_CAP
    assert series["agentreach_router_delivery_total", ("other",)] == 10_000
    assert {labels for name, labels in series if name == "agentreach_agents"} == {(state,) for state in HEALTH}
    assert len(series) <= 2000


@pytest.mark.parametrize("label", ["", "\ud800", 'a"b\\c\nd', "x" * 10_000, "\x00", "ü"])
def test_odd_labels_do_not_break_a_scrape(label):
    metrics = Metrics()
    metrics.finished(label, 1)
    metrics.finished(label, 1)
    counts = [
        value for (name, _), value in scraped(metrics).items() if name == "agentreach_task_duration_seconds_count"
    ]
    assert counts == [2]


def test_every_line_of_a_scrape_is_a_sample_or_its_description():
    text = prometheus_text(Metrics()).decode()
    for line in text.splitlines():
        assert re.fullmatch(r'# (?:HELP|TYPE) \w+ .+|\w+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? [0-9.e+-]+', line), line


@given(st.lists(st.floats(0, 40), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values, share):
    bounds = (0.5, 1.0, 2.0, 5.0, 10.0, 50.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    true = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    upper = min(bound for bound in bounds if bound >= true)
    lower = max((bound for bound in (0.0, *bounds) if bound < upper), default=0.0)
    assert lower <= histogram.quantile(share) <= upper + 1e-9
    assert sum(histogram.counts) == len(values)


def test_quantiles_at_the_edges():
    histogram = Histogram((1.0, 2.0))
    assert histogram.quantile(0.5) == 0.0
    histogram.observe(100.0)
    assert histogram.quantile(0.5) == 2.0


async def test_the_lag_of_the_loop_is_measured():
    metrics = Metrics()
    task = asyncio.ensure_future(metrics.watch_loop(0.01))
    await asyncio.sleep(0)
    time.sleep(0.06)  # noqa: ASYNC251 - the fault to be seen
    async with asyncio.timeout(5):
        while not sum(metrics.lag.counts):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)
    task.cancel()
    assert metrics.lag.total >= 0.03


def test_pauses_of_the_garbage_collector_are_added_up():
    metrics = Metrics()
    stop = metrics.watch_gc()
    gc.collect()
    stop()
    paused = scraped(metrics)["agentreach_gc_pause_seconds_total", ()]
    assert paused > 0
    gc.collect()
    assert scraped(metrics)["agentreach_gc_pause_seconds_total", ()] == paused


def test_memory_is_told_where_there_is_no_proc(monkeypatch):
    def missing(*_):
        raise FileNotFoundError

    real = resident_bytes()
    monkeypatch.setattr("builtins.open", missing)
    assert real / 2 < resident_bytes() < real * 10


async def test_the_same_metrics_are_pushed_by_otlp():
    metrics = Metrics(Sources(queue_length=lambda: 7))
    metrics.delivered("succeeded")
    metrics.finished("summarization", 80.0)
    metrics.retried(Reason.INSTANCE_LOST)
    async with Collector() as collector:
        pusher = OtlpMetrics(metrics, collector.endpoint, node_id="n1", version="1", every_s=0.01)
        task = asyncio.ensure_future(pusher.run())
        await collector.wait_for(lambda got: "agentreach_router_delivery_total" in got.metrics)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        metrics.finished("summarization", 90.0)
        await pusher.stop()
        await collector.wait_for(
            lambda got: got.metrics["agentreach_task_duration_seconds"].histogram.data_points[0].count == 2
        )
        got = collector.metrics
        deliveries = got["agentreach_router_delivery_total"].sum
        assert deliveries.is_monotonic
        assert deliveries.aggregation_temporality == 2, "cumulative"
        counts = {str(plain(point.attributes)["outcome"]): point.as_int for point in deliveries.data_points}
        assert {key: count for key, count in counts.items() if count} == {"succeeded": 1}
        assert got["agentreach_router_queue_length"].gauge.data_points[0].as_int == 7
        (duration,) = got["agentreach_task_duration_seconds"].histogram.data_points
        assert plain(duration.attributes) == {"capability": "summarization"}
        assert (round(duration.sum, 6), duration.bucket_counts[3], duration.HasField("max")) == (0.17, 2, False)
        assert got["agentreach_task_duration_seconds"].unit == "s"
        assert collector.resources[-1]["service.instance.id"] == "n1"
        scrape = {
            name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name, _ in scraped(metrics)
        }
        assert set(got) <= scrape


async def test_a_collector_that_is_away_is_told_once_and_delays_the_stop_little(caplog):
    pusher = OtlpMetrics(Metrics(), "http://127.0.0.1:9", node_id="n1", version="1")
    began = time.monotonic()
    await pusher.stop(0.2)
    assert time.monotonic() - began < 2
    ours = [record for record in caplog.records if record.name == "reach.telemetry.exposition"]
    assert len(ours) == 1
